"""From the numbers that values got while they were traced to places in a serialized graph."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch.fx

from .lifetimes import NUMBER, RESULTS, Release


def value_numbers(module: torch.fx.GraphModule) -> dict[str, int]:
    """The numbers of the values of a graph's nodes, by name."""
    numbers = {node.name: node.meta[NUMBER] for node in module.graph.nodes if NUMBER in node.meta}
    for node in module.graph.nodes:
        if node.target is operator.getitem and node.name not in numbers:
            number = node.args[0].meta.get(RESULTS, {}).get(node.args[1])
            if number is not None:
                numbers[node.name] = number
        # Results that nobody takes out keep their numbers under the names that PyTorch gives them when it writes the graph.
        for index, number in node.meta.get(RESULTS, {}).items():
            numbers.setdefault(f"{node.name}_unused_{index}", number)
    return numbers


def results(node: dict[str, Any]) -> Iterator[str]:
    """Names of the tensors that a serialized node gives."""
    for output in node["outputs"]:
        if "as_tensor" in output:
            yield output["as_tensor"]["name"]
        elif "as_tensors" in output:
            yield from (tensor["name"] for tensor in output["as_tensors"])


class Numbering:
    """Operators and values, numbered from 0 in the order in which they run. What tracing dropped again has no place."""

    def __init__(self, nodes: Iterable[tuple[dict[str, Any], dict[str, int]]]) -> None:
        """`nodes` are serialized operators, each with the numbers of values by name."""
        self.operators = self.values = 0
        self.value_of: dict[int, int] = {}
        self._made_by: list[tuple[int, int]] = []
        for node, numbers in nodes:
            for name in results(node):
                number = numbers.get(name)
                if number is not None:
                    self.value_of[number] = self.values
                    self._made_by.append((number, self.operators))
                self.values += 1
            self.operators += 1
        self._made_by.sort()

    def operator_after(self, number: int) -> int:
        """The operator that made the last value up to this number; -1 before the first."""
        at = bisect.bisect_right(self._made_by, (number, self.operators))
        return self._made_by[at - 1][1] if at else -1

    def operators_between(self, before: int, last: int) -> list[int]:
        """The operators that made the values after `before` up to `last`."""
        begin = bisect.bisect_right(self._made_by, (before, self.operators))
        end = bisect.bisect_right(self._made_by, (last, self.operators))
        return [operator for _, operator in self._made_by[begin:end]]

    def releases(self, releases: Iterable[Release]) -> list[list[int]]:
        """`[operator, values that go after it, ...]`."""
        found: list[list[int]] = []
        for release in releases:
            gone = [self.value_of[number] for number in release.values if number in self.value_of]
            after = self.operator_after(release.after)
            if not gone or after < 0:
                continue
            if found and found[-1][0] == after:
                found[-1].extend(gone)
            else:
                found.append([after, *gone])
        return found
