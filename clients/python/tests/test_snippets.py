"""What `batchfit fit --format` prints trains: each snippet is run on the processor, with a small model in the place of the reader's.

They need PyTorch and the binary; a format whose library is not installed is left out."""

import contextlib
import importlib.util
import os
import subprocess
import unittest
from collections import OrderedDict
from unittest import mock

import torch
from torch import nn

import batchfit.binary


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x))


def model():
    layers = nn.Sequential(Block(), Block())
    return nn.Sequential(OrderedDict(layer1=layers, head=nn.Linear(8, 8)))


def loss_of(model, batch):
    return model(batch.to(next(model.parameters()).dtype)).float().square().mean()


def snippet(form, question):
    command = [str(batchfit.binary.find()), "fit", *question.split(), "--format", form]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


QUESTION = "resnet18 --on t4 --image-size 64 --target 1024 --clip-grad-norm 0.5"


class SnippetTest(unittest.TestCase):
    def run_snippet(self, form, question, **more):
        text = snippet(form, question)
        dataset = [torch.randn(8) for _ in range(64)]
        names = {"model": model(), "dataset": dataset, "loss_of": loss_of, **more}
        # A processor takes a few samples at a time.
        text = text.replace(f"batch_size={text.split('batch_size=')[1].split(',')[0].split(')')[0].strip()}", "batch_size=4")
        on_processor = contextlib.ExitStack()
        on_processor.enter_context(mock.patch.object(nn.Module, "cuda", lambda self: self))
        on_processor.enter_context(mock.patch.object(torch.cuda, "set_device", lambda index: None))
        if form == "python":
            alone = torch.distributed.HashStore()
            begin = torch.distributed.init_process_group
            gloo = lambda kind: begin("gloo", store=alone, rank=0, world_size=1)  # noqa: E731
            on_processor.enter_context(mock.patch.object(torch.distributed, "init_process_group", gloo))
            on_processor.enter_context(mock.patch.dict(os.environ, {"LOCAL_RANK": "0"}))
        with on_processor:
            try:
                exec(compile(text, form, "exec"), names)
            finally:
                if torch.distributed.is_initialized():
                    torch.distributed.destroy_process_group()
        return names

    def test_plain_pytorch_trains_by_every_strategy(self):
        for more in ["", " --amp bf16", " --checkpoint per_block", " --checkpoint modules:layer1.*", " --on 2xt4", " --on 2xt4 --parallel zero1",
                     " --on 2xt4 --parallel fsdp2", " --on 2xt4 --parallel fsdp2 --checkpoint per_block --reshard false",
                     " --optimizer adafactor", " --optimizer sgd_momentum --optimizer-impl fused"]:
            with self.subTest(more):
                question = QUESTION if "--on" not in more else QUESTION.replace(" --on t4", "")
                names = self.run_snippet("python", question + more)
                # That of ZeRO-1 is in the optimizer of this rank.
                optimizer = getattr(names["optimizer"], "optim", names["optimizer"])
                self.assertGreater(len(optimizer.state), 0)

    def test_accelerate_trains(self):
        if importlib.util.find_spec("accelerate") is None:
            self.skipTest("accelerate is not installed")
        names = self.run_snippet("accelerate", QUESTION + " --checkpoint per_block")
        self.assertGreater(len(names["optimizer"].state), 0)

    def test_trainers_take_their_arguments(self):
        for form, library in [("hf", "transformers"), ("lightning", "lightning")]:
            if importlib.util.find_spec(library) is None:
                continue
            with self.subTest(form):
                text = snippet(form, QUESTION)
                if form == "lightning":
                    text = text.replace('accelerator="gpu"', 'accelerator="cpu"')
                names = {"model": model(), "dataset": []}
                exec(compile(text, form, "exec"), names)
                made = names["training_arguments" if form == "hf" else "trainer"]
                steps = made.gradient_accumulation_steps if form == "hf" else made.accumulate_grad_batches
                self.assertGreaterEqual(steps, 1)


if __name__ == "__main__":
    unittest.main()
