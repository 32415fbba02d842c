"""Batches of any size from a loader's own samples, and loaders with another batch size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils._pytree import tree_leaves

# Samples that are looked at, the largest of which come first: a step is to fit for the longest of them.
_MOST_SAMPLES = 64


class LoaderError(ValueError):
    """A loader whose batch size cannot be changed. The message says what would do."""


class Batches:
    """Batches from a loader: its own samples, repeated as often as it takes, put together by its own `collate_fn`.

    `remake` makes a loader of a batch size, where that is what decides about its batches. They are kept in the host's memory, of
    the last size only.
    """

    def __init__(self, loader: Any, remake: Optional[Callable[[int], Any]] = None) -> None:
        self._loader = loader
        self._remake = remake
        self._samples: list[Any] = []
        self._size = 0
        self._batch: Any = None
        if collates(loader):
            self._samples = _samples(loader)
            if not self._samples:
                raise LoaderError("the training data has no samples")
        elif remake is None:
            raise LoaderError(
                "the training data makes its batches itself (batch_size=None), so no other batch size can be tried; give a loader "
                "with a batch size, or read it from an attribute `batch_size`"
            )

    def of(self, size: int) -> Any:
        """A batch of this size."""
        if self._size != size:
            self._batch = None
            self._batch = self._made(size)
            self._size = size
        return self._batch

    def _made(self, size: int) -> Any:
        if self._samples:
            samples = itertools.islice(itertools.cycle(self._samples), size)
            return self._loader.collate_fn(list(samples))
        assert self._remake is not None
        return next(iter(self._remake(size)))

    def sample_bytes(self) -> int:
        """What one sample takes on the GPU, at most."""
        return nbytes(self.of(1)) if self._samples else 0


def collates(loader: Any) -> bool:
    """Whether a loader puts samples together to batches."""
    return isinstance(loader, DataLoader) and loader.batch_sampler is not None or (
        isinstance(loader, DataLoader) and loader.batch_size is not None
    )


def nbytes(batch: Any) -> int:
    """Bytes of all tensors of a batch."""
    return sum(leaf.nbytes for leaf in tree_leaves(_plain(batch)) if isinstance(leaf, torch.Tensor))


def _plain(batch: Any) -> Any:
    """Mappings of other libraries as dicts."""
    data = getattr(batch, "data", None)
    return dict(data) if not isinstance(batch, (dict, torch.Tensor)) and isinstance(data, dict) else batch


def _samples(loader: Any) -> list[Any]:
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        samples = list(itertools.islice(iter(dataset), _MOST_SAMPLES))
    else:
        samples = [dataset[index] for index in _indices(loader)]
    try:
        sizes = [nbytes(loader.collate_fn([sample])) for sample in samples]
    except Exception:
        # A collate function that needs several samples: they stay in their order.
        return samples
    order = sorted(range(len(samples)), key=lambda index: -sizes[index])
    return [samples[index] for index in order]


def _indices(loader: Any) -> list[Any]:
    """Indices of samples all over the data; those that a sampler of the user's own gives, as it gives them."""
    sampler = getattr(loader, "sampler", None)
    plain = (RandomSampler, SequentialSampler, torch.utils.data.distributed.DistributedSampler)
    try:
        length = len(loader.dataset)
    except TypeError:
        length = None
    batches = getattr(loader, "batch_sampler", None)
    if length is not None and (type(sampler) in plain or sampler is None):
        count = min(length, _MOST_SAMPLES)
        return [index * length // count for index in range(count)]
    if sampler is not None:
        return list(itertools.islice(iter(sampler), _MOST_SAMPLES))
    return list(itertools.islice(itertools.chain.from_iterable(iter(batches)), _MOST_SAMPLES)) if batches is not None else []


def set_batch_size(loader: Any, size: int) -> None:
    """Gives a loader another batch size, and leaves all its other settings, its sampler and its generator as they are."""
    if not collates(loader):
        raise LoaderError("the training data makes its batches itself (batch_size=None): set the batch size where they are made")
    sampler = loader.batch_sampler
    # Loaders refuse other settings once they are made, since the batch sampler would keep the old ones; both are set here.
    attributes = vars(loader)
    if type(sampler) is BatchSampler:
        attributes["batch_sampler"] = BatchSampler(sampler.sampler, size, sampler.drop_last)
    elif sampler is not None:
        _set_of_sampler(sampler, size)
    if attributes.get("batch_size") is not None or type(sampler) is BatchSampler:
        attributes["batch_size"] = size
    attributes["_iterator"] = None


def _set_of_sampler(sampler: Any, size: int) -> None:
    """A batch sampler of another kind: what it wraps, or its own attribute."""
    inner = getattr(sampler, "batch_sampler", None)
    if inner is not None and hasattr(inner, "batch_size"):
        _set_of_sampler(inner, size)
    elif not hasattr(sampler, "batch_size"):
        raise LoaderError(
            f"the loader's batch_sampler, a {type(sampler).__name__}, has no attribute `batch_size` that could be set to {size}"
        )
    if hasattr(sampler, "batch_size"):
        sampler.batch_size = size
