"""Custom `torch.autograd.Function`s of a graph, made again: autograd does not look inside of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.amp.autocast_mode import custom_bwd, custom_fwd

from .graphs import Function
from .stored import dtype_of

if TYPE_CHECKING:
    from .interpreter import Interpreter


def class_of(function: Function, interpreter: Interpreter) -> Any:
    """A class whose `forward` runs the call's operators and saves what they saved, and whose `backward` runs the traced one."""

    def forward(ctx: Any, call: Any, *inputs: torch.Tensor) -> Any:
        # Casts of `custom_fwd` take the place of the call's arguments.
        call.environment.update(zip(function.inputs, inputs))
        call.forward()
        outputs = [call.find(slot) for slot in function.outputs]
        dirty = [output for output in outputs if any(output is tensor for tensor in inputs)]
        if dirty:
            ctx.mark_dirty(*dirty)
        ctx.mark_non_differentiable(*[output for output, does in zip(outputs, function.differentiable) if not does])
        ctx.set_materialize_grads(any(slot is not None for slot in function.gradients))
        ctx.save_for_backward(*[call.find(slot) for slot in function.saved])
        ctx.held = [call.find(slot) for slot in function.held]
        return tuple(outputs) if len(outputs) != 1 else outputs[0]

    def backward(ctx: Any, *gradients: Any) -> Any:
        environment = dict(zip(function.inner, [*ctx.saved_tensors, *ctx.held]))
        environment.update({slot: gradient for slot, gradient in zip(function.gradients, gradients) if slot is not None})
        del gradients
        return (None, *interpreter.backward(function, environment))

    if function.cast_inputs is not None:
        dtype = dtype_of(function.cast_inputs.number, function.name)
        forward = custom_fwd(forward, device_type="cuda", cast_inputs=dtype)
    elif function.backward_autocast:
        forward = custom_fwd(forward, device_type="cuda")
    if function.backward_autocast:
        backward = custom_bwd(backward, device_type="cuda")
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Called", (torch.autograd.Function,), members)
