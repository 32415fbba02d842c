"""Peaks of memory, beside those that the script sees. Loaded by hooks.py."""

import torch


class Peaks:
    """PyTorch has one peak for each statistic. It is reset here at the end of each phase, so what the script would have seen is kept and
    put back into what it reads; when the script resets it, what a phase had before is kept."""

    def __init__(self):
        self.stats, self.reset = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats
        self.of_script = {}  # device: statistics whose peaks the script should still see
        self.of_phase = {}  # device: [allocated, reserved] of the phase before the script's own reset
        torch._C._cuda_memoryStats = self.seen_by_script
        torch._C._cuda_resetPeakMemoryStats = self.reset_by_script
        # `torch.accelerator`, the same statistics by another name.
        for name, seen in [("_accelerator_getDeviceStats", self.seen_by_script), ("_accelerator_resetPeakStats", self.reset_by_script)]:
            if hasattr(torch._C, name):
                setattr(torch._C, name, seen)

    def seen_by_script(self, device):
        seen = self.stats(device)
        if device in self.of_script:
            raise_peaks(seen, self.of_script[device])
        return seen

    def reset_by_script(self, device):
        try:
            self.keep(device, self.stats(device))
        except Exception:
            pass  # The script's own call says what is wrong.
        self.of_script.pop(device, None)
        return self.reset(device)

    def keep(self, device, stats):
        kept = self.of_phase.setdefault(device, [0, 0])
        for index, name in enumerate(("allocated_bytes", "reserved_bytes")):
            kept[index] = max(kept[index], stats[name]["all"]["peak"])

    def take(self):
        """The peaks of each device since they were last taken, and what is held now."""
        taken = []
        for device in range(torch.cuda.device_count()):
            stats = self.stats(device)
            self.keep(device, stats)
            peaks = self.of_phase.pop(device)
            if not peaks[1]:
                continue
            if device in self.of_script:
                raise_peaks(stats, self.of_script[device])
            self.of_script[device] = stats
            self.reset(device)
            now = [stats[name]["all"]["current"] for name in ("allocated_bytes", "reserved_bytes")]
            taken.append([device, *peaks, *now, stats["num_alloc_retries"]])
        return taken


def raise_peaks(stats, before):
    for name, value in stats.items():
        if isinstance(value, dict):
            raise_peaks(value, before.get(name, {}))
    if "peak" in stats:
        stats["peak"] = max(stats["peak"], before.get("peak", 0))
