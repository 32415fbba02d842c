"""Runs the scripts of examples/ on a GPU, with the binary. Without a GPU they are left out, and say so."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class ExamplesTest(unittest.TestCase):
    def output(self, name):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "XDG_DATA_HOME": folder}
            command = [sys.executable, str(EXAMPLES / name)]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        return done.stdout + done.stderr

    def test_a_loop_of_ones_own(self):
        self.assertRegex(self.output("training_loop.py"), r"micro-batch \d+, \d+ accumulation step")

    def test_huggingface(self):
        self.assertRegex(self.output("huggingface.py"), r"batchfit: per_device_train_batch_size 8 -> \d+")

    def test_lightning(self):
        self.assertEqual(self.output("lightning_trainer.py").count("batchfit: batch_size 32 -> "), 2)

    def test_accelerate(self):
        self.assertRegex(self.output("accelerate_loop.py"), r"batchfit: the loader's batch_size 16 -> \d+")

    def test_out_of_memory(self):
        self.assertRegex(self.output("out_of_memory.py"), r"batchfit: out of memory on .*\n  asked for")


if __name__ == "__main__":
    unittest.main()
