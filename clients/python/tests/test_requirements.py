"""Tests of what is said where PyTorch is missing or too old, and of `python -m batchfit`."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from batchfit import ExportError
from batchfit.export import requirements

import batchfit


class WithoutTorchTest(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.object(requirements, "find_spec", lambda _: None)
        patch.start()
        self.addCleanup(patch.stop)

    def test_the_extra_is_named(self):
        for attempt in [requirements.check_torch, lambda: batchfit.export(None, None, "mse")]:
            with self.assertRaisesRegex(ExportError, r"which .*python.* does not have; .*`pip install torch`"):
                attempt()


class VersionsTest(unittest.TestCase):
    def test_a_version_that_is_too_old_is_named(self):
        for old in ["1.13.1", "2.4.1+cu121", "2.8.0"]:
            with self.subTest(old), mock.patch.object(requirements, "version", lambda _, old=old: old):
                with self.assertRaisesRegex(ExportError, f"needs PyTorch 2.9 or newer, and .* has {old.replace('+', '.')};"):
                    requirements.check_torch()

    def test_newer_ones_are_taken(self):
        for new in ["2.9.0", "2.10.0+cu128", "2.11.0+cu130", "2.11", "2.12.0a0+git1234", "2.100.0rc1", "3.0.1"]:
            with self.subTest(new), mock.patch.object(requirements, "version", lambda _, new=new: new):
                requirements.check_torch()


class CommandTest(unittest.TestCase):
    """The commands as processes, in an interpreter without site-packages: without PyTorch."""

    def run_python(self, *arguments, **environment):
        command = [sys.executable, "-S", *arguments]
        # The package alone: where it is installed, PyTorch lies beside it.
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "batchfit").symlink_to(Path(batchfit.__file__).parent)
            environment = {**os.environ, "PYTHONPATH": folder, **environment}
            return subprocess.run(command, capture_output=True, text=True, env=environment)

    def test_without_torch_export_ends_with_2_and_names_the_extra(self):
        said = self.run_python("-m", "batchfit.export", "m:b", "--batch", "x=f32[B]", "--loss", "mse", "-o", "x.json")

        self.assertEqual((said.returncode, said.stdout), (2, ""))
        self.assertIn("pip install torch", said.stderr)
        self.assertNotIn("Traceback", said.stderr)

    def test_without_torch_tuning_names_the_extra(self):
        for name in ["tune", "record_oom", "hf"]:
            with self.subTest(name):
                said = self.run_python("-c", f"import batchfit; batchfit.{name}")

                self.assertEqual(said.returncode, 1)
                advice = f"batchfit.{name} needs torch, which is not installed; install it by `pip install torch`"
                self.assertIn(advice, said.stderr)

    def test_help_needs_no_torch(self):
        said = self.run_python("-m", "batchfit.export", "--help")

        self.assertEqual((said.returncode, said.stderr), (0, ""))
        for part in ["usage: batchfit export", "--loss", "--max-batch", "example:"]:
            self.assertIn(part, said.stdout)

    def test_the_module_is_the_binary_which_is_told_of_this_python(self):
        with tempfile.TemporaryDirectory() as folder:
            # No script, or it would be taken for that of an earlier release.
            binary = Path(folder, "batchfit")
            binary.symlink_to("/usr/bin/env")

            said = self.run_python("-m", "batchfit", "-u", "HOME", "sh", "-c", 'echo "$BATCHFIT_PYTHON"; exit 5', BATCHFIT_BINARY=str(binary))

        self.assertEqual((said.returncode, said.stdout), (5, f"{sys.executable}\n"), said.stderr)

    def test_without_the_binary_the_module_says_so(self):
        said = self.run_python("-m", "batchfit", "fit", BATCHFIT_BINARY="/no/such/batchfit")

        self.assertEqual(said.returncode, 2)
        self.assertIn("batchfit: BATCHFIT_BINARY names /no/such/batchfit, which is no program that can be run", said.stderr)


if __name__ == "__main__":
    unittest.main()
