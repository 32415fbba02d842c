"""The exported graph as a document: PyTorch's serialized form, without what batchfit does not read, and a side table.

The side table is one more member at the top, which PyTorch's own loader does not know:

    "batchfit": {
      "version": 1,                     # 2 where there are functions
      "operators": N, "values": M,      # how many the graph has, as a check
      "releases": [[n, v, ...], ...],   # after operator n, Python lets go of values v, ... in this order
      "packed_checks": [[n, v], ...],   # after operator n, eager code looks for packed sequences in position ids v
      "without_autocast": [[n, m], ...],# operators n to m run without autocast whatever the precision
      "dtypes_of": [[n, v], ...],       # operator n converts to the dtype of value v; [n]: of a parameter or the batch
      "functions": [...]                # calls of custom `torch.autograd.Function`s; see function_calls.py
    }

Operators are numbered from 0 in the order in which they run: nodes of the graph, with the nodes of a nested graph in
the place of the node that has it. Values are numbered from 0 likewise: the tensors in the outputs of each operator.
A value that is in no release lives until the loss exists. A call of `torch.utils.checkpoint.checkpoint` is one more entry in the
`nn_module_stack` of what it runs, of the class `torch.utils.checkpoint.checkpoint` or, reentrant, `...CheckpointFunction`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch._export.serde.serialize import serialize

from .checkpoints import Checkpoints
from .eager import EagerOnly
from .function_calls import FunctionCalls
from .functions import Functions
from .lifetimes import Lifetimes
from .node_ids import Numbering, value_numbers

# With and without functions: what reads only the first would take the graph for one that autograd looks through.
VERSION, VERSION_WITH_FUNCTIONS = 1, 2

# Node metadata that batchfit reads. The rest is stack traces: large, and full of paths of the exporting machine.
_METADATA = ("nn_module_stack",)
# What PyTorch writes for nodes that no module ran, and the classes of calls of `checkpoint` among modules, by whether they are reentrant.
_OUTSIDE_OF_MODULES = "_empty_nn_module_stack"
_CHECKPOINTS = {False: "torch.utils.checkpoint.checkpoint", True: "torch.utils.checkpoint.CheckpointFunction"}


def document(
    program: torch.export.ExportedProgram,
    lifetimes: Lifetimes,
    eager_only: EagerOnly,
    functions: Functions,
    trained: frozenset[str],
    tied: dict[str, str],
) -> dict[str, Any]:
    """Serializes a traced program. `trained` are the paths of parameters that require a gradient; `tied` maps further
    paths of a shared tensor to its first."""
    _drop_host_operators(program.graph_module)
    for module in _graph_modules(program.graph_module):
        for node in module.graph.nodes:
            for key in ("stack_trace", "source_fn_stack", "torch_fn", "from_node", "custom"):
                node.meta.pop(key, None)
    text: dict[str, Any] = json.loads(serialize(program).exported_program)
    graph_module = text["graph_module"]
    _untie(graph_module, tied)
    _require_gradients(graph_module, trained)
    for node, _ in _operators(graph_module["graph"], program.graph_module):
        node["metadata"] = {key: node["metadata"][key] for key in _METADATA if key in node["metadata"]}
    text["guards_code"] = []
    found = FunctionCalls(lifetimes)
    found.take(program.graph_module, graph_module["graph"])
    text["batchfit"] = _side_table(program.graph_module, graph_module["graph"], lifetimes, eager_only)
    checkpoints = eager_only.checkpoints
    if functions.asks_for_gradients:
        # Of these inputs the graph does not say that they require one, without which a reentrant checkpoint trains nothing.
        checkpoints = [(before, last, False) for before, last, _ in checkpoints]
    _mark_checkpoints(program.graph_module, graph_module["graph"], checkpoints)
    if functions.calls:
        numbering = _numbering(program.graph_module, graph_module["graph"])
        text["batchfit"]["version"] = VERSION_WITH_FUNCTIONS
        entries = [found.entry(index, call, numbering) for index, call in enumerate(functions.calls)]
        # One that runs nothing takes nothing.
        text["batchfit"]["functions"] = [entry for entry in entries if entry["operators"][0] <= entry["operators"][1]]
    return text


def _graph_modules(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    return (child for child in module.modules() if isinstance(child, torch.fx.GraphModule))


def _drop_host_operators(module: torch.fx.GraphModule) -> None:
    """Removes what only makes tensors on the host: it takes no memory of the GPU."""
    for graph_module in _graph_modules(module):
        for node in reversed(list(graph_module.graph.nodes)):
            if node.op != "call_function" or node.users:
                continue
            value = node.meta.get("val")
            on_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
            # As torchvision and torchaudio ask for their CUDA version before they call an operator of their own.
            is_asked = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace != "aten"
            is_number = isinstance(value, int) and isinstance(node.target, torch._ops.OpOverload)
            if on_host or is_number or (is_asked and value is None):
                graph_module.graph.erase_node(node)


def _untie(graph_module: dict[str, Any], tied: dict[str, str]) -> None:
    """Lists every shared tensor once, under its first path; tracing gives each path an input of its own."""
    graph, signature = graph_module["graph"], graph_module["signature"]
    names = {path: name for spec in signature["input_specs"] for path, name in [_held(spec)] if path}
    renamed = {names[path]: names[first] for path, first in tied.items() if path in names and first in names}
    if not renamed:
        return
    signature["input_specs"] = [spec for spec in signature["input_specs"] if _held(spec)[1] not in renamed]
    graph["inputs"] = [entry for entry in graph["inputs"] if entry.get("as_tensor", {}).get("name") not in renamed]
    for name in renamed:
        graph["tensor_values"].pop(name, None)
    for node in graph["nodes"]:
        for argument in node["inputs"]:
            given = argument["arg"]
            for tensor in [given.get("as_tensor"), *given.get("as_tensors", [])]:
                if isinstance(tensor, dict) and tensor["name"] in renamed:
                    tensor["name"] = renamed[tensor["name"]]


def _held(spec: dict[str, Any]) -> tuple[str, str]:
    """The path and the name of a parameter or buffer; two empty texts for another input."""
    for kind in ("parameter", "buffer"):
        if kind in spec:
            return spec[kind][f"{kind}_name"], spec[kind]["arg"]["name"]
    return "", ""


def _require_gradients(graph_module: dict[str, Any], trained: frozenset[str]) -> None:
    for spec in graph_module["signature"]["input_specs"]:
        path, name = _held(spec)
        if path in trained:
            graph_module["graph"]["tensor_values"][name]["requires_grad"] = True


def _nested(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Nested graphs of a node, by the name of the submodule that holds each."""
    for argument in node["inputs"]:
        if "as_graph" in argument["arg"]:
            yield argument["arg"]["as_graph"]["name"], argument["arg"]["as_graph"]["graph"]


def _operators(
    graph: dict[str, Any], module: torch.fx.GraphModule
) -> Iterator[tuple[dict[str, Any], torch.fx.GraphModule]]:
    """Operators in the order in which they run, each with the module whose graph has it."""
    for node in graph["nodes"]:
        nested = list(_nested(node))
        if not nested:
            yield node, module
        for name, inner in nested:
            yield from _operators(inner, getattr(module, name))


def _mark_checkpoints(module: torch.fx.GraphModule, graph: dict[str, Any], checkpoints: Checkpoints) -> None:
    """Puts a call of `torch.utils.checkpoint.checkpoint` into the stack of modules of what it runs, below what all of that has
    in common."""
    if not checkpoints:
        return
    nodes = [node for node, _ in _operators(graph, module)]
    numbering = _numbering(module, graph)
    for number, (before, last, reentrant) in enumerate(checkpoints):
        inside = [nodes[index]["metadata"] for index in dict.fromkeys(numbering.operators_between(before, last))]
        inside = [metadata for metadata in inside if _OUTSIDE_OF_MODULES not in metadata.get("nn_module_stack", _OUTSIDE_OF_MODULES)]
        stacks = [metadata["nn_module_stack"].split(";") for metadata in inside]
        common = len(os.path.commonprefix(stacks))
        if common == 0:
            continue
        caller = stacks[0][common - 1].split(",")[1] or "model"
        for metadata, stack in zip(inside, stacks):
            stack.insert(common, f"checkpoint{number},{caller}.checkpoint{number},{_CHECKPOINTS[reentrant]}")
            metadata["nn_module_stack"] = ";".join(stack)


def _numbering(module: torch.fx.GraphModule, graph: dict[str, Any]) -> Numbering:
    numbers = {id(child): value_numbers(child) for child in _graph_modules(module)}
    return Numbering((node, numbers[id(owner)]) for node, owner in _operators(graph, module))


def _side_table(
    module: torch.fx.GraphModule, graph: dict[str, Any], lifetimes: Lifetimes, eager_only: EagerOnly
) -> dict[str, Any]:
    numbering = _numbering(module, graph)
    value_of, operator_after = numbering.value_of, numbering.operator_after
    return {
        "version": VERSION,
        "operators": numbering.operators,
        "values": numbering.values,
        "releases": numbering.releases(lifetimes.releases),
        "packed_checks": [
            [operator_after(made), value_of[number]] for made, number in eager_only.packed_checks if number in value_of
        ],
        "without_autocast": [
            [operator_after(before) + 1, operator_after(last)] for before, last in eager_only.without_autocast
        ],
        "dtypes_of": [
            [operator_after(made), *([value_of[asked]] if asked else [])]
            for made, asked in eager_only.conversions.found
            if made in value_of and (asked in value_of or not asked)
        ],
    }
