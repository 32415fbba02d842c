#!/usr/bin/env python3
"""Records on a GPU how long PyTorch's kernels and training steps take: what `crates/card/src/timing` is calibrated with, and checked against.

    times.py kernels --out FILE [--seconds N]             single kernels over a grid of sizes, a line of JSON each
    times.py host --out FILE                              what the host takes to launch single operators, forward and backward
    times.py steps --out FILE [--seconds N] [--cases FOLDER]   whole steps of the models of split.json beside this file's goldens
    times.py pack [--onto TABLE] FILE... > crates/card/src/timing/h200.txt           the lines of `kernels` as the table that batchfit reads

A kernel is timed between two events with the queue held full, so that the host's own time is not in it: the median of three
bursts. The grids are of sizes, with well-known vocabularies and stems among them. A step is timed as `tests/gpu/timed.py` does it, with the device
waited for after each; of one step also which kernels ran for how long, and at the smallest batch how long the host took to
launch each phase. `--cases` names a folder with further models: `cases_public.py` with the harness that runs them.

Needs torch; `steps` needs torchvision, timm and transformers as well. Weights are random: nothing is downloaded.
"""
import argparse
import contextlib
import gc
import json
import math
import pathlib
import random
import signal
import statistics
import sys
import time

SEED = 21
MOST_BYTES = 6e9
MOST_SECONDS = 0.05  # of one kernel, as the ceilings have it: longer ones tell nothing new
# Only for what to leave out; the table has times.
BANDWIDTH, FLOPS = 4.0e12, {"fp32": 5e13, "tf32": 4e14, "half": 7e14, "fp16": 7e14, "bf16": 7e14}
CYCLES = 1.98e9  # of an H200, a second
REPO = pathlib.Path(__file__).resolve().parents[2]


# Kernels: (class, features, flops, bytes, unit, how it is made). Features are what a class is interpolated by.


def product_jobs():
    sizes = [64, 256, 768, 1024, 2048, 4096, 8192]
    rows = [32, 128, 512, 1024, 2048, 4096, 8192, 16384, 65536]
    for unit in ("fp32", "half"):
        for m in rows:
            for n in sizes + [32000]:
                for k in sizes:
                    yield product(unit, "nt", 1, m, n, k)
                    yield product(unit, "nn", 1, m, k, n)
                    yield product(unit, "tn", 1, n, k, m)
        for stack in (12, 48, 192, 768, 3072):
            for m in (16, 49, 64, 128, 256, 512, 1024):
                for width in (32, 64, 128):
                    for layout, n, k in (("nt", m, width), ("nn", width, m), ("tn", width, m)):
                        yield product(unit, layout, stack, m, n, k)


def uneven_product_jobs():
    """Lengths that 16 bytes do not divide, and short ones."""
    for unit in ("fp32", "half"):
        for m in (256, 2048, 8192, 32768):
            for n in (50257, 30522, 1001, 21, 10, 2):
                for k in (256, 512, 768, 1024, 2048):
                    yield product(unit, "nt", 1, m, n, k)
                    yield product(unit, "nn", 1, m, k, n)
                    yield product(unit, "tn", 1, n, k, m)
        for stack in (24, 96, 384, 1536):
            for m in (49, 50, 197, 198, 577):
                for width in (32, 64):
                    for layout, n, k in (("nt", m, width), ("nn", width, m), ("tn", width, m)):
                        yield product(unit, layout, stack, m, n, k)
        for m in (2**14, 2**17, 2**20):
            for n, k in ((4, 4), (8, 8), (16, 16), (32, 32), (64, 16), (16, 64), (128, 32), (32, 128)):
                for layout in ("nt", "nn"):
                    yield product(unit, layout, 1, m, n, k)
                yield product(unit, "tn", 1, n, k, m)


def product(unit, layout, stack, m, n, k):
    size = 4 if unit == "fp32" else 2

    def make(torch):
        dtype = torch.float32 if unit == "fp32" else torch.bfloat16
        lead = () if stack == 1 else (stack,)

        def factor(rows, columns, turned):
            if turned:
                return torch.randn(*lead, columns, rows, device="cuda", dtype=dtype).transpose(-1, -2)
            return torch.randn(*lead, rows, columns, device="cuda", dtype=dtype)

        a, b = factor(m, k, layout[0] == "t"), factor(k, n, layout[1] == "t")
        return lambda: torch.matmul(a, b)

    # What the lengths of rows in memory are divisible by decides which kernels can be taken.
    rows = (m if layout[0] == "t" else k, k if layout[1] == "t" else n, n)
    even = "" if all(length * size % 16 == 0 for length in rows) else " uneven"
    return (f"product {unit} {layout}{even}", [stack, m, n, k], 2 * stack * m * n * k, size * stack * (m * k + k * n + m * n), unit, make)


def convolution_jobs():
    batches = (4, 16, 64, 256)
    sides = (7, 14, 28, 56, 112, 224)
    for unit in ("tf32", "fp16"):
        for n in batches:
            for side in sides:
                for kernel, channels in ((1, (32, 64, 128, 256, 512, 1024, 2048)), (3, (16, 32, 64, 128, 256, 512, 1024)), (5, (32, 128))):
                    for i in channels:
                        for o in channels:
                            if not 1 / 6 < i / o < 6 or i * side > 16384 or o * side > 16384:
                                continue
                            for stride in (1, 2):
                                if stride == 2 and (side == 7 or kernel == 5):
                                    continue
                                yield from convolution(unit, n, i, o, 1, side, kernel, stride)
            for o, kernel, stride, side in ((64, 7, 2, 224), (32, 3, 2, 224), (64, 3, 1, 224), (64, 3, 1, 32), (96, 4, 4, 224), (384, 16, 16, 224), (768, 16, 16, 224)):
                yield from convolution(unit, n, 3, o, 1, side, kernel, stride)
            for side in sides:
                for channels in (32, 96, 192, 384, 768):
                    if channels * side > 12000:
                        continue
                    for kernel in (3, 5, 7):
                        for stride in (1, 2):
                            yield from convolution(unit, n, channels, channels, channels, side, kernel, stride)
                for channels, groups in ((128, 32), (256, 32), (512, 32), (96, 4), (288, 12)):
                    if channels * side <= 16384:
                        yield from convolution(unit, n, channels, channels, groups, side, 3, 1)


def further_convolution_jobs():
    """Other types, layouts and ranks."""
    for n in (8, 32, 128):
        for side in (7, 14, 28, 56, 112):
            for channels in (32, 96, 192, 384, 768):
                if channels * side > 12000:
                    continue
                for kernel in (3, 5, 7, 9):
                    for stride in (1, 2) if kernel < 7 else (1,):
                        yield from convolution("bf16", n, channels, channels, channels, side, kernel, stride)
                    for unit in ("tf32", "bf16"):
                        yield from convolution(unit, n, channels, channels, channels, side, kernel, 1, "nhwc")
            for i, o in ((64, 64), (64, 256), (256, 64), (128, 512), (512, 128), (96, 384), (384, 384), (768, 192)):
                if max(i, o) * side > 16384:
                    continue
                for unit in ("tf32", "bf16"):
                    for kernel, stride in ((1, 1), (3, 1), (3, 2)):
                        yield from convolution(unit, n, i, o, 1, side, kernel, stride, "nhwc")
        for length in (500, 2000, 8000):
            for i, o, groups, kernel, stride in ((64, 64, 1, 3, 1), (256, 256, 1, 3, 1), (512, 512, 1, 3, 2), (512, 512, 1, 2, 2), (1, 256, 1, 10, 5), (80, 384, 1, 3, 1),
                                                 (256, 256, 1, 5, 2), (768, 768, 16, 64, 1), (512, 512, 16, 128, 1), (256, 256, 256, 31, 1)):  # fmt: skip
                for unit in ("tf32", "bf16"):
                    yield from convolution(unit, n, i, o, groups, length, kernel, stride, "line")


def sound_convolution_jobs():
    """Convolutions over lines as a grid: lengths, windows and strides of sound and of its features, in all three passes."""
    for n in (2, 8, 32, 128):
        for length in (250, 1000, 4000, 16000, 64000):
            for i, o in ((1, 64), (1, 512), (64, 64), (64, 128), (128, 256), (256, 256), (512, 512), (768, 768), (80, 512), (128, 768)):
                if i * n * length > 2**29 or o * n * length > 2**30:
                    continue
                for kernel, stride in ((10, 5), (3, 2), (2, 2), (8, 4)) if length >= 1000 else ((3, 1), (3, 2), (5, 1)):
                    for unit in ("tf32", "bf16"):
                        yield from convolution(unit, n, i, o, 1, length, kernel, stride, "line")
            for channels, groups, kernel in ((256, 16, 64), (768, 16, 128), (1024, 16, 128), (256, 256, 15), (512, 512, 31), (144, 144, 31)):
                if length <= 4000:
                    for unit in ("tf32", "bf16"):
                        yield from convolution(unit, n, channels, channels, groups, length, kernel, 1, "line")


def convolution(unit, n, i, o, groups, side, kernel, stride, layout="nchw"):
    size = 4 if unit == "tf32" else 2
    padding = kernel // 2 if stride < kernel or kernel == 1 else 0
    after = (side + 2 * padding - kernel) // stride + 1
    # On a line, planes are one high.
    area = (lambda length: length) if layout == "line" else (lambda length: length * length)
    both = (lambda length, one: [one, length]) if layout == "line" else (lambda length, one: [length, length])
    flops = 2 * n * o * area(after) * (i // groups) * area(kernel)
    moved = size * (n * i * area(side) + n * o * area(after) + o * (i // groups) * area(kernel))
    features = [n, i // groups, o // groups, groups, area(side), area(kernel), area(stride)]

    def make(which):
        def made(torch):
            dtype = {"tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[unit]
            memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
            x = torch.randn(n, i, *both(side, 1), device="cuda", dtype=dtype).to(memory_format=memory)
            weight = torch.randn(o, i // groups, *both(kernel, 1), device="cuda", dtype=dtype).to(memory_format=memory)
            arguments = (both(stride, 1), both(padding, 0), [1] * 2, False, [0] * 2, groups)
            if which == "fwd":
                return lambda: torch.ops.aten.convolution(x, weight, None, *arguments)
            grad = torch.randn(n, o, *both(after, 1), device="cuda", dtype=dtype).to(memory_format=memory)
            mask = [which == "dgrad", which == "wgrad", False]
            return lambda: torch.ops.aten.convolution_backward(grad, x, weight, None, *arguments, mask)

        return made

    kind = "depthwise" if groups == i and groups > 1 else "convolution"
    for which in ("fwd", "dgrad", "wgrad"):
        if which == "dgrad" and i in (1, 3):
            continue
        yield (f"{kind} {which} {unit} {layout}", features, flops, moved, unit, make(which))


def attention_jobs():
    for unit in ("fp32", "half"):
        for heads in (12, 48, 192, 384, 1536):
            for length in (64, 128, 197, 256, 512, 1024, 2048):
                for width in (32, 64, 128):
                    for kind in ("full", "causal", "masked"):
                        yield from attention(unit, heads, length, width, kind)


def attention(unit, heads, length, width, kind):
    size = 4 if unit == "fp32" else 2
    whole = 4 * heads * length * length * width // (2 if kind == "causal" else 1)
    tensors = size * heads * length * width
    mask = size * heads // 12 * length * length if kind == "masked" else 0

    def make(which):
        def made(torch):
            dtype = torch.float32 if unit == "fp32" else torch.bfloat16
            q, k, v = (torch.randn(heads // 12, length, 12, width, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_() for _ in "qkv")
            bias = torch.zeros(heads // 12, 1, length, length, device="cuda", dtype=dtype) if mask else None
            run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=kind == "causal")
            if which == "fwd":
                return run
            out = run()
            grad = torch.randn(heads // 12, length, 12, width, device="cuda", dtype=dtype).transpose(1, 2)
            return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

        return made

    features = [heads, length, length, width]
    yield (f"attention fwd {unit} {kind}", features, whole, 4 * tensors + mask, unit, make("fwd"))
    yield (f"attention bwd {unit} {kind}", features, whole * 5 // 2, 8 * tensors + mask, unit, make("bwd"))


def moving_jobs():
    for elements in (2**p for p in range(10, 29, 2)):
        for unit, size in (("fp32", 4), ("half", 2)):
            def dtype(torch, unit=unit):
                return torch.float32 if unit == "fp32" else torch.bfloat16

            def unary(torch, dtype=dtype, elements=elements):
                x = torch.randn(elements, device="cuda", dtype=dtype(torch))
                return lambda: torch.relu(x)

            def binary(torch, dtype=dtype, elements=elements):
                x, y = (torch.randn(elements, device="cuda", dtype=dtype(torch)) for _ in "xy")
                return lambda: torch.add(x, y)

            def in_place(torch, dtype=dtype, elements=elements):
                x, y = (torch.randn(elements, device="cuda", dtype=dtype(torch)) for _ in "xy")
                return lambda: x.add_(y)

            def gelu_grad(torch, dtype=dtype, elements=elements):
                x, y = (torch.randn(elements, device="cuda", dtype=dtype(torch)) for _ in "xy")
                return lambda: torch.ops.aten.gelu_backward(x, y)

            def dropout(torch, dtype=dtype, elements=elements):
                x = torch.randn(elements, device="cuda", dtype=dtype(torch))
                return lambda: torch.ops.aten.native_dropout(x, 0.1, True)

            def fill(torch, dtype=dtype, elements=elements):
                x = torch.randn(elements, device="cuda", dtype=dtype(torch))
                return lambda: x.zero_()

            def normal(torch, dtype=dtype, elements=elements):
                return lambda: torch.randn(elements, device="cuda", dtype=dtype(torch))

            yield ("map", [elements, 2 * elements * size], 0, 2 * elements * size, "move", unary)
            yield ("map", [elements, 3 * elements * size], 0, 3 * elements * size, "move", binary)
            yield ("map", [elements, 3 * elements * size], 0, 3 * elements * size, "move", in_place)
            yield ("map", [elements, 3 * elements * size], 0, 3 * elements * size, "move", gelu_grad)
            yield ("dropout", [elements, 2 * elements * size + elements], 0, 2 * elements * size + elements, "move", dropout)
            yield ("fill", [elements, elements * size], 0, elements * size, "move", fill)
            yield ("random", [elements, elements * size], 0, elements * size, "move", normal)

            for inner in (7 * 7, 14 * 14, 56 * 56, 64, 128, 768):
                if elements < 4 * inner * 64:
                    continue
                outer = elements // inner // 64
                total = outer * 64 * inner

                def turned(torch, dtype=dtype, outer=outer, inner=inner):
                    x = torch.randn(outer, 64, inner, device="cuda", dtype=dtype(torch)).transpose(1, 2)
                    return lambda: x.contiguous()

                yield ("transpose", [total, 2 * total * size], 0, 2 * total * size, "move", turned)

            def cast(torch, dtype=dtype, elements=elements, unit=unit):
                x = torch.randn(elements, device="cuda", dtype=dtype(torch))
                return lambda: x.to(torch.bfloat16 if unit == "fp32" else torch.float32)

            yield ("map", [elements, 6 * elements], 0, 6 * elements, "move", cast)

            for kept in (2**p for p in range(0, 21, 4)):
                summed = elements // kept
                if summed < 2:
                    continue

                def inner_sum(torch, dtype=dtype, kept=kept, summed=summed):
                    x = torch.randn(kept, summed, device="cuda", dtype=dtype(torch))
                    return lambda: x.sum(1)

                def outer_sum(torch, dtype=dtype, kept=kept, summed=summed):
                    x = torch.randn(summed, kept, device="cuda", dtype=dtype(torch))
                    return lambda: x.sum(0)

                yield ("sum inner", [kept, summed], 0, elements * size, "move", inner_sum)
                yield ("sum outer", [kept, summed], 0, elements * size, "move", outer_sum)
            for kept, inner in ((64, 112 * 112), (256, 56 * 56), (512, 28 * 28), (1024, 196), (2048, 49)):
                samples = elements // kept // inner
                if samples < 2:
                    continue

                def channel_sum(torch, dtype=dtype, kept=kept, inner=inner, samples=samples):
                    x = torch.randn(samples, kept, inner, device="cuda", dtype=dtype(torch))
                    return lambda: x.sum((0, 2))

                yield ("sum channels", [kept, samples * inner], 0, samples * kept * inner * size, "move", channel_sum)


def further_moving_jobs():
    """Operands that broadcast, averages over windows, and batch norms in float16."""
    for unit, size in (("fp32", 4), ("half", 2)):
        for before, kept, inner in ((64, 768, 1), (4096, 768, 1), (32768, 768, 1), (32768, 2048, 1), (131072, 384, 1), (16, 64, 3136), (64, 64, 3136), (128, 256, 784), (128, 512, 784),
                                    (128, 1024, 196), (32, 96, 12544), (128, 2048, 49), (24, 197, 197), (384, 197, 197)):  # fmt: skip
            def broadcast(torch, shape=(before, kept, inner), unit=unit):
                dtype = torch.float32 if unit == "fp32" else torch.bfloat16
                x = torch.randn(shape, device="cuda", dtype=dtype)
                y = torch.randn(shape[1], 1, device="cuda", dtype=dtype)
                return lambda: x * y

            def scaled(torch, shape=(before, kept, inner), unit=unit):
                dtype = torch.float32 if unit == "fp32" else torch.bfloat16
                x = torch.randn(shape, device="cuda", dtype=dtype)
                y = torch.randn(shape[0], shape[1] if shape[2] > 1 else 1, 1, device="cuda", dtype=dtype)
                return lambda: x * y

            def strided(torch, shape=(before, kept, inner), unit=unit):
                dtype = torch.float32 if unit == "fp32" else torch.bfloat16
                x = torch.randn(shape[0], 2 * shape[1], shape[2], device="cuda", dtype=dtype)[:, shape[1] :]
                return lambda: torch.nn.functional.silu(x)

            elements = before * kept * inner
            yield ("broadcast", [elements, 2 * elements * size], 0, 2 * elements * size, "move", broadcast)
            yield ("broadcast", [elements, 2 * elements * size], 0, 2 * elements * size, "move", scaled)
            yield ("broadcast", [elements, 2 * elements * size], 0, 2 * elements * size, "move", strided)
        for n in (8, 32, 128):
            for channels, side, kernel, stride in ((64, 56, 2, 2), (192, 35, 3, 1), (768, 17, 3, 1), (1280, 8, 3, 1), (256, 28, 2, 2), (64, 112, 3, 2)):
                padding = 1 if kernel == 3 else 0
                after = (side + 2 * padding - kernel) // stride + 1
                counts = [n * channels * side * side, n * channels * after * after]

                def average(which):
                    def made(torch, shape=(n, channels, side, side), window=([kernel] * 2, [stride] * 2, [padding] * 2, False, True, None), unit=unit):
                        dtype = torch.float32 if unit == "fp32" else torch.bfloat16
                        x = torch.randn(shape, device="cuda", dtype=dtype)
                        if which == "fwd":
                            return lambda: torch.ops.aten.avg_pool2d(x, *window)
                        g = torch.randn_like(torch.ops.aten.avg_pool2d(x, *window))
                        return lambda: torch.ops.aten.avg_pool2d_backward(g, x, *window)

                    return made

                yield (f"avg_pool fwd {unit}", counts, 0, size * sum(counts), "named", average("fwd"))
                yield (f"avg_pool bwd {unit}", counts, 0, size * sum(counts), "named", average("bwd"))
    for job in row_jobs("fp16"):
        if job[0].startswith("batch_norm"):
            yield (f"{job[0]} fp16", *job[1:4], "named", job[5])


def turning_jobs():
    """Copies of rows into columns, and of rows into another order, by the lengths of both: which of the two decides the time is not known."""
    for size, unit in ((4, "fp32"), (2, "half")):
        for outer in (1, 16, 256):
            for before in (32, 49, 64, 196, 256, 768, 1024, 3136):
                for after in (32, 49, 64, 196, 256, 768, 1024, 3136):
                    elements = outer * before * after
                    if not 2**14 < elements < 2**28:
                        continue

                    def columns(torch, shape=(outer, before, after), unit=unit):
                        x = torch.randn(shape, device="cuda", dtype=torch.float32 if unit == "fp32" else torch.bfloat16).transpose(1, 2)
                        return lambda: x.contiguous()

                    yield (f"turned {unit}", [outer, before, after], 0, 2 * elements * size, "named", columns)
            for before, after in ((12, 197), (16, 512), (64, 49), (8, 2048)):
                for width in (16, 32, 64, 128):

                    def rows(torch, shape=(outer, before, after, width), unit=unit):
                        x = torch.randn(shape, device="cuda", dtype=torch.float32 if unit == "fp32" else torch.bfloat16).transpose(1, 2)
                        return lambda: x.contiguous()

                    elements = outer * before * after * width
                    yield (f"reordered {unit}", [outer * before * after, width], 0, 2 * elements * size, "named", rows)


def resampling_jobs():
    """Interpolation and columns of windows, forward and backward: some add atomically, which no count of bytes says."""
    for size, unit in ((4, "fp32"), (2, "half")):
        for n in (8, 32, 128):
            for channels, side, times in ((21, 28, 8), (64, 56, 2), (256, 14, 4), (256, 28, 2), (768, 7, 8)):
                for mode in ("bilinear", "nearest"):
                    before, after = side**2, (side * times) ** 2

                    def interpolated(which, shape=(n, channels, side, side), times=times, mode=mode, unit=unit):
                        def made(torch):
                            x = torch.randn(shape, device="cuda", dtype=torch.float32 if unit == "fp32" else torch.bfloat16).requires_grad_()
                            run = lambda: torch.nn.functional.interpolate(x, scale_factor=times, mode=mode)
                            if which == "fwd":
                                return run
                            y = run()
                            grad = torch.randn_like(y)
                            return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)

                        return made

                    for which in ("fwd", "bwd"):
                        yield (f"{mode} {which} {unit}", [n * channels, before, after], 0, size * n * channels * (before + after), "named", interpolated(which))
            for channels, side in ((192, 28), (64, 56), (384, 14)):
                before, after = n * channels * side**2, 9 * n * channels * (side // 2) ** 2

                def columned(which, shape=(n, channels, side, side), unit=unit):
                    def made(torch):
                        dtype = torch.float32 if unit == "fp32" else torch.bfloat16
                        window = {"kernel_size": 3, "padding": 1, "stride": 2}
                        x = torch.randn(shape, device="cuda", dtype=dtype)
                        if which == "unfold":
                            return lambda: torch.nn.functional.unfold(x, **window)
                        y = torch.nn.functional.unfold(x, **window)
                        return lambda: torch.nn.functional.fold(y, shape[2:], **window)

                    return made

                for which in ("unfold", "fold"):
                    yield (f"{which} {unit}", [n, before // n, after // n], 0, size * (before + after), "named", columned(which))


def row_jobs(half="bf16"):
    for unit, size in (("fp32", 4), ("half", 2))[half == "fp16" :]:
        def dtype(torch, unit=unit):
            return torch.float32 if unit == "fp32" else torch.float16 if half == "fp16" else torch.bfloat16

        for width in (49, 64, 197, 256, 512, 768, 1024, 2048, 4096, 32000, 50257):
            for rows in (2**p for p in range(5, 21, 3)):
                elements = rows * width

                def softmax(torch, dtype=dtype, rows=rows, width=width):
                    x = torch.randn(rows, width, device="cuda", dtype=dtype(torch))
                    return lambda: torch.softmax(x, -1)

                def softmax_grad(torch, dtype=dtype, rows=rows, width=width):
                    x, y = (torch.randn(rows, width, device="cuda", dtype=dtype(torch)) for _ in "xy")
                    return lambda: torch.ops.aten._softmax_backward_data(x, y, -1, x.dtype)

                yield ("softmax fwd", [rows, width], 0, 2 * elements * size, "move", softmax)
                yield ("softmax bwd", [rows, width], 0, 3 * elements * size, "move", softmax_grad)
                if width > 8192:
                    continue

                def layer_norm(torch, dtype=dtype, rows=rows, width=width):
                    x = torch.randn(rows, width, device="cuda", dtype=dtype(torch))
                    w, b = (torch.randn(width, device="cuda", dtype=dtype(torch)) for _ in "wb")
                    return lambda: torch.ops.aten.native_layer_norm(x, [width], w, b, 1e-5)

                def layer_norm_grad(torch, dtype=dtype, rows=rows, width=width):
                    x, g = (torch.randn(rows, width, device="cuda", dtype=dtype(torch)) for _ in "xg")
                    w, b = (torch.randn(width, device="cuda", dtype=dtype(torch)) for _ in "wb")
                    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [width], w, b, 1e-5)
                    return lambda: torch.ops.aten.native_layer_norm_backward(g, x, [width], mean, rstd, w, b, [True] * 3)

                yield ("layer_norm fwd", [rows, width], 0, 2 * elements * size, "move", layer_norm)
                yield ("layer_norm bwd", [rows, width], 0, 3 * elements * size, "move", layer_norm_grad)
        for n in (4, 16, 64, 256):
            for channels in (32, 64, 128, 256, 512, 1024, 2048):
                for inner in (49, 196, 784, 3136, 12544):
                    elements = n * channels * inner
                    if channels * inner > 64 * 12544:
                        continue

                    def batch_norm(which):
                        def made(torch, dtype=dtype, shape=(n, channels, int(math.isqrt(inner)), int(math.isqrt(inner)))):
                            x = torch.randn(shape, device="cuda", dtype=dtype(torch)).requires_grad_()
                            w, b = (torch.randn(shape[1], device="cuda").requires_grad_() for _ in "wb")
                            m, v = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")
                            run = lambda: torch.nn.functional.batch_norm(x, m, v, w, b, True)
                            if which == "fwd":
                                return run
                            y = run()
                            g = torch.randn_like(y)
                            return lambda: torch.autograd.grad(y, (x, w, b), g, retain_graph=True)

                        return made

                    yield ("batch_norm fwd", [n, channels, inner], 0, 2 * elements * size, "move", batch_norm("fwd"))
                    yield ("batch_norm bwd", [n, channels, inner], 0, 3 * elements * size, "move", batch_norm("bwd"))
        for n in (4, 16, 64, 256):
            for channels, side in ((64, 112), (64, 224), (192, 56), (512, 28), (64, 32)):
                for kernel, stride in ((3, 2), (2, 2)):
                    after = (side + 2 * (kernel // 2 if kernel == 3 else 0) - kernel) // stride + 1
                    before, behind = n * channels * side * side, n * channels * after * after

                    def pool(which):
                        def made(torch, dtype=dtype, shape=(n, channels, side, side), kernel=kernel, stride=stride):
                            x = torch.randn(shape, device="cuda", dtype=dtype(torch))
                            padding = kernel // 2 if kernel == 3 else 0
                            arguments = ([kernel] * 2, [stride] * 2, [padding] * 2, [1] * 2, False)
                            y, places = torch.ops.aten.max_pool2d_with_indices(x, *arguments)
                            if which == "fwd":
                                return lambda: torch.ops.aten.max_pool2d_with_indices(x, *arguments)
                            g = torch.randn_like(y)
                            return lambda: torch.ops.aten.max_pool2d_with_indices_backward(g, x, *arguments, places)

                        return made

                    moved = size * (before + behind) + 8 * behind
                    yield ("max_pool fwd", [before, behind], 0, moved, "move", pool("fwd"))
                    yield ("max_pool bwd", [before, behind], 0, moved, "move", pool("bwd"))
        for tokens in (512, 4096, 32768, 131072):
            for width in (512, 768, 2048):
                for words in (1024, 32000, 50257):
                    moved = size * tokens * width

                    def embed(which):
                        def made(torch, dtype=dtype, tokens=tokens, width=width, words=words):
                            weight = torch.randn(words, width, device="cuda", dtype=dtype(torch))
                            places = torch.randint(words, (tokens,), device="cuda")
                            if which == "fwd":
                                return lambda: torch.embedding(weight, places)
                            g = torch.randn(tokens, width, device="cuda", dtype=dtype(torch))
                            return lambda: torch.ops.aten.embedding_dense_backward(g, places, words, -1, False)

                        return made

                    yield ("embedding fwd", [tokens, width], 0, 2 * moved, "move", embed("fwd"))
                    yield ("embedding bwd", [tokens, width], 0, moved + size * words * width, "move", embed("bwd"))


def optimizer_jobs():
    for elements in (2**20, 2**23, 2**26, 2**28, 2**30):
        for count in (4, 32, 150, 500):
            each = elements // count
            for size, unit in ((4, "fp32"), (2, "half")):
                if each < 256 or elements * size * 4 > 2.2e10:
                    continue
                for kind in ("sgd", "sgd_momentum", "adam", "adamw"):
                    for how in ("foreach", "fused"):
                        if how == "fused" and kind.startswith("sgd"):
                            continue

                        def made(torch, count=count, each=each, unit=unit, kind=kind, how=how):
                            dtype = torch.float32 if unit == "fp32" else torch.bfloat16
                            leaves = [torch.randn(each, device="cuda", dtype=dtype).requires_grad_() for _ in range(count)]
                            for leaf in leaves:
                                leaf.grad = torch.randn_like(leaf)
                            rate = {"lr": 1e-5, how: True}
                            kinds = {
                                "sgd": lambda: torch.optim.SGD(leaves, **rate),
                                "sgd_momentum": lambda: torch.optim.SGD(leaves, momentum=0.9, **rate),
                                "adam": lambda: torch.optim.Adam(leaves, **rate),
                                "adamw": lambda: torch.optim.AdamW(leaves, **rate),
                            }
                            return kinds[kind]().step

                        moved = elements * size * {"sgd": 3, "sgd_momentum": 5, "adam": 7, "adamw": 7}[kind]
                        yield (f"optimizer {kind} {how}", [count, elements], 0, moved, "move", made)

                def unscale(torch, count=count, each=each, unit=unit):
                    dtype = torch.float32 if unit == "fp32" else torch.bfloat16
                    grads = [torch.randn(each, device="cuda", dtype=dtype) for _ in range(count)]
                    found, inverse = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
                    return lambda: torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)

                yield ("unscale", [count, elements], 0, 2 * elements * size, "move", unscale)


class Late(Exception):
    pass


@contextlib.contextmanager
def within(seconds):
    def late(*_):
        raise Late(f"took longer than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def microseconds(torch, run, guess):
    """The median of three bursts, each long enough to be measured, behind a kernel that holds the queue meanwhile."""
    run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    host = time.perf_counter() - began
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
    times = max(2, min(20, int(2e-3 / max(guess, host, 1e-5))))
    found = []
    for _ in range(3):
        torch.cuda._sleep(int(CYCLES * (1.3 * host * times + 1e-4)))
        start.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        found.append(1e3 * start.elapsed_time(end) / times)
        if found[0] > 2e4:
            break
    return statistics.median(found)


def kernels(options):
    import torch

    rng = random.Random(SEED)
    # Shares of the time, so that what has many sizes does not crowd out what has few.
    groups = [(0.05, optimizer_jobs), (0.1, row_jobs), (0.05, moving_jobs), (0.1, further_moving_jobs), (0.2, attention_jobs), (0.1, product_jobs), (0.1, uneven_product_jobs),
              (0.2, convolution_jobs), (0.1, further_convolution_jobs)]  # fmt: skip
    if options.further:
        groups = [(0.12, further_moving_jobs), (0.2, uneven_product_jobs), (0.68, further_convolution_jobs)]
    if options.lacking:
        groups = [(0.45, sound_convolution_jobs), (0.3, turning_jobs), (0.25, resampling_jobs)]
    began, spent = time.time(), 0.0
    with options.out.open("w") as out:
        out.write(json.dumps({"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "gpu": torch.cuda.get_device_name(0)}) + "\n")
        for share, jobs in groups:
            spent += share
            until = began + options.seconds * spent
            listed = list(jobs())
            rng.shuffle(listed)
            done = failed = 0
            for name, features, flops, moved, unit, make in listed:
                if time.time() > until:
                    break
                guess = max(moved / BANDWIDTH, flops / FLOPS.get(unit, 1e14))
                if moved > MOST_BYTES * (5 if name.startswith("optimizer") else 1) or guess > MOST_SECONDS:
                    continue
                try:
                    with within(5):
                        us = microseconds(torch, make(torch), guess)
                except (Late, RuntimeError) as error:
                    failed += 1
                    if failed < 4:
                        print(name, features, repr(error)[:200], flush=True)
                    continue
                out.write(json.dumps([name, features, flops, moved, unit, round(us, 2)]) + "\n")
                done += 1
            torch.cuda.empty_cache()
            print(f"{jobs.__name__}: {done} of {len(listed)}, {failed} failed, {time.time() - began:.0f} s", flush=True)


# The host.


def chains(torch):
    """(name, layers in a row, what goes in, autocast): small enough that the host is what is waited for."""
    nn, F = torch.nn, torch.nn.functional

    class Call(nn.Module):
        def __init__(self, run):
            super().__init__()
            self.run = run

        def forward(self, x):
            return self.run(x)

    image, rows, heads = (2, 16, 8, 8), (2, 8, 64), (2, 4, 8, 16)
    plain = {
        "identity": (nn.Identity, rows),
        "view": (lambda: Call(lambda x: x.view(2, 64, 8).view(2, 8, 64)), rows),
        "transpose": (lambda: Call(lambda x: x.transpose(1, 2).transpose(1, 2)), rows),
        "slice": (lambda: Call(lambda x: x[:, :8]), rows),
        "add": (lambda: Call(lambda x: x + 1.0), rows),
        "add_self": (lambda: Call(lambda x: x + x), rows),
        "multiply_self": (lambda: Call(lambda x: x * x), rows),
        "relu": (nn.ReLU, rows),
        "relu_in_place": (lambda: nn.Sequential(Call(lambda x: x + 1.0), nn.ReLU(inplace=True)), rows),
        "gelu": (nn.GELU, rows),
        "silu": (nn.SiLU, rows),
        "tanh": (nn.Tanh, rows),
        "dropout": (lambda: nn.Dropout(0.1), rows),
        "softmax": (lambda: nn.Softmax(-1), rows),
        "contiguous": (lambda: Call(lambda x: x.transpose(1, 2).contiguous().view(2, 8, 64)), rows),
        "cat": (lambda: Call(lambda x: torch.cat([x[:, :4], x[:, 4:]], 1)), rows),
        "mean": (lambda: Call(lambda x: x.mean(-1, keepdim=True).expand(2, 8, 64)), rows),
        "linear": (lambda: nn.Linear(64, 64), rows),
        "linear_no_bias": (lambda: nn.Linear(64, 64, bias=False), rows),
        "matmul": (lambda: Call(lambda x: x @ x.transpose(-1, -2)), (2, 4, 16, 16)),
        "layer_norm": (lambda: nn.LayerNorm(64), rows),
        "rms_norm": (lambda: nn.RMSNorm(64), rows),
        "attention": (lambda: Call(lambda x: F.scaled_dot_product_attention(x, x, x)), heads),
        "convolution": (lambda: nn.Conv2d(16, 16, 3, padding=1, bias=False), image),
        "convolution_bias": (lambda: nn.Conv2d(16, 16, 3, padding=1), image),
        "pointwise": (lambda: nn.Conv2d(16, 16, 1, bias=False), image),
        "depthwise": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), image),
        "batch_norm": (lambda: nn.BatchNorm2d(16), image),
        "group_norm": (lambda: nn.GroupNorm(4, 16), image),
        "max_pool": (lambda: nn.MaxPool2d(3, 1, 1), image),
        "avg_pool": (lambda: nn.AvgPool2d(3, 1, 1), image),
        "interpolate": (lambda: Call(lambda x: F.interpolate(x, scale_factor=1.0, mode="bilinear")), image),
        "nested": (lambda: nn.Sequential(nn.Sequential(nn.Sequential(nn.Identity()))), rows),
    }
    for name, (make, shape) in plain.items():
        for precision in ("fp32", "amp_bf16"):
            yield name, make, shape, precision


def host(options):
    """A line for each chain: microseconds of the host for one of its layers, forward, backward and update by AdamW; medians of nine."""
    import torch

    with options.out.open("w") as out:
        out.write(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)}) + "\n")
        for name, make, shape, precision in chains(torch):
            try:
                with within(10):
                    line = [name, precision, *chained(torch, make, shape, precision)]
            except (Late, RuntimeError) as error:
                print(name, precision, repr(error)[:200], flush=True)
                continue
            out.write(json.dumps(line) + "\n")
            print(*line, flush=True)


def chained(torch, make, shape, precision):
    """Microseconds of a layer forward, backward and updated, from what half as many layers take less; and how many parameters it has."""
    times = {}
    for layers in (30, 60):
        model = torch.nn.Sequential(*[make() for _ in range(layers)]).cuda()
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters) if parameters else None
        x = torch.randn(shape, device="cuda", requires_grad=True)
        found, made = [], {}

        def forward():
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "amp_bf16"):
                made["y"] = model(x)

        def backward():
            made["y"].backward(made["gradient"])

        def update():
            x.grad = None
            if optimizer:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        for _ in range(13):
            row = []
            for phase in (forward, backward, update):
                torch.cuda.synchronize()
                began = time.perf_counter()
                phase()
                row.append(time.perf_counter() - began)
                if phase is forward:
                    made["gradient"] = torch.randn_like(made["y"])
            found.append(row)
        times[layers] = [statistics.median(column) for column in zip(*found[4:])]
    each = [round(1e6 * (long - short) / 30, 2) for short, long in zip(*times.values())]
    return [*each, len(parameters) // 60]


# Steps.


def phases_of(torch, run):
    """Seconds until forward, backward and the optimizer have returned to the host, and until the device is done."""
    torch.cuda.synchronize()
    start, found = time.perf_counter(), []
    for phase in run:
        phase()
        found.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return [*found, time.perf_counter() - start]


class Theirs:
    """A model of public_models.py, as tests/gpu/timed.py trains it."""

    def __init__(self, name, precision):
        import public_models
        import timed

        self.trainer = timed.Trainer(public_models.load()[name], precision, "cuda")
        self.step = self.trainer.step

    def phases(self, size):
        trainer, made = self.trainer, {}

        def forward():
            with trainer.torch.autocast("cuda", dtype=trainer.torch.bfloat16, enabled=trainer.precision == "amp_bf16"):
                made["loss"] = trainer.scored(*trainer.batch(size))

        def update():
            trainer.optimizer.step()
            trainer.optimizer.zero_grad(set_to_none=True)

        return [forward, lambda: made["loss"].backward(), update]


class Public:
    """A case of the harness."""

    def __init__(self, name):
        import cases_public
        import harness

        self.run = harness.Run(cases_public.CASES[name])
        self.step = self.run.step

    def phases(self, size):
        run, made = self.run, {}
        torch = run.torch

        def forward():
            with torch.autocast("cuda", dtype=run.amp or torch.float16, enabled=run.amp is not None):
                made["loss"] = run.spec.loss(run.model, run.spec.batch(size, run.pdt))
            if run.scaler:
                made["loss"] = run.scaler.scale(made["loss"])

        def update():
            if run.scaler:
                run.scaler.step(run.opt)
                run.scaler.update()
            else:
                run.opt.step()
            run.opt.zero_grad(set_to_none=True)

        return [forward, lambda: made.pop("loss").backward(), update]


def profiled(torch, step, size):
    """Launches of a step by kernel: how often, and microseconds in all."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step(size)
        torch.cuda.synchronize()
    kernels = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count, total = kernels.get(event.name, (0, 0.0))
            kernels[event.name] = (count + 1, total + event.time_range.elapsed_us())
    longest = sorted(kernels.items(), key=lambda one: -one[1][1])
    return {
        "launches": sum(count for count, _ in kernels.values()),
        "busy_us": round(sum(total for _, total in kernels.values())),
        "kernels": [[name[:160], count, round(total)] for name, (count, total) in longest[:40]],
    }


def steps(options):
    import torch

    sys.path[:0] = [str(options.repo / "tests/gpu"), str(options.repo / "clients/python/src"), *options.cases]
    split = json.loads(options.split.read_text())
    began = time.time()
    with options.out.open("w") as out:
        out.write(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)}) + "\n")
        for cell in split["cells"]:
            if options.fewer:
                options.plain = True
                if cell["library"] == "public":
                    continue
                cell["batches"] = cell["batches"][:2]
            if time.time() > began + options.seconds:
                print("not run:", cell["name"], flush=True)
                continue
            row = {key: cell[key] for key in ("name", "precision")}
            subject, at = None, time.time()
            try:
                with within(40):
                    if cell["library"] == "public":
                        if not options.cases:
                            continue
                        subject = Public(cell["name"])
                    else:
                        subject = Theirs(cell["name"], cell["precision"])
                    row["times"] = []
                    for index, size in enumerate(cell["batches"]):
                        found = []
                        for _ in range(3):
                            subject.step(size)
                        torch.cuda.synchronize()
                        for _ in range(15 if options.plain else 8):
                            start = time.perf_counter()
                            subject.step(size)
                            torch.cuda.synchronize()
                            found.append(time.perf_counter() - start)
                            if sum(found) > 2.0 and len(found) > 2:
                                break
                        found.sort()
                        times = {"batch": size, "median_ms": round(1e3 * found[len(found) // 2], 3), "min_ms": round(1e3 * found[0], 3)}
                        if index == 0 and not options.plain:
                            rounds = [phases_of(torch, subject.phases(size)) for _ in range(7)][2:]
                            times["host_ms"] = [round(1e3 * statistics.median(column), 3) for column in zip(*rounds)]
                        if index in (1, len(cell["batches"]) - 1) and not options.plain:
                            times["profile"] = profiled(torch, subject.step, size)
                        row["times"].append(times)
            except Exception as error:  # The next model is timed all the same.
                row["error"] = f"{type(error).__name__}: {error}"[:200]
            subject = None
            gc.collect()
            torch.cuda.empty_cache()
            out.write(json.dumps(row) + "\n")
            out.flush()
            shown = " ".join(f"{one['batch']}:{one['median_ms']:.1f}" for one in row.get("times", []))
            print(f"{time.time() - began:4.0f} s ({time.time() - at:.1f}) {cell['name']} {cell['precision']} {shown} {row.get('error', '')}", flush=True)


# The table.

# What ratios are of: the datasheet of the H200 SXM (bytes a second, operations a second without sparsity), and what the shortest
# kernels take between two others (`fill` of 1,024 elements in the recording).
CEILINGS = {"bandwidth": 4.8e12, "fp32": 67e12, "tf32": 494.7e12, "half": 989.4e12, "fp16": 989.4e12, "bf16": 989.4e12, "latency": 2e-6}
MANY_OF_A_CLASS = 500  # Of more, every eighth is left out, for the size of the table.


def pack(options):
    """Each kernel's features and how many times as long it took as the ceilings allow, by class."""
    classes, about = {}, None
    for path in options.files:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if isinstance(row, dict):
                about = row
                continue
            name, features, flops, moved, unit, us = row
            name = f"{name} {element(name, features, moved)}" if unit == "move" else name
            if name.startswith("layer_norm fwd") and features[1] % 4 != 0:
                name += " uneven"  # Rows of whole fours are read four at a time.
            floor = max(moved / CEILINGS["bandwidth"], flops / CEILINGS.get(unit, math.inf)) + CEILINGS["latency"]
            classes.setdefault(name, {}).setdefault(tuple(features), []).append(1e-6 * us / floor)
    before = {}
    if options.onto:
        for part in options.onto.read_text().split("\nclass ")[1:]:
            name, *lines = part.splitlines()
            before[name] = lines
    print("# Kernels of PyTorch on a GPU: how many times as long each took as the card's ceilings allow (the larger of bytes over bandwidth")
    print("# and operations over throughput, and the latency). Made by tests/record/times.py, which says what the numbers before it are.")
    print("# " + " ".join(f"{key} {value}" for key, value in about.items()))
    print("ceilings " + " ".join(f"{key} {value:.5g}" for key, value in CEILINGS.items()))
    for name in sorted({*classes, *before}):
        print(f"class {name}")
        print(*before.get(name, []), sep="\n", end="\n" if name in before else "")
        kept = sorted(classes.get(name, {}).items())
        if len(kept) > MANY_OF_A_CLASS:
            kept = [one for index, one in enumerate(kept) if index % 8]
        for features, ratios in kept:
            print(*features, f"{statistics.median(ratios):.3g}")


def element(name, features, moved):
    """fp32 or half: by how many bytes go for each element."""
    kind, elements = name.split()[0], math.prod(features)
    passes = {"batch_norm fwd": 2, "batch_norm bwd": 3, "layer_norm fwd": 2, "layer_norm bwd": 3, "softmax fwd": 2, "softmax bwd": 3,
              "sum inner": 1, "sum outer": 1, "sum channels": 1, "embedding fwd": 2}.get(name)  # fmt: skip
    if kind in ("map", "broadcast", "transpose", "fill", "random", "dropout"):
        return "any"
    if kind == "batch_norm":
        return "fp32" if moved == 4 * passes * elements else "bf16"
    if kind == "optimizer":
        elements, passes = features[1], {"sgd": 3, "sgd_momentum": 5}.get(name.split()[1], 7)
    if kind == "unscale":
        elements, passes = features[1], 2
    if name == "embedding bwd":
        return "fp32" if any(abs(moved - 4 * (elements + words * features[1])) < 1 for words in (1024, 32000, 50257)) else "half"
    if kind == "max_pool":
        return "fp32" if moved == 4 * sum(features) + 8 * features[1] else "half"
    return "fp32" if moved == 4 * passes * elements else "half"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, seconds in (("kernels", 200), ("host", 60), ("steps", 250)):
        command = commands.add_parser(name)
        command.add_argument("--out", type=pathlib.Path, required=True)
        command.add_argument("--seconds", type=float, default=seconds)
        command.add_argument("--cases", action="append", default=[])
        command.add_argument("--split", type=pathlib.Path, default=REPO / "tests/golden/times/split.json")
        command.add_argument("--repo", type=pathlib.Path, default=REPO, help="where the repository is")
    commands.choices["kernels"].add_argument("--further", action="store_true", help="only the lists that are called further and uneven")
    commands.choices["kernels"].add_argument("--lacking", action="store_true", help="only lines of sound, copies of rows into columns, interpolation and folds")
    commands.choices["steps"].add_argument("--fewer", action="store_true", help="only what is not public, two batches, no profiles")
    commands.choices["steps"].add_argument("--plain", action="store_true", help="no profiles, and more steps of each")
    packing = commands.add_parser("pack")
    packing.add_argument("files", nargs="+", type=pathlib.Path)
    packing.add_argument("--onto", type=pathlib.Path, help="a table whose kernels are kept")
    options = parser.parse_args()
    {"kernels": kernels, "host": host, "steps": steps, "pack": pack}[options.command](options)


if __name__ == "__main__":
    main()
