"""What the side table says of custom `torch.autograd.Function`s."""

import json
import unittest

import torch

import batchfit


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        with torch.no_grad():
            result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad):
        (i,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(i)
        return grad * (sigmoid * (1 + i * (1 - sigmoid)))


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.mask = x > 0
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, by):
        ctx.save_for_backward(x, scale)
        return x * scale * by

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        given = grad * scale if ctx.needs_input_grad[0] else None
        return given, (grad * x).sum(0) if ctx.needs_input_grad[1] else None, None


class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Swish.apply(x) + 1

    @staticmethod
    def backward(ctx, grad):
        return Swish.apply(grad)


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 if (x * 3).sum() > 0 else grad


class Wide(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        return torch.exp(x)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        return grad * 2


class Reads(torch.autograd.Function):
    """Reads a parameter that it was not given."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.module.weight[0], None


class Model(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.call = call

    def forward(self, x):
        return self.outer(self.call(self.inner(x))) + 1


def targets(graph):
    return [node["target"].removeprefix("torch.ops.aten.").split(".")[0] for node in graph["nodes"]]


class TestFunctions(unittest.TestCase):
    def export(self, call):
        model = call if isinstance(call, torch.nn.Module) else Model(call)
        batch = {"x": torch.zeros(2, 8), "y": torch.zeros(2, 8)}
        return batchfit.export(model, batch, "mse").document

    def calls(self, document):
        self.assertEqual(document["batchfit"]["version"], 2)
        return document["batchfit"]["functions"]

    def test_a_call_has_what_it_saves_and_its_backward_pass(self):
        document = self.export(Swish.apply)
        graph = document["graph_module"]["graph"]
        (call,) = self.calls(document)

        self.assertTrue(call["name"].endswith("Swish"))
        self.assertEqual(targets(graph)[:4], ["linear", "sigmoid", "mul", "linear"])
        self.assertEqual(call["operators"], [1, 2])
        self.assertEqual((call["inputs"], call["outputs"], call["saved"]), (["linear"], ["mul"], ["linear"]))
        self.assertEqual((call["differentiable"], call["held"]), ([True], []))
        backward = call["backward"]
        self.assertEqual(targets(backward["graph"]), ["sigmoid", "rsub", "mul", "add", "mul", "mul"])
        self.assertEqual(backward["results"], [backward["graph"]["nodes"][-1]["outputs"][0]["as_tensor"]["name"]])
        # Python lets go of what has no name as the expression goes on, and of the rest at the end.
        self.assertEqual(backward["releases"], [[2, 1], [3, 2], [4, 3], [5, 4, 0, 5]])

    def test_the_graph_is_the_one_that_pytorch_knows(self):
        graph = self.export(Swish.apply)["graph_module"]["graph"]

        self.assertNotIn("batchfit::", json.dumps(graph))
        self.assertNotIn("ops.batchfit", json.dumps(graph))
        self.assertFalse(any("as_graph" in a["arg"] for node in graph["nodes"] for a in node["inputs"]))
        made = {output["as_tensor"]["name"] for node in graph["nodes"] for output in node["outputs"] if "as_tensor" in output}
        self.assertLessEqual(made, set(graph["tensor_values"]))
        self.assertNotIn("gradient", graph["tensor_values"])

    def test_sizes_of_the_backward_pass_are_functions_of_the_batch(self):
        (call,) = self.calls(self.export(Swish.apply))
        sizes = [tensor["sizes"][0] for tensor in call["backward"]["graph"]["tensor_values"].values()]

        self.assertTrue(all("as_expr" in size for size in sizes), sizes)

    def test_inputs_are_as_they_were_before_a_change_in_place(self):
        (call,) = self.calls(self.export(InPlace.apply))

        self.assertEqual((call["inputs"], call["outputs"], call["held"]), (["linear"], ["mul_"], ["gt"]))

    def test_only_the_gradients_that_are_needed_are_computed(self):
        class Frozen(Model):
            def __init__(self):
                super().__init__(None)
                self.scale = torch.nn.Parameter(torch.ones(8), requires_grad=False)

            def forward(self, x):
                return self.outer(Scale.apply(self.inner(x), self.scale, 2.0))

        (call,) = self.calls(self.export(Frozen()))

        self.assertEqual(call["inputs"], ["linear", "p_model_scale"])
        self.assertEqual([result is None for result in call["backward"]["results"]], [False, True])
        self.assertEqual(targets(call["backward"]["graph"]), ["mul"])

    def test_a_call_that_needs_no_gradient_is_no_call(self):
        class First(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(8, 8)

            def forward(self, x):
                with torch.no_grad():
                    x = x + Swish.apply(self.linear(x))
                return self.linear(Swish.apply(x))

        document = self.export(First())

        self.assertEqual(document["batchfit"]["version"], 1)
        self.assertNotIn("functions", document["batchfit"])

    def test_a_call_under_any_name_is_the_same(self):
        kept, looked_up = self.export(Swish.apply), self.export(lambda x: Swish.apply(x))

        self.assertEqual(kept["batchfit"], looked_up["batchfit"])

    def test_calls_in_a_call_are_part_of_it(self):
        (call,) = self.calls(self.export(Outer.apply))

        self.assertEqual(call["operators"], [1, 3])
        self.assertEqual(targets(call["backward"]["graph"]), ["sigmoid", "mul"])

    def test_what_cannot_be_traced_is_named_with_the_reason(self):
        document = self.export(Branching.apply)
        (call,) = self.calls(document)

        self.assertEqual(set(call), {"name", "operators", "reason"})
        self.assertIn("GuardOnDataDependentSymNode", call["reason"])
        self.assertEqual(targets(document["graph_module"]["graph"])[:3], ["linear", "tanh", "linear"])

    def test_autocast_of_the_decorators_is_noted(self):
        (call,) = self.calls(self.export(Wide.apply))

        self.assertEqual((call["cast_inputs"], call["backward_autocast"]), (7, True))

    def test_what_reaches_a_backward_pass_otherwise_is_held(self):
        class Closure(Model):
            def forward(self, x):
                return self.outer(Reads.apply(self.inner(x), self.inner))

        (call,) = self.calls(self.export(Closure(None)))

        self.assertEqual(call["held"], ["p_model_inner_weight"])

    def test_nothing_is_left_switched(self):
        before = torch.autograd.Function.apply, Branching.forward, vars(Wide)["forward"]
        self.export(Branching.apply)

        self.assertEqual((torch.autograd.Function.apply, Branching.forward, vars(Wide)["forward"]), before)
        self.assertTrue(torch.is_grad_enabled())


if __name__ == "__main__":
    unittest.main()
