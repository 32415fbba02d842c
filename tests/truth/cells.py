"""Largest batches under limits, found by bisection in PyTorch on an H200, beside what `batchfit fit` says.

    python3 tests/truth/cells.py target/release/batchfit

`cells.json` is what PyTorch took; requests and graphs are those of tests/golden (`truth` and `exported`). A cell is a case under one
limit, with PyTorch's default allocator or with expandable segments. Fails where a recommendation is above the largest batch that finished.
"""
import json, os, subprocess, sys, tempfile

golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")


def fit(binary, case, limit, allocator, folder):
    with open(f"{golden}/truth/requests/{case}.json") as f:
        request = json.load(f)
    request["memory_limit"] = f"{limit}GiB"
    if allocator:
        request["allocator"] = allocator
    path, graph = os.path.join(folder, "request.json"), []
    with open(path, "w") as f:
        json.dump(request, f)
    if "model" not in request:
        words = case.split("-")
        names = [*(f"{words[0]}-{word}" for word in words[1:]), words[0]]
        found = [name for name in names if os.path.exists(f"{golden}/exported/{name}.json.gz")]
        graph = ["--model", f"{golden}/exported/{found[0]}.json.gz"]
    command = [binary, "fit", path, "--json", *graph]
    answer = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, XDG_DATA_HOME=folder))
    if answer.returncode:
        sys.exit(f"{case}: {answer.stdout}{answer.stderr}")
    answer = json.loads(answer.stdout)
    answer = answer.get("result", answer)
    return answer.get("recommendation", answer)


def main(binary):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cells.json")) as f:
        cells = json.load(f)["cells"]
    equal = near = largest = above = 0
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells:
            said = fit(binary, cell["case"], cell["limit_gib"], cell.get("allocator"), folder)
            calm, took = said["max_batch_without_retries"], cell["max_batch_without_retries"]
            equal += calm == took
            near += abs(calm - took) <= max(1, 0.01 * took)
            largest += abs(said["max_batch"] - cell["max_batch"]) <= 0.03 * cell["max_batch"]
            above += said["micro_batch"] > cell["max_batch"]
            if calm != took:
                print(f"{cell['case']} in {cell['limit_gib']} GiB {cell.get('allocator', '')}: {calm}, PyTorch {took}", flush=True)
    print(f"{len(cells)} cells: without retries equal in {equal}, within 1 % or one sample in {near}; the largest within 3 % in {largest}; "
          f"recommended above what finished: {above}")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
