"""What is in an exported document, and how requests that cannot be met are refused."""

import contextlib
import functools
import gzip
import io
import json
import os
import re
import tempfile
import unittest
from pathlib import Path

import torch
import torch.utils.checkpoint

import batchfit
from batchfit.export.__main__ import main
from batchfit.export.batches import parse_batch

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(6, 5)
        self.scale = torch.linspace(0, 1, 3)[1].item()

    def forward(self, x):
        return self.body(x) * self.scale

def loss(model, x, y):
    return (model(x) - y).abs().mean()
"""


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids)).flatten(0, 1)


class Checkpoints(torch.nn.Module):
    """Has `run` run its parts."""

    def __init__(self, run):
        super().__init__()
        self.run, self.parts = run, torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        x = x.sin()
        for part in self.parts:
            x = self.run(lambda x, part=part: part(x.exp()), x)
        return x.cos()


class GivesNoLoss(torch.nn.Module):
    def forward(self, x):
        return {"logits": x + 1}


def tensors(exported):
    return exported.document["graph_module"]["graph"]["tensor_values"]


def targets(exported):
    return [node["target"].removeprefix("torch.ops.aten.") for node in exported.document["graph_module"]["graph"]["nodes"]]


class TestExport(unittest.TestCase):
    def test_the_batch_is_symbolic_and_nothing_else(self):
        exported = batchfit.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3), torch.zeros(2, 4)), "mse")

        sizes = tensors(exported)["linear"]["sizes"]
        self.assertIn("as_expr", sizes[0])
        self.assertEqual(sizes[1], {"as_int": 4})

    def test_shared_parameters_are_listed_once_under_their_first_path(self):
        batch = {"ids": torch.zeros(2, 7, dtype=torch.int64), "y": torch.zeros(14, dtype=torch.int64)}
        exported = batchfit.export(Tied(), batch, lambda model, ids, y: model(ids).mean())

        specs = exported.document["graph_module"]["signature"]["input_specs"]
        self.assertEqual([s["parameter"]["parameter_name"] for s in specs if "parameter" in s], ["model.embed.weight"])
        self.assertNotIn("p_model_head_weight", json.dumps(exported.document))

    def test_one_tensor_under_two_names_stays_one(self):
        ids = torch.zeros(2, 7, dtype=torch.int64)
        exported = batchfit.export(Tied(), {"a": ids, "b": ids}, lambda model, a, b: model(a).mean() + b.sum())

        reads = [a["arg"].get("as_tensor", {}).get("name") for n in exported.document["graph_module"]["graph"]["nodes"] for a in n["inputs"]]
        self.assertFalse("a" in reads and "b" in reads)

    def test_nothing_tells_of_the_machine(self):
        exported = batchfit.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3), torch.zeros(2, 4)), "mse")
        text = exported.to_bytes().decode()

        self.assertNotIn("stack_trace", text)
        self.assertNotIn(os.path.dirname(torch.__file__), text)
        self.assertNotIn(str(Path(__file__).parent), text)
        self.assertNotIn(os.path.expanduser("~"), text)

    def test_the_same_model_gives_the_same_bytes(self):
        def once():
            return batchfit.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3), torch.zeros(2, 4)), "mse").to_bytes()

        self.assertEqual(once(), once())

    def test_half_precision_is_that_of_parameters_and_batch(self):
        model = torch.nn.Linear(3, 4)
        exported = batchfit.export(model, (torch.zeros(2, 3), torch.zeros(2, 4)), "mse", dtype=torch.bfloat16)

        self.assertEqual({t["dtype"] for t in tensors(exported).values()}, {13})
        self.assertEqual(model.weight.dtype, torch.float32)

    def test_what_the_code_checkpoints_is_among_the_modules_of_what_it_runs(self):
        for reentrant, name in ((False, "checkpoint"), (True, "CheckpointFunction")):
            run = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=reentrant)
            exported = batchfit.export(Checkpoints(run), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")

            nodes = exported.document["graph_module"]["graph"]["nodes"]
            stacks = [(n["target"].split(".")[-2], n["metadata"]["nn_module_stack"]) for n in nodes]
            marked = [(target, stack.count("torch.utils.checkpoint." + name)) for target, stack in stacks]
            self.assertEqual(marked[:6], [("sin", 0), ("exp", 1), ("linear", 1), ("exp", 1), ("linear", 1), ("cos", 0)])
            calls = [re.findall(r"checkpoint\d+", stack)[:1] for _, stack in stacks[1:5]]
            self.assertEqual(calls, [["checkpoint0"], ["checkpoint0"], ["checkpoint1"], ["checkpoint1"]])
            self.assertEqual(exported.document["batchfit"].get("functions"), None)

    def test_what_autograd_keeps_otherwise_is_refused(self):
        def selective(function, *args):
            contexts = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, [])
            return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts)

        def on_host(function, *args):
            with torch.autograd.graph.save_on_cpu():
                return function(*args)

        for run, said in ((selective, "checkpoints selectively"), (on_host, "save_on_cpu")):
            with self.assertRaises(batchfit.ExportError) as raised:
                batchfit.export(Checkpoints(run), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")
            self.assertIn(said, str(raised.exception))

    def test_what_is_done_to_each_tensor_of_a_list_is_traced_one_by_one(self):
        class Lists(torch.nn.Module):
            def forward(self, x):
                first, second = torch._foreach_mul([x, x + 1], [2.0, 3.0])
                torch._foreach_add_([first], [second], alpha=0.5)
                return first

        exported = batchfit.export(Lists(), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")

        self.assertEqual(targets(exported)[:4], ["add.Tensor", "mul.Tensor", "mul.Tensor", "add_.Tensor"])

    def test_random_numbers_on_the_host_skip_no_layer_and_are_left_out(self):
        class LayerDrop(torch.nn.Module):
            def forward(self, x):
                if self.training and torch.rand([]) < 0.1:
                    return x
                return torch.sin(x)

        exported = batchfit.export(LayerDrop(), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")

        self.assertEqual(targets(exported), ["sin.default", "broadcast_tensors.default", "mse_loss.default"])

    def test_a_mask_that_masks_nothing_is_known_to(self):
        class Masked(torch.nn.Module):
            def forward(self, x):
                mask = torch.ones(x.shape[0], 5, device=x.device).to(torch.bool)
                if mask.sum() == mask.numel():
                    return torch.sin(x)
                return torch.cos(x)

        exported = batchfit.export(Masked(), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")

        self.assertIn("sin.default", targets(exported))
        self.assertNotIn("cos.default", targets(exported))

    def test_code_does_not_learn_that_it_is_traced(self):
        class Asks(torch.nn.Module):
            def forward(self, x):
                return torch.cos(x) if torch.compiler.is_compiling() or torch.compiler.is_exporting() else torch.sin(x)

        exported = batchfit.export(Asks(), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")

        self.assertIn("sin.default", targets(exported))

    def test_what_depends_on_values_is_refused_with_a_reason(self):
        class Branches(torch.nn.Module):
            def forward(self, x):
                return torch.sin(x) if x.sum() > 0 else x

        with self.assertRaisesRegex(batchfit.ExportError, "asks for the value of a tensor, which only data can tell\n  at test_export.py:"):
            batchfit.export(Branches(), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")

    def test_a_tensor_that_goes_to_numpy_is_one_whose_value_is_asked_for(self):
        class Periods(torch.nn.Module):
            def forward(self, x):
                return x[:, : int(x.detach().sum(0).argmax().numpy()) + 1]

        with self.assertRaisesRegex(batchfit.ExportError, "asks for the value of a tensor, which only data can tell\n  at test_export.py:"):
            batchfit.export(Periods(), (torch.zeros(2, 3), torch.zeros(2, 3)), "mse")

    def test_a_loss_that_is_no_scalar_is_refused(self):
        with self.assertRaisesRegex(batchfit.ExportError, "the loss has 2 dimensions"):
            batchfit.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),), lambda model, x: model(x))

    def test_a_loss_of_another_signature_says_how_it_is_called(self):
        with self.assertRaisesRegex(batchfit.ExportError, r"with the model and all tensors of the batch, loss\(model, x, y\): too many"):
            batchfit.export(torch.nn.Linear(3, 4), {"x": torch.zeros(2, 3), "y": torch.zeros(2, 4)}, lambda output, y: output.sub(y).sum())

    def test_losses(self):
        classes = torch.zeros(2, dtype=torch.int64)
        for loss in ("cross_entropy", torch.nn.CrossEntropyLoss(), torch.nn.functional.cross_entropy):
            exported = batchfit.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3), classes), loss)
            self.assertEqual(targets(exported), ["linear.default", "cross_entropy_loss.default"])
        with self.assertRaisesRegex(batchfit.ExportError, "unknown loss 'nll'; known are cross_entropy"):
            batchfit.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3), classes), "nll")
        with self.assertRaisesRegex(batchfit.ExportError, "must give one"):
            batchfit.export(torch.nn.Sequential(), torch.zeros(2, 3), lambda model, input: None)
        with self.assertRaisesRegex(batchfit.ExportError, "the model returned no loss, but a dict"):
            batchfit.export(GivesNoLoss(), {"x": torch.zeros(2, 3)}, "model")


class TestBatches(unittest.TestCase):
    def test_specs_that_cannot_be_read_are_refused(self):
        for spec, problem in [
            ("x", "cannot read the batch tensor 'x'"),
            ("x=f33[B]", "unknown dtype 'f33'"),
            ("x=f32[3,B*2]", r"cannot read the length 'B.2'"),
            ("x=f32[3]", "no tensor has a batch"),
            ("y=x", "cannot read the batch tensor 'y=x'"),
        ]:
            with self.subTest(spec), self.assertRaisesRegex(batchfit.ExportError, problem):
                parse_batch([spec])


class TestCommandLine(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(directory.name)
        Path("net_of_this_test.py").write_text(MODULE)

    def run_main(self, *arguments):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = main(arguments)
        return status, errors.getvalue()

    def test_a_model_that_cannot_be_made_without_data_is_made_on_the_cpu(self):
        status, errors = self.run_main(
            "net_of_this_test:Net", "--batch", "x=f32[B,6]", "y=f32[B,5]", "--loss", "mse", "-o", "net.json.gz"
        )

        self.assertEqual(status, 0)
        self.assertIn("next: batchfit fit net.json.gz --on", errors)
        document = json.loads(gzip.decompress(Path("net.json.gz").read_bytes()))
        self.assertEqual(document["batchfit"]["version"], 1)

    def test_a_loss_function_of_ones_own(self):
        status, errors = self.run_main(
            "net_of_this_test:Net", "--batch", "x=f32[B,6]", "y=f32[B,5]", "--loss", "net_of_this_test:loss", "-o", "n.json", "--quiet"
        )

        self.assertEqual((status, errors), (0, ""))
        self.assertIn("aten.abs", Path("n.json").read_text())

    def test_what_builds_a_model_may_say_the_batch_and_the_loss(self):
        Path("own.py").write_text(MODULE + """
def all_of_it():
    return Net(), {"x": torch.zeros(3, 6), "y": torch.zeros(3, 5)}, "mse"


def of_transformers():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))
""")
        for target, said in (("own.py:all_of_it", "wrote own.json.gz"), ("own.py:of_transformers", "samples have 2048 tokens")):
            with self.subTest(target):
                status, errors = self.run_main(target)
                self.assertEqual(status, 0, errors)
                self.assertIn(said, errors)
                self.assertTrue(Path("own.json.gz").exists())
        for target in ("net_of_this_test:Net", "own.py:all_of_it"):
            status, errors = self.run_main(target, "--batch", "x=float32[B,6],y=float[B,5]", "--loss", "MSELoss", "-o", "n.json")
            self.assertEqual(status, 0, errors)

    def test_what_is_missing_is_said(self):
        for arguments, problem in [
            (["-o", "x"], "give either MODULE:BUILD or --hf CONFIG"),
            (["nowhere", "--batch", "x=f32[B]", "--loss", "mse", "-o", "x"], "write it as my_module:build"),
            (["nowhere:build", "--batch", "x=f32[B]", "--loss", "mse", "-o", "x"], "cannot import 'nowhere'"),
            (["net_of_this_test:Nit", "--batch", "x=f32[B]", "--loss", "mse", "-o", "x"], "has no 'Nit'"),
            (["net_of_this_test:Net", "-o", "x"], "give --batch x=f32[B,3,224,224] y=i64[B] and --loss cross_entropy, or let"),
            (["net_of_this_test:Net", "--loss", "mse"], "give --batch x=f32[B,3,224,224] y=i64[B], or let"),
            (["net_of_this_test:Net", "--batch", "x=f32[B,3]"], "give --loss cross_entropy, or let"),
            (["net_of_this_test:Net", "--batch", "x=f32[B]", "--loss", "l1", "-o", "x"], "unknown loss 'l1'"),
            (["--hf", "none.json", "-o", "x"], "cannot read none.json"),
        ]:
            with self.subTest(problem):
                status, errors = self.run_main(*arguments)
                self.assertEqual(status, 2)
                self.assertIn(problem, errors)


if __name__ == "__main__":
    unittest.main()
