"""The recorder: graphs are run as they were written, hostile ones are refused, and orders are answered."""

from __future__ import annotations

import copy
import gzip
import json
import subprocess
import sys
import tempfile
import unittest
import weakref
from pathlib import Path
from typing import Any, Optional

import torch

import batchfit
from batchfit.recorder import graphs
from batchfit.recorder.blocks import matches, regions, repeated
from batchfit.recorder.errors import RecorderError
from batchfit.recorder.stored import classes_of
from batchfit.recorder.interpreter import Interpreter
from batchfit.recorder.sizes import Size
from batchfit.recorder.training import GraphProgram, Training, train

CPU = torch.device("cpu")


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * 3


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.inner(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 8)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.register_buffer("scale", torch.ones(8))
        self.head = torch.nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids).mean(1) * self.scale
        with torch.no_grad():
            shift = x.mean().detach()
        for block in self.blocks:
            x = block(x)
        return self.head(Double.apply(x) + shift)


def exported(model: Optional[torch.nn.Module] = None) -> dict[str, Any]:
    batch = {"ids": torch.zeros(4, 6, dtype=torch.int64), "y": torch.zeros(4, dtype=torch.int64)}
    document: dict[str, Any] = batchfit.export(model or Model(), batch, "cross_entropy").document
    return document


def read(document: dict[str, Any]) -> graphs.Graph:
    return graphs.read(json.dumps(document).encode())


def program(document: dict[str, Any], **training: Any) -> GraphProgram:
    return GraphProgram(read(document), Training(**training), CPU)


DOCUMENT = exported()


class Graphs(unittest.TestCase):
    def test_a_graph_gives_the_loss_and_the_gradients_of_the_model(self) -> None:
        torch.manual_seed(1)
        model, ids, y = Model(), torch.randint(11, (4, 6)), torch.randint(5, (4,))
        expected = torch.nn.functional.cross_entropy(model(ids), y)
        expected.backward()
        graph = read(exported(model))
        interpreter = Interpreter(graph, _stored(), None, CPU)
        held = {}
        for each in graph.held:
            tensor = model.get_parameter(each.path.removeprefix("model.")) if each.is_parameter else model.scale
            held[each.slot] = tensor.detach().clone().requires_grad_(each.tensor.requires_grad)
        loss = interpreter.loss(held, [ids, y], 4)
        loss.backward()
        self.assertTrue(torch.equal(loss, expected))
        for each in graph.held:
            if each.is_parameter:
                ours, theirs = held[each.slot].grad, model.get_parameter(each.path.removeprefix("model.")).grad
                self.assertTrue(torch.equal(ours, theirs), each.path)

    def test_checkpointing_runs_blocks_again_and_gives_the_same_gradients(self) -> None:
        graph = read(DOCUMENT)
        self.assertEqual(len(regions(graph, "per_block")), 2)
        found = []
        for checkpointing in (None, "per_block", ("blocks.*",)):
            torch.manual_seed(3)
            made = program(DOCUMENT, checkpointing=checkpointing)
            parameters = made.construct()
            made.loss(made.make_batch(4), 4).backward()
            found.append([parameter.grad for parameter in parameters])
        for other in found[1:]:
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(found[0], other) if a is not None and b is not None))

    def test_values_die_where_the_table_says(self) -> None:
        graph = read(DOCUMENT)
        assert graph.releases is not None
        alive: dict[int, Any] = {}
        interpreter = Interpreter(graph, _stored(), None, CPU)
        bind, release = interpreter._bind, interpreter._release

        def watch(environment: Any, operator: Any, result: Any) -> None:
            bind(environment, operator, result)
            for slot in operator.outputs:
                if isinstance(environment.get(slot), torch.Tensor):
                    alive[slot] = weakref.ref(environment[slot])

        gone: list[int] = []

        def check(environment: Any, slots: Any) -> None:
            slots = list(slots)
            release(environment, slots)
            gone.extend(slot for slot in slots if slot in alive and slot != graph.loss)
            self.assertFalse([slot for slot in gone if slot in environment])

        interpreter._bind, interpreter._release = watch, check  # type: ignore[method-assign]
        made = program(DOCUMENT)
        made.construct()
        with torch.no_grad():
            interpreter.loss(made._held, made.make_batch(2), 2)
        self.assertTrue(gone)
        self.assertFalse([slot for slot in gone if alive[slot]() is not None and _is_new(graph, slot)])

    def test_what_is_looked_up_is_within_its_table(self) -> None:
        graph = read(DOCUMENT)
        ids, y = graph.inputs
        self.assertEqual(classes_of(graph), {ids.slot: 11, y.slot: 5})

    def test_training_goes_on_for_three_steps_in_every_precision(self) -> None:
        for precision in ("fp32", "amp_bf16", "bf16"):
            for optimizer in ("sgd", "sgd_momentum", "adam", "adamw"):
                steps: list[int] = []
                training = Training(precision=precision, optimizer=optimizer, accumulation=2, clip_grad_norm=1.0)
                made = GraphProgram(read(DOCUMENT), training, CPU)
                train(made, training, 3, CPU, lambda: steps.append(1), lambda: None)
                self.assertEqual(len(steps), 3)

    def test_a_graph_without_lifetimes_runs_too(self) -> None:
        document = {name: value for name, value in exported(torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Flatten(), torch.nn.Linear(48, 5))).items() if name != "batchfit"}
        made = program(document)
        made.construct()
        self.assertEqual(made.loss(made.make_batch(2), 2).dim(), 0)


class Hostile(unittest.TestCase):
    def refused(self, change: Any, says: str, **training: Any) -> None:
        document = copy.deepcopy(DOCUMENT)
        change(document)
        with self.assertRaises(RecorderError) as caught:
            made = program(document, **training)
            made.construct()
            made.loss(made.make_batch(2), 2)
        self.assertIn(says, str(caught.exception))

    def nodes(self, document: dict[str, Any]) -> list[Any]:
        nodes: list[Any] = document["graph_module"]["graph"]["nodes"]
        return nodes

    def retarget(self, target: str, says: str) -> None:
        def change(document: dict[str, Any]) -> None:
            node = next(node for node in self.nodes(document) if "relu" in node["target"])
            node["target"] = target

        self.refused(change, says)

    def test_operators_that_are_not_called(self) -> None:
        self.retarget("torch.ops.aten.frobnicate.default", "no operator aten::frobnicate")
        self.retarget("torch.ops.prims.view_of.default", "is not called")
        self.retarget("torch.ops.aten.relu.__class__", "no operator")
        self.retarget("os.system", "is not called")
        self.retarget("torch.ops.aten.__init_subclass__.default", "no operator")
        self.retarget("torch.ops.aten.from_file.default", "does more than compute")
        self.retarget("torch.ops.aten.set_.source_Storage", "is not called")
        self.retarget("torch.ops.aten.record_stream.default", "is not called")
        self.retarget("torch.ops.aten.add.Tensor", "cannot be run")

    def test_values_that_nothing_makes(self) -> None:
        def forward_reference(document: dict[str, Any]) -> None:
            nodes = self.nodes(document)
            nodes.append(nodes.pop(2))

        self.refused(forward_reference, "which nothing before it makes")

        def cycle(document: dict[str, Any]) -> None:
            node = next(node for node in self.nodes(document) if "relu" in node["target"])
            node["inputs"][0]["arg"] = {"as_tensor": {"name": node["outputs"][0]["as_tensor"]["name"]}}

        self.refused(cycle, "which nothing before it makes")

    def test_arguments_that_make_no_sense(self) -> None:
        def give(argument: dict[str, Any]) -> Any:
            def change(document: dict[str, Any]) -> None:
                node = next(node for node in self.nodes(document) if ".linear." in node["target"])
                node["inputs"].append({"name": argument.pop("name", "out_features"), "arg": argument, "kind": 2})

            return change

        self.refused(give({"as_int": 1}), "has no argument 'out_features'")
        self.refused(give({"as_int": 1 << 80}), "63 bits")
        self.refused(give({"as_custom_obj": {"name": "x"}}), "is not read")
        self.refused(give({"as_ints": [1] * 100_000}), "at most 65536")
        self.refused(give({"as_scalar_type": 99, "name": "bias"}), "scalar type 99")
        self.refused(give({"as_layout": 1, "name": "bias"}), "layout")

    def test_tables_of_another_graph(self) -> None:
        def change(**members: Any) -> Any:
            return lambda document: document["batchfit"].update(members)

        self.refused(change(version=9), "version 9")
        self.refused(change(operators=3), "the table is of a graph of 3 operators")
        self.refused(change(releases=[[10**9, 0]]), "is not among")
        self.refused(change(dtypes_of=[[0, 10**9]]), "is not among")
        self.refused(change(packed_checks=[[1]]), "2 numbers")

    def test_files_that_are_no_graphs(self) -> None:
        bomb = gzip.compress(b" " * (graphs.MOST_BYTES + 2), 9)
        for contents, says in (
            (b"{", "no JSON"),
            (b"[" * 100_000, "no JSON"),
            (b"1" * 100_000, "no JSON"),
            (b"{}", "graph_module"),
            (b"\x1f\x8b123", "gzip"),
            (b"PK\x03\x04123", "archive"),
            (bomb, "larger than"),
        ):
            with self.assertRaises(RecorderError, msg=says) as caught:
                graphs.read(contents)
            self.assertIn(says, str(caught.exception))

    def test_tensors_in_endless_parts_are_not_made(self) -> None:
        class Parts(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(1, 70_000))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                first, _ = (x * self.weight).split([35_000, 35_000], 1)
                return first.sum()

        batch = {"x": torch.zeros(4, 1), "y": torch.zeros(())}
        document = batchfit.export(Parts(), batch, lambda model, x, y: model(x)).document
        node = next(node for node in self.nodes(document) if "split" in node["target"])
        node["target"] = "torch.ops.aten.unbind.int"
        node["inputs"] = [node["inputs"][0], {"name": "dim", "arg": {"as_int": 1}, "kind": 1}]
        with self.assertRaisesRegex(RecorderError, "at most 65536 are made"):
            made = program(document)
            made.construct()
            made.loss(made.make_batch(2), 2)


class Sizes(unittest.TestCase):
    def test_expressions_are_read_and_nothing_else(self) -> None:
        for text, at_six in (
            ("Mul(Integer(4), Symbol('s0', positive=True, integer=True))", 24),
            ("Add(Mul(Integer(2), Symbol('s7')), Integer(-1))", 11),
            ("FloorDiv(Symbol('s0'), Integer(4))", 1),
            ("4*s0 + 1", 25),
            ("((s77//2)) + 1", 4),
            ("Max(Integer(8), Symbol('s0'))", 8),
            ("CeilToInt(IntTrueDiv(Symbol('s0'), Integer(4)))", 2),
        ):
            self.assertEqual(Size(text).at(6), at_six, text)
        for text in ("__import__('os')", "s0.real", "[s0]", "Pow(Integer(2), Integer(64))", "(lambda: 1)()", "x", "1" * 5000, "Mod(s0, 0)", "9**9**9"):
            with self.assertRaises(RecorderError, msg=text):
                Size(text).at(6)

    def test_patterns_stop_at_dots(self) -> None:
        self.assertTrue(matches(("layer?.*",), "layer1.0"))
        self.assertFalse(matches(("layer?",), "layer1.0"))
        self.assertTrue(matches(("transformer.**",), "transformer.h.3.mlp"))
        self.assertEqual(repeated([[("a", "A"), ("a.0", "B"), ("a.0.x", "C")], [("a", "A"), ("a.1", "B")]]), {"a.0"})


class Orders(unittest.TestCase):
    """The child, on tensors of the host."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "batchfit.recorder", "--device", "cpu", *arguments]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.folder.name, env=_environment())
        self.addCleanup(self.ended, child)
        self.assertEqual(self.answer(child), {"message": "hello", "version": 1})
        return child

    def ended(self, child: subprocess.Popen[str]) -> None:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()
        self.assertEqual(child.wait(30), 0)
        child.stdout.close()

    def answer(self, child: subprocess.Popen[str]) -> dict[str, Any]:
        assert child.stdout is not None
        answer: dict[str, Any] = json.loads(child.stdout.readline())
        return answer

    def ask(self, child: subprocess.Popen[str], **order: Any) -> dict[str, Any]:
        assert child.stdin is not None
        child.stdin.write(json.dumps(order) + "\n")
        child.stdin.flush()
        return self.answer(child)

    def opening(self, document: Any, **members: Any) -> dict[str, Any]:
        path = Path(self.folder.name) / "graph.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return {"message": "open", "graph": str(path), "folder": self.folder.name, "training": {"optimizer": "sgd"}, **members}

    def test_batches_are_recorded_one_after_the_other(self) -> None:
        child = self.started()
        ready = self.ask(child, **self.opening(DOCUMENT))
        self.assertEqual((ready["message"], ready["least_batch"]), ("ready", 1))
        for batch in (2, 4):
            recorded = self.ask(child, message="record", batch=batch, accumulation=2)
            self.assertEqual((recorded["message"], recorded["outcome"]), ("recorded", "fits"))
            lines = Path(recorded["path"]).read_text(encoding="utf-8").splitlines()
            self.assertEqual(json.loads(lines[1]), {"batch": batch, "accumulation": 2})
            self.assertEqual(lines.count("s"), 3)

    def test_what_is_wrong_is_an_answer_and_the_child_lives_on(self) -> None:
        child = self.started()
        unknown = copy.deepcopy(DOCUMENT)
        next(node for node in unknown["graph_module"]["graph"]["nodes"] if "relu" in node["target"])["target"] = "torch.ops.aten.frobnicate.default"
        orders: tuple[tuple[dict[str, Any], str], ...] = (
            ({"message": "record", "batch": 2}, "before one to open"),
            ({"message": "dance"}, "not known"),
            (self.opening(DOCUMENT, training={"precision": "fp8"}), "not known"),
            (self.opening(DOCUMENT, training={"clip": 1}), "no member of training"),
            (self.opening(DOCUMENT, graph="/nowhere"), "cannot be read"),
            (self.opening(DOCUMENT, graph=None), "one of both"),
            (self.opening({}), "graph_module"),
        )
        for order, says in orders:
            answer = self.ask(child, **order)
            self.assertEqual((answer["message"], answer["refusal"]), ("refused", "invalid"), answer)
            self.assertIn(says, answer["detail"])
        self.assertEqual(self.ask(child, **self.opening(unknown))["message"], "ready")
        refused = self.ask(child, message="record", batch=2)
        self.assertIn("aten::frobnicate", refused["detail"])
        self.assertEqual(self.ask(child, **self.opening(DOCUMENT))["message"], "ready")
        self.assertIn("batches from 1 to", self.ask(child, message="record", batch=1 << 30)["detail"])
        self.assertEqual(self.ask(child, message="record", batch=2)["outcome"], "fits")

    def test_a_process_that_dies_is_an_answer(self) -> None:
        Path(self.folder.name, "deadly.py").write_text(
            "import os, torch\ndef build():\n    print('this is no answer')\n    os.kill(os.getpid(), 9)\n", encoding="utf-8"
        )
        child = self.started("--module", "deadly:build", "--batch", "x=f32[B,8]", "--batch", "y=f32[B,8]", "--loss", "mse")
        self.assertEqual(self.ask(child, message="open", graph=None, folder=self.folder.name, training={})["message"], "ready")
        answer = self.ask(child, message="record", batch=2)
        self.assertEqual((answer["message"], answer["refusal"]), ("refused", "device_failed"))
        self.assertIn("signal 9", answer["detail"])

    def test_a_module_of_the_users_own_is_trained(self) -> None:
        Path(self.folder.name, "mine.py").write_text(
            "import torch\ndef build():\n    print('this is no answer')\n    return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8)) for _ in range(3)])\n",
            encoding="utf-8",
        )
        child = self.started("--module", "mine:build", "--batch", "x=f32[B,8]", "--batch", "y=f32[B,8]", "--loss", "mse")
        self.assertEqual(
            self.ask(child, message="open", graph=None, folder=self.folder.name, training={"precision": "amp_bf16", "checkpointing": "per_block"})["message"],
            "ready",
        )
        self.assertEqual(self.ask(child, message="record", batch=2)["outcome"], "fits")


def _stored() -> Any:
    from batchfit.recorder.stored import Stored

    return Stored("fp32")


def _is_new(graph: graphs.Graph, slot: int) -> bool:
    """Whether the operator that gives a value makes a tensor of its own: others give what they were given."""
    made = next(operator for operator in graph.operators if slot in operator.outputs)
    return not any(name in made.target for name in ("detach", "alias", "to.", "contiguous"))


def _environment() -> dict[str, str]:
    import os

    import batchfit as package

    assert package.__file__ is not None
    return {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}


if __name__ == "__main__":
    unittest.main()
