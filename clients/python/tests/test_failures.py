"""What the exporter says where a model cannot be exported."""

import contextlib
import io
import unittest

import torch

import batchfit
from batchfit.export.building import build


def mean(model, *tensors):
    return model(*tensors).mean()


class Threshold(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) if x.shape[0] < 64 else torch.cos(x)


class TestFailures(unittest.TestCase):
    def refused(self, model, batch, **options):
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
            with self.assertRaises(batchfit.ExportError) as refused:
                batchfit.export(model, batch, mean, **options)
        self.assertEqual(said.getvalue(), "")
        lines = str(refused.exception).splitlines()
        self.assertLessEqual(len(lines), 15)
        return lines

    def test_a_wrong_channel_count_says_where(self):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Sequential(torch.nn.Conv2d(5, 4, 3)))
        lines = self.refused(model, torch.zeros(2, 3, 8, 8))
        self.assertIn("RuntimeError", lines[0])
        self.assertIn("5", lines[0])
        self.assertNotRegex(lines[0], r"\bs\d+\b")
        self.assertIn("module `1.0` (Conv2d)", lines[2])

    def test_a_largest_batch_is_named_and_can_be_given(self):
        lines = self.refused(Threshold(), torch.zeros(2, 3))
        self.assertIn("above 63", lines[0])
        self.assertIn("if x.shape[0] < 64", lines[1])
        self.assertIn("--max-batch 63", lines[2])
        exported = batchfit.export(Threshold(), torch.zeros(2, 3), mean, max_batch=63)
        self.assertEqual({r["max_val"] for r in exported.document["range_constraints"].values()}, {63})

    def test_a_batch_that_becomes_a_number_says_where(self):
        class Looks(torch.nn.Module):
            def forward(self, x):
                return x * [None, None, None, None, 2.0][x.shape[0]]

        lines = self.refused(Looks(), torch.zeros(2, 3))
        self.assertIn("batch of 4 only", lines[0])
        self.assertIn("2.0][x.shape[0]]", lines[1])

    def test_whole_quotients_of_the_batch_stay_symbolic(self):
        class Windows(torch.nn.Module):
            def forward(self, x):
                windows = x.reshape(-1, 2, 3)
                size = int(windows.shape[0] / (8 / 2 / 2))
                return windows.view(size, 12) if isinstance(size, (int, torch.SymInt)) else None

        exported = batchfit.export(Windows(), torch.zeros(2, 4, 3), mean)
        sizes = [tensor["sizes"] for tensor in exported.document["graph_module"]["graph"]["tensor_values"].values()]
        self.assertTrue(any("as_expr" in size[0] for size in sizes if len(size) == 2))
        self.assertNotIn("int", globals())

    def test_the_length_of_a_tensor_stays_symbolic(self):
        class Lengths(torch.nn.Module):
            def forward(self, x):
                return x + torch.arange(3.0, device=x.device).expand(len(x), 3)

        exported = batchfit.export(Lengths(), torch.zeros(2, 3), mean)
        self.assertIn("as_expr", exported.document["graph_module"]["graph"]["tensor_values"]["expand"]["sizes"][0])

    def test_what_cannot_be_built_says_where(self):
        def broken():
            return torch.nn.Linear(3, "four")

        with self.assertRaises(batchfit.ExportError) as refused:
            build(broken)
        lines = str(refused.exception).splitlines()
        self.assertIn("could not be built: TypeError", lines[0])
        self.assertIn('torch.nn.Linear(3, "four")', lines[1])

    def test_an_export_is_one_line(self):
        exported = batchfit.export(torch.nn.Linear(3, 4), torch.zeros(2, 3), mean)
        self.assertEqual(repr(exported), "<batchfit.Exported: 2 operators, 2 parameters, 1 inputs>")

    def test_progress_counts_operators(self):
        counts = []
        batchfit.export(torch.nn.Linear(3, 4), torch.zeros(2, 3), mean, progress=counts.append)
        self.assertEqual(counts, [1, 2])
