"""`batchfit.lightning.tune(trainer, module, data, target_batch=1024)`, and a callback: the batch of a Lightning Trainer.

Works with `lightning` and with `pytorch_lightning`, whichever the trainer is of.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Optional, Union

from . import ranks
from .plan import Plan
from .batches import Batches, LoaderError, collates, set_batch_size
from .state import Generators
from .tuning import Tuning

if TYPE_CHECKING:
    BatchSizeFinder: Any

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")

# What data modules and modules call the batch size.
_NAME = "batch_size"


def tune(
    trainer: Any,
    module: Any,
    data: Any = None,
    *,
    target_batch: Optional[int] = None,
    memory_limit: Union[int, float, str, None] = None,
    server: Optional[str] = None,
) -> Plan:
    """Finds the largest batch size, and sets it and the trainer's `accumulate_grad_batches`.

    `data` is what `trainer.fit` would be given: a data module, one or more loaders, or nothing where the module has its own.
    Real training steps of the trainer run: its precision, optimizers, clipping and strategy, the module's own hooks, its data's own
    samples. Callbacks and loggers do not run. The batch size is the attribute `batch_size` of the data module or the module, or
    that of the loaders. Afterwards everything else is what it was.
    """
    package = _package(trainer)
    finder = _finder(package)(target_batch=target_batch, memory_limit=memory_limit, server=server)
    finder.stops = True
    # Before it comes to the first step, Lightning sets up the data.
    random = Generators()
    trainer.callbacks = [finder, *trainer.callbacks]
    try:
        is_module = isinstance(data, importlib.import_module(package).LightningDataModule)
        if is_module:
            trainer.fit(module, datamodule=data)
        else:
            trainer.fit(module, data)
    finally:
        trainer.callbacks = [one for one in trainer.callbacks if one is not finder]
        random.put_back()
    if finder.plan is None:
        raise RuntimeError("the trainer ended before its first step, so nothing was tuned")
    plan: Plan = finder.plan
    return plan


def __getattr__(name: str) -> Any:
    if name == "BatchSizeFinder":
        packages = [package for package in _PACKAGES if package in sys.modules] or list(_PACKAGES)
        for package in packages:
            try:
                return _finder(package)
            except ImportError:
                continue
        raise ImportError("batchfit.lightning needs Lightning: pip install lightning")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_FINDERS: dict[str, Any] = {}


def _finder(package: str) -> Any:
    """The callback, as a class of the package that the trainer is of."""
    if package in _FINDERS:
        return _FINDERS[package]
    callback: Any = importlib.import_module(f"{package}.callbacks").Callback

    class BatchSizeFinder(callback):  # type: ignore[misc]
        """Tunes when a fit starts, then trains: `Trainer(callbacks=[BatchSizeFinder(target_batch=1024)])`."""

        def __init__(
            self,
            *,
            target_batch: Optional[int] = None,
            memory_limit: Union[int, float, str, None] = None,
            server: Optional[str] = None,
        ) -> None:
            super().__init__()
            self.plan: Optional[Plan] = None
            self.stops = False
            self._named: dict[str, Any] = {"target_batch": target_batch, "memory_limit": memory_limit, "server": server}

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            if self.plan is None:
                plan = _tuned(package, trainer, pl_module, **self._named)
                # The callback is part of what was put back.
                self.plan = plan
            if self.stops:
                raise importlib.import_module(f"{package}.utilities.exceptions")._TunerExitException

    BatchSizeFinder.__module__ = __name__
    BatchSizeFinder.__qualname__ = "BatchSizeFinder"
    _FINDERS[package] = BatchSizeFinder
    return BatchSizeFinder


def _package(trainer: Any) -> str:
    for kind in type(trainer).__mro__:
        for package in _PACKAGES:
            if kind.__module__.startswith(f"{package}."):
                return package
    raise TypeError(f"trainer must be a Trainer of Lightning, not a {type(trainer).__name__}")


def _tuned(package: str, trainer: Any, module: Any, *, target_batch: Optional[int], **named: Any) -> Plan:
    runner = _Runner(package, trainer, module)
    before = runner.batch_size(), trainer.accumulate_grad_batches
    tuning = Tuning(
        runner.step,
        batch=before[0],
        state=[trainer, module, *([trainer.datamodule] if trainer.datamodule is not None else [])],
        target_batch=target_batch,
        prepare=runner.prepare,
        accumulation=before[1] if target_batch is None else None,
        **named,
    )
    plan = tuning.run()
    runner.set_batch_size(plan.micro_batch)
    trainer.accumulate_grad_batches = plan.accumulation_steps
    if ranks.is_leader():
        print(
            f"batchfit: batch_size {before[0]} -> {plan.micro_batch}, accumulate_grad_batches {before[1]} -> "
            f"{plan.accumulation_steps}; {plan}"
        )
    return plan


class _Runner:
    """Runs steps as the trainer's own loop does."""

    def __init__(self, package: str, trainer: Any, module: Any) -> None:
        self._trainer = trainer
        self._module = module
        self._call = importlib.import_module(f"{package}.trainer.call")
        self._combined = importlib.import_module(f"{package}.utilities.combined_loader").CombinedLoader
        self._parsing = importlib.import_module(f"{package}.utilities.parsing")
        connector = importlib.import_module(f"{package}.trainer.connectors.data_connector")
        self._source = trainer.fit_loop._data_source
        self._request = connector._request_dataloader
        with_attribute = self._parsing.lightning_hasattr(module, _NAME)
        self._has_attribute = bool(with_attribute and self._source.is_module())
        self._loaders: Any = None
        self._batches: list[Batches] = []
        # Loaders that are given to `fit` are the user's own objects, which are given their batch size in place.
        if not self._has_attribute:
            for loader in self._made().flattened:
                if not collates(loader):
                    raise LoaderError(
                        "the training data makes its batches itself: read their size from an attribute `batch_size` of the module or "
                        "data module, or give a loader with a batch size"
                    )

    def batch_size(self) -> int:
        """What it begins with."""
        if self._has_attribute:
            size = self._parsing.lightning_getattr(self._module, _NAME)
        else:
            loader = self._made().flattened[0]
            size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if isinstance(size, bool) or not isinstance(size, int):
            raise ValueError(f"`batch_size` must be a whole number to begin with, not {size!r}")
        return size

    def set_batch_size(self, size: int) -> None:
        """For the training that follows."""
        if self._has_attribute:
            self._parsing.lightning_setattr(self._module, _NAME, size)
        elif self._source.is_module():
            raise LoaderError(
                f"train_dataloader() reads its batch size from no attribute `batch_size` of the module or data module, so that {size} "
                "cannot be set"
            )
        else:
            for loader in self._made().flattened:
                set_batch_size(loader, size)

    def _made(self) -> Any:
        """The training loaders, as one."""
        if self._loaders is None:
            loaders = self._request(self._source)
            self._loaders = loaders if isinstance(loaders, self._combined) else self._combined(loaders, "max_size_cycle")
        return self._loaders

    def _remade(self, which: int, size: int) -> Any:
        self._parsing.lightning_setattr(self._module, _NAME, size)
        loaders = self._request(self._source)
        combined = loaders if isinstance(loaders, self._combined) else self._combined(loaders, "max_size_cycle")
        return combined.flattened[which]

    def _batch(self, size: int) -> Any:
        combined = self._made()
        if not self._batches:
            for which, loader in enumerate(combined.flattened):
                remake = (lambda size, which=which: self._remade(which, size)) if self._has_attribute else None
                self._batches.append(Batches(loader, remake))
        from torch.utils._pytree import tree_unflatten

        return tree_unflatten([batches.of(size) for batches in self._batches], combined._spec)

    def prepare(self) -> None:
        """What the fit loop does before its first step, without callbacks and loggers."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        # Callbacks and loggers write files, and stop or checkpoint the training.
        trainer.callbacks = []
        trainer.loggers = []
        # No step is the last, so that accumulation goes by its number alone.
        loop.max_batches = float("inf")
        loop.epoch_loop.reset()
        self._call._call_lightning_module_hook(trainer, "on_train_start")
        self._call._call_strategy_hook(trainer, "on_train_start")
        self._call._call_lightning_module_hook(trainer, "on_train_epoch_start")

    def step(self, size: int, accumulation: int) -> None:
        """One optimizer step, of so many batches."""
        self._trainer.accumulate_grad_batches = accumulation
        batch = self._batch(size)
        for index in range(accumulation):
            self._trainer.fit_loop.epoch_loop.advance(_Fetcher(batch, index))


class _Fetcher:
    """Hands out one batch, which is not the last."""

    done = False
    fetched = 0

    def __init__(self, batch: Any, index: int) -> None:
        self._batch, self._index = batch, index

    def __next__(self) -> tuple[Any, int, int]:
        return self._batch, self._index, 0
