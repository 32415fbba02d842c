"""Reads an exported graph into a list of operators, in the order in which they run.

The document is PyTorch's own serialized form, or a `.pt2` archive that holds it, with the side table of batchfit's exporter
(`batchfit/export/document.py`). Nothing in it is trusted: what is read is counted, and every name is looked up among those
before it, so that a value is made before it is read.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

from .errors import RecorderError
from .sizes import Size, is_of_values

# What crates/step/src/bounded reads of a graph, and what a service reads of its text at most.
MOST_NODES, MOST_NAMES, MOST_BYTES = 100_000, 800_000, 1 << 27
_DEEPEST, _LONGEST_TEXT, _LONGEST_LIST = 16, 4096, 65_536

_REGIONS = "torch.ops.higher_order."


@dataclass(frozen=True)
class Ref:
    """A value of the graph, by its slot."""

    slot: int


@dataclass(frozen=True)
class DType:
    """A dtype, as PyTorch numbers it in a graph."""

    number: int


@dataclass(frozen=True)
class Device:
    """A device, by its kind on the machine that exported the graph."""

    kind: str


@dataclass(frozen=True)
class Layout:
    number: int


@dataclass(frozen=True)
class MemoryFormat:
    number: int


@dataclass(frozen=True)
class Tensor:
    """What the graph says of a tensor: its dtype and shape, and whether it requires a gradient."""

    dtype: int
    sizes: tuple[Any, ...]
    requires_grad: bool
    device: str

    def shape(self, batch: int) -> list[int]:
        return [size.at(batch) if isinstance(size, Size) else size for size in self.sizes]


@dataclass(frozen=True)
class Held:
    """A parameter or a buffer."""

    slot: int
    path: str
    is_parameter: bool
    tensor: Tensor
    # A tensor that the code writes down, `torch.tensor([1, 2])`, which PyTorch lifts out of the graph.
    is_constant: bool = False


@dataclass(frozen=True)
class Input:
    """A tensor of the batch."""

    slot: int
    name: str
    tensor: Tensor


@dataclass
class Operator:
    """A node, as it is run."""

    target: str
    where: str
    arguments: list[tuple[str, Any]]
    # Slots of the results: an int each, or a list of them where the operator gives a list.
    outputs: list[Any]
    stack: str
    # Numbers of the tensors among the results, in the numbering of the side table.
    values: list[int]
    gradients: bool = True
    autocast: bool = True


@dataclass
class Function:
    """A call of a custom `torch.autograd.Function`; `batchfit/export/function_calls.py` says what its members mean."""

    name: str
    first: int
    last: int
    inputs: list[int]
    outputs: list[int]
    differentiable: list[bool]
    saved: list[int]
    held: list[int]
    cast_inputs: Optional[DType]
    backward_autocast: bool
    # For each output, the slot of its gradient inside; for each input, that of its gradient.
    gradients: list[Optional[int]]
    results: list[Optional[int]]
    # For each of `saved` and `held`, its slot inside.
    inner: list[int]
    operators: list[Operator]
    releases: dict[int, list[int]]


@dataclass
class Graph:
    """A graph, made ready to run."""

    held: list[Held]
    inputs: list[Input]
    operators: list[Operator]
    loss: int
    # After an operator, the slots that Python lets go of, in order; None where nobody has watched it.
    releases: Optional[dict[int, list[int]]]
    # After an operator, position ids in which eager code looks for packed sequences.
    packed_checks: dict[int, list[int]] = field(default_factory=dict)
    # An operator that converts to the dtype of a slot, or of the parameters (None).
    dtypes_of: dict[int, Optional[int]] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    # The lengths of tensors by slot, None for one that is no number.
    shapes: dict[int, tuple[Optional[int], ...]] = field(default_factory=dict)
    batches: tuple[int, int] = (1, 1 << 40)
    namespaces: set[str] = field(default_factory=set)
    # Sentences for whoever reads the answer.
    notes: list[str] = field(default_factory=list)


def read(file: bytes) -> Graph:
    """Reads the bytes of a file: JSON, gzipped or not, or an archive that contains it."""
    try:
        document = json.loads(_text(file), parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise RecorderError(f"the graph is no JSON that can be read: {str(error)[:200]}") from None
    return _Reader().document(document)


def _number(text: str) -> float:
    # `Infinity` and `NaN`, which Python's JSON has and masks need.
    return float(text)


def _text(file: bytes) -> bytes:
    if file[:4] == b"PK\x03\x04":
        return _of_archive(file)
    if file[:2] != b"\x1f\x8b":
        return file
    decompressor = zlib.decompressobj(wbits=31)
    try:
        text = decompressor.decompress(file, MOST_BYTES + 1)
    except zlib.error as error:
        raise RecorderError(f"the gzip data cannot be read: {error}") from None
    if len(text) > MOST_BYTES:
        raise RecorderError(f"the graph is larger than {MOST_BYTES} bytes")
    return text


def _of_archive(file: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            names = [name for name in archive.namelist() if name == "models/model.json" or name.endswith("/models/model.json")]
            if len(names) != 1:
                raise RecorderError(f"the archive holds {len(names)} models (models/model.json); one was expected")
            with archive.open(names[0]) as entry:
                text = entry.read(MOST_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError) as error:
        raise RecorderError(f"the archive cannot be read: {str(error)[:200]}") from None
    if len(text) > MOST_BYTES:
        raise RecorderError(f"the graph is larger than {MOST_BYTES} bytes")
    return text


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _member(holder: Any, name: str, kind: Any, where: str) -> Any:
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise RecorderError(f"at {where}: {name!r} is missing, or not as PyTorch writes it")
    return value


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value.bit_length() > 63:
        raise RecorderError(f"at {where}: {_shorten(value)} is no whole number of at most 63 bits")
    return value


@dataclass
class _Scope:
    """Names of one graph, or of one nested in it."""

    tensors: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)
    # The graph that this one is nested in.
    outer: Optional[_Scope] = None
    depth: int = 0


class _Reader:
    def __init__(self) -> None:
        self.slots = 0
        self.names = 0
        self.values = 0
        self.slot_of_value: list[int] = []
        self.operators: list[Operator] = []
        self.namespaces: set[str] = set()
        self.batch: Optional[str] = None
        self.shapes: dict[int, tuple[Optional[int], ...]] = {}
        # The scope of each operator: calls of custom functions name values of it.
        self.scopes: list[_Scope] = []

    def slot(self) -> int:
        self.slots += 1
        self.names += 1
        if self.names > MOST_NAMES:
            raise RecorderError(f"the nodes of the graph have more than {MOST_NAMES} operands and results together")
        return self.slots - 1

    def document(self, document: Any) -> Graph:
        module = _member(document, "graph_module", dict, "the document")
        at = "/graph_module"
        graph = _member(module, "graph", dict, at)
        signature = _member(module, "signature", dict, at)
        scope = self.scope(graph, f"{at}/graph")
        held, inputs = self.signature(signature, scope, f"{at}/signature")
        notes = self.tie(held, inputs, graph, scope)
        self.nodes(graph, scope, f"{at}/graph", 0, True, True)
        loss = self.loss(graph, scope, f"{at}/graph")
        read = Graph(held, inputs, self.operators, loss, None, namespaces=self.namespaces, notes=notes, shapes=self.shapes)
        for each in held:
            read.shapes[each.slot] = tuple(size if isinstance(size, int) else None for size in each.tensor.sizes)
        if self.batch is None:
            raise RecorderError("no tensor of the batch has a length that depends on the batch; export with it as a symbol")
        limits = document.get("range_constraints")
        limit = limits.get(self.batch) if isinstance(limits, dict) else None
        if isinstance(limit, dict):
            least, most = (limit.get(name) for name in ("min_val", "max_val"))
            read.batches = (least if isinstance(least, int) else 1, most if isinstance(most, int) else 1 << 40)
        table = document.get("batchfit")
        if table is not None:
            self.table(table, read)
        return read

    def scope(self, graph: Any, where: str) -> _Scope:
        types = _member(graph, "tensor_values", dict, where)
        sizes = graph.get("sym_int_values")
        return _Scope(sizes=sizes if isinstance(sizes, dict) else {}, types=types)

    def tensor(self, name: str, scope: _Scope, where: str) -> Tensor:
        meta = scope.types.get(name)
        if not isinstance(meta, dict):
            raise RecorderError(f"at {where}: {_shorten(name)!r} is not in tensor_values")
        sizes = _member(meta, "sizes", list, f"{where}: {_shorten(name)}")
        if len(sizes) > 64:
            raise RecorderError(f"at {where}: a tensor of {len(sizes)} dimensions")
        device = meta.get("device")
        kind = device.get("type") if isinstance(device, dict) else None
        dtype = _member(meta, "dtype", int, f"{where}: {_shorten(name)}")
        return Tensor(dtype, tuple(self.size(size, where) for size in sizes), meta.get("requires_grad") is True, str(kind))

    def size(self, size: Any, where: str) -> Any:
        """A number, or an expression of the batch."""
        if isinstance(size, dict) and "as_int" in size:
            return _whole(size["as_int"], where)
        expression = size.get("as_expr") if isinstance(size, dict) else None
        text = expression.get("expr_str") if isinstance(expression, dict) else None
        if not isinstance(text, str):
            raise RecorderError(f"at {where}: a size that is neither a number nor an expression")
        read = Size(text)
        for symbol in read.symbols():
            if is_of_values(symbol):
                raise RecorderError(f"at {where}: a size that values decide ({symbol}) where the batch does")
            if self.batch not in (None, symbol):
                raise RecorderError(
                    f"two symbolic sizes, {self.batch} and {_shorten(symbol)}; export with the batch as the only dynamic dimension"
                )
            self.batch = symbol
        return read

    def signature(self, signature: Any, scope: _Scope, where: str) -> tuple[list[Held], list[Input]]:
        held: list[Held] = []
        inputs: list[Input] = []
        for index, spec in enumerate(_member(signature, "input_specs", list, where)):
            at = f"{where}/input_specs/{index}"
            if not isinstance(spec, dict) or len(spec) != 1:
                raise RecorderError(f"at {at}: not as PyTorch writes it")
            kind, body = next(iter(spec.items()))
            argument = _member(body, "arg", dict, at)
            if kind == "user_input":
                if "as_tensor" not in argument:
                    continue
                name = _member(argument["as_tensor"], "name", str, at)
                slot = scope.tensors[name] = self.slot()
                inputs.append(Input(slot, name, self.tensor(name, scope, at)))
                continue
            if kind not in ("parameter", "buffer", "tensor_constant"):
                raise RecorderError(f"at {at}: an input of the kind {_shorten(kind)!r} is not read")
            name = _member(argument, "name", str, at)
            path = _member(body, f"{kind}_name", str, at)
            if len(path) > 512:
                raise RecorderError(f"at {at}: a path of more than 512 characters")
            slot = scope.tensors[name] = self.slot()
            held.append(Held(slot, path, kind == "parameter", self.tensor(name, scope, at), kind == "tensor_constant"))
        return held, inputs

    def tie(self, held: list[Held], inputs: list[Input], graph: Any, scope: _Scope) -> list[str]:
        """Makes one of what an export that did not notice has twice: a parameter that nothing reads, of the shape and dtype of one
        that both an embedding and a linear read; and a tensor of the batch that only lends its size. As
        `crates/models/src/exported/signature.rs` does."""
        read, embedded, projected = set(), set(), set()
        for target, name, tensor in _reads(graph, _DEEPEST):
            if ".sym_size." in target or "._assert" in target:
                continue
            read.add(tensor)
            if name == "weight" and ".embedding." in target:
                embedded.add(tensor)
            if name == "weight" and ".linear." in target:
                projected.add(tensor)
        names = {slot: name for name, slot in scope.tensors.items()}
        notes = []
        for own in [each for each in held if names[each.slot] in embedded & projected]:
            unread = [each for each in held if each.is_parameter and names[each.slot] not in read]
            same = [each for each in unread if _alike(each.tensor, own.tensor)]
            if not same:
                continue
            first = min([own, *same], key=held.index)
            # Where the first of them is: there the tensor is made.
            held[held.index(first)] = Held(own.slot, first.path, True, own.tensor)
            held[:] = [each for each in held if each not in same and (each is not own or first is own)]
            notes += [
                f"{other.path} is taken to be the same tensor as {own.path}: nothing reads it, and both have the same shape" for other in same
            ]
        for one in [each for each in inputs if each.name not in read]:
            twin = next((each for each in inputs if each.name in read and _alike(each.tensor, one.tensor)), None)
            if twin is not None:
                inputs.remove(one)
                scope.tensors[one.name] = twin.slot
        return notes

    def nodes(self, graph: Any, scope: _Scope, where: str, depth: int, gradients: bool, autocast: bool) -> None:
        if depth > _DEEPEST:
            raise RecorderError(f"at {where}: graphs nest too deep")
        for index, node in enumerate(_member(graph, "nodes", list, where)):
            at = f"{where}/nodes/{index}"
            target = _member(node, "target", str, at)
            if target.startswith(_REGIONS):
                self.region(target[len(_REGIONS) :], node, scope, at, depth, gradients, autocast)
                continue
            if len(self.operators) >= MOST_NODES:
                raise RecorderError(f"the graph has more than {MOST_NODES} nodes")
            metadata = node.get("metadata")
            stack = metadata.get("nn_module_stack", "") if isinstance(metadata, dict) else ""
            operator = Operator(target, at, [], [], stack if isinstance(stack, str) else "", [], gradients, autocast)
            for position, argument in enumerate(_member(node, "inputs", list, at)):
                name = argument.get("name") if isinstance(argument, dict) else None
                given = _member(argument, "arg", dict, at)
                operator.arguments.append((name if isinstance(name, str) else "", self.argument(given, scope, f"{at}/inputs/{position}")))
            for result in _member(node, "outputs", list, at):
                operator.outputs.append(self.output(result, scope, operator, at))
            self.operators.append(operator)
            if target.startswith("torch.ops."):
                self.namespaces.add(target.split(".")[2])
            self.scopes.append(scope)

    def region(self, kind: str, node: Any, scope: _Scope, where: str, depth: int, gradients: bool, autocast: bool) -> None:
        """A nested graph that runs with gradients or autocast switched."""
        given = [_member(argument, "arg", dict, where) for argument in _member(node, "inputs", list, where)]
        first = 0
        if kind == "wrap_with_set_grad_enabled" and given and isinstance(given[0].get("as_bool"), bool):
            gradients, first = given[0]["as_bool"], 1
        elif kind == "wrap_with_autocast" and len(given) > 4 and given[2].get("as_bool") is False:
            autocast, first = autocast and given[0].get("as_string") == "cpu", 4
        else:
            raise RecorderError(
                f"at {where}: a region of the kind {_shorten(kind)} is not recorded; export without autocast, and ask for the precision "
                "in the request"
            )
        graph = given[first].get("as_graph") if first < len(given) else None
        nested = _member(_member({"graph": graph}, "graph", dict, where), "graph", dict, where)
        inner = self.scope(nested, where)
        inner.outer, inner.depth = scope, depth + 1
        self.bind(_member(nested, "inputs", list, where), given[first + 1 :], scope, inner, where)
        self.nodes(nested, inner, f"{where}/inputs/{first}/arg/as_graph/graph", depth + 1, gradients, autocast)
        self.bind(_member(node, "outputs", list, where), _member(nested, "outputs", list, where), inner, scope, where)

    def bind(self, names: list[Any], values: list[Any], source: _Scope, into: _Scope, where: str) -> None:
        if len(names) != len(values):
            raise RecorderError(f"at {where}: a nested graph names {len(names)} values and gets {len(values)}")
        for name, value in zip(names, values):
            if not isinstance(name, dict) or not isinstance(value, dict):
                raise RecorderError(f"at {where}: not as PyTorch writes it")
            if "as_tensor" in name and "as_tensor" in value:
                of = _member(value["as_tensor"], "name", str, where)
                into.tensors[_member(name["as_tensor"], "name", str, where)] = self.known(of, source.tensors, where)
            elif "as_sym_int" in name and "as_sym_int" in value:
                own = _member(name["as_sym_int"], "as_name", str, where)
                of = value["as_sym_int"].get("as_name") if isinstance(value["as_sym_int"], dict) else None
                if of in source.numbers:
                    into.numbers[own] = source.numbers[of]
            elif "as_none" not in name:
                raise RecorderError(f"at {where}: a nested graph takes or gives something other than tensors")

    def known(self, name: object, known: dict[str, int], where: str) -> int:
        self.names += 1
        if self.names > MOST_NAMES:
            raise RecorderError(f"the nodes of the graph have more than {MOST_NAMES} operands and results together")
        slot = known.get(name) if isinstance(name, str) else None
        if slot is None:
            raise RecorderError(f"at {where}: it reads {_shorten(name)!r}, which nothing before it makes")
        return slot

    def output(self, result: Any, scope: _Scope, operator: Operator, where: str) -> Any:
        kind, body = next(iter(result.items())) if isinstance(result, dict) and len(result) == 1 else ("", None)
        if kind == "as_tensor":
            return self.made(body, scope, operator, where)
        if kind == "as_tensors" and isinstance(body, list):
            return [self.made(each, scope, operator, where) for each in body]
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            slot = self.slot()
            scope.numbers[_member(body, "as_name", str, where)] = slot
            return slot
        if kind == "as_none":
            return None
        raise RecorderError(f"at {where}: it has a result that is neither a tensor nor a number")

    def made(self, body: Any, scope: _Scope, operator: Operator, where: str) -> int:
        slot = self.slot()
        name = _member(body, "name", str, where)
        scope.tensors[name] = slot
        meta = scope.types.get(name)
        sizes = meta.get("sizes") if isinstance(meta, dict) else None
        if isinstance(sizes, list) and len(sizes) <= 64:
            lengths = [size.get("as_int") if isinstance(size, dict) else None for size in sizes]
            self.shapes[slot] = tuple(length if isinstance(length, int) else None for length in lengths)
        operator.values.append(self.values)
        self.slot_of_value.append(slot)
        self.values += 1
        return slot

    def argument(self, given: dict[str, Any], scope: _Scope, where: str) -> Any:
        if len(given) != 1:
            raise RecorderError(f"at {where}: not as PyTorch writes it")
        kind, body = next(iter(given.items()))
        if isinstance(body, list) and len(body) > _LONGEST_LIST:
            raise RecorderError(f"at {where}: a list of {len(body)}; at most {_LONGEST_LIST} are read")
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return Ref(self.known(_member(body, "name", str, where), scope.tensors, where))
        if kind == "as_tensors" and isinstance(body, list):
            return [Ref(self.known(_member(each, "name", str, where), scope.tensors, where)) for each in body]
        if kind == "as_optional_tensors" and isinstance(body, list):
            return [self.optional(each, scope, where) for each in body]
        if kind == "as_int":
            return _whole(body, where)
        if kind == "as_ints" and isinstance(body, list):
            return [_whole(each, where) for each in body]
        if kind == "as_float":
            return self.fraction(body, where)
        if kind == "as_floats" and isinstance(body, list):
            return [self.fraction(each, where) for each in body]
        if kind == "as_bool" and isinstance(body, bool):
            return body
        if kind == "as_bools" and isinstance(body, list) and all(isinstance(each, bool) for each in body):
            return body
        if kind == "as_string" and isinstance(body, str) and len(body) <= _LONGEST_TEXT:
            return body
        if kind == "as_strings" and isinstance(body, list) and all(isinstance(each, str) and len(each) <= _LONGEST_TEXT for each in body):
            return body
        if kind == "as_complex":
            return complex(self.fraction(body.get("real"), where), self.fraction(body.get("imag"), where))
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            return self.symbolic(body, scope, where)
        if kind in ("as_sym_ints", "as_sym_floats") and isinstance(body, list):
            return [self.symbolic(each, scope, where) for each in body]
        if kind == "as_scalar_type":
            return DType(_whole(body, where))
        if kind == "as_device":
            return Device(_member(body, "type", str, where))
        if kind == "as_layout":
            return Layout(_whole(body, where))
        if kind == "as_memory_format":
            return MemoryFormat(_whole(body, where))
        raise RecorderError(f"at {where}: an argument of the kind {_shorten(kind)} is not read")

    def optional(self, each: Any, scope: _Scope, where: str) -> Any:
        if isinstance(each, dict) and "as_none" in each:
            return None
        body = each.get("as_tensor") if isinstance(each, dict) else None
        return Ref(self.known(_member(body, "name", str, where), scope.tensors, where))

    def fraction(self, value: object, where: str) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        # As newer releases write what JSON has not.
        if value in ("Infinity", "-Infinity", "NaN"):
            return float(str(value))
        raise RecorderError(f"at {where}: {_shorten(value)} is no number")

    def symbolic(self, body: Any, scope: _Scope, where: str) -> Any:
        if not isinstance(body, dict) or len(body) != 1:
            raise RecorderError(f"at {where}: not as PyTorch writes it")
        kind, value = next(iter(body.items()))
        if kind == "as_int":
            return _whole(value, where)
        if kind == "as_bool" and isinstance(value, bool):
            return value
        if kind == "as_float":
            return self.fraction(value, where)
        if kind == "as_name" and isinstance(value, str):
            if value in scope.numbers:
                return Ref(scope.numbers[value])
            size = scope.sizes.get(value)
            if size is not None:
                return self.size(size, where)
        raise RecorderError(f"at {where}: it reads {_shorten(value)!r}, which nothing before it makes")

    def loss(self, graph: Any, scope: _Scope, where: str) -> int:
        outputs = _member(graph, "outputs", list, where)
        body = outputs[0].get("as_tensor") if len(outputs) == 1 and isinstance(outputs[0], dict) else None
        if body is None:
            raise RecorderError(f"the graph returns {len(outputs)} values; export the model with its loss, which is one scalar")
        return self.known(_member(body, "name", str, where), scope.tensors, f"{where}/outputs")

    def table(self, table: Any, graph: Graph) -> None:
        where = "/batchfit"
        version = table.get("version") if isinstance(table, dict) else None
        if version not in (1, 2):
            raise RecorderError(f"at {where}: the side table has version {_shorten(version)}; this recorder reads 1 and 2")
        counted = (table.get("operators"), table.get("values"))
        if counted != (len(self.operators), self.values):
            raise RecorderError(
                f"at {where}: the table is of a graph of {_shorten(counted[0])} operators and {_shorten(counted[1])} values, and this one "
                f"has {len(self.operators)} and {self.values}"
            )
        graph.releases = self.releases(_member(table, "releases", list, where), self.slot_of_value, len(self.operators), where)
        for entry in table.get("packed_checks", []):
            operator, value = self.numbers(entry, 2, where)
            graph.packed_checks.setdefault(self.at(operator, where), []).append(self.value(value, where))
        for entry in table.get("without_autocast", []):
            first, last = self.numbers(entry, 2, where)
            for operator_index in range(self.at(first, where), self.at(last, where) + 1):
                self.operators[operator_index].autocast = False
        for entry in table.get("dtypes_of", []):
            numbers = self.numbers(entry, len(entry) if isinstance(entry, list) else 0, where)
            if len(numbers) not in (1, 2):
                raise RecorderError(f"at {where}/dtypes_of: an operator and a value were expected, or an operator alone")
            graph.dtypes_of[self.at(numbers[0], where)] = self.value(numbers[1], where) if len(numbers) == 2 else None
        for index, entry in enumerate(table.get("functions", [])):
            function = self.function(entry, f"{where}/functions/{index}")
            if function is not None:
                if graph.functions and function.first <= graph.functions[-1].last:
                    raise RecorderError(f"at {where}/functions/{index}: calls follow one another")
                graph.functions.append(function)

    def numbers(self, entry: Any, count: int, where: str) -> list[int]:
        if not isinstance(entry, list) or len(entry) != count:
            raise RecorderError(f"at {where}: a list of {count} numbers was expected")
        return [_whole(each, where) for each in entry]

    def at(self, operator: int, where: str) -> int:
        if not 0 <= operator < len(self.operators):
            raise RecorderError(f"at {where}: operator {operator} is not among the {len(self.operators)}")
        return operator

    def value(self, value: int, where: str) -> int:
        if not 0 <= value < len(self.slot_of_value):
            raise RecorderError(f"at {where}: value {value} is not among the {len(self.slot_of_value)}")
        return self.slot_of_value[value]

    def releases(self, entries: list[Any], slots: list[int], operators: int, where: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for entry in entries:
            if not isinstance(entry, list) or not entry:
                raise RecorderError(f"at {where}/releases: it names no operator")
            numbers = [_whole(each, where) for each in entry]
            if not 0 <= numbers[0] < operators or any(not 0 <= number < len(slots) for number in numbers[1:]):
                raise RecorderError(f"at {where}/releases: {entry[:8]} is not among {operators} operators and {len(slots)} values")
            found.setdefault(numbers[0], []).extend(slots[number] for number in numbers[1:])
        return found

    def function(self, entry: Any, where: str) -> Optional[Function]:
        """A call whose backward pass is known; None for one that has to be looked into."""
        operators = _member(entry, "operators", list, where)
        first, last = (self.at(number, where) for number in self.numbers(operators, 2, where))
        if "reason" in entry or first > last:
            return None
        depth = entry.get("depth", 0)
        # That of its last operator, or of what that operator is nested in.
        scope = self.scopes[last]
        while scope.outer is not None and scope.depth != depth:
            scope = scope.outer

        def slots(name: str) -> list[int]:
            return [self.known(each, scope.tensors, f"{where}/{name}") for each in _member(entry, name, list, where)]

        backward = _member(entry, "backward", dict, where)
        inputs, outputs, saved, held = (slots(name) for name in ("inputs", "outputs", "saved", "held"))
        graph = _member(backward, "graph", dict, f"{where}/backward")
        inside = _Reader()
        inside.batch, inside.slots, inside.names = self.batch, self.slots, self.names
        inner = inside.scope(graph, f"{where}/backward/graph")
        names = [*entry["saved"], *entry["held"]]
        for name in dict.fromkeys(names):
            inner.tensors[name] = inside.slot()
        gradients: list[Optional[int]] = []
        for name in _member(backward, "gradients", list, f"{where}/backward"):
            slot = inside.slot() if isinstance(name, str) else None
            if slot is not None:
                inner.tensors[name] = slot
            gradients.append(slot)
        # Sizes are those of the forward pass.
        inner.numbers.update(scope.numbers)
        inside.nodes(graph, inner, f"{where}/backward/graph", 0, True, True)
        results = [
            None if name is None else inside.known(name, inner.tensors, f"{where}/backward/results")
            for name in _member(backward, "results", list, f"{where}/backward")
        ]
        self.slots, self.names = inside.slots, inside.names
        self.namespaces |= inside.namespaces
        differentiable = _member(entry, "differentiable", list, where)
        if not (len(gradients) == len(outputs) == len(differentiable)) or len(results) != len(inputs):
            raise RecorderError(f"at {where}: inputs, outputs and gradients are not as many as each other")
        cast = entry.get("cast_inputs")
        releases = _member(backward, "releases", list, f"{where}/backward")
        return Function(
            str(entry.get("name", "")), first, last, inputs, outputs, [each is True for each in differentiable], saved, held,
            None if cast is None else DType(_whole(cast, where)), entry.get("backward_autocast") is True, gradients, results,
            [inner.tensors[name] for name in names], inside.operators,
            inside.releases(releases, inside.slot_of_value, len(inside.operators), f"{where}/backward"),
        )  # fmt: skip


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape(1) == b.shape(1) and a.shape(2) == b.shape(2)


def _reads(graph: Any, depth: int) -> Iterator[tuple[str, str, str]]:
    """Targets of nodes with the names of their arguments and of the tensors in these, nested ones too."""
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    for node in nodes if isinstance(nodes, list) and depth > 0 else []:
        target = node.get("target") if isinstance(node, dict) else None
        inputs = node.get("inputs") if isinstance(node, dict) else None
        for argument in inputs if isinstance(inputs, list) else []:
            given = argument.get("arg") if isinstance(argument, dict) else None
            if not isinstance(given, dict):
                continue
            nested = given.get("as_graph")
            if isinstance(nested, dict):
                yield from _reads(nested.get("graph"), depth - 1)
            for name in _tensors(given):
                yield str(target), str(argument.get("name")), name


def _tensors(given: dict[str, Any]) -> Iterable[str]:
    several = [each for kind in ("as_tensors", "as_optional_tensors") if isinstance(given.get(kind), list) for each in given[kind]]
    for each in [given.get("as_tensor"), *several]:
        body = each.get("as_tensor", each) if isinstance(each, dict) else None
        name = body.get("name") if isinstance(body, dict) else None
        if isinstance(name, str):
            yield name
