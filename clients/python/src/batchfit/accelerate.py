"""`batchfit.accelerate.tune(accelerator, model, optimizer, step, target_batch=256)`: the batch of a loop with Accelerate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from . import ranks
from .micro_steps import accumulate
from .plan import Plan
from .batches import set_batch_size
from .tuning import Tuning


def tune(
    accelerator: Any,
    model: Any,
    optimizer: Any,
    step: Callable[[int], object],
    *,
    batch: Optional[int] = None,
    target_batch: Optional[int] = None,
    loader: Any = None,
    state: Sequence[object] = (),
    memory_limit: Union[int, float, str, None] = None,
    server: Optional[str] = None,
) -> Plan:
    """Finds the largest micro-batch, and sets the accelerator's `gradient_accumulation_steps` and the loader's batch size.

    `model` and `optimizer` are what `accelerator.prepare` gave (the optimizer may be a list of several), and `step(b)` runs one
    training step with them at batch `b`, within `accelerator.accumulate(model)` or not. `loader` is the prepared loader of
    the training data; the only one that was prepared where it is left out. `batch` is what it begins with: the loader's by
    default. `state` names whatever else a step changes; the accelerator's scaler and schedulers need not be named.
    """
    if not hasattr(accelerator, "gradient_accumulation_steps") or not hasattr(accelerator, "_models"):
        raise TypeError(f"accelerator must be an accelerate.Accelerator, not a {type(accelerator).__name__}")
    if str(getattr(accelerator.distributed_type, "value", "")) in ("DEEPSPEED", "MEGATRON_LM"):
        raise RuntimeError("DeepSpeed and Megatron-LM cannot be put back after a step: use `batchfit search` with a command instead")
    if loader is None and len(accelerator._dataloaders) == 1:
        loader = accelerator._dataloaders[0]
    size = batch if batch is not None else _batch_size(loader)
    before = accelerator.gradient_accumulation_steps
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]

    def alone() -> None:
        # Micro-steps are counted here.
        accelerator.gradient_accumulation_steps = 1

    def steps(micro_batch: int, accumulation: int) -> None:
        accumulate(tuning.state, step, micro_batch, accumulation)

    tuning = Tuning(
        steps,
        batch=size,
        state=[model, *optimizers, accelerator, *state],
        target_batch=target_batch,
        memory_limit=memory_limit,
        server=server,
        prepare=alone,
        accumulation=before if target_batch is None else None,
    )
    plan = tuning.run()
    accelerator.gradient_accumulation_steps = plan.accumulation_steps
    said = f"gradient_accumulation_steps {before} -> {plan.accumulation_steps}"
    if loader is not None:
        was = _batch_size(loader)
        set_batch_size(loader, plan.micro_batch)
        # What accelerate has wrapped, where it keeps it.
        inner = getattr(loader, "base_dataloader", None)
        if inner is not None and inner is not loader:
            set_batch_size(inner, plan.micro_batch)
        said = f"the loader's batch_size {was} -> {plan.micro_batch}, {said}"
    if ranks.is_leader():
        print(f"batchfit: {said}; {plan}")
    return plan


def _batch_size(loader: Any) -> int:
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
    if not isinstance(size, int):
        raise ValueError("which batch to begin with is not known: give batch=8, say, or the prepared loader, as loader=")
    return size
