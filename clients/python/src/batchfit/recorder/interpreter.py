"""Runs the operators of a graph, as eager PyTorch would run the code that they were traced from."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
import torch.utils.checkpoint

from .blocks import Checkpointing, regions
from .errors import RecorderError
from .functions import class_of
from .graphs import Device, DType, Function, Graph, Layout, MemoryFormat, Operator, Ref
from .stored import Stored, dtype_of
from .lifetimes import assumed, read_by, slots_of
from .noise import Noise
from .operators import IGNORED, Called, Operators, import_namespaces
from .sizes import Size

Environment = dict[int, Any]

# A list of more tensors than this is not made: each takes memory of the host.
_MOST_PARTS = 65_536
_MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}
_STRIDED = 7


class Interpreter:
    """A graph with all its operators looked up."""

    def __init__(self, graph: Graph, stored: Stored, checkpointing: Checkpointing, device: torch.device) -> None:
        import_namespaces(graph.namespaces)
        self.graph, self._stored, self._device = graph, stored, device
        self._regions = regions(graph, checkpointing)
        self._releases = graph.releases if graph.releases is not None else assumed(graph)
        tensors = [*(each.tensor for each in graph.held), *(each.tensor for each in graph.inputs)]
        self._on_meta = any(tensor.device == "meta" for tensor in tensors)
        _assign_numbers(graph)
        operators = Operators()
        # What lengths that no operator asks for depend on; set before each forward pass.
        self.batch = 1
        self._called = {
            id(operator): _looked_up(operators, operator)
            for operator in (*graph.operators, *(inner for function in graph.functions for inner in function.operators))
            if operator.target not in IGNORED
        }
        self._functions = {function.first: (function, class_of(function, self)) for function in graph.functions}
        self._released_late = {function.first: {*function.inputs, *function.outputs, *function.saved, *function.held} for function in graph.functions}
        self._noise = Noise(graph)
        # Types of values that conversions ask for, as the graph runs.
        self._types: dict[int, torch.dtype] = {}
        self._asked = {slot for slot in graph.dtypes_of.values() if slot is not None}

    def loss(self, held: Environment, batch: Iterable[torch.Tensor], size: int) -> torch.Tensor:
        """The forward pass on a batch of so many samples. `held` are parameters and buffers by slot."""
        self.batch = size
        environment: Environment = {each.slot: tensor for each, tensor in zip(self.graph.inputs, batch)}
        self._run(environment, held, 0, len(self.graph.operators) - 1, None)
        loss = environment.pop(self.graph.loss, None)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise RecorderError("the graph gives no loss: one scalar")
        return loss

    def _run(self, environment: Environment, held: Environment, first: int, last: int, region: Optional[int]) -> None:
        """Runs operators from the first to the last, which are one region if `region` is the first."""
        index = first
        while index <= last:
            end = self._regions.get(index)
            if end is not None and end <= last and region != index:
                self._checkpoint(environment, held, index, end)
                index = end + 1
            elif index in self._functions and self._functions[index][0].last <= last:
                function, cls = self._functions[index]
                self._call(environment, held, function, cls)
                index = function.last + 1
            else:
                self._step(environment, held, index)
                self._release(environment, self._releases.get(index, ()))
                index += 1

    def _release(self, environment: Environment, slots: Iterable[int]) -> None:
        for slot in slots:
            if slot != self.graph.loss:
                environment.pop(slot, None)

    def _checkpoint(self, environment: Environment, held: Environment, first: int, last: int) -> None:
        made = {slot for operator in self.graph.operators[first : last + 1] for slot in slots_of(operator.outputs)}
        numbers = {slot: value for slot, value in environment.items() if not isinstance(value, torch.Tensor)}
        read = [slot for slot in self._read(first, last) if slot not in made and isinstance(environment.get(slot), torch.Tensor)]
        names: list[int] = []

        def block(*tensors: torch.Tensor) -> list[Any]:
            inside = {**numbers, **dict(zip(read, tensors))}
            del tensors
            self._run(inside, held, first, last, first)
            names[:] = [slot for slot in inside if slot in made]
            return [inside[slot] for slot in names]

        results = torch.utils.checkpoint.checkpoint(block, *[environment[slot] for slot in read], use_reentrant=False)
        environment.update(zip(names, results))
        del results
        # What died inside was held by the call.
        for index in range(first, last + 1):
            self._release(environment, (slot for slot in self._releases.get(index, ()) if slot not in made))

    def _read(self, first: int, last: int) -> list[int]:
        found: dict[int, None] = {}
        for index in range(first, last + 1):
            for _, argument in self.graph.operators[index].arguments:
                for each in argument if isinstance(argument, list) else [argument]:
                    if isinstance(each, Ref):
                        found[each.slot] = None
            if index in self._functions:
                found.update(dict.fromkeys(self._released_late[index]))
        return list(found)

    def _call(self, environment: Environment, held: Environment, function: Function, cls: Any) -> None:
        kept = self._released_late[function.first]
        late: list[int] = []

        def forward() -> None:
            for index in range(function.first, function.last + 1):
                self._step(environment, held, index)
                gone = self._releases.get(index, ())
                late.extend(slot for slot in gone if slot in kept)
                self._release(environment, (slot for slot in gone if slot not in kept))

        def find(slot: int) -> Any:
            return environment[slot] if slot in environment else held[slot]

        # `custom_fwd` may put casts in the place of arguments while the call runs.
        before = {slot: environment.get(slot) for slot in function.inputs}
        results = cls.apply(_Call(environment, held, forward), *[find(slot) for slot in function.inputs])
        for slot, tensor in before.items():
            environment.pop(slot, None)
            if tensor is not None:
                environment[slot] = tensor
        del before
        environment.update(zip(function.outputs, results if isinstance(results, tuple) else (results,)))
        del results
        self._release(environment, late)

    def backward(self, function: Function, environment: Environment) -> list[Any]:
        """The backward pass of a custom function, on what it saved and its gradients."""
        kept = {slot for slot in function.results if slot is not None}
        for index, operator in enumerate(function.operators):
            self._execute(environment, {}, operator, None)
            self._release(environment, (slot for slot in function.releases.get(index, ()) if slot not in kept))
        return [None if slot is None else environment[slot] for slot in function.results]

    def _step(self, environment: Environment, held: Environment, index: int) -> None:
        operator = self.graph.operators[index]
        self._execute(environment, held, operator, index)
        for slot in self.graph.packed_checks.get(index, ()):
            _look_for_packed_sequences(environment[slot])

    def _execute(self, environment: Environment, held: Environment, operator: Operator, index: Optional[int]) -> None:
        called = self._called.get(id(operator))
        if called is None:
            return
        try:
            with contextlib.ExitStack() as stack:
                if not operator.gradients:
                    stack.enter_context(torch.no_grad())
                if not operator.autocast:
                    stack.enter_context(torch.autocast(self._device.type, enabled=False))
                result = self._result(environment, held, operator, called, index)
        except (torch.OutOfMemoryError, RecorderError):
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, OverflowError) as error:
            if _is_the_end(error):
                raise
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise RecorderError(f"at {operator.where}: {operator.target[:120]} cannot be run: {text[0][:300]}") from error
        self._bind(environment, operator, result)

    def _result(self, environment: Environment, held: Environment, operator: Operator, called: Called, index: Optional[int]) -> Any:
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for name, given in operator.arguments:
            value = self._value(environment, held, operator, index, given)
            if called.schema is None or not name:
                positional.append(value)
            else:
                named[name] = value
        if called.makes_list:
            _check_parts(named, positional)
        if operator.target in _MASKED_FILLS:
            named["value"] = _within(named["self"].dtype, named["value"])
        return called.function(*positional, **named)

    def _value(self, environment: Environment, held: Environment, operator: Operator, index: Optional[int], given: Any) -> Any:
        if isinstance(given, Ref):
            return environment[given.slot] if given.slot in environment else held[given.slot]
        if isinstance(given, list):
            return [self._value(environment, held, operator, index, each) for each in given]
        if isinstance(given, DType):
            return self._dtype(given, operator, index, environment)
        if isinstance(given, Device):
            # What was traced on the meta device and names the host means the host.
            return torch.device("cpu") if given.kind == "cpu" and self._on_meta else self._device
        if isinstance(given, Layout):
            return _strided(given)
        if isinstance(given, MemoryFormat):
            return _memory_format(given)
        if isinstance(given, Size):
            return given.at(self.batch)
        return given

    def _dtype(self, given: DType, operator: Operator, index: Optional[int], environment: Environment) -> torch.dtype:
        """The dtype that a node names, or that of the tensor whose dtype its code asked for, as it is now."""
        dtype = dtype_of(given.number, operator.where)
        if index is None or index not in self.graph.dtypes_of:
            noise = self._noise.dtype(index, environment) if index is not None and dtype.is_floating_point else None
            return dtype if noise is None else noise
        asked = self.graph.dtypes_of[index]
        if asked is not None and asked in self._types:
            return self._types[asked]
        return self._stored.parameters if dtype == torch.float32 and not self._is_half() else dtype

    def _is_half(self) -> bool:
        half = (torch.float16, torch.bfloat16)
        return any(each.is_parameter and dtype_of(each.tensor.dtype, each.path) in half for each in self.graph.held)

    def _bind(self, environment: Environment, operator: Operator, result: Any) -> None:
        outputs = operator.outputs
        results: list[Any]
        if len(outputs) == 1:
            results = [result]
        else:
            results = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
        if len(results) != len(outputs):
            raise RecorderError(f"at {operator.where}: {operator.target[:120]} gives {len(results)} results, not {len(outputs)}")
        for slot, each in zip(outputs, results):
            if isinstance(slot, list):
                parts = list(each) if isinstance(each, (tuple, list)) else []
                if len(parts) != len(slot):
                    raise RecorderError(f"at {operator.where}: {operator.target[:120]} gives {len(parts)} tensors, not {len(slot)}")
                environment.update(zip(slot, parts))
            elif slot is not None:
                environment[slot] = each
        for slot in slots_of(outputs):
            if slot in self._asked and isinstance(environment[slot], torch.Tensor):
                self._types[slot] = environment[slot].dtype


class _Call:
    """What `forward` of a custom function works on; it is no tensor, so that autograd hands it on as it is."""

    def __init__(self, environment: Environment, held: Environment, forward: Callable[[], None]) -> None:
        self.environment, self.held, self.forward = environment, held, forward

    def find(self, slot: int) -> Any:
        return self.environment[slot] if slot in self.environment else self.held[slot]


def _looked_up(operators: Operators, operator: Operator) -> Called:
    try:
        called = operators.find(operator.target)
    except RecorderError as error:
        raise RecorderError(f"at {operator.where}: {error}") from None
    for name, _ in operator.arguments:
        if name and not called.has(name):
            raise RecorderError(f"at {operator.where}: {operator.target[:120]} has no argument {name[:80]!r}")
    return called


_SCALAR, _VIEW, _EXPAND, _COPY = (
    f"torch.ops.aten.{name}" for name in ("scalar_tensor.default", "view.default", "expand.default", "copy_.default")
)
_FILL = "torch.ops.aten.fill_.Scalar"
_NOTHING = "torch.ops.aten._assert_async.default"


def _assign_numbers(graph: Graph) -> None:
    """`x[:, 0] = 2` fills (`copy_to` in `TensorIndexingUtils`); tracing shows it as a tensor that is made of the number, expanded and
    copied."""
    readers: dict[int, list[Operator]] = {}
    for operator in graph.operators:
        for slot in read_by(operator):
            readers.setdefault(slot, []).append(operator)
    for made in graph.operators:
        if made.target != _SCALAR or not made.arguments:
            continue
        chain = [made]
        for target in (_VIEW, _EXPAND, _COPY):
            following = readers.get(slots_of(chain[-1].outputs)[0], [])
            if len(following) != 1 or following[0].target != target:
                break
            chain.append(following[0])
        if len(chain) == 4 and read_by(chain[3])[1:] == slots_of(chain[2].outputs):
            for operator in chain[:3]:
                operator.target = _NOTHING
            chain[3].target = _FILL
            chain[3].arguments = [chain[3].arguments[0], ("value", made.arguments[0][1])]


_MASKED_FILLS = ("torch.ops.aten.masked_fill.Scalar", "torch.ops.aten.masked_fill_.Scalar")


def _within(dtype: torch.dtype, value: Any) -> Any:
    """The number that a mask fills with, where a graph was exported in a larger type: code asks for the least of the type at hand."""
    if not dtype.is_floating_point or not isinstance(value, float) or value != value or value in (float("inf"), float("-inf")):
        return value
    limits = torch.finfo(dtype)
    return min(max(value, limits.min), limits.max)


def _is_the_end(error: BaseException) -> bool:
    """Whether an error is of the card or of memory, not of the operator."""
    text = str(error)
    return any(sign in text for sign in ("out of memory", "CUDA error", "CUBLAS_STATUS_ALLOC_FAILED", "cuDNN error")) or "_StopRecomputation" in type(error).__name__


def _strided(layout: Layout) -> torch.layout:
    if layout.number != _STRIDED:
        raise RecorderError("tensors of another layout than strided are not recorded")
    return torch.strided


def _memory_format(given: MemoryFormat) -> torch.memory_format:
    found = _MEMORY_FORMATS.get(given.number)
    if found is None:
        raise RecorderError(f"the memory format {given.number} is not known")
    return found


def _check_parts(named: dict[str, Any], positional: list[Any]) -> None:
    for operand in (*named.values(), *positional):
        if isinstance(operand, torch.Tensor) and any(length > _MOST_PARTS for length in operand.shape):
            # In parts of one element there would be as many as the dimension is long.
            size = named.get("split_size", named.get("chunks"))
            dim = named.get("dim", 0)
            length = operand.shape[dim] if isinstance(dim, int) and -operand.dim() <= dim < operand.dim() else max(operand.shape)
            parts = length // max(1, size) if "split_size" in named and isinstance(size, int) else size if isinstance(size, int) else length
            if parts > _MOST_PARTS:
                raise RecorderError(f"a tensor is cut into {parts} parts; at most {_MOST_PARTS} are made")


def _look_for_packed_sequences(position_ids: torch.Tensor) -> None:
    """`find_packed_sequence_indices` of Hugging Face's `masking_utils`, which runs eagerly and is in no graph."""
    first_dummy_value = position_ids[:, :1] - 1
    position_diff = torch.diff(position_ids, prepend=first_dummy_value, dim=-1)
    packed_sequence_mask = (position_diff != 1).cumsum(-1)
    # What it finds is of no use: numbers mean nothing here. Asking waits for the card and lets go of the answer.
    if (packed_sequence_mask[:, -1] == 0).all():
        return


def quiet() -> None:
    """Warnings of PyTorch's are of no use to who asks for a batch."""
    warnings.simplefilter("ignore")
