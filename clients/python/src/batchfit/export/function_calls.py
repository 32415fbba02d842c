"""Calls of custom functions in the side table: what they save, and their backward passes as graphs.

    {
      "name": "efficientnet_pytorch.utils.SwishImplementation",
      "operators": [n, m],      # the first and the last operator of `forward`, which runs without gradients
      "reason": "..."           # only where `backward` could not be traced; then there is nothing below
      "depth": 0,               # how many nested graphs the call is inside of; names are those of that graph
      "inputs": [name, ...],    # the arguments that are tensors
      "outputs": [name, ...],   # the results that are tensors
      "differentiable": [...],  # for each output, whether it can require a gradient
      "saved": [name, ...],     # by `save_for_backward`
      "held": [name, ...],      # as attributes of `ctx`, which live until the whole graph of the step dies
      "cast_inputs": 6,         # only with `custom_fwd(cast_inputs=...)`: a scalar type as PyTorch serializes it
      "backward_autocast": true # only with `custom_bwd`: `backward` runs under the autocast of `forward`
      "backward": {
        "gradients": [name or null, ...], # for each output, the name of its gradient inside
        "results": [name or null, ...],   # for each input, its gradient
        "graph": {...}          # as PyTorch's nested graphs; nodes read gradients and what is saved and held
        "operators": N, "values": M, "releases": [...]  # as in the side table, of these nodes alone
      }
    }

A backward pass runs with gradients off, and nodes of nested graphs (regions of `no_grad`) are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.fx
from torch._export.serde.serialize import _TORCH_TO_SERIALIZE_DTYPE

from .functions import CALL, FUNCTION, GRADIENT, Call
from .lifetimes import Lifetimes
from .node_ids import Numbering, results, value_numbers


@dataclass
class _Taken:
    """What was taken out of a graph for one call."""

    depth: int
    nodes: list[dict[str, Any]]
    tensor_values: dict[str, Any]
    numbers: dict[str, int]


class FunctionCalls:
    """Backward passes, taken out of the graph that they were traced into."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self._releases = lifetimes.releases
        self._taken: dict[int, _Taken] = {}

    def take(self, module: torch.fx.GraphModule, graph: dict[str, Any], depth: int = 0) -> None:
        """Takes the nodes of backward passes out of a serialized graph and those nested in it."""
        calls = {node.name: node.meta[CALL] for node in module.graph.nodes if CALL in node.meta}
        numbers = value_numbers(module)
        kept = []
        for node in graph["nodes"]:
            for argument in node["inputs"]:
                if "as_graph" in argument["arg"]:
                    nested = argument["arg"]["as_graph"]
                    self.take(getattr(module, nested["name"]), nested["graph"], depth + 1)
            names = list(results(node))
            call = next((calls[name] for name in names if name in calls), None)
            if call is None:
                kept.append(node)
                continue
            taken = self._taken.setdefault(call, _Taken(depth, [], {}, numbers))
            taken.nodes.append(node)
            for name in names:
                taken.tensor_values[name] = graph["tensor_values"].pop(name)
        graph["nodes"] = kept

    def entry(self, index: int, call: Call, numbering: Numbering) -> dict[str, Any]:
        """A call as the side table has it."""
        entry: dict[str, Any] = {
            "name": call.name,
            "operators": [numbering.operator_after(call.before) + 1, numbering.operator_after(call.last)],
        }
        taken = self._taken.get(index)
        if call.reason is not None or taken is None:
            return {**entry, "reason": call.reason or "no operator of it was traced"}
        if any("as_graph" in argument["arg"] for node in taken.nodes for argument in node["inputs"]):
            return {**entry, "reason": "its backward pass switches autocast or gradients on"}
        marker = next(node for node in taken.nodes if node["target"] == FUNCTION)
        arguments = {argument["name"]: list(_names(argument["arg"])) for argument in marker["inputs"]}
        nodes = [node for node in taken.nodes if node["target"] not in (FUNCTION, GRADIENT)]
        for name in results(marker):
            taken.tensor_values.pop(name)
        gradients = iter(arguments["gradients"])
        inside = Numbering((node, taken.numbers) for node in nodes)
        entry.update(
            depth=taken.depth,
            inputs=arguments["inputs"],
            outputs=arguments["outputs"],
            differentiable=call.differentiable,
            saved=arguments["saved"],
            held=arguments["held"],
        )
        known = {*arguments["saved"], *arguments["held"], *taken.tensor_values}
        read = [name for node in nodes for argument in node["inputs"] for name in _names(argument["arg"])]
        # What reaches `backward` otherwise, such as a parameter through a closure.
        others = [name for name in [*read, *arguments["results"]] if name is not None and name not in known]
        entry["held"] += dict.fromkeys(others)
        if call.cast_inputs is not None:
            entry["cast_inputs"] = int(_TORCH_TO_SERIALIZE_DTYPE[call.cast_inputs])
        if call.backward_autocast:
            entry["backward_autocast"] = True
        entry["backward"] = {
            "gradients": [next(gradients) if has else None for has in call.has_gradient],
            "results": arguments["results"],
            "graph": {
                "inputs": [],
                "outputs": [],
                "nodes": nodes,
                "tensor_values": taken.tensor_values,
                "sym_int_values": {},
                "sym_float_values": {},
                "sym_bool_values": {},
                "custom_obj_values": {},
            },
            "operators": inside.operators,
            "values": inside.values,
            "releases": inside.releases(self._releases),
        }
        return entry


def _names(argument: dict[str, Any]) -> Iterator[Any]:
    """The names of the tensors in an argument; None for one that is missing in a list."""
    if "as_tensor" in argument:
        yield argument["as_tensor"]["name"]
    for item in [*argument.get("as_tensors", []), *argument.get("as_optional_tensors", [])]:
        yield item.get("as_tensor", item).get("name")
