"""Largest batches under limits, found by bisection in PyTorch on an H200, beside what `batchfit fit` says.

    python3 tests/truth/cells.py target/release/batchfit
    python3 tests/truth/cells.py target/release/batchfit --gpu        # on a GPU: is what differs an edge in PyTorch, too? four minutes

`cells.json` is what PyTorch took; requests and graphs are those of tests/golden (`truth` and `exported`). A cell is a case under one
limit, with PyTorch's default allocator or with expandable segments. Fails where a recommendation is above the largest batch that finished.
Where a larger batch takes less than a smaller one, several batches run without retries while one more sample does not: `other_edge` of
a cell is one that `--gpu` found.
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


def train(case, limit, batch):
    """Retries of three steps in PyTorch; `null` where memory ran out."""
    sys.path.insert(0, os.path.join(golden, "..", "gpu"))
    import cases, torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((int(limit) << 30) / total)
    with open(f"{golden}/truth/requests/{case}.json") as f:
        trainer = cases.Trainer(case, json.load(f)["training"])
    try:
        for _ in range(3):
            trainer.step(int(batch))
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return print("null")
    print(torch.cuda.memory_stats()["num_alloc_retries"])


def retries(cell, batch):
    words = [sys.executable, __file__, "--train", cell["case"], str(cell["limit_gib"]), str(batch)]
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=cell.get("allocator", ""))
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()[-1])


def main(binary, on_gpu):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cells.json")) as f:
        cells = json.load(f)["cells"]
    equal = near = largest = above = 0
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells:
            said = fit(binary, cell["case"], cell["limit_gib"], cell.get("allocator"), folder)
            calm, took = said["max_batch_without_retries"], cell["max_batch_without_retries"]
            edges = [took, cell.get("other_edge", took)]
            equal += calm in edges
            near += min(abs(calm - edge) for edge in edges) <= max(1, 0.01 * took)
            largest += abs(said["max_batch"] - cell["max_batch"]) <= 0.03 * cell["max_batch"]
            above += said["micro_batch"] > cell["max_batch"]
            if calm != took:
                about = f"{cell['case']} in {cell['limit_gib']} GiB {cell.get('allocator', '')}: {calm}, PyTorch {took}"
                if on_gpu and "seq128" not in cell["case"]:  # which `tests/gpu/cases.py` does not train
                    about += f"; retries with {calm}: {retries(cell, calm)}, with {calm + 1}: {retries(cell, calm + 1)}"
                print(about, flush=True)
    print(f"{len(cells)} cells: without retries equal in {equal}, within 1 % or one sample in {near}; the largest within 3 % in {largest}; "
          f"recommended above what finished: {above}")
    return 1 if above else 0


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1], "--gpu" in sys.argv[2:]))
