#!/usr/bin/env python3
"""Convolutions as a grid and at random, a line each, as `batchfit calibrate --layers` reads them.

    layers.py grid [--seed N] > grid.txt        kernels of 1 to 7, strides, dilations, groups, channels and sides as models have them
    layers.py random COUNT [--seed N] > r.txt   any of these: what no table can have all of

Each line: channels in and out, groups, height and width of the input, of the kernel, of stride, padding and dilation, whether it is
transposed, whether its tensors are channels-last (left out where they are not); volumes have three sides and what is added to the output.
Lines are in a random order, so that whoever stops early has some of everything.
"""
import argparse
import random

CHANNELS = [8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024, 1280, 1536, 2048]
SIDES = [7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256]


def line(cin, cout, groups, sides, kernel, stride, padding, dilation, transposed=0, last=0):
    numbers = [cin, cout, groups, *sides, *kernel, *stride, *padding, *dilation, transposed]
    if len(sides) == 3:
        numbers += [last, 0, 0, 0]
    elif last:
        numbers.append(1)
    return ",".join(map(str, numbers))


def grows(cin, cout, groups, sides, kernel):
    """Whether a weight or an image is larger than models have."""
    weight, image = cin * cout // groups, max(cin, cout)
    for side, of_kernel in zip(sides, kernel):
        weight, image = weight * of_kernel, image * side
    return weight > 2**26 or image > 2**23


def grid():
    pairs = sorted({(c, o) for c in CHANNELS for o in (c, 2 * c, 4 * c, c // 2, c // 4) if o in CHANNELS} | {(i, o) for i in (1, 3, 4) for o in CHANNELS[1:12]} | {(c, 21) for c in CHANNELS[6:]})
    for cin, cout in pairs:
        for side in SIDES:
            if cin * cout * side * side > 2**33:
                continue
            for kernel in range(1, 8):
                for stride in (1, 2) if kernel < 4 or cin <= 64 else (1,):
                    for dilation in (1, 2, 4) if kernel == 3 and stride == 1 and side >= 14 else (1,):
                        padding = dilation * (kernel - 1) // 2
                        if side + 2 * padding < dilation * (kernel - 1) + 1:
                            continue
                        for last in (0, 1):
                            yield line(cin, cout, 1, (side,) * 2, (kernel,) * 2, (stride,) * 2, (padding,) * 2, (dilation,) * 2, 0, last)
            if cin <= cout:
                for last in (0, 1):
                    for kernel in (2, 3, 4):
                        yield line(cout, cin, 1, (side,) * 2, (kernel,) * 2, (2, 2), ((kernel - 1) // 2,) * 2, (1, 1), 1, last)
    for channels in CHANNELS[3:]:
        for side in SIDES:
            for kernel in (3, 5, 7):
                for stride in (1, 2):
                    for groups in {2, 4, 8, 16, 32, channels}:
                        if channels % groups == 0:
                            for last in (0, 1):
                                yield line(channels, channels, groups, (side,) * 2, (kernel,) * 2, (stride,) * 2, (kernel // 2,) * 2, (1, 1), 0, last)


def drawn(draw):
    kind = draw.choices(["plane", "rectangle", "line", "volume", "transposed", "grouped", "depthwise"], [40, 10, 10, 10, 8, 14, 8])[0]
    of = lambda most: draw.choice([draw.choice(CHANNELS), 8 * draw.randint(1, most // 8), draw.randint(1, most)])
    cin, cout, groups = draw.choice([3, 1, *[of(1024)] * 10]), of(1024), 1
    last = int(draw.random() < 0.3)
    side = draw.choice([draw.choice(SIDES), draw.randint(5, 260)])
    kernel = draw.choices(range(1, 8), [5, 2, 8, 1, 2, 1, 2])[0]
    stride, dilation = draw.choices([1, 2, 3], [6, 3, 1])[0], draw.choices([1, 2, 4], [8, 1, 1])[0]
    padding = draw.choice([0, dilation * (kernel - 1) // 2, dilation * (kernel - 1) // 2])
    transposed = 0
    if kind == "transposed":
        transposed, dilation, stride = 1, 1, draw.choice([1, 2, 2])
        kernel = max(kernel, stride)
        padding = (kernel - stride) // 2
    if kind in ("grouped", "depthwise"):
        groups = draw.choice([2, 4, 8, 16, 32]) if kind == "grouped" else 8 * draw.randint(1, 96)
        cin = groups * draw.choice([1, 2, 4, 8, 16, 32]) if kind == "grouped" else groups
        cout = cin if kind == "depthwise" else draw.choice([cin, 2 * cin])
    if kind == "line":
        length = draw.choice([50, 128, 250, 400, 500, 1000, 3000, 4000, 16000, draw.randint(20, 20000)])
        sides, last = (1, length), 0
        return cin, cout, groups, sides, (1, kernel), (1, stride), (0, padding), (1, dilation), 0, 0
    if kind == "volume":
        cin, cout = min(cin, 320), min(cout, 320)
        sides = tuple(draw.choice([4, 8, 12, 16, 24, 32, 48, 64, 96]) for _ in range(3))
        return cin, cout, 1, sides, (kernel,) * 3, (stride,) * 3, (padding,) * 3, (dilation,) * 3, 0, last
    sides = (side, draw.randint(5, 260)) if kind == "rectangle" else (side, side)
    return cin, cout, groups, sides, (kernel,) * 2, (stride,) * 2, (padding,) * 2, (dilation,) * 2, transposed, last


def at_random(count, draw):
    made = set()
    while len(made) < count:
        one = drawn(draw)
        cin, cout, groups, sides, kernel, stride, padding, dilation, transposed, last = one
        fits = all(n + 2 * p >= d * (k - 1) + 1 for n, k, p, d in zip(sides, kernel, padding, dilation))
        if fits and not grows(cin, cout, groups, sides, kernel):
            made.add(line(*one))
    return sorted(made)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["grid", "random"])
    parser.add_argument("count", nargs="?", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    lines = sorted(set(grid())) if options.what == "grid" else at_random(options.count, draw)
    draw.shuffle(lines)
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
