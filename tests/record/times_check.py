#!/usr/bin/env python3
"""Compares predicted step times with those that were recorded on H200s, and fits the host's pace.

    times_check.py BATCHFIT [--graphs FOLDER] [--all]     a table, and the median and the 90th percentile of the errors
    times_check.py BATCHFIT [--graphs FOLDER] --fit       the constants of crates/card/src/timing/host.rs, from the calibration models alone

BATCHFIT is the program. The recordings are tests/golden/times/steps.json, who calibrates and who checks is in split.json beside it. FOLDER
has the graphs of the models of tests/gpu/public_models.py (`tests/models/run.py export OUT --list tests/gpu/public_models.py`; OUT/graphs);
without it, only the public cases are compared. --fit needs numpy.

The host's pace differs between machines of one kind by up to two. The public cases are compared as they are. For the others, recorded on three
machines, predictions are also made with the machine's own pace, a number for each machine that its calibration models give: it scales what
the host does, and nothing of the card.
"""
import argparse
import concurrent.futures
import itertools
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"


def cells(with_graphs):
    """Each recorded row, with its role: (role, where, name, precision, batch, measured ms, what is in the row)."""
    split = json.loads((GOLDEN / "times/split.json").read_text())
    roles = {cell["name"]: (cell["role"], cell["library"]) for cell in split["cells"]}
    roles.update({cell["name"]: ("held_out", "public") for cell in split["recorded_elsewhere"]["held_out"]})
    recorded = json.loads((GOLDEN / "times/steps.json").read_text())
    found = [(*roles[row["name"]], "public", row["median_ms"], row) for row in recorded["public"]]
    for row in recorded["rows"]:
        role, library = roles[row["name"]]
        if library != "public" and not with_graphs:
            continue
        for where, key in (("first", "median_ms"), ("second", "second_median_ms"), ("third", "third_median_ms")):
            if key in row:
                found.append((role, library, where, row[key], row))
    return found


def asked(batchfit, graphs, name, library, precision, batch, folder, pace=1.0):
    """Milliseconds of the step, of the card and of the host, and how often the host does what."""
    if library == "public":
        request = GOLDEN / f"truth/requests/{name}.json"
        question = [str(request)]
        if "model" not in json.loads(request.read_text()):
            exported = {"bert": "bert-seq512", "llama1b-bf16": "llama1b-bf16", "mlp-bf16": "mlp-bf16"}
            model = next((graph for start, graph in exported.items() if name.startswith(start)), name.split("-")[0])
            question += ["--model", str(GOLDEN / f"exported/{model}.json.gz")]
    else:
        request = folder / f"{name}-{batch}-{pace:.3f}.json"
        request.write_text(json.dumps({"training": {"precision": precision, "optimizer": "adamw"}, "device": "sim:h200"}))
        question = [str(request), "--model", str(graphs / f"{name}.json.gz")]
    command = [batchfit, "program", *question, "--batch", str(batch), "--times", "--host-pace", f"{pace:.3f}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    step, card, host = map(float, re.match(r"a step of batch \d+ takes ([\d.]+) ms: ([\d.]+) ms of kernels beside ([\d.]+) ms", text).groups())
    counts = {kind: int(count) for kind, count in re.findall(r"^([A-Z]\w+) +(\d+) ", text.split("the host's work")[1], re.M)}
    return {"step": step, "card": card, "host": host, "counts": counts}


def paces(rows):
    """The pace of the machines that are not the reference's: from calibration models where the host is what is waited for."""
    found = {"public": 1.0}
    for where in ("first", "second", "third"):
        ratios = [ms / one["host"] for role, _, at, ms, row, one in rows if at == where and role == "calibration" and ms > 1.3 * one["card"] + 1]
        found[where] = statistics.median(ratios) if ratios else 1.0
    return found


def summary(errors):
    errors = sorted(map(abs, errors))
    at = lambda share: errors[min(len(errors) - 1, int(share * len(errors)))]
    return f"{len(errors):4} rows, median {100 * statistics.median(errors):5.1f} %, p90 {100 * at(0.9):5.1f} %, worst {100 * errors[-1]:5.1f} %"


def beside(rows, pace):
    """How well the recording of one machine tells that of another: a bound for what any prediction can do. Steps that wait for the host are scaled by
    the machines' paces."""
    recorded = {}
    for role, library, where, ms, row, one in rows:
        if where != "public" and role == "held_out":
            waits_for_card = row.get("busy_ms", one["card"]) * 1.15 > ms
            recorded.setdefault((row["name"], library, row["precision"], row["batch"]), {})[where] = ms, waits_for_card
    errors = {}
    for machines in recorded.values():
        for (told, (ms, _)), (of, (truth, waits_for_card)) in itertools.permutations(machines.items(), 2):
            scaled = ms if waits_for_card else ms * pace[of] / pace[told]
            errors.setdefault((told, of), []).append(scaled / truth - 1)
    return errors


def fit(rows):
    """Least squares of relative errors, none below zero, with a little pull towards plausible values."""
    import numpy as np

    start = {"Module": 8, "Operator": 15, "BackwardLaunch": 15, "Leaf": 10, "Update": 15, "AdamUpdate": 25, "Checkpoint": 500, "Step": 600}
    kinds, prior, pull = list(start), np.array(list(start.values()), float), 0.3
    chosen = []
    for role, _, where, ms, row, one in rows:
        card = row.get("busy_ms", one["card"])
        if where == "first":
            ms = row["min_ms"]  # Whatever else ran on that host, it made steps longer and not shorter.
        if role == "calibration" and ms > 1.3 * card + 1:
            chosen.append((where, np.array([one["counts"].get(kind, 0) for kind in kinds], float), 1e3 * ms))
    wheres, x, y = [c[0] for c in chosen], np.array([c[1] for c in chosen]), np.array([c[2] for c in chosen])
    found, pace = prior, {}
    for _ in range(40):
        for where in set(wheres):
            of = [index for index, at in enumerate(wheres) if at == where]
            pace[where] = float(np.median(y[of] / (x[of] @ found)))
        scaled = x * np.array([pace[where] for where in wheres])[:, None] / y[:, None]
        left, right = np.vstack([scaled, np.diag(pull / prior)]), np.concatenate([np.ones(len(y)), np.full(len(kinds), pull)])
        active = np.ones(len(kinds), bool)
        while True:
            found = np.zeros(len(kinds))
            found[active] = np.linalg.lstsq(left[:, active], right, rcond=None)[0]
            if (found >= 0).all():
                break
            active &= found > 0
    found = found * pace["public"]
    for kind, value in zip(kinds, found):
        print(f"{kind:16} {value:8.1f} us")
    print("pace of the machines:", {where: round(value / pace["public"], 2) for where, value in pace.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("--graphs", type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="list calibration models too")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    listed = cells(options.graphs is not None)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        keys = sorted({(row["name"], library, row["precision"], row["batch"]) for _, library, _, _, row in listed})
        ask = lambda key, pace=1.0: asked(options.batchfit, options.graphs, *key, pathlib.Path(folder), pace)
        answers = dict(zip(keys, pool.map(ask, keys)))
        rows = [(*cell, answers[cell[4]["name"], cell[1], cell[4]["precision"], cell[4]["batch"]]) for cell in listed]
        pace = paces(rows)
        again = {where: dict(zip(keys, pool.map(lambda key: ask(key, factor), keys))) if factor != 1.0 else answers for where, factor in pace.items()}
    rows = [(*cell, answers[cell[4]["name"], cell[1], cell[4]["precision"], cell[4]["batch"]]) for cell in listed]
    if options.fit:
        fit(rows)
        return
    print("pace of the hosts: " + ", ".join(f"{where} {value:.2f}" for where, value in pace.items()))
    print(f"{'':38} {'':9} {'batch':>5} {'recorded':>9} {'predicted':>9} {'error':>8} {'at its pace':>12}")
    errors = {}
    for role, library, where, ms, row, one in rows:
        plain, own = one["step"] / ms - 1, again[where][row["name"], library, row["precision"], row["batch"]]["step"] / ms - 1
        kind = "waits for the card" if row.get("busy_ms", one["card"]) * 1.15 > ms else "waits for the host"
        for group in ((role, where, "all"), (role, where, kind)):
            errors.setdefault(group, []).append((plain, own))
        if "busy_ms" in row and where == "first":
            errors.setdefault((role, "first", "kernels alone"), []).append((one["card"] / row["busy_ms"] - 1,) * 2)
        if role == "held_out" or options.all:
            print(f"{row['name'][:38]:38} {row['precision']:9} {row['batch']:5} {ms:9.2f} {one['step']:9.2f} {100 * plain:7.1f}% {100 * own:11.1f}%  {where}")
    for (role, where, kind), pairs in sorted(errors.items()):
        print(f"{role:11} {where:6} {kind:18}: {summary([plain for plain, _ in pairs])}; at its pace: {summary([own for _, own in pairs])}")
    for (told, of), found in sorted(beside(rows, pace).items()):
        print(f"held_out    {of:6} by what was recorded on the {told} machine: {summary(found)}")


if __name__ == "__main__":
    main()
