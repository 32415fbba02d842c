"""When values die that nobody has watched: the main rule of `crates/torch/src/compile/lifetimes.rs`.

An exported graph without batchfit's table does not say what Python's names hold. A module's arguments live until its call
returns: the outermost call that takes a value and did not make it holds it to its last operator.
"""

from __future__ import annotations

from .blocks import calls
from .graphs import Graph, Operator, Ref


def assumed(graph: Graph) -> dict[int, list[int]]:
    """After an operator, the slots that die."""
    operators = graph.operators
    callers = [calls(operator.stack) for operator in operators]
    # The last operator of each call, by the operator that it holds; a call goes on while operators follow one another.
    ends: list[dict[tuple[str, ...], int]] = [{} for _ in operators]
    for index in range(len(operators) - 1, -1, -1):
        for caller in callers[index]:
            following = ends[index + 1].get(caller) if index + 1 < len(operators) else None
            ends[index][caller] = index if following is None else following
    made = {slot: index for index, operator in enumerate(operators) for slot in slots_of(operator.outputs)}
    last = dict(made)
    for index, operator in enumerate(operators):
        for slot in read_by(operator):
            if slot not in made:
                continue
            # From the outermost call to the innermost: the first that was not there when the value was made.
            began = next((c for c in callers[index] if ends[made[slot]].get(c, -1) < index), None)
            last[slot] = max(last[slot], index if began is None else ends[index][began])
    found: dict[int, list[int]] = {}
    for slot, index in sorted(last.items(), reverse=True):
        if slot != graph.loss:
            found.setdefault(index, []).append(slot)
    return found


def slots_of(outputs: list[object]) -> list[int]:
    """The slots among outputs, one after the other."""
    found = []
    for output in outputs:
        found += [slot for slot in (output if isinstance(output, list) else [output]) if isinstance(slot, int)]
    return found


def read_by(operator: Operator) -> list[int]:
    """The slots that an operator reads."""
    found = []
    for _, argument in operator.arguments:
        found += [each.slot for each in (argument if isinstance(argument, list) else [argument]) if isinstance(each, Ref)]
    return found
