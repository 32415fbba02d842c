"""What ranks tell each other on virtual GPUs: objects, lengths and counts that decide sizes.

    ranks.py BATCHFIT [--python PYTHON] [--ranks 2]

Once with all ranks (torchrun), once as rank 0 alone, for which every rank holds what it holds, and once with all ranks on one card, which NCCL
refuses. Ends with 1 where something else arrives.
"""
import argparse
import os
import subprocess
import sys
import tempfile


def ranks():
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0 if "--one-card" in sys.argv else rank)
    dist.init_process_group("nccl")
    alone = os.environ.get("BATCHFIT_VGPU_ALONE") == "1"
    others = [0 if alone else r for r in range(world)]  # what stands for each rank
    wrong = []

    def check(what, found, expected):
        if found != expected:
            wrong.append(what)
            print(f"rank {rank}, {what}: {str(found)[:200]}, not {str(expected)[:200]}", flush=True)

    def gathered(value, group=None):
        dist.all_gather_object(out := [None] * world, value, group=group)
        return out

    numbers = lambda *values: torch.tensor(values, device="cuda")
    box = [{"size": 37, "text": "a" * 500}] if rank == 0 else [None]
    dist.broadcast_object_list(box)
    check("broadcast_object_list", box, [{"size": 37, "text": "a" * 500}])
    for size in (5, 5000, 300_000):
        check(f"all_gather_object of {size}", gathered(list(range(size * (rank + 1)))), [list(range(size * (r + 1))) for r in others])
    check("all_gather_object over gloo", gathered(rank, dist.new_group(backend="gloo")), others)
    dist.gather_object(("x", rank), out := [None] * world if rank == 0 else None)
    check("gather_object", out, [("x", r) for r in others] if rank == 0 else None)
    dist.scatter_object_list(out := [None], [f"for {r}" for r in range(world)] if rank == 0 else None)
    check("scatter_object_list", out, [f"for {rank}"])
    dist.broadcast(size := numbers(123 if rank == 0 else 0), 0)
    check("broadcast", size.item(), 123)
    for operation, expected in ((dist.ReduceOp.SUM, sum(10 + r for r in others)), (dist.ReduceOp.MAX, 10 + max(others)), (dist.ReduceOp.MIN, 10)):
        dist.all_reduce(count := numbers(10 + rank), op=operation)
        check(f"all_reduce {operation}", count.item(), expected)
    dist.reduce_scatter_tensor(out := numbers(0, 0), torch.arange(2 * world, device="cuda") * (rank + 1))
    check("reduce_scatter_tensor", out.tolist(), [(2 * rank + i) * sum(r + 1 for r in others) for i in range(2)])
    dist.all_to_all_single(counts := numbers(*[0] * world), numbers(*[(rank + 1) * (r + 1) for r in range(world)]))
    check("all_to_all_single", counts.tolist(), [(r + 1) * (rank + 1) for r in others])
    if not alone:
        dist.all_to_all_single(out := numbers(*[0] * int(counts.sum())), numbers(*[rank] * sum((rank + 1) * (r + 1) for r in range(world))), counts.tolist(), [(rank + 1) * (r + 1) for r in range(world)])
        check("uneven all_to_all_single", out.tolist(), [r for r in range(world) for _ in range((r + 1) * (rank + 1))])
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, numbers(rank), (rank + 1) % world), dist.P2POp(dist.irecv, got := numbers(-1), (rank - 1) % world)]):
            work.wait()
        check("a ring", got.item(), (rank - 1) % world)
        pairs = torch.distributed.init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("a", "b"))["b"].get_group()
        dist.all_gather_object(out := [None] * 2, rank, group=pairs)
        check("a group of a mesh", out, [rank // 2 * 2, rank // 2 * 2 + 1])
    dist.barrier()
    dist.destroy_process_group()
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit", type=os.path.abspath)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    script, failed = os.path.abspath(__file__), 0
    launched = ["-m", "torch.distributed.run", "--nproc-per-node", str(options.ranks)]
    for name, start, more in (("all ranks", launched, []), ("rank 0 alone", [], []), ("all ranks on one card", launched, ["--one-card"])):
        command = [options.batchfit, "run", "--on", "h100-80g", "--gpus", str(options.ranks), "--timeout", "300", "--", options.python, *start, script]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([*command, "--rank", *more], cwd=folder, env={**os.environ, "XDG_DATA_HOME": folder}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        is_wrong = "Duplicate GPU detected" not in done.stderr if more else done.returncode != 0
        failed += is_wrong
        print(f"{'WRONG' if is_wrong else 'ok'}: {name}" + (f"\n{done.stderr[-3000:]}" if is_wrong else ""), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(ranks() if "--rank" in sys.argv else main())
