"""What PyTorch asks of its allocator for each elementwise operator, forward and backward.

    python tests/record/elementwise.py crates/torch/src/ops/elementwise/table tests/golden/elementwise

Records every operator that the tables name, by calling it from `torch.ops`. Wants PyTorch 2.11 on a GPU, or on a stub of the CUDA
runtime that computes nothing: what is allocated does not depend on values here.

A line of `calls.txt.gz` is one call: the operator; `fp32`, or `amp` where operands are bfloat16 under autocast; its arguments; and what was
allocated (`+`) and freed (`-`) from the call to the end of backward, in bytes. A tensor is its type and shape, with `!` where it requires
a gradient. What is written over is first multiplied by one, since leaves cannot be.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import sys

import torch

WIDE, ROW = (8, 512), (512,)
NUMBERS = {
    "other": 2.0, "exponent": 3.0, "min": -1.0, "max": 1.0, "value": 0.5, "weight": 0.25, "p": 0.5, "threshold": 0.1,
    "decimals": 2, "self": 2.0, "mean": 0.0, "std": 1.0, "from": 0, "to": 10, "rounding_mode": "floor", "n": 1,
}  # fmt: skip
# Calls with other numbers than these, for formulas that depend on them.
VARIANTS = {
    "aten.add.Tensor": [{"alpha": 2}],
    "aten.sub.Tensor": [{"alpha": 2}],
    "aten.rsub.Tensor": [{"alpha": 2}],
    "aten.pow.Tensor_Scalar": [{"exponent": 0}, {"exponent": 2}],
    "aten.clamp.default": [{"min": None}, {"max": None}],
    "aten.clamp.Tensor": [{"min": None}, {"max": None}],
    "aten.gelu.default": [{"approximate": "tanh"}],
    "aten.hardtanh.default": [{"min_val": 0.0, "max_val": 6.0}],
    "aten.div.Tensor_mode": [{"rounding_mode": None}, {"rounding_mode": "trunc"}],
    "aten.addcmul.default": [{"value": 2}],
}
TRUTHS = {"condition", "mask"}
UNRECORDED = {
    # These look at values, which a stub does not compute.
    "aten.normal.Tensor_Tensor", "aten.normal.float_Tensor",
    # What stands for `copy_` and `normal_` in a graph without mutations; eager PyTorch does not call them.
    "aten.copy.default", "aten.normal_functional.default",
    # Of its only tensor it has no derivative.
    "aten.special_zeta.other_scalar",
}  # fmt: skip
WHOLE = re.compile(r"aten\.(bitwise_|__|gcd|lcm)")
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.bool: "bool"}


def arguments(target: str, changed: dict) -> list[tuple[str, object]]:
    """Names of the arguments that are given, and `Tensor` or their value."""
    packet, overload = target.removeprefix("aten.").split(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
    found = []
    for argument in schema.arguments:
        name = argument.name
        if name in ("generator", "non_blocking") or (name in changed and changed[name] is None and "Tensor" in str(argument.type)):
            continue
        if "Tensor" in str(argument.type):
            found.append((name, torch.Tensor))
        elif name in changed:
            found.append((name, changed[name]))
        elif argument.has_default_value() and argument.default_value is not None:
            continue
        elif "Optional" in str(argument.type) and name not in ("min", "max", "rounding_mode", "to"):
            continue
        elif WHOLE.match(target):
            found.append((name, 1))
        else:
            found.append((name, NUMBERS[name]))
    return found


def word(name: str, value: object) -> str:
    if isinstance(value, torch.Tensor):
        shape = ",".join(map(str, value.shape))
        return f"{name}={NAMES[value.dtype]}[{shape}]{'!' if value.requires_grad else ''}"
    if value is None:
        return f"{name}=None"
    return f"{name}={value!r}" if not isinstance(value, str) else f"{name}={value}"


def recorded(target: str, given: list, mode: str) -> str | None:
    packet, overload = target.removeprefix("aten.").split(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)
    in_place = (packet.endswith("_") and not packet.endswith("__")) or packet.startswith("__i")
    words = [word(name, value) for name, value in given]
    start = len(torch.cuda.memory._snapshot()["device_traces"][0])
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mode == "amp"):
        values = {name: value for name, value in given}
        first = given[0][0]
        if in_place and values[first].is_floating_point():
            values[first] = values[first] * 1
        try:
            result = function(**values)
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented for" in str(error) or "not supported" in str(error) or "can't be cast" in str(error):
                return None
            raise
    del values
    is_differentiable = result.requires_grad and result.grad_fn.name() not in (
        "torch::autograd::NotImplemented",
        "NextafterBackward0",
    )
    if in_place and result.requires_grad and not is_differentiable:
        return None  # backward would fail
    if is_differentiable:
        middle = len(torch.cuda.memory._snapshot()["device_traces"][0])
        gradient = torch.zeros_like(result)
        made = len(torch.cuda.memory._snapshot()["device_traces"][0])
        result.backward(gradient)
    else:
        middle = made = None
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    if middle is not None:
        events = events[start:middle] + events[made:]
    else:
        events = events[start:]
    sign = {"alloc": "+", "free_requested": "-"}
    text = " ".join(f"{sign[event['action']]}{event['size']}" for event in events if event["action"] in sign)
    return f"{target} {mode} {' '.join(words)} | {text}"


def tensors_of(target: str, names: list[str], mode: str, narrow: bool, trained: tuple[str, ...]) -> dict:
    half = torch.bfloat16 if mode == "amp" else torch.float32
    made = {}
    for place, name in enumerate(names):
        dtype = torch.bool if name in TRUTHS else torch.int64 if WHOLE.match(target) else half
        shape = ROW if narrow and place == len(names) - 1 else WIDE
        if target.startswith("aten.prelu"):
            shape = ((8, 512, 2), (512,) if narrow else (1,))[place]
        if target in ("aten.masked_fill.Tensor", "aten.masked_fill_.Tensor", "aten.fill.Tensor", "aten.fill_.Tensor") and name == "value":
            shape = ()
        made[name] = torch.zeros(shape, dtype=dtype, device="cuda")
        if name in trained:
            made[name].requires_grad_()
    return made


def calls(target: str):
    for changed in [{}, *VARIANTS.get(target, [])]:
        given = arguments(target, changed)
        names = [name for name, value in given if value is torch.Tensor]
        floats = [name for name in names if name not in TRUTHS and not WHOLE.match(target)]
        if target.startswith(("aten.masked_fill", "aten.fill", "aten.bernoulli")):
            floats = floats[:1]
        subsets = [()] if not floats or target.startswith(("aten.floor_divide_", "aten.heaviside_", "aten.nextafter_")) else [(name,) for name in floats] + ([tuple(floats)] if len(floats) > 1 else [])
        for mode, narrow, trained in itertools.product(("fp32", "amp"), (False, True), subsets):
            if narrow and (len(names) < 2 or target.split(".")[1].startswith("_") or changed):
                continue
            made = tensors_of(target, names, mode, narrow, trained)
            filled = [(name, made[name] if value is torch.Tensor else value) for name, value in given]
            yield filled, mode


def main() -> int:
    if not torch.__version__.startswith("2.11."):
        sys.exit(f"the recordings are of PyTorch 2.11, and this is {torch.__version__}")
    tables, out = sys.argv[1:]
    text = "".join(open(os.path.join(tables, file), encoding="utf-8").read() for file in sorted(os.listdir(tables)))
    targets = sorted(set(re.findall(r'"(aten\.[A-Za-z0-9_.]+)"', text)))
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=5_000_000)
    lines, failed = [], []
    for target in targets:
        if target in UNRECORDED:
            continue
        count = len(lines)
        for given, mode in calls(target):
            try:
                line = recorded(target, given, mode)
            except Exception as error:  # noqa: BLE001
                failed.append(f"{target}: {str(error).splitlines()[0]}")
                continue
            if line is not None:
                lines.append(line)
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=5_000_000)
        if len(lines) == count:
            failed.append(f"{target}: no call was recorded")
    os.makedirs(out, exist_ok=True)
    with gzip.GzipFile(os.path.join(out, "calls.txt.gz"), "wb", mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    print(f"{len(lines)} calls of {len(targets)} operators")
    print("\n".join(failed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
