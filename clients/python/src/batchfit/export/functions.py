"""Follows calls of custom `torch.autograd.Function`s while a model is traced.

Autograd does not look inside such a function: its `forward` runs without gradients, only what it saves stays, and its
`backward` is Python code of its own. Tracing shows the operators of `forward` and nothing of this. Here every call also
runs its `backward`, right after its `forward` and in the same trace, so that its sizes are functions of the batch too.
Two operators that compute nothing mark what belongs together; `document.py` takes all of it out of the graph again:

- `batchfit::gradient` makes what stands for the gradient of an output;
- `batchfit::function` ends a call, and names its inputs, outputs, saved tensors, gradients and results.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.fx
import torch.fx.experimental.proxy_tensor as tracing
from torch.utils.weak import WeakIdKeyDictionary

from .lifetimes import Lifetimes

# Where a node that a backward pass has made keeps the number of its call.
CALL = "batchfit_call"
GRADIENT, FUNCTION = "torch.ops.batchfit.gradient.default", "torch.ops.batchfit.function.default"

_library: Any = torch.library.Library("batchfit", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("gradient(Tensor output) -> Tensor")
_library.define(
    "function(Tensor[] inputs, Tensor[] outputs, Tensor[] saved, Tensor[] held, Tensor[] gradients, Tensor?[] results,"
    " int call) -> Tensor"
)
_library.impl("gradient", lambda output: torch.empty_like(output), "CompositeExplicitAutograd")
_library.impl("function", lambda inputs, *_: inputs[0].new_empty(()), "CompositeExplicitAutograd")

_DEFAULT_SETUP = torch.autograd.Function.setup_context

# Operators that give no gradient to what they read.
_DETACHING = frozenset({"aten::detach", "aten::detach_"})


@dataclass
class Call:
    """A call of a custom function whose inputs require gradients."""

    name: str
    # The number of the value made last before `forward`, and of the last one made in it.
    before: int
    last: int = 0
    # For each output that is a tensor: whether it gets a gradient in `backward`, and whether it can require one.
    has_gradient: list[bool] = field(default_factory=list)
    differentiable: list[bool] = field(default_factory=list)
    # What `torch.amp.custom_fwd` casts inputs to, and whether `torch.amp.custom_bwd` brings autocast back.
    cast_inputs: Optional[torch.dtype] = None
    backward_autocast: bool = False
    # Why `backward` could not be traced.
    reason: Optional[str] = None


class _Context:
    """Stands for the `ctx` of a call; attributes are the function's own."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._batchfit_saved: tuple[Optional[torch.Tensor], ...] = ()
        self._batchfit_dirty: tuple[torch.Tensor, ...] = ()
        self._batchfit_not_differentiable: tuple[torch.Tensor, ...] = ()
        self._batchfit_materialize = True

    def save_for_backward(self, *tensors: Optional[torch.Tensor]) -> None:
        self._batchfit_saved = tensors

    def save_for_forward(self, *tensors: Optional[torch.Tensor]) -> None:
        pass

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        self._batchfit_dirty = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        self._batchfit_not_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self._batchfit_materialize = value

    @property
    def saved_tensors(self) -> tuple[Optional[torch.Tensor], ...]:
        return self._batchfit_saved

    @property
    def saved_variables(self) -> tuple[Optional[torch.Tensor], ...]:
        return self._batchfit_saved


class _NotTraced(Exception):
    """Why the backward pass of a call could not be traced."""


@dataclass
class Functions:
    """The calls of custom functions in a traced model."""

    lifetimes: Lifetimes
    # The parameters that are trained, as they are while tracing.
    trained: Callable[[], Sequence[torch.Tensor]]
    calls: list[Call] = field(default_factory=list)
    _requires_grad: Optional[WeakIdKeyDictionary] = None
    # `forward` and `setup_context` of classes, as they were before `following` put others in their place.
    originals: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    inside: bool = False
    # Whether the code asks for the gradient of a value that no trained parameter is behind.
    asks_for_gradients: bool = False

    def follow(self, func: Any, args: Any, kwargs: Any, result: object) -> None:
        """Notes whether what an operator has made requires a gradient."""
        if self.inside or not torch.is_grad_enabled() or func.name().split(".")[0] in _DETACHING:
            return
        if any(self.requires_grad(operand) for operand in _tensors((args, kwargs))):
            self._require(result)

    def requires_grad(self, tensor: object) -> bool:
        return isinstance(tensor, torch.Tensor) and tensor in self._requiring()

    def ask(self, tensor: torch.Tensor) -> None:
        """`tensor.requires_grad_()` of a value: as `enable_input_require_grads` of transformers has it of what embeddings make."""
        self.asks_for_gradients |= not self.requires_grad(tensor)
        self._require(tensor)

    def _requiring(self) -> WeakIdKeyDictionary:
        if self._requires_grad is None:
            self._requires_grad = WeakIdKeyDictionary()
            for parameter in self.trained():
                self._requires_grad[parameter] = True
        return self._requires_grad

    def _require(self, results: object) -> None:
        for tensor in _tensors(results):
            if tensor.is_floating_point() or tensor.is_complex():
                self._requiring()[tensor] = True

    def apply(self, function: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """`function.apply(*args)`."""
        if kwargs or not torch.is_grad_enabled() or not self.is_call(args):
            return original(*args, **kwargs)
        result, _ = self._call(function, args)
        return result

    def forward(self, function: Any, args: tuple[Any, ...]) -> Any:
        """`function.forward(*args)`, called by PyTorch: someone has kept `function.apply` from before."""
        forward, setup_context = self.originals[function]
        takes_context = setup_context is _DEFAULT_SETUP
        given = args[1:] if takes_context else args
        if not self.is_call(given) or not _gradients_on(_mode().tracer.graph):
            return forward(*args)
        result, dirty = self._call(function, given)
        if takes_context and dirty:
            args[0].mark_dirty(*dirty)
        return result

    def is_call(self, args: tuple[Any, ...]) -> bool:
        return tracing.get_proxy_mode() is not None and not self.inside and any(map(self.requires_grad, args))

    def _call(self, function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Calls a function and notes the call. Gives the result and the arguments that were changed."""
        mode = _mode()
        needs = tuple(self.requires_grad(arg) for arg in args)
        graph = mode.tracer.graph
        forward, setup_context = self.originals.get(function, (function.forward, function.setup_context))
        call = Call(f"{function.__module__}.{function.__qualname__}", self.lifetimes.made)
        call.cast_inputs = _closure(forward, "decorate_fwd").get("cast_inputs")
        call.backward_autocast = bool(_closure(function.backward, "decorate_bwd"))
        context = _Context(needs)
        begin = _last(graph)
        # A function may change its inputs: what they were before has objects of its own.
        inputs = [_stand_in(mode.tracer, arg) for arg in args if isinstance(arg, torch.Tensor)]
        with self._alone():
            if setup_context is _DEFAULT_SETUP:
                result = forward(context, *args)
            else:
                result = forward(*args)
                setup_context(context, args, result)
            outputs = [
                # An input that is given back unchanged becomes a view of itself.
                torch.ops.aten.alias.default(output)
                if isinstance(output, torch.Tensor)
                and any(output is arg for arg in args)
                and not any(output is dirty for dirty in context._batchfit_dirty)
                else output
                for output in (result if isinstance(result, tuple) else (result,))
            ]
            call.last = self.lifetimes.made
            _erase(_after(begin), _switches_gradients)
            middle = _last(graph)
            if call.last > call.before:
                self.calls.append(call)
                try:
                    self._trace_backward(function, call, context, args, inputs, outputs)
                except Exception as error:  # Whatever user code raises on tensors without data.
                    call.reason = str(error) if isinstance(error, _NotTraced) else _sentence(error)
                _erase(_after(middle), lambda node: call.reason is not None or _makes_nothing(node))
                for node in _after(middle):
                    node.meta[CALL] = len(self.calls) - 1
        for output in outputs:
            if not any(output is other for other in context._batchfit_not_differentiable):
                self._require(output)
        return tuple(outputs) if isinstance(result, tuple) else outputs[0], context._batchfit_dirty

    def _trace_backward(
        self,
        function: Any,
        call: Call,
        context: _Context,
        args: tuple[Any, ...],
        inputs: list[torch.Tensor],
        outputs: list[Any],
    ) -> None:
        if getattr(function, "boxed_grads_call", False):
            raise _NotTraced("it takes its gradients as a list that it empties")
        gradients: list[Any] = []
        for output in outputs:
            gradient = None
            if isinstance(output, torch.Tensor):
                marked = any(output is other for other in context._batchfit_not_differentiable)
                differentiable = (output.is_floating_point() or output.is_complex()) and not marked
                if differentiable or context._batchfit_materialize:
                    gradient = torch.ops.batchfit.gradient.default(output)
                call.differentiable.append(differentiable)
                call.has_gradient.append(gradient is not None)
            gradients.append(gradient)
        base = torch.autograd.Function
        results = (function.vjp if function.vjp is not base.vjp else function.backward)(context, *gradients)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        results += [None] * (len(args) - len(results))
        of_tensors = [result for arg, result in zip(args, results) if isinstance(arg, torch.Tensor)]
        held = {id(t): t for key, value in vars(context).items() if not _is_own(key) for t in _tensors(value)}
        torch.ops.batchfit.function.default(
            inputs,
            [output for output in outputs if isinstance(output, torch.Tensor)],
            [tensor for tensor in context.saved_tensors if tensor is not None],
            list(held.values()),
            [gradient for gradient in gradients if gradient is not None],
            of_tensors,
            len(self.calls) - 1,
        )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Gradients are off inside, without a mark in the graph, and calls of further functions are part of this one."""
        before, self.inside = torch.is_grad_enabled(), True
        _set_grad_enabled(False)
        try:
            yield
        finally:
            _set_grad_enabled(before)
            self.inside = False


@contextlib.contextmanager
def following(functions: Functions) -> Iterator[None]:
    """Follows every call of a custom function that is traced inside."""
    owner: Any = torch.autograd.Function
    # As the class has it, not bound to it.
    original = inspect.getattr_static(owner, "apply")
    inherited = "apply" not in vars(owner)
    replaceable: Any = tracing
    call = replaceable.proxy_call

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return functions.apply(cls, original.__get__(None, cls), args, kwargs)

    def call_and_follow(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> object:
        result = call(mode, func, pre_dispatch, args, kwargs)
        functions.follow(func, args, kwargs, result)
        return result

    ask: Any = torch.Tensor.requires_grad_

    def requires_grad_(self: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        # Were it to require one while it is traced, autograd would keep the Python objects of what follows.
        if _mode() is None or isinstance(self, torch.nn.Parameter):
            result: torch.Tensor = ask(self, requires_grad)
            return result
        if requires_grad:
            functions.ask(self)
        return self

    own: Any = torch.Tensor.requires_grad

    def set_requires_grad(self: torch.Tensor, requires_grad: bool) -> None:
        if _mode() is None or isinstance(self, torch.nn.Parameter):
            own.__set__(self, requires_grad)
        else:
            self.requires_grad_(requires_grad)

    def forward(cls: Any) -> Any:
        return staticmethod(lambda *args: functions.forward(cls, args))

    # Names such as `swish = Swish.apply` know PyTorch's `apply`, which calls these.
    replaced: list[tuple[Any, str, Any]] = []
    for cls in _subclasses(torch.autograd.Function):
        functions.originals[cls] = (cls.forward, cls.setup_context)
        replaced.append((cls, "forward", vars(cls).get("forward")))
        if cls.setup_context is not _DEFAULT_SETUP:
            replaced.append((cls, "setup_context", vars(cls).get("setup_context")))
    for cls, name, _ in replaced:
        setattr(cls, name, forward(cls) if name == "forward" else _setup(functions, cls))
    replaceable.proxy_call = call_and_follow
    owner.apply = classmethod(apply)
    tensor: Any = torch.Tensor
    tensor.requires_grad_ = requires_grad_
    tensor.requires_grad = property(own.__get__, set_requires_grad)
    try:
        yield
    finally:
        del tensor.requires_grad, tensor.requires_grad_
        replaceable.proxy_call = call
        for cls, name, before in replaced:
            if before is None:
                delattr(cls, name)
            else:
                setattr(cls, name, before)
        if inherited:
            del owner.apply
        else:
            owner.apply = original


def _setup(functions: Functions, cls: Any) -> Any:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """PyTorch calls it after `forward`, which has been followed by then if it is a call."""
        if functions.inside or not functions.is_call(inputs):
            functions.originals[cls][1](ctx, inputs, output)

    return staticmethod(setup_context)


def _subclasses(cls: Any) -> list[Any]:
    """All classes below one, each once."""
    found: dict[Any, None] = {}
    for child in cls.__subclasses__():
        found[child] = None
        found.update(dict.fromkeys(_subclasses(child)))
    return list(found)


def _gradients_on(graph: torch.fx.Graph) -> bool:
    """Whether gradients are on where a graph ends: PyTorch has switched them off around `forward`, which leaves no
    mark."""
    for node in reversed(graph.nodes):
        if _switches_gradients(node):
            return bool(node.args[0])
    return True


def _mode() -> Any:
    return tracing.get_proxy_mode()


def _set_grad_enabled(enabled: bool) -> None:
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(enabled)


def _stand_in(tracer: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor object that is the same value of the graph; the tensor itself where it is none."""
    proxy = tracer.tensor_tracker.get(tensor)
    if proxy is None:
        return tensor
    with tracing.disable_proxy_modes_tracing():
        stand_in = torch.empty_like(tensor)
    tracer.tensor_tracker[stand_in] = proxy
    return stand_in


def _is_own(key: str) -> bool:
    return key.startswith("_batchfit_")


def _tensors(value: object) -> list[torch.Tensor]:
    """Tensors in a value, in lists, tuples and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _last(graph: torch.fx.Graph) -> torch.fx.Node:
    return graph._root.prev


def _after(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes after this one."""
    found, node = [], node.next
    while node.op != "root":
        found.append(node)
        node = node.next
    return found


def _erase(nodes: list[torch.fx.Node], goes: Callable[[torch.fx.Node], bool]) -> None:
    for node in reversed(nodes):
        if not node.users and goes(node):
            node.graph.erase_node(node)


def _switches_gradients(node: torch.fx.Node) -> bool:
    return node.target is torch._C._set_grad_enabled


def _makes_nothing(node: torch.fx.Node) -> bool:
    """Switches of gradients, which are off in a backward pass anyway, and checks left by tracing."""
    return _switches_gradients(node) or node.meta.get("val") is None


def _closure(function: Any, wrapper: str) -> dict[str, Any]:
    """What the decorator's `wrapper` around a function has captured; empty where there is none."""
    while function is not None:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_name == wrapper and code.co_filename.endswith("autocast_mode.py"):
            cells = function.__closure__ or ()
            return {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells)}
        function = getattr(function, "__wrapped__", None)
    return {}


def _sentence(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
