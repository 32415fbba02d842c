"""`batchfit.hf.tune(trainer, target_batch=1024)`: batch size and accumulation of a Hugging Face Trainer."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, Optional, Union

from . import ranks
from .plan import Plan
from .batches import Batches
from .state import Generators
from .tuning import Tuning


def tune(
    trainer: Any,
    *,
    target_batch: Optional[int] = None,
    memory_limit: Union[int, float, str, None] = None,
    server: Optional[str] = None,
) -> Plan:
    """Finds the largest `per_device_train_batch_size`, and sets it and `gradient_accumulation_steps` of the trainer's arguments.

    Real training steps of the trainer run, as `trainer.train()` will run them: its model and precision, its optimizer and
    scaler, its collator, its own samples, repeated where a batch is larger than the data. Afterwards the trainer is what it was,
    but for those two arguments. Without `target_batch`, the accumulation steps stay.
    """
    _check(trainer)
    arguments = trainer.args
    runner = _Runner(trainer)
    target = target_batch
    accumulation = arguments.gradient_accumulation_steps if target is None else None
    tuning = Tuning(
        runner.step,
        batch=arguments.per_device_train_batch_size,
        state=[trainer],
        target_batch=target,
        memory_limit=memory_limit,
        server=server,
        prepare=runner.prepare,
        accumulation=accumulation,
        reserved=runner.reserved(target),
    )
    plan = tuning.run()
    before = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    arguments.per_device_train_batch_size = plan.micro_batch
    arguments.gradient_accumulation_steps = plan.accumulation_steps
    # The trainer has read it when it was made.
    trainer._train_batch_size = arguments.train_batch_size
    if ranks.is_leader():
        print(
            f"batchfit: per_device_train_batch_size {before[0]} -> {plan.micro_batch}, gradient_accumulation_steps {before[1]} -> "
            f"{plan.accumulation_steps}; {plan}"
        )
    return plan


def _check(trainer: Any) -> None:
    for name in ("args", "training_step", "create_optimizer", "accelerator", "model"):
        if not hasattr(trainer, name):
            raise TypeError(f"trainer must be a transformers.Trainer, not a {type(trainer).__name__}")
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise RuntimeError("DeepSpeed's engine cannot be put back after a step: use `batchfit search` with a command instead")
    if trainer.args.n_gpu > 1:
        raise RuntimeError("several GPUs in one process (DataParallel) are not tuned: start with torchrun, one process for each GPU")
    if trainer.model is None:
        raise ValueError("the trainer has no model yet (model_init): give it a model")


class _Runner:
    """Runs steps as the trainer's own loop does."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._model: Any = trainer.model
        self._batches: Optional[Batches] = None

    def reserved(self, target: Optional[int]) -> int:
        """The trainer puts all batches of an optimizer step on the GPU before the first of them runs."""
        if target is None:
            return 0
        share = target // ranks.world_size()
        with _random_put_back():
            return max(0, share * self._made().sample_bytes())

    def _made(self) -> Batches:
        if self._batches is None:
            loader = self._trainer.get_train_dataloader()
            self._batches = Batches(_inner(loader))
            # It is none of those that the trainer prepares for training.
            prepared = self._trainer.accelerator._dataloaders
            prepared[:] = [one for one in prepared if one is not loader]
        return self._batches

    def prepare(self) -> None:
        """What `trainer.train()` does before its first step."""
        trainer = self._trainer
        self._made()
        trainer.is_in_train = True
        trainer.accelerator.free_memory()
        arguments = trainer.args
        own = importlib.import_module(type(trainer).__mro__[-2].__module__)
        if getattr(arguments, "use_liger_kernel", False) and hasattr(own, "apply_liger_kernel"):
            own.apply_liger_kernel(trainer.model, arguments.liger_kernel_config)
        if arguments.gradient_checkpointing:
            # Those that this release has beside what torch.utils.checkpoint takes.
            named = dict(arguments.gradient_checkpointing_kwargs or {})
            others = {name: named.pop(name) for name in ("every_n_layers", "offload") if name in named}
            trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=named or None, **others)
        if getattr(trainer, "neftune_noise_alpha", None) is not None:
            if hasattr(own, "activate_neftune"):
                own.activate_neftune(trainer.model, trainer.neftune_noise_alpha, trainer.accelerator)
            else:
                trainer._activate_neftune(trainer.model)
        steps = arguments.max_steps if arguments.max_steps > 0 else 1000
        if hasattr(trainer, "_prepare_for_training"):
            self._model, _ = trainer._prepare_for_training(steps, None, None)
            return
        trainer.create_optimizer_and_scheduler(num_training_steps=steps)
        model = trainer._wrap_model(trainer.model_wrapped)
        if model is trainer.model:
            model, trainer.optimizer = trainer.accelerator.prepare(model, trainer.optimizer)
        else:
            trainer.optimizer = trainer.accelerator.prepare(trainer.optimizer)
        trainer.model_wrapped = self._model = model

    def step(self, size: int, accumulation: int) -> None:
        """One optimizer step, as `Trainer._inner_training_loop` takes it."""
        trainer, model = self._trainer, self._model
        arguments, accelerator = trainer.args, trainer.accelerator
        # All batches of the step, and the one that the loader has fetched ahead.
        batches = [self._on_device(size) for _ in range(accumulation)]
        ahead = self._on_device(size)
        items = _items(trainer, batches)
        trainer.current_gradient_accumulation_steps = accumulation
        for index, inputs in enumerate(batches):
            is_last = index == len(batches) - 1
            accelerator.gradient_state._set_sync_gradients(is_last)
            with contextlib.nullcontext() if is_last else accelerator.no_sync(model=model):
                loss = trainer.training_step(model, inputs, *items)
            del loss
        if arguments.max_grad_norm is not None and arguments.max_grad_norm > 0:
            if hasattr(trainer, "_clip_grad_norm"):
                trainer._clip_grad_norm(model)
            else:
                accelerator.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
        trainer.optimizer.step()
        model.zero_grad()
        trainer.state.global_step += 1
        del ahead

    def _on_device(self, size: int) -> Any:
        # As the loader does that accelerate has prepared.
        to_device = importlib.import_module("accelerate.utils").send_to_device
        return to_device(self._made().of(size), self._trainer.args.device)


def _inner(loader: Any) -> Any:
    """The loader that accelerate has wrapped, where it is one of its own kind."""
    return getattr(loader, "base_dataloader", loader)


def _items(trainer: Any, batches: list[Any]) -> list[Any]:
    """What `training_step` is told of the samples in all batches of the step, where this release tells it."""
    if not hasattr(trainer, "get_batch_samples"):
        return []
    wanted = [iter(batches), len(batches), trainer.args.device]
    wanted = wanted[: len(inspect.signature(trainer.get_batch_samples).parameters)]
    _, items = trainer.get_batch_samples(*wanted)
    return [items]


@contextlib.contextmanager
def _random_put_back() -> Iterator[None]:
    kept = Generators()
    try:
        yield
    finally:
        kept.put_back()
