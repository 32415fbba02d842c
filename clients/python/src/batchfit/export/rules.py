"""Rules for operators on tensors without data that PyTorch has not, or has for fewer cases than a GPU takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch._meta_registrations
from torch._decomp import decompositions
from torch._subclasses import fake_impls

from .replacing import replaced


@contextlib.contextmanager
def gpu_rules() -> Iterator[None]:
    """Inside, operators have the shapes that they have on a GPU."""
    with _grouped_products(), _classification_of_sequences(), _all_are_hit(), _states_of_lstm(), _losses_of_each(), _like_first():
        yield


@contextlib.contextmanager
def _losses_of_each() -> Iterator[None]:
    """Losses of classes that are not summed up. PyTorch's rule takes the reduction for another argument, and always makes a
    number."""
    table: Any = torch._decomp.decomposition_table
    nll_loss = torch.ops.aten.nll_loss.default
    before = table.get(nll_loss)

    def loss(self: torch.Tensor, target: torch.Tensor, weight: Any = None, reduction: int = 1, ignore_index: int = -100) -> Any:
        return torch.ops.aten.nll_loss_forward.default(self, target, weight, reduction, ignore_index)[0]

    table[nll_loss] = loss
    try:
        yield
    finally:
        del table[nll_loss]
        if before is not None:
            table[nll_loss] = before


@contextlib.contextmanager
def _like_first() -> Iterator[None]:
    """Operators without any rule of PyTorch's whose results are as large as their first argument."""
    aten = torch.ops.aten
    with contextlib.ExitStack() as stack:
        for operator in (aten._standard_gamma, aten._sample_dirichlet, aten.binomial, aten._dirichlet_grad):
            stack.enter_context(_rule(operator.default, _one_like_first))
        for operator in (
            aten.fake_quantize_per_tensor_affine_cachemask,
            aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
            aten.fake_quantize_per_channel_affine_cachemask,
        ):
            stack.enter_context(_rule(operator.default, _and_mask))
        for operator in (aten._fake_quantize_learnable_per_tensor_affine, aten._fake_quantize_learnable_per_channel_affine):
            stack.enter_context(_rule(operator.default, _one_like_first))
        stack.enter_context(_rule(aten.geqrf.default, _reflectors))
        yield


def _one_like_first(mode: Any, func: Any, first: torch.Tensor, *_: Any, **__: Any) -> Any:
    with mode:
        return torch.empty_like(first)


def _and_mask(mode: Any, func: Any, first: torch.Tensor, *_: Any, **__: Any) -> Any:
    with mode:
        return torch.empty_like(first), torch.empty_like(first, dtype=torch.bool)


def _reflectors(mode: Any, func: Any, first: torch.Tensor) -> Any:
    with mode:
        return torch.empty_like(first), first.new_empty([*first.shape[:-2], min(first.shape[-2:])])


@contextlib.contextmanager
def _states_of_lstm() -> Iterator[None]:
    """The last states of an LSTM. PyTorch's rule squeezes the batch instead of the layer, which it sees only where the batch
    is a symbol: the states then have a dimension too many."""
    original: Any = decompositions.one_layer_lstm

    def one_layer(*args: Any, **kwargs: Any) -> Any:
        out, states = original(*args, **kwargs)
        return out, tuple(state.squeeze(0) if state.dim() == 3 else state for state in states)

    with replaced(decompositions, "one_layer_lstm", one_layer):
        yield


@contextlib.contextmanager
def _classification_of_sequences() -> Iterator[None]:
    """CTC loss with lengths in tensors: the table of all paths is as wide as the longest target, which is taken to fill its
    row. PyTorch asks the data."""
    def shapes(mode: Any, func: Any, log_probs: torch.Tensor, targets: torch.Tensor, *_: Any, **__: Any) -> Any:
        with mode:
            times, samples = log_probs.shape[0], log_probs.shape[1]
            longest = targets.shape[-1]
            return log_probs.new_empty([samples]), log_probs.new_empty([samples, times, 2 * longest + 1])

    with _rule(torch.ops.aten._ctc_loss.Tensor, shapes):
        yield


# Of at most so many elements it is taken that all are hit.
_COUNTED = 1024


@contextlib.contextmanager
def _all_are_hit() -> Iterator[None]:
    """Which of a few things are hit, whose number does not depend on the batch: experts, classes. Code that goes over those
    that are takes the most memory where all are. What depends on the batch stays a size that only data decide."""
    of_data = fake_impls.op_implementations_dict[torch.ops.aten.nonzero.default]

    def places(mode: Any, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not all(isinstance(length, int) for length in tensor.shape) or tensor.numel() > _COUNTED:
            return of_data(mode, func, tensor, *args, **kwargs)
        with mode:
            return tensor.new_empty([tensor.numel(), tensor.dim()], dtype=torch.int64)

    with _rule(torch.ops.aten.nonzero.default, places):
        yield


@contextlib.contextmanager
def _rule(operator: Any, rule: Any) -> Iterator[None]:
    """Gives an operator another rule inside."""
    known: Any = fake_impls.op_implementations_dict
    before = known.get(operator)
    known[operator] = rule
    try:
        yield
    finally:
        del known[operator]
        if before is not None:
            known[operator] = before


@contextlib.contextmanager
def _grouped_products() -> Iterator[None]:
    """Lets products of groups of matrices (mixtures of experts) have any dtype, as they may on a GPU: PyTorch's rule for
    tensors without data knows bfloat16 only."""
    rules = torch._meta_registrations
    known = getattr(rules, "_meta_grouped_mm_common", None)
    if known is None:
        yield
        return

    def any_dtype(mat_a: torch.Tensor, mat_b: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if mat_a.dtype != mat_b.dtype or not mat_a.is_floating_point():
            return known(mat_a, mat_b, *args, **kwargs)
        half = torch.bfloat16
        return known(mat_a.to(half), mat_b.to(half), *args, **kwargs).to(mat_a.dtype)

    with replaced(rules, "_meta_grouped_mm_common", any_dtype):
        yield
