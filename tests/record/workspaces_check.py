#!/usr/bin/env python3
"""Compares what cuDNN says of convolutions without a card with what it said on one.

    workspaces_check.py RECORDED ASKED      a table by pass, and by pass and kind of layer

Both are raw recordings of `batchfit calibrate --layers LAYERS --batches ... --share 0/1 FILE`: RECORDED on a GPU, ASKED with `--card`.
Products of matrices and layers of groups take cuDNN's log (CUDNN_LOGLEVEL_DBG=3, CUDNN_LOGDEST_DBG=FILE in memory, FILE there); `--products` says
which lines of a file of layers are products.

Compared is the workspace of the plan that is tried first. Exact: to 1 KiB. Near: to 2 % of the three tensors. Sums that are split over an H200's
132 multiprocessors are calculated, and off by up to 128 KiB for each where that is wrong, 17 MB in all: matters counts what is off by more
than that and by more than 2 %.
"""
import argparse
import collections
import pathlib

MOST_OF_SPLITS = 132 * 128 * 1024


def layer(text):
    """The numbers of a layer by name; sides of planes have a depth of one."""
    numbers = list(map(int, text.split(",")))
    if len(numbers) == 23:
        sides = [numbers[at : at + 3] for at in (3, 6, 9, 12, 15)]
        flags, extra, volume = numbers[18:20], numbers[20:], True
    else:
        numbers += [0] * (17 - len(numbers))
        sides = [[flat, *numbers[at : at + 2]] for at, flat in ((3, 1), (5, 1), (7, 1), (9, 0), (11, 1))]
        flags, extra, volume = numbers[13:15], [0, *numbers[15:]], False
    names = ("input", "kernel", "stride", "padding", "dilation")
    return dict(zip(names, sides), cin=numbers[0], cout=numbers[1], groups=numbers[2], transposed=flags[0], last=flags[1], extra=extra, volume=volume)


def product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


def result_sides(one):
    rows = zip(one["input"], one["kernel"], one["stride"], one["padding"], one["dilation"], one["extra"])
    if one["transposed"]:
        return [(n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, k, s, p, d, e in rows]
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in rows]


def tensors(one, dtype, batch):
    """Bytes of all three."""
    images = batch * (one["cin"] * product(one["input"]) + one["cout"] * product(result_sides(one)))
    return (4 if dtype == "f32" else 2) * (images + one["cin"] * one["cout"] // one["groups"] * product(one["kernel"]))


def is_product(one):
    return one["groups"] == 1 and one["kernel"] == [1] * 3 and one["stride"] == [1] * 3 and one["padding"] == [0] * 3


def kind(one):
    if one["volume"]:
        return "volume"
    name = "line" if one["input"][1] == one["kernel"][1] == 1 else "1x1" if one["kernel"] == [1] * 3 else "kxk"
    if one["groups"] > 1:
        name = "depthwise" if one["groups"] == one["cin"] else "grouped"
    return ("transposed " if one["transposed"] else "") + name + (" channels-last" if one["last"] else "")


def read(path):
    """{(layer, type, pass): {batch: workspace}}: the first plan of each line."""
    jobs, job, seen = {}, {}, {}
    for text in path.open():
        if text[0] == "J":
            key = tuple(text.split()[1:])
            job, seen = jobs.setdefault(key, {}), {}
        elif text[0] not in "T#":
            batch, *plans = text.split()
            batch = int(batch)
            for index, plan in enumerate(plans):
                tag, _, size = plan.partition(":")
                if size:
                    size = int(size)
                else:  # On the straight line through the plan's last two batches.
                    (b0, w0), (b1, w1) = seen[tag]
                    size = w1 + (w1 - w0) * (batch - b1) // (b1 - b0)
                seen[tag] = ((seen[tag][1] if tag in seen else (batch, size)), (batch, size))
                if index == 0:
                    job[batch] = size
    return jobs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=pathlib.Path, metavar="LAYERS", help="print the lines of a file that are products of matrices")
    parser.add_argument("recordings", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    if options.products:
        print(*(text for text in options.products.read_text().split() if is_product(layer(text))), sep="\n")
        return
    recorded, asked = map(read, options.recordings)
    rows = collections.defaultdict(lambda: [0] * 7)
    for (name, dtype, which), job in asked.items():
        truth, one = recorded.get((name, dtype, which), {}), layer(name)
        for batch in job.keys() & truth.keys():
            off, all_three = job[batch] - truth[batch], tensors(one, dtype, batch)
            near = max(1024, 0.02 * all_three)
            for key in ((which, kind(one)), (which, ""), ("all", "")):
                row = rows[key]
                for at, value in enumerate((1, abs(off) < 1024, abs(off) <= near, abs(off) > max(near, MOST_OF_SPLITS), -off > max(near, MOST_OF_SPLITS), job[batch], truth[batch])):
                    row[at] += value
    print(f"{'':34} {'lists':>7} {'exact':>7} {'near':>7} {'matters':>8} {'short':>7} {'sum':>6}")
    for (which, name), (count, *counts, found, truth) in sorted(rows.items()):
        exact, near, matters, short = (f"{100 * value / count:.1f} %" for value in counts)
        print(f"{which + ' ' + name:34} {count:7} {exact:>7} {near:>7} {matters:>8} {short:>7} {found / max(1, truth):6.2f}")


if __name__ == "__main__":
    main()
