"""A script on a virtual GPU: `batchfit run`, on the PyTorch that is installed here."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch

BATCHFIT = os.environ.get("BATCHFIT_BINARY") or shutil.which("batchfit", path=os.path.dirname(sys.executable)) or shutil.which("batchfit")

TRAIN = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(sys.argv[2])):
    model.train()
    data = torch.randn(int(sys.argv[1]), 1024, device="cuda")
    torch.nn.functional.cross_entropy(model(data), torch.zeros(len(data), dtype=torch.long, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("peak", torch.cuda.max_memory_allocated(), flush=True)
    model.eval()
    with torch.no_grad():
        model(data)
"""

BLOCKS = """
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 16384), torch.nn.Linear(16384, 16384)

    def forward(self, x):
        return self.down(self.up(x)).sum(-1, keepdim=True).expand(-1, 64)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


with torch.device("cuda"):
    model = Net()
model(torch.randn(4096, 64, device="cuda")).sum().backward()
"""

SOLVE = """
import torch

matrix = torch.eye(8, device="cuda") * 2
right = torch.linspace(0, 1, 64, device="cuda").reshape(8, 8)
assert torch.linalg.solve(matrix, right).allclose(right / 2)
values, order = torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.long, device="cuda")
torch.sort(right, descending=True, out=(values, order))
assert order[0].tolist() == list(range(7, -1, -1))
"""


@unittest.skipUnless(BATCHFIT and sys.platform == "linux" and torch.version.cuda, "needs batchfit, Linux, and a PyTorch for CUDA")
class VirtualGpu(unittest.TestCase):
    def run_it(self, *arguments, flags=(), text=TRAIN):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "train.py")
            script.write_text(text)
            command = [BATCHFIT, "run", "--on", "h100", "--json", "--report", f"{folder}/report", *flags, "--", sys.executable, script, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            self.assertTrue(done.stdout, done.stderr)
            self.files = sorted(os.listdir(f"{folder}/report"))
            return done, json.loads(done.stdout)

    def test_steps_are_counted_and_the_script_sees_its_own_peak(self):
        done, answer = self.run_it("512", "9")

        self.assertEqual((done.returncode, answer["verdict"], answer["steps"]), (0, "fits", 3), done.stderr)
        self.assertEqual([phase["name"] for phase in answer["phases"]], ["start", "step 1", "evaluation", "step 2", "evaluation", "step 3"])
        seen = [int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("peak ")]
        self.assertEqual(seen[-1], answer["peak_allocated_bytes"])
        self.assertIn("snapshot.pickle", self.files)

    def test_memory_that_runs_out_names_the_line(self):
        done, answer = self.run_it("4000000", "1", flags=["--memory-limit", "4GiB"])

        self.assertEqual((done.returncode, answer["verdict"]), (3, "out_of_memory"), done.stderr)
        shortage = answer["out_of_memory"]
        self.assertIn("train.py:10", shortage["stack"][0])
        self.assertIsNone(shortage["module"])
        self.assertIn("CUDA out of memory", shortage["message"])
        self.assertIn("memory-summary.txt", self.files)

    def test_memory_that_runs_out_names_the_module(self):
        for limit, module in [("2800MiB", "blocks.1.down"), ("3300MiB", "backward of blocks.1.down")]:
            _, answer = self.run_it(flags=["--memory-limit", limit], text=BLOCKS)

            self.assertEqual(answer["out_of_memory"]["module"], module, answer["out_of_memory"])

    def test_results_that_are_arguments_are_computed(self):
        done, answer = self.run_it(text=SOLVE)

        self.assertEqual((done.returncode, answer["verdict"]), (0, "fits"), done.stderr)


if __name__ == "__main__":
    unittest.main()
