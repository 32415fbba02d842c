"""Models whose Python code asks for values, and what the exporter makes of it."""

import importlib.util
import random
import unittest
from random import random as random_by_name

import torch
import torch.nn.functional as F

import batchfit
from batchfit.export.batches import parse_batch


def targets(exported):
    return [node["target"].removeprefix("torch.ops.aten.") for node in exported.document["graph_module"]["graph"]["nodes"]]


def mean(model, *tensors):
    return model(*tensors).mean()


class Padded(torch.nn.Module):
    """Masks by lengths, as speech models do."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, lengths):
        longest = int(lengths.max().item())
        mask = torch.arange(longest, device=x.device)[None] < lengths[:, None]
        return self.linear(x[:, :longest]) * mask[..., None]


class Classifier(torch.nn.Module):
    """Reads the last states of an LSTM."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True)

    def forward(self, x):
        _, (states, _) = self.lstm(x)
        return states


class TestStates(unittest.TestCase):
    def test_the_last_states_of_an_lstm_have_three_dimensions(self):
        exported = batchfit.export(Classifier(), {"x": torch.zeros(2, 7, 3)}, mean)
        graph = exported.document["graph_module"]["graph"]
        [lstm] = [node for node in graph["nodes"] if node["target"] == "torch.ops.aten.lstm.input"]
        states = lstm["outputs"][1]["as_tensor"]["name"]
        sizes = graph["tensor_values"][states]["sizes"]
        self.assertEqual([sizes[0]["as_int"], sizes[2]["as_int"], len(sizes)], [2, 4, 3])


class TestValues(unittest.TestCase):
    batch = {"x": torch.zeros(2, 7, 3), "lengths": torch.zeros(2, dtype=torch.int64)}

    def test_lengths_are_named_where_they_are_asked_for(self):
        with self.assertRaises(batchfit.ExportError) as refused:
            batchfit.export(Padded(), self.batch, mean)
        lines = str(refused.exception).splitlines()
        self.assertIn("asks for the value of a tensor", lines[0])
        self.assertIn("test_values.py", lines[1])
        self.assertIn("longest = int(lengths.max().item())", lines[1])
        self.assertIn("Padded", lines[2])
        self.assertIn("lengths=i64[B]=100", lines[-1])

    def test_lengths_can_be_given(self):
        exported = batchfit.export(Padded(), self.batch, mean, values={"lengths": 7})
        self.assertNotIn("item.default", targets(exported))

    def test_values_of_what_the_batch_has_not_are_refused(self):
        with self.assertRaisesRegex(batchfit.ExportError, "values are given for length,"):
            batchfit.export(Padded(), self.batch, mean, values={"length": 7})

    def test_a_batch_says_values_and_where_it_is(self):
        batch = parse_batch(["x=f32[5,B]", "edges=i64[2,4*B]", "lengths=i64[B]=100", "scale=f32[]=0.5"])
        self.assertEqual(batch.values, {"lengths": 100, "scale": 0.5})
        self.assertEqual(batch.shape("x", 9), [5, 9])
        self.assertEqual(batch.shape("edges", 9), [2, 36])
        with self.assertRaisesRegex(batchfit.ExportError, "cannot read the value 'many'"):
            parse_batch(["lengths=i64[B]=many"])

    def test_a_check_that_raises_finds_nothing_wrong(self):
        class Checked(torch.nn.Module):
            def forward(self, ids):
                if ids is not None and ids.max() >= 10:
                    raise ValueError("out of the vocabulary")
                if not (ids >= 0).all():
                    raise ValueError("negative")
                assert (ids < 10).all(), "out of the vocabulary"
                return torch.sin(ids * 1.0)

        exported = batchfit.export(Checked(), torch.zeros(2, 3, dtype=torch.int64), mean)
        self.assertIn("sin.default", targets(exported))

    def test_a_branch_that_does_something_is_not_decided(self):
        class Branches(torch.nn.Module):
            def forward(self, x):
                if x.max() > 3:
                    x = torch.cos(x)
                return x

        with self.assertRaisesRegex(batchfit.ExportError, "which only data can tell"):
            batchfit.export(Branches(), torch.zeros(2, 3), mean)

    def test_random_depth_skips_nothing(self):
        class Deep(torch.nn.Module):
            def forward(self, x):
                if torch.rand(1) > 0.1:
                    x = torch.sin(x)
                if random.random() > 0.1:
                    x = torch.cos(x)
                if (torch.zeros(3).uniform_(0, 1) < 0.1)[0]:
                    x = torch.tan(x)
                return x

        found = targets(batchfit.export(Deep(), torch.zeros(2, 3), mean))
        self.assertEqual([name for name in found if name in ("sin.default", "cos.default", "tan.default")], ["sin.default", "cos.default"])
        self.assertLess(random.random(), 1.0)

    def test_random_depth_by_a_name_of_the_models_own_skips_nothing(self):
        class Deep(torch.nn.Module):
            def forward(self, x):
                for _ in range(20):
                    if random_by_name() > 0.5:
                        x = torch.cos(x)
                return x

        found = targets(batchfit.export(Deep(), torch.zeros(2, 3), mean))
        self.assertEqual(found.count("cos.default"), 20)
        self.assertLess(random_by_name(), 1.0)

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")
    def test_random_depth_by_numpy_skips_nothing(self):
        import numpy

        class Deep(torch.nn.Module):
            def forward(self, x):
                for _ in range(20):
                    if numpy.random.uniform(0, 1) > 0.5 and numpy.random.rand() > 0.5:
                        x = torch.cos(x)
                return x + float(numpy.random.rand(3).sum())

        found = targets(batchfit.export(Deep(), torch.zeros(2, 3), mean))
        self.assertEqual(found.count("cos.default"), 20)

    def test_small_constants_and_buffers_are_known(self):
        class Counts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("stride", torch.tensor(2))

            def forward(self, x):
                if self.stride > 1:
                    x = x.sum(dim=torch.arange(1, 2).tolist())
                return x

        for model in (Counts(), Counts):
            built = model if isinstance(model, torch.nn.Module) else model()
            self.assertIn("sum.dim_IntList", targets(batchfit.export(built, torch.zeros(2, 3), mean)))

    def test_experts_are_all_hit(self):
        class Experts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linears = torch.nn.ModuleDict({f"expert_{i}": torch.nn.Linear(3, 3) for i in range(4)})
                self.gate = torch.nn.Linear(3, 4)

            def forward(self, x):
                chosen = F.one_hot(self.gate(x).argmax(-1), 4).T
                out = torch.zeros_like(x)
                for index in (chosen.sum(-1) > 0).nonzero():
                    rows = torch.where(chosen[index[0]])[0]
                    out.index_add_(0, rows, self.linears[f"expert_{index[0]}"](x[rows]))
                return out

        found = targets(batchfit.export(Experts(), torch.zeros(2, 3), mean))
        self.assertEqual(found.count("linear.default"), 5)

    def test_sizes_that_data_decide_fit_together(self):
        def loss(model, x, y):
            out = model(x)
            return F.cross_entropy(out[y != 0], y[y != 0])

        batch = {"x": torch.zeros(2, 5, 3), "y": torch.zeros(2, 5, dtype=torch.int64)}
        self.assertIn("cross_entropy_loss.default", targets(batchfit.export(torch.nn.Linear(3, 4), batch, loss)))

    def test_sequence_losses_take_lengths_in_tensors(self):
        def loss(model, x, y, lengths, target_lengths):
            return F.ctc_loss(model(x).log_softmax(-1), y, lengths, target_lengths)

        batch = parse_batch(["x=f32[20,B,3]", "y=i64[B,5]", "lengths=i64[B]", "target_lengths=i64[B]"])
        self.assertIn("ctc_loss.Tensor", targets(batchfit.export(torch.nn.Linear(3, 4), batch, loss)))

    def test_packed_sequences_are_refused(self):
        class Packs(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = torch.nn.LSTM(3, 4, batch_first=True)

            def forward(self, x, lengths):
                packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
                return self.lstm(packed)[1][0]

        with self.assertRaisesRegex(batchfit.ExportError, "packs sequences.*\n  at test_values.py:.*pack_padded"):
            batchfit.export(Packs(), self.batch, mean)

    def test_autocast_switched_off_is_noted(self):
        class Careful(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(3, 3)

            def forward(self, x):
                with torch.autocast(x.device.type, enabled=False):
                    x = self.linear(x)
                return self.linear(x)

        table = batchfit.export(Careful(), torch.zeros(2, 3), mean).document["batchfit"]
        self.assertEqual(table["without_autocast"], [[0, 0]])

    def test_autocast_switched_on_is_refused(self):
        class Eager(torch.nn.Module):
            def forward(self, x):
                with torch.autocast(x.device.type, dtype=torch.bfloat16):
                    return x @ x.T

        with self.assertRaisesRegex(batchfit.ExportError, "switches autocast on itself"):
            batchfit.export(Eager(), torch.zeros(2, 3), mean)
