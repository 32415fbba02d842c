"""Tests of the package itself: what importing it brings, and how the binary is found."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import batchfit
from batchfit import binary

# Prints which of the modules that take long to import, or need PyTorch, a statement has imported.
HEAVY = """
import sys
{statement}
print([name for name in sys.modules if name.split(".")[0] in ("torch", "numpy", "sympy") or name.startswith("batchfit.export.")])
"""


def imported_by(statement):
    command = [sys.executable, "-c", HEAVY.format(statement=statement)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class ImportTest(unittest.TestCase):
    def test_importing_the_package_imports_neither_torch_nor_the_exporter(self):
        self.assertEqual(imported_by("import batchfit; dir(batchfit); batchfit.binary; batchfit.export"), "[]")

    def test_an_error_of_the_exporter_needs_no_torch(self):
        self.assertEqual(imported_by("from batchfit import ExportError"), "['batchfit.export.errors']")

    def test_the_exporter_is_a_function_whatever_was_imported_before(self):
        for statement in ["import batchfit.export.errors", "from batchfit import export", "import batchfit"]:
            with self.subTest(statement):
                self.assertEqual(imported_by(f"{statement}\nimport batchfit\nassert callable(batchfit.export)")[0], "[")

    def test_all_that_is_public_is_there(self):
        for name in batchfit.__all__:
            self.assertIn(name, dir(batchfit))
            self.assertTrue(callable(getattr(batchfit, name)), name)
        with self.assertRaisesRegex(AttributeError, "no attribute 'tnue'"):
            batchfit.tnue


class BinaryTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        # Neither this Python's own folders nor the machine's path.
        for patch in [
            mock.patch.dict(os.environ, {"PATH": directory.name}),
            mock.patch.object(binary.sysconfig, "get_path", lambda *_: str(self.folder / "scripts")),
        ]:
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop("BATCHFIT_BINARY", None)
        (self.folder / "scripts").mkdir()

    def make(self, path, first=b"\x7fELF"):
        path.write_bytes(first)
        path.chmod(0o755)
        return path

    def test_the_one_beside_this_python_goes_before_the_path(self):
        on_the_path = self.make(self.folder / "batchfit")
        self.assertEqual(binary.find(), on_the_path)

        installed = self.make(self.folder / "scripts/batchfit")
        self.assertEqual(binary.find(), installed)

    def test_the_script_of_earlier_releases_is_not_taken_for_it(self):
        self.make(self.folder / "scripts/batchfit", b"#!/usr/bin/python3")
        self.make(self.folder / "batchfit").chmod(0o644)

        with self.assertRaisesRegex(FileNotFoundError, "pip install ./clients/python"):
            binary.find()

    def test_the_one_that_is_named_goes_before_all(self):
        self.make(self.folder / "scripts/batchfit")
        os.environ["BATCHFIT_BINARY"] = str(self.make(self.folder / "mine"))
        self.assertEqual(binary.find(), self.folder / "mine")

        os.environ["BATCHFIT_BINARY"] = str(self.folder / "nothing")
        with self.assertRaisesRegex(FileNotFoundError, "BATCHFIT_BINARY names .*/nothing"):
            binary.find()


if __name__ == "__main__":
    unittest.main()
