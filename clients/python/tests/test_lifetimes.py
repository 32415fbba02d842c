"""What the side table says of when Python lets go of values."""

import unittest

import torch
import torch.nn.functional as F
from torch.backends import opt_einsum

import batchfit


def operators(graph):
    """Operators in the order in which they run, as the side table numbers them."""
    for node in graph["nodes"]:
        nested = [a["arg"]["as_graph"]["graph"] for a in node["inputs"] if "as_graph" in a["arg"]]
        if not nested:
            yield node
        for inner in nested:
            yield from operators(inner)


def names(document):
    """The names of operators (their first results) and of values, by number."""
    values, makers = [], []
    for node in operators(document["graph_module"]["graph"]):
        results = []
        for output in node["outputs"]:
            results += [output["as_tensor"]["name"]] if "as_tensor" in output else []
            results += [tensor["name"] for tensor in output.get("as_tensors", [])]
        makers.append(results[0] if results else None)
        values += results
    return makers, values


def deaths(exported):
    """`{operator: [values that go after it, in order]}` by name."""
    makers, values = names(exported.document)
    table = exported.document["batchfit"]
    assert table["operators"] == len(makers) and table["values"] == len(values)
    return {makers[after]: [values[value] for value in gone] for after, *gone in table["releases"]}


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.outer = torch.nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.inner(x)
        activated = torch.tanh(hidden)
        return self.outer(activated) + 1


class Chosen(torch.nn.Module):
    """Rows found by value: `torch.export` takes the result of `where` out again to look at its size."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.inner(x)
        rows = torch.where(x[:, 0] > 0)[0]
        return hidden.index_add(0, rows, hidden[rows].exp())


class Contracted(torch.nn.Module):
    """An einsum of three tensors, whose path depends on their lengths."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.inner(x)
        return torch.einsum("bi,bj,jk->bk", hidden, x, self.inner.weight)


class TestLifetimes(unittest.TestCase):
    def export(self, model, loss="mse", batch=None):
        batch = batch if batch is not None else {"x": torch.zeros(2, 8), "y": torch.zeros(2, 8)}
        return batchfit.export(model, batch, loss)

    def test_a_mask_outlives_the_search_for_its_places(self):
        dead = deaths(self.export(Chosen()))
        [after] = [operator for operator, gone in dead.items() if any(name.startswith("gt") for name in gone)]
        self.assertTrue(after.startswith("getitem"), dead)

    def test_the_path_of_an_einsum_does_not_fix_the_batch(self):
        exported = self.export(Contracted())
        [einsum] = [n for n in operators(exported.document["graph_module"]["graph"]) if "einsum" in n["target"]]
        paths = [a["arg"]["as_ints"] for a in einsum["inputs"] if a["name"] == "path"]
        # PyTorch gives a path only where opt_einsum is installed: two products of two operands each.
        self.assertEqual([len(path) for path in paths], [4] if opt_einsum.is_available() else [])

    def test_locals_live_until_their_function_returns(self):
        dead = deaths(self.export(Residual()))

        # `hidden` and `activated` are names; what the second linear gives has none.
        self.assertEqual(dead["add"], ["linear_1", "linear", "tanh"])
        self.assertEqual(dead["mse_loss"], ["add", "getitem", "mse_loss"])

    def test_a_name_that_is_bound_again_lets_go(self):
        class Chain(torch.nn.Module):
            def forward(self, x):
                x = x + 1
                x = x * 2
                return torch.sin(x)

        dead = deaths(self.export(Chain()))

        self.assertEqual(dead["mul"], ["add"])

    def test_a_cast_that_does_nothing_has_a_lifetime_of_its_own(self):
        class Upcast(torch.nn.Module):
            def forward(self, x):
                x = x + 1
                wide = x.to(torch.float32)
                del x
                wide = torch.sin(wide)
                return wide

        exported = self.export(Upcast())
        dead = deaths(exported)

        # Under autocast `x` could be half: then it goes at `del`, and the cast when its name is bound again.
        self.assertEqual(dead["to"], ["add"])
        self.assertEqual(dead["sin"], ["to"])

    def test_later_uses_of_a_value_do_not_read_its_cast(self):
        class Keep(torch.nn.Module):
            def forward(self, x):
                x = x + 1
                wide = x.to(torch.float32)
                return torch.sin(wide) + x

        nodes = list(operators(self.export(Keep()).document["graph_module"]["graph"]))
        last_add = [node for node in nodes if node["target"].endswith("add.Tensor")][-1]

        self.assertEqual(last_add["inputs"][1]["arg"]["as_tensor"]["name"], "add")

    def test_a_value_that_is_made_to_require_a_gradient_keeps_nothing(self):
        class Requires(torch.nn.Module):
            def forward(self, x):
                x = x[:, None]
                x.requires_grad = True
                x = torch.sin(x)
                return torch.cos(x)

        exported = self.export(Requires())

        self.assertEqual(deaths(exported)["cos"], ["sin"])
        self.assertNotIn("requires_grad", vars(torch.Tensor))

    def test_changes_in_place_are_further_names_of_one_tensor(self):
        class InPlace(torch.nn.Module):
            def forward(self, x):
                x = x + 1
                x = F.relu_(x)
                return torch.sin(x)

        dead = deaths(self.export(InPlace()))

        self.assertEqual(dead["sin"], ["add", "relu_"])

    def test_regions_without_gradients_are_numbered_in_their_place(self):
        class Frozen(torch.nn.Module):
            def forward(self, x):
                with torch.no_grad():
                    table = torch.cos(x)
                    scaled = table * 2
                return x + scaled

        dead = deaths(self.export(Frozen()))

        self.assertEqual(dead["add"], ["cos", "mul"])

    def test_nothing_is_left_switched(self):
        model = Residual().eval()
        model.inner.weight.requires_grad_(False)
        exported = self.export(model)

        self.assertFalse(model.inner.training)
        self.assertEqual([p.requires_grad for p in model.parameters()], [False, True, True, True])
        self.assertFalse(any(p.is_meta for p in model.parameters()))
        graph = exported.document["graph_module"]["graph"]
        trained = {name: tensor["requires_grad"] for name, tensor in graph["tensor_values"].items()}
        self.assertFalse(trained["p_model_inner_weight"])
        self.assertTrue(trained["p_model_outer_weight"])


if __name__ == "__main__":
    unittest.main()
