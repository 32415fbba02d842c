#!/usr/bin/env python3
"""What an answer is worth for a model whose convolutions were never recorded.

    left_out.py BATCHFIT OUT [--asked [close]] [--models NAME,..]      adds lines to OUT and prints a table of them

For each model all of its own layers are taken out of the H200's table. What is said of it then, its reserved peak at several batches and its
largest batches under several limits, is compared with what the whole table says, in which all its layers are. Left out it is answered by the
estimate; with `--asked` also by what cuDNN says of these layers without the card.

PyTorch's cuDNN must be on the library path, because `batchfit calibrate --card` tells which layers a model has (docs/how/calibration.md). The
tables with layers left out have `alone` in their heads, so that no other table is asked after them.
"""
import argparse
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TABLE = pathlib.Path(__file__).parents[2] / "crates/card/src/device/sim/workspaces/h200.txt.gz"
LIMITS = {"8 GiB": 8 << 30, "24 GiB": 24 << 30, "80 GiB": 80 << 30}
BATCHES = (4, 32, 100, 256)
ASKED = "1,2,3,4,6,8,12,16,24,32,48,64,96,100,128,192,256,384,512,768,1024"
# Every batch to 33, and then in steps of 3 %, as a largest batch is looked for.
CLOSE = ",".join(map(str, sorted({*range(1, 34), *(int(33 * 1.03**step) for step in range(1, 117)), *BATCHES})))
MODELS = {
    "resnet18": [], "resnet50": [], "resnet101": [], "vgg16": [], "vgg13_bn": [], "alexnet": [], "densenet121": [], "densenet161": [], "mobilenet_v2": [],
    "mobilenet_v3_large": [], "efficientnet_b0": [], "efficientnet_b4": [], "efficientnet_v2_s": [], "convnext_tiny": [], "convnext_base": [],
    "resnext50_32x4d": [], "wide_resnet50_2": [], "regnet_x_3_2gf": [], "regnet_y_8gf": [], "shufflenet_v2_x1_0": [], "mnasnet1_0": [],
    "squeezenet1_1": [], "googlenet": [], "inception_v3": [], "maxvit_t": [], "fcn_resnet50": [], "deeplabv3_resnet50": [],
    "deeplabv3_mobilenet_v3_large": [], "lraspp_mobilenet_v3_large": [], "unet": [], "vit_b_16": [], "swin_t": [],
}  # fmt: skip
# What a table that is imported says of its card, and the one that is shipped does not.
OF_H200 = ("compute 9.0\n", "multiprocessors 132\n", "threads_per_multiprocessor 2048\n", "memory 150109880320\n")
PRECISIONS = ("fp32", "amp_bf16")


def text_of(path):
    """The lines of a table: those before its layers, and those of each layer."""
    head, layers = [], {}
    into = head
    for line in gzip.open(path, "rt"):
        if line.startswith("layer "):
            into = layers.setdefault(line.split()[1], [])
        if not line.startswith("block "):
            into.append(line)
    return head, layers


class Runs:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def __call__(self, *arguments, kept=None):
        environment = {**os.environ, "BATCHFIT_CALIBRATIONS": str(kept or self.folder / "none"), "XDG_DATA_HOME": str(self.folder / "data")}
        done = subprocess.run([self.binary, *arguments], capture_output=True, text=True, env=environment)
        if done.returncode not in (0, 3):
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def peak(self, model, precision, batch, kept):
        said = json.loads(self("probe", *model, "--precision", precision, "--on", "h200", "--batch", str(batch), "--json", kept=kept))
        return said["peak_reserved_bytes"] if said["verdict"] == "fits" else None

    def largest(self, model, precision, limit, kept):
        """The largest batch that is said to fit, the one that is recommended, and whether anything was estimated."""
        said = json.loads(self("fit", *model, "--precision", precision, "--on", "h200", "--memory-limit", str(limit), "--json", kept=kept))
        found = said["result"]["recommendation"] or {}
        notes = " ".join(said["result"].get("notes", []))
        return found.get("max_batch_without_retries", 0), found.get("micro_batch", 0), "the scratch memory of" in notes

    def layers_of(self, model, batches):
        """What cuDNN says of a model's layers without the card: a table."""
        kept = self.folder / f"asked-{len(list(self.folder.iterdir()))}"
        nothing = self.folder / "nothing"
        nothing.write_text("")
        self("calibrate", *model[:1], "--card", "h200", "--layers", str(nothing), "--batches", batches, "--seconds", "3000", "--kept", str(kept))
        return next(kept.glob("*.txt.gz"))


def compared(runs, name, table, asked, out):
    head, layers = table
    of_model = runs.layers_of([name], {"": "1", "some": ASKED, "close": CLOSE}[asked])
    own = set(text_of(of_model)[1])
    if not own & layers.keys():
        print(f"{name}: none of its layers is recorded", file=sys.stderr)
        return
    rest = [line for layer, lines in layers.items() if layer not in own for line in lines]
    table = runs.folder / f"left-{name}.txt.gz"
    with gzip.open(table, "wt", compresslevel=1) as file:
        file.writelines([*head[:6], *OF_H200, "alone yes\n", *head[6:], *rest])
    sources = {"left out": runs.folder / f"left-{name}"}
    if asked:
        sources["asked"] = runs.folder / f"both-{name}"
    for kept in sources.values():
        runs("calibrate", "--import", str(table), "--kept", str(kept))
    if asked:
        # The newest is asked first.
        (sources["asked"] / of_model.name).write_bytes(of_model.read_bytes())
    for precision in PRECISIONS:
        if runs.largest([name], precision, LIMITS["24 GiB"], None)[2]:
            print(f"{name} in {precision}: not all of its layers are recorded", file=sys.stderr)
            continue
        for batch in BATCHES:
            truth = runs.peak([name], precision, batch, None)
            for source, where in sources.items() if truth else ():
                row = dict(model=name, precision=precision, source=source, batch=batch, truth=truth, peak=runs.peak([name], precision, batch, where))
                print(json.dumps(row), file=out, flush=True)
        for limit, count in LIMITS.items():
            truth = runs.largest([name], precision, count, None)
            for source, where in sources.items() if truth[0] else ():
                found = runs.largest([name], precision, count, where)
                row = dict(model=name, precision=precision, source=source, limit=limit, truth=truth[0], largest=found[0], recommended=found[1])
                print(json.dumps(row), file=out, flush=True)


def table_of(rows):
    percent = lambda values, share: sorted(values)[min(len(values) - 1, int(share * len(values)))]
    print("reserved peaks             rows  median     p90     p95   worst  too low by 1 %")
    groups = sorted({(row["source"], row["precision"]) for row in rows} | {(row["source"], "") for row in rows})
    chosen = lambda group, key: [row for row in rows if row["source"] == group[0] and group[1] in ("", row["precision"]) and key in row]
    for group in groups:
        off = [(row["peak"] or row["truth"] * 2) / row["truth"] - 1 for row in chosen(group, "peak")]
        far = [abs(value) for value in off]
        if far:
            low = sum(value < -0.01 for value in off) / len(off)
            print(f"{' '.join(group):25} {len(far):5} {statistics.median(far):7.2%} {percent(far, 0.9):7.2%} {percent(far, 0.95):7.2%} {max(far):7.2%} {low:15.1%}")
    print("largest batches            rows  within 1 %  within 5 %  too large  recommended too large")
    for group in groups:
        found = chosen(group, "largest")
        if found:
            # One sample more or less is as near as a batch can be.
            within = lambda share: sum(abs(row["largest"] - row["truth"]) <= max(1, share * row["truth"]) for row in found) / len(found)
            large = sum(row["largest"] > row["truth"] for row in found) / len(found)
            unsafe = sum(row["recommended"] > row["truth"] for row in found) / len(found)
            print(f"{' '.join(group):25} {len(found):5} {within(0.01):10.1%} {within(0.05):11.1%} {large:10.1%} {unsafe:15.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--asked", nargs="?", const="some", default="", choices=["some", "close"], help="ask cuDNN without the card as well, at 21 batches (a minute a model), or at batches within 3 %% of any (five)")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    table = text_of(TABLE)
    with tempfile.TemporaryDirectory() as folder, options.out.open("a") as out:
        runs = Runs(options.binary, pathlib.Path(folder))
        for name in filter(None, options.models.split(",")):
            compared(runs, name, table, options.asked, out)
    table_of([json.loads(line) for line in options.out.open()])


if __name__ == "__main__":
    main()
