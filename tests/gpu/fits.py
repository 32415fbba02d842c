#!/usr/bin/env python3
"""Fits on a real GPU beside what PyTorch did there.

Runs `batchfit fit --device cuda:0` for recorded cases and checks each answer: it was probed, its largest batch
without retries is within 10 % of PyTorch's, real probes ran at the answer and above it, and every probe that
finished launched kernels and saw a finite loss that changes from step to step. Prints a table; exits 1 when a
check fails.

Usage: tests/gpu/fits.py BATCHFIT [--device cuda:0]    (on a machine with an NVIDIA GPU; truth is an H200's)
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

CASES = [
    ("cifarnet-fp32-sgd", "4GiB"),
    ("cifarnet-ampfp16-sgd", "4GiB"),
    ("mlp-fp32-adam", "8GiB"),
    ("resnet18-fp32-sgd", "8GiB"),
    ("resnet50-fp32-sgd", "12GiB"),
    ("resnet50-fp32-sgd-ckpt", "12GiB"),
    ("resnet50-ampfp16-sgd", "24GiB"),
]
TOLERANCE = 0.10
TRUTH = pathlib.Path(__file__).resolve().parent.parent / "golden" / "truth"


def check(result, true):
    """What is wrong with an answer, as a list of sentences."""
    best = result["recommendation"]
    answer = best["max_batch_without_retries"]
    real = [p for p in result["probes"] if p["evidence"] == "probed"]
    wrong = []
    if best["evidence"] != "probed":
        wrong.append(f"evidence is {best['evidence']}")
    if abs(answer / true - 1) > TOLERANCE:
        wrong.append(f"{answer} is not within 10 % of {true}")
    if not any(p["batch"] == answer for p in real):
        wrong.append(f"no real probe at {answer}")
    if not any(p["batch"] > answer for p in real):
        wrong.append(f"no real probe above {answer}")
    for p in real:
        steps = p["steps"]
        if p["verdict"] in ("fits", "fits_with_retries"):
            losses = [loss for step in steps for loss in step["losses"]]
            if len(steps) != 3 or not all(step["launches"] > 0 for step in steps):
                wrong.append(f"batch {p['batch']}: steps {len(steps)}")
            if not all(loss is not None for loss in losses) or len(set(losses)) < 2:
                wrong.append(f"batch {p['batch']}: losses {losses}")
        elif p["verdict"] == "failed":
            wrong.append(f"batch {p['batch']} failed: {p['cause']}")
    return wrong, real


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("batchfit")
    arguments.add_argument("--device", default="cuda:0")
    arguments = arguments.parse_args()
    cells = {(c["case"], f"{c['limit_gib']}GiB"): c for c in json.loads((TRUTH / "truth.json").read_text())["cells"]}
    failed = 0
    for case, limit in CASES:
        true = cells[case, limit]["max_batch_without_retries"]
        command = [arguments.batchfit, "fit", str(TRUTH / "requests" / f"{case}.json"), "--json",
                   "--device", arguments.device, "--memory-limit", limit]
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.time() - began
        if done.returncode != 0:
            print(f"{case}: exit {done.returncode}: {done.stderr.strip()}")
            failed += 1
            continue
        result = json.loads(done.stdout)["result"]
        best = result["recommendation"]
        wrong, real = check(result, true)
        failed += bool(wrong)
        answer = best["max_batch_without_retries"]
        print(f"{case} at {limit}: {answer} (PyTorch {true}, {100 * (answer / true - 1):+.2f} %), micro-batch "
              f"{best['micro_batch']}, {best['evidence']}, {len(real)} real probes, {seconds:.1f} s"
              f"{'' if not wrong else '  WRONG: ' + '; '.join(wrong)}")
        for p in real:
            steps = p["steps"]
            launches = "/".join(str(step["launches"]) for step in steps)
            losses = " ".join("-" if loss is None else f"{loss:.4f}" for step in steps for loss in step["losses"])
            last = steps[-1]["elapsed_ms"] if steps else None
            print(f"    batch {p['batch']:6} {p['verdict']:18} reserved {p['peak_reserved_bytes']:12} simulated "
                  f"{p['simulated_peak_reserved_bytes']} retries {p['retries']} launches {launches} losses {losses} "
                  f"last step {'-' if last is None else f'{last:.1f} ms'} wall {p['wall_ms'] / 1000:.1f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
