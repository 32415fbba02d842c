"""Drives real PyTorch kernels through batchfit's allocator, and compares what it does with PyTorch's own allocator.

    cargo build --release --manifest-path tests/twin/Cargo.toml
    python tests/twin/compare.py tests/twin/target/release/libbatchfit_twin.so [--out FOLDER] [--small] [PROGRAM ...]

Each program runs twice, in processes of its own: with PyTorch's allocator, which records its history, and with batchfit's, which
PyTorch calls as a `torch.cuda.memory.CUDAPluggableAllocator`. Compared are every event (action, size, stream, and where: the
segment by the order in which it came, and the distance from its start), `torch.cuda.memory_stats()` (peaks, retries, segments)
and which steps ran out of memory. Ends with 1 at the first difference.

What PyTorch's pluggable allocator does not do is not compared: private pools (CUDA graphs, `torch.cuda.MemPool`) and expandable
segments. Events of other streams are asked as a whole, so programs with several streams wait for them before memory returns.
In which order PyTorch frees what it frees at once is
its own and may hang on a hash table (autocast's cache of weights): frees without an allocation between them are compared as a set.
Where equal blocks lie in different segments, both take the one at the lower address, so the two processes must get
segments in the same order of addresses from the driver; a run in which they do not is said, and ends with 3.

Needs PyTorch 2.11 and a GPU. `--small` is for a GPU that is not there (a stub that computes nothing): without cuDNN.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# How long one process may take.
PATIENCE_S = 240
# Actions of PyTorch's history that its allocator does not do.
NOT_EVENTS = ("snapshot", "user_defined")
# What a limit leaves of the card's memory, in bytes: the program below needs more.
LIMIT = 1 << 30
LIMIT_SMALL = 192 << 20


def convolutions(torch, small):
    """A residual network in float32 with SGD, at batches that differ."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.norm = nn.BatchNorm2d(after)
            self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(after)
            self.short = nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x):
            y = torch.relu(self.norm(self.first(x)))
            return torch.relu(self.norm2(self.second(y)) + self.short(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 64, 7, 2, 3)
            self.blocks = nn.Sequential(*(Block(*sizes) for sizes in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]))
            self.head = nn.Linear(512, 1000)

        def forward(self, x):
            return self.head(self.blocks(torch.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)).mean((2, 3)))

    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    side = 64 if small else 224
    for batch in [4, 3, 8, 5] if small else [32, 24, 64, 40, 64, 7]:
        x = torch.randn(batch, 3, side, side, device="cuda")
        y = torch.randint(1000, (batch,), device="cuda")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield "fits"


def _transformer(torch, small):
    nn = torch.nn
    width, layers, words = (128, 2, 1024) if small else (1024, 8, 32000)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.dropout(nn.functional.gelu(self.up(self.norms[1](x))), 0.1))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.layers = nn.Sequential(*(Layer() for _ in range(layers)))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids):
            return self.norm(self.layers(self.embed(ids))) @ self.embed.weight.T

    return Net().cuda(), words


def _amp_step(torch, model, optimizer, scaler, ids):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        logits = model(ids)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def transformer(torch, small):
    """A language model under autocast to float16 with AdamW and a gradient scaler, at lengths that differ; the cache is emptied once."""
    model, words = _transformer(torch, small)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(init_scale=1.0)
    for step, length in enumerate([64, 48, 96, 80] if small else [512, 384, 768, 512, 640, 100]):
        _amp_step(torch, model, optimizer, scaler, torch.randint(words, (4, length), device="cuda"))
        if step == 2:
            torch.cuda.empty_cache()
        yield "fits"


def limit(torch, small):
    """The same under a limit, with batches that only fit after retries and some that do not fit at all."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((LIMIT_SMALL if small else 6 * LIMIT) / total)
    model, words = _transformer(torch, small)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(init_scale=1.0)
    lengths = [64, 104, 80, 124, 96] if small else [192, 480, 256, 384, 288]
    tokens, refused = (1800, 0) if small else (2500, 0)
    for step in range(40):
        # Upwards until it does not fit, and again from a little below: near the limit the cache is in the way of some steps.
        length = lengths[step % len(lengths)]
        ids = torch.randint(words, (int(tokens) // length, length), device="cuda")
        tokens *= 1.05
        try:
            _amp_step(torch, model, optimizer, scaler, ids)
            yield "fits"
        except torch.OutOfMemoryError:
            # The scaler has seen half a step.
            scaler = torch.amp.GradScaler(init_scale=1.0)
            tokens *= 0.88
            refused += 1
            yield "out of memory"
        if refused == 3:
            break


def streams(torch, small):
    """Tensors that a second stream makes and the first uses, and the other way round."""
    other = torch.cuda.Stream()
    for step in range(6):
        size = (step + 1) * 300_000
        with torch.cuda.stream(other):
            made = torch.ones(size, device="cuda")
            doubled = made * 2
        torch.cuda.current_stream().wait_stream(other)
        doubled.record_stream(torch.cuda.current_stream())
        used = doubled.sum() + torch.ones(size // 2, device="cuda").sum()
        del made, doubled
        torch.cuda.synchronize()
        again = torch.ones(size, device="cuda") + used
        again.record_stream(other)
        del again, used
        torch.cuda.synchronize()
        yield "fits"


PROGRAMS = {program.__name__: program for program in (convolutions, transformer, limit, streams)}


def run(options):
    """One program with one allocator, in this process."""
    import torch

    if options.small:
        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)
    out = Path(options.out)
    twin = options.child == "twin" and Twin(torch, options.library)
    if not twin:
        torch.cuda.memory._record_memory_history(max_entries=5_000_000, context=None)
    torch.manual_seed(0)
    outcomes = list(PROGRAMS[options.programs[0]](torch, options.small))
    torch.cuda.synchronize()
    if twin:
        stats = twin.stats()
    else:
        stats = torch.cuda.memory_stats()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        with open(out / "native.events", "w") as file:
            for entry in trace:
                if entry["action"] not in NOT_EVENTS:
                    address = "-" if entry["action"] == "oom" else f"{entry['addr']:x}"
                    print(entry["action"], address, entry["size"], f"{entry['stream']:x}", file=file)
    (out / f"{options.child}.json").write_text(json.dumps({"stats": stats, "outcomes": outcomes}))


class Twin:
    """batchfit's allocator, as PyTorch's."""

    def __init__(self, torch, library):
        own = torch.cuda.memory.CUDAPluggableAllocator(library, "batchfit_twin_malloc", "batchfit_twin_free")
        self.library = ctypes.CDLL(library)
        allocator = own.allocator()
        for what, name in [("reset", "empty_cache"), ("record_stream", "record_stream"), ("memory_fraction", "memory_fraction")]:
            function = getattr(self.library, f"batchfit_twin_{name}")
            getattr(allocator, f"set_{what}_fn")(ctypes.cast(function, ctypes.c_void_p).value)
        torch.cuda.memory.change_current_allocator(own)

    def stats(self):
        buffer = ctypes.create_string_buffer(1 << 16)
        self.library.batchfit_twin_stats.restype = ctypes.c_size_t
        length = self.library.batchfit_twin_stats(buffer, ctypes.c_size_t(len(buffer)))
        assert length < len(buffer)
        return json.loads(buffer.raw[:length])


def relative(path):
    """The events of a file with addresses that do not depend on the process, and the segments' addresses in their order."""
    segments, starts, streams, events = {}, [], {"0": 0}, []
    for line in path.read_text().splitlines():
        action, address, size, stream = line.split(" ")
        stream = streams.setdefault(stream, len(streams))
        if address == "-":
            events.append((action, "-", int(size), stream))
            continue
        at = int(address, 16)
        if action == "segment_alloc":
            segments[at] = (len(starts), int(size))
            starts.append(at)
        start = max((start for start in segments if start <= at), default=None)
        if start is None or at >= start + segments[start][1]:
            raise SystemExit(f"{path}: {line}: no segment holds this address")
        events.append((action, f"{segments[start][0]}+{at - start}", int(size), stream))
        if action == "segment_free":
            del segments[at]
    return events, starts


FREES = ("free_requested", "free_completed")
# Statistics that count what neighbours of a freed block are then, and so depend on the order of frees.
OF_ORDER = "inactive_split"


def in_order(events):
    """The events with each run of frees in one order, whatever order it had."""
    ordered, run = [], []
    for event in events:
        if event[0] in FREES:
            run.append(event)
            continue
        ordered += sorted(run)
        run = []
        ordered.append(event)
    return ordered + sorted(run)


def shown(event):
    return "nothing" if event is None else "{} of {} bytes at {} on stream {}".format(event[0], event[2], event[1], event[3])


def compare(program, folder):
    """Prints how one program compares; gives the exit status."""
    (native, native_starts), (twin, twin_starts) = (relative(folder / f"{kind}.events") for kind in ("native", "twin"))
    same_order = native == twin
    native, twin = in_order(native), in_order(twin)
    said = {kind: json.loads((folder / f"{kind}.json").read_text()) for kind in ("native", "twin")}
    stats = said["native"]["stats"]
    counts = {action: sum(event[0] == action for event in native) for action in ("alloc", "segment_alloc", "segment_free", "oom")}
    print(
        f"{program:13} {len(native):6} events, {counts['alloc']} allocations, {counts['segment_alloc']} segments taken and "
        f"{counts['segment_free']} given back, {stats['num_alloc_retries']} retries, {counts['oom']} out of memory, "
        f"peak {stats['allocated_bytes.all.peak'] / 2**20:.1f} of {stats['reserved_bytes.all.peak'] / 2**20:.1f} MiB reserved"
    )
    if counts["alloc"] < 50:
        print("  too little happened for a comparison")
        return 1
    length = max(len(native), len(twin))
    for number, (one, other) in enumerate(zip(native + [None] * (length - len(native)), twin + [None] * (length - len(twin)))):
        if one != other:
            print(f"  event {number} differs: PyTorch's {shown(one)}; batchfit's {shown(other)}")
            for before in native[max(0, number - 5) : number]:
                print(f"    before it: {shown(before)}")
            common = min(len(native_starts), len(twin_starts))
            order = [sorted(range(common), key=starts.__getitem__) for starts in (native_starts, twin_starts)]
            if order[0] != order[1]:
                print("  the driver gave the two processes segments in another order of addresses: this run says nothing")
                return 3
            return 1
    known = {kind: {**said[kind]["stats"], "outcomes": said[kind]["outcomes"]} for kind in said}
    shared = sorted(set(known["native"]) & set(known["twin"]))
    if not same_order:
        shared = [name for name in shared if not name.startswith(OF_ORDER)]
    if len(shared) < 50:
        print(f"  only {len(shared)} statistics have the same name")
        return 1
    different = [name for name in shared if known["native"][name] != known["twin"][name]]
    for name in different:
        print(f"  {name} differs: PyTorch's {known['native'][name]}; batchfit's {known['twin'][name]}")
    if different:
        return 1
    where = "at the very same addresses" if native_starts == twin_starts else "relative to segments that lie elsewhere"
    order = "" if same_order else "; PyTorch's hash tables were cleared in another order"
    print(f"  all events are equal, {where}, as are {len(shared)} statistics{order}")
    return 0


def run_both(program, options, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("native", "twin"):
        command = [sys.executable, __file__, options.library, program, "--child", kind, "--out", str(folder)]
        environment = {**os.environ, "BATCHFIT_TWIN_EVENTS": str(folder / "twin.events")}
        done = subprocess.run(command + ["--small"] * options.small, env=environment, timeout=PATIENCE_S)
        if done.returncode:
            print(f"{program:13} the process with {kind} allocator ended with {done.returncode}")
            return 1
    return compare(program, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--out", help="keep events and statistics here")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", choices=["native", "twin"], help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.child:
        return run(options)
    unknown = [program for program in options.programs if program not in PROGRAMS]
    if unknown:
        parser.error(f"there is no program {unknown[0]}")
    with tempfile.TemporaryDirectory() as temporary:
        statuses = [
            run_both(program, options, Path(options.out or temporary, program)) for program in options.programs or PROGRAMS
        ]
    return next((status for status in statuses if status == 1), max(statuses))


if __name__ == "__main__":
    sys.exit(main())
