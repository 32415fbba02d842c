"""One of two processes that tune together; `test_tuning` starts both."""

import json
import sys

import torch

import fake_device
from test_tuning import Program


def main(folder, rank):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    program = Program()

    def step(batch):
        if rank == 1 and batch > 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        program(batch)

    import batchfit

    with fake_device.installed():
        plan = batchfit.tune(step, batch=4, state=[program.model, program.optimizer], memory_limit="100MiB")
    print(json.dumps({"micro_batch": plan.micro_batch, "world_size": plan.world_size, "runs": [[run.batch, run.outcome] for run in plan.runs]}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
