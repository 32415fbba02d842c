"""A script on a virtual GPU: `batchfit run`, on the PyTorch that is installed here."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch

BATCHFIT = os.environ.get("BATCHFIT_BINARY") or shutil.which("batchfit", path=os.path.dirname(sys.executable)) or shutil.which("batchfit")
VALUES = pathlib.Path(__file__).parents[3] / "crates/vgpu/python/values.py"

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

CONVOLUTIONS = """
import torch

# What an H200 took beside the result (PyTorch 2.11, cuDNN 9.19): which gradient, batch, channels in and out, side, kernel, padding,
# whether channels-last, deterministic, with TF32.
for gradient, batch, inputs, outputs, side, kernel, padding, last, deterministic, tf32, recorded in [
    (1, 8, 8, 256, 28, 3, 1, False, False, True, 7090863),
    (None, 1, 24, 32, 14, 7, 3, False, False, False, 7044096),
    (0, 1, 64, 8, 56, 7, 3, False, True, False, 2854912),
    (1, 8, 8, 256, 28, 3, 1, False, False, False, 15197184),
    (1, 4, 24, 64, 28, 3, 0, True, True, False, 15110160),
]:
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = tf32, deterministic
    order = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(batch, inputs, side, side, device="cuda").to(memory_format=order)
    w = torch.empty(outputs, inputs, kernel, kernel, device="cuda").to(memory_format=order)
    arguments = [1, 1], [padding, padding], [1, 1], False, [0, 0], 1
    y = torch.ops.aten.convolution(x, w, None, *arguments)
    result = [x, w][gradient] if gradient is not None else y
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if gradient is None:
        torch.ops.aten.convolution(x, w, None, *arguments)
    else:
        torch.ops.aten.convolution_backward(y, x, w, None, *arguments, [gradient == 0, gradient == 1, False])
    taken = [-(-size // 512) * 512 for size in (4 * result.numel(), recorded)]
    assert torch.cuda.max_memory_allocated() - before == sum(taken), (gradient, recorded, torch.cuda.max_memory_allocated() - before)
"""

LIMITED = """
import torch

x, y = (torch.empty(128, 64, 64, 64, device="cuda") for _ in range(2))
w = torch.empty(64, 64, 3, 3, device="cuda")
before = torch.cuda.memory_allocated()
torch.cuda.set_per_process_memory_fraction((600 << 20) / torch.cuda.get_device_properties(0).total_memory)
torch.ops.aten.convolution_backward(y, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False])
taken = torch.cuda.max_memory_allocated() - before
assert taken == 128 + 154 << 20, taken  # the gradient, and a segment for 153 MiB
"""

CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint

model = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(3):
    states = torch.randn(4, 32, 64, device="cuda", requires_grad=True)
    for block in model:
        states = checkpoint(block, states, use_reentrant=False)
    states.mean().backward()
    optimizer.step()
"""

THREADS = """
import threading
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def train():
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()

threads = [threading.Thread(target=train) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@unittest.skipUnless(BATCHFIT and sys.platform == "linux" and torch.version.cuda, "needs batchfit, Linux, and a PyTorch for CUDA")
class VirtualGpu(unittest.TestCase):
    def run_it(self, *arguments, flags=(), text=TRAIN, on="h100"):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "train.py")
            script.write_text(text)
            command = [BATCHFIT, "run", "--on", on, "--json", "--report", f"{folder}/report", *flags, "--", sys.executable, script, *arguments]
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

    def test_steps_of_threads_are_counted(self):
        _, answer = self.run_it(text=THREADS, flags=["--steps", "0"])

        self.assertEqual((answer["steps"], [note for note in answer["notes"] if "hooks" in note]), (16, []))

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

    def test_a_checkpoint_ends_its_recomputation_while_memory_is_recorded(self):
        # PyTorch 2.11 cannot by itself (pytorch/pytorch#179536): the backward pass ended with a SystemError.
        done, answer = self.run_it(text=CHECKPOINTED)

        self.assertEqual((done.returncode, answer["verdict"], answer["steps"]), (0, "fits", 3), done.stderr)

    def test_results_that_are_arguments_are_computed(self):
        done, answer = self.run_it(text=SOLVE)

        self.assertEqual((done.returncode, answer["verdict"]), (0, "fits"), done.stderr)

    @unittest.skipUnless(torch.backends.cudnn.version() == 91900, "recorded with cuDNN 9.19")
    def test_convolutions_without_tf32_take_what_an_h200_was_recorded_to(self):
        done, answer = self.run_it(text=CONVOLUTIONS, on="h200")

        self.assertEqual((done.returncode, answer["verdict"]), (0, "fits"), done.stderr)

    @unittest.skipUnless(torch.backends.cudnn.version() == 91900, "recorded with cuDNN 9.19")
    def test_a_convolution_whose_workspace_the_scripts_own_limit_refuses_takes_the_first_that_fits(self):
        # As on an H200: all plans before take 256 MiB, which PyTorch refuses without asking the device for memory.
        done, answer = self.run_it(text=LIMITED, on="h200")

        self.assertEqual((done.returncode, answer["verdict"]), (0, "fits"), done.stderr)


class Cache(unittest.TestCase):
    """Objects are code: those are loaded that nobody else can have written."""

    def setUp(self):
        spec = importlib.util.spec_from_file_location("values_of_the_virtual_gpu", VALUES)
        self.values = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.values)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        environment = {"XDG_CACHE_HOME": "/dev/null", "BATCHFIT_VGPU_CACHE": str(self.folder / "cache")}
        for patch in (mock.patch.dict(os.environ, environment), mock.patch.object(tempfile, "tempdir", folder.name)):
            patch.start()
            self.addCleanup(patch.stop)

    def test_a_folder_that_others_may_write_is_passed_over(self):
        cache, private = self.folder / "cache", self.folder / f"batchfit-{os.getuid()}"
        self.assertEqual(self.values.cache(), str(cache))
        cache.chmod(0o777)
        self.assertEqual(self.values.cache(), str(private))
        cache.rmdir()
        cache.symlink_to(private)
        self.assertEqual(self.values.cache(), str(private))
        private.chmod(0o770)
        with self.assertRaisesRegex(self.values.Problem, "others may write"):
            self.values.cache()
        private.rename(self.folder / "elsewhere")
        (self.folder / "elsewhere").chmod(0o700)
        private.symlink_to(self.folder / "elsewhere")
        with self.assertRaisesRegex(self.values.Problem, "symbolic link"):
            self.values.cache()

    def test_an_object_that_others_may_write_is_not_loaded(self):
        written, link = self.folder / "values.so", self.folder / "link.so"
        written.write_bytes(b"")
        link.symlink_to(written)
        with mock.patch("ctypes.CDLL") as load:
            load.return_value.batchfit_values_made_of.return_value = b"this"
            for path, mode, came in [(written, 0o666, False), (written, 0o775, False), (link, 0o700, False), (self.folder / "none.so", 0o700, False)]:
                written.chmod(mode)
                self.assertIsNone(self.values.opened(str(path), "this", came))
            load.assert_not_called()
            for mode, came in [(0o755, False), (0o666, True)]:
                written.chmod(mode)
                self.assertIsNotNone(self.values.opened(str(written), "this", came))


if __name__ == "__main__":
    unittest.main()
