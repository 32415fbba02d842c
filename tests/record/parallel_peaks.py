"""What PyTorch's allocator held in steps that two GPUs trained together, and the largest batches under limits.

    python tests/record/parallel_peaks.py RECORDED.json tests/golden/parallel/peaks.json

RECORDED.json holds runs on two H200s, each probe a job of fresh processes: for each case its settings, `peaks` at some batches with what every rank
allocated and reserved in each of three steps, and `max_batch`, found by bisection under a limit (`hard`: it finished; `no_retry`: without a retry of
the allocator). Here only what tests compare is kept, of models that `tests/golden/exported` has.
"""

from __future__ import annotations

import json
import sys

MODELS = ("resnet50", "gpt2", "llama")
KEPT = ("model", "precision", "optimizer", "parallel", "world")
PEAKS = ("step_peak_allocated", "step_peak_reserved")


def main() -> int:
    source, out = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        recorded = json.load(file)
    cases = {}
    for name, case in recorded["cases"].items():
        if case["model"] not in MODELS:
            continue
        peaks = [
            {"batch": one["batch"], "ranks": [{key: rank[key] for key in PEAKS} for rank in one["ranks"]]}
            for one in case["peaks"]
            if one["ok"]
        ]
        largest = [{key: one[key] for key in ("limit_gib", "hard", "no_retry")} for one in case["max_batch"] or [] if one["hard"]]
        cases[name] = {**{key: case[key] for key in KEPT}, "peaks": peaks, "max_batch": largest}
    meta = {"torch": "2.11.0+cu130", "gpu": "NVIDIA H200", "made_by": "tests/record/parallel_peaks.py"}
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"meta": meta, "cases": cases}, file, indent=1)
        file.write("\n")
    print(f"{len(cases)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
