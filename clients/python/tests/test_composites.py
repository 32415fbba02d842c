"""Composite operators are traced as what they consist of, and models that used to be refused are not."""

import unittest

import torch
import torch.nn.functional as F
from torch import nn

import batchfit


class Applied(nn.Module):
    """A function of a trained tensor."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(32, 32), function

    def forward(self, x):
        return self.function(self.linear(x))


def export(function, shape=(4, 16, 32), **options):
    return batchfit.export(Applied(function), {"x": torch.randn(shape)}, lambda m, x: m(x).float().square().mean(), **options)


def targets(exported):
    nodes = exported.document["graph_module"]["graph"]["nodes"]
    return [node["target"].removeprefix("torch.ops.aten.") for node in nodes]


class Composites(unittest.TestCase):
    def test_what_batchfit_has_no_rule_for_is_split_up(self):
        found = targets(export(lambda x: torch.linalg.slogdet(x @ x.mT)[1] + torch.trapezoid(x, dim=-1).sum(1)))

        self.assertIn("_linalg_slogdet.default", found)
        self.assertFalse([name for name in found if name.startswith(("linalg_slogdet", "trapezoid"))])

    def test_what_batchfit_has_a_rule_for_stays_whole(self):
        found = targets(export(lambda x: F.layer_norm(F.cosine_similarity(x, x * 2, dim=-1), (16,))))

        self.assertIn("layer_norm.default", found)
        self.assertIn("cosine_similarity.default", found)

    def test_only_calls_that_are_not_read_are_split_up(self):
        self.assertIn("pad.default", targets(export(lambda x: F.pad(x, (2, 2), mode="reflect"))))
        self.assertNotIn("pad.default", targets(export(lambda x: F.pad(x, (2, 2), mode="circular"))))

    def test_composites_that_ask_for_sizes_are_written_out(self):
        for function in (
            lambda x: x.quantile(0.3, dim=1),
            lambda x: x.nanquantile(torch.tensor([0.1, 0.9], device=x.device), dim=-1),
            lambda x: x.take_along_dim(x.argsort(-1), -1),
            lambda x: torch.corrcoef(x.flatten(0, 1).T),
            lambda x: torch.istft(torch.stft(x.flatten(1), 64, return_complex=True), 64, length=512),
        ):
            export(function)

    def test_written_out_operators_compute_what_pytorchs_do(self):
        from batchfit.export.decompositions import WRITTEN_OUT

        aten, x = torch.ops.aten, torch.randn(3, 5, 8)
        spectrum = torch.stft(torch.randn(2, 256), 32, window=torch.hann_window(32), return_complex=True)
        calls = [
            (aten.quantile.scalar, (x, 0.3, 1, True), {}),
            (aten.quantile.default, (x, torch.tensor([0.1, 0.9])), {}),
            (aten.nanquantile.scalar, (x, 0.3, -1), {"interpolation": "higher"}),
            (aten.take_along_dim.default, (x, x.argsort(1), 1), {}),
            (aten.cov.default, (x[0],), {}),
            (aten.corrcoef.default, (x[0],), {}),
            (aten.istft.default, (spectrum, 32, 8, 32, torch.hann_window(32)), {}),
            (aten.istft.default, (spectrum, 32, 8, 32, torch.hann_window(32)), {"length": 250}),
        ]
        for operator, args, kwargs in calls:
            with self.subTest(str(operator)):
                torch.testing.assert_close(WRITTEN_OUT[operator](*args, **kwargs), operator(*args, **kwargs))


class Retries(unittest.TestCase):
    def test_tensors_made_on_no_device_are_where_the_model_is(self):
        found = targets(export(lambda x: x * torch.arange(32)))

        self.assertIn("arange.default", found)

    def test_code_that_differs_for_small_batches_is_that_of_large_ones(self):
        export(lambda x: torch.cdist(x[:, 0], x[:, 0]))

    def test_a_largest_batch_that_was_asked_for_is_kept(self):
        export(lambda x: torch.cdist(x[:, 0], x[:, 0]), max_batch=20)

    def test_losses_of_each_sample_have_its_shape(self):
        def loss(x):
            return F.cross_entropy(x.view(-1, 32), torch.zeros(x.shape[0] * 16, dtype=torch.int64, device=x.device), reduction="none").view(x.shape[0], 16)

        export(loss)

    def test_distributions_check_what_they_are_given(self):
        def likelihood(x):
            return torch.distributions.MultivariateNormal(torch.zeros(32, device=x.device), torch.eye(32, device=x.device)).log_prob(x)

        self.assertIn("linalg_cholesky_ex.default", targets(export(likelihood)))

    def test_weights_that_old_hooks_compute_are_no_obstacle(self):
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.utils.spectral_norm(nn.Linear(8, 1)))

        batchfit.export(model, {"x": torch.randn(4, 8)}, lambda m, x: m(x).mean())

    def test_results_that_nobody_takes_out_let_go_of_what_they_are_of(self):
        def zipped(x):
            for _ in torch.arange(3):
                x = x + 1
            return x

        document = export(zipped).document
        nodes = document["graph_module"]["graph"]["nodes"]
        unbind = next(at for at, node in enumerate(nodes) if node["target"].endswith("unbind.int"))
        arange = sum(len(list(_results(node))) for node in nodes[: unbind - 1])
        gone = [after for after, *values in document["batchfit"]["releases"] if arange in values]

        self.assertTrue(all(after >= unbind for after in gone), (gone, unbind))

    def test_gradients_of_gradients_are_refused_with_a_reason(self):
        with self.assertRaisesRegex(batchfit.ExportError, "differentiates in its forward pass"):
            export(lambda x: torch.autograd.grad(x.sum(), x, create_graph=True)[0])

    def test_checkpoints_in_code_are_looked_through(self):
        from torch.utils.checkpoint import checkpoint

        export(lambda x: checkpoint(torch.tanh, x, use_reentrant=False))


def _results(node):
    for output in node["outputs"]:
        if "as_tensor" in output:
            yield output["as_tensor"]["name"]
        yield from (tensor["name"] for tensor in output.get("as_tensors", []))


if __name__ == "__main__":
    unittest.main()
