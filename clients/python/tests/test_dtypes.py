"""Conversions know whose dtype they ask for, and are traced where they do nothing in float32, as are copies to row by row."""

import sys
import types
import unittest
from unittest import mock

import torch
from torch import nn

from batchfit.export.batches import parse_batch
from batchfit.export.building import build
from batchfit.export.exporting import export_built


class Conversions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    @staticmethod
    def as_dtype(x, dtype):
        if x.dtype == dtype:
            return x
        return x.to(dtype)

    def forward(self, x):
        hidden = self.first(x)
        kept, other = hidden.dtype, x.dtype
        of_weight = self.as_dtype(hidden, self.first.weight.dtype)
        of_hidden = self.norm(of_weight).to(kept)
        if of_hidden.dtype != hidden.dtype:
            of_hidden = of_hidden.to(hidden.dtype)
        of_batch = of_hidden.to(dtype=other)
        of_tensor = of_batch.to(of_weight)
        return of_tensor.to(torch.float32).float()


class TwoInOneLine(nn.Module):
    """Converts to the dtype of an activation and to that of the batch, in one line."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.first(x)
        kept, other = hidden.dtype, x.dtype
        wide = hidden * 2
        return wide.to(kept) + wide.exp().to(other)


class Other(nn.Module):
    """Compares dtypes to decide about something else, and converts to what no line tells."""

    def forward(self, x):
        dtypes = {"mine": x.dtype}
        if x.dtype == torch.float32:
            x = x + 1
        else:
            x = x - 1
        return x.to(dtypes["mine"])


class Contiguous(nn.Module):
    def forward(self, x):
        return (x * 2).contiguous().exp()


def exported(model):
    return export_built(model, parse_batch(["x=f32[B,8]", "y=f32[B,8]"]), "mse").document


def conversions(document):
    """The operators that convert, with the operator that made the value whose dtype is asked for."""
    nodes = [node["target"].split(".")[-2] for node in document["graph_module"]["graph"]["nodes"]]
    makers = [name for name, node in zip(nodes, document["graph_module"]["graph"]["nodes"]) for _ in node["outputs"]]
    found = document["batchfit"]["dtypes_of"]
    return [(nodes[operator], *(makers[value] for value in values)) for operator, *values in found]


class ConversionsTest(unittest.TestCase):
    def test_each_conversion_is_led_back_to_a_value_or_a_parameter(self):
        found = conversions(exported(Conversions))
        self.assertEqual(found, [("to",), ("to", "linear"), ("to", "linear"), ("to",), ("to", "to")])

    @unittest.skipIf(sys.version_info < (3, 11), "Python says which call runs from 3.11 on")
    def test_conversions_in_one_line_are_told_apart(self):
        self.assertEqual(conversions(exported(TwoInOneLine)), [("to", "linear"), ("to",)])

    def test_what_is_not_known_is_not_noted(self):
        document = exported(Other)
        self.assertEqual(conversions(document), [])
        targets = [node["target"] for node in document["graph_module"]["graph"]["nodes"]]
        self.assertIn("torch.ops.aten.add.Tensor", targets)

    def test_a_copy_of_what_lies_row_by_row_is_traced(self):
        targets = [node["target"] for node in exported(Contiguous)["graph_module"]["graph"]["nodes"]]
        self.assertEqual(targets[:3], [f"torch.ops.aten.{name}" for name in ("mul.Tensor", "contiguous.default", "exp.default")])

    def test_tensors_have_their_own_dtype_again(self):
        exported(Conversions)
        self.assertNotIn("dtype", vars(torch.Tensor))
        self.assertEqual(torch.ones(1).to(torch.float64).dtype, torch.float64)


class BaseTunerLayer(nn.Module):
    """As PEFT's layers are: an adapter gets its base layer's dtype, but not on the meta device."""

    adapter_layer_names, other_param_names = ("lora_A",), ()

    def __init__(self):
        super().__init__()
        self.base, self.lora_A = nn.Linear(8, 8, dtype=torch.bfloat16), nn.ModuleDict({"default": nn.Linear(8, 2)})
        self._move_adapter_to_device_of_base_layer("default")

    def get_base_layer(self):
        return self.base

    def _move_adapter_to_device_of_base_layer(self, adapter):
        if not self.base.weight.is_meta:
            self.lora_A[adapter].to(dtype=self.base.weight.dtype)


class Adapters(unittest.TestCase):
    def test_an_adapter_has_the_dtype_that_it_has_off_the_meta_device(self):
        tuners = types.SimpleNamespace(BaseTunerLayer=BaseTunerLayer)
        with mock.patch.dict(sys.modules, {"peft.tuners.tuners_utils": tuners}):
            made, trained = build(BaseTunerLayer).model, BaseTunerLayer()

        self.assertEqual([p.dtype for p in made.parameters()], [p.dtype for p in trained.parameters()])
        self.assertTrue(all(p.is_meta for p in made.parameters()))


if __name__ == "__main__":
    unittest.main()
