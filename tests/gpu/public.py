#!/usr/bin/env python3
"""Whether batchfit runs exported models on a real GPU, and with the memory that it says.

For each graph of a folder, in fp32 and amp_bf16: a limit at which a handful of samples fit is found by simulation, then
`batchfit fit --device cuda:0` under that limit. A model runs if its answer is probed, by at most three real probes, each of
which launched kernels in every step; losses that are not finite or do not change are counted apart, since weights and constants are made up. Its memory is exact if each step's peaks allocated are those of simulation
at the same batch and limit. Peaks reserved are counted apart, because the driver may put segments elsewhere.

Several fits run at a time, each with a lock of its own, so that they share the GPU: their limits are small.

Usage: public.py BATCHFIT GRAPHS [--only NAME,...] [--out FILE] [--seconds N]
GRAPHS is a folder of *.json.gz, of `tests/models/run.py export OUT --list tests/gpu/public_models.py` say. Results are added to
FILE, a line of JSON each; what has a line that is not about time is left out. Exits 1 when less than 15 of 16 models run.
`--device sim:h200` tries everything but the GPU. `--explain` needs none either: it lists what a GPU could not run, and of how many models.
"""
import argparse
import collections
import concurrent.futures as futures
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

PRECISIONS = ("fp32", "amp_bf16")
# Batches to choose the limit by, the first that the model takes.
BATCHES = (8, 2, 1)
ENOUGH = 15 / 16
MOST_PROBES = 3
# The card that stands for the real one.
SIMULATED = "sim:h200"


class TookTooLong(Exception):
    pass


def libraries():
    """The environment in which CUDA's libraries are found where PyTorch's wheels bring them."""
    environment = dict(os.environ)
    try:
        import nvidia
        folders = [f"{path}/{folder}/lib" for path in nvidia.__path__ for folder in ("cudnn", "cu13")]
    except ImportError:
        folders = []
    known = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = ":".join([*folders, *([known] if known else [])])
    return environment


class Lane:
    """Asks batchfit one thing after another, beside other lanes."""

    def __init__(self, binary, folder, options):
        self.binary, self.options = binary, options
        folder.mkdir(parents=True)
        self.database = f"sqlite:{folder}/batchfit.db"
        self.environment = {**libraries(), "BATCHFIT_LOCKS": str(folder)}

    def ask(self, command, graph, precision, *arguments):
        """The exit code and what was said: an answer, or a sentence."""
        request = json.dumps({"training": {"precision": precision, "optimizer": self.options.optimizer}})
        command = [self.binary, command, "-", "--model", str(graph), "--json", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=self.environment, start_new_session=True)
        try:
            said, wrong = process.communicate(request, timeout=self.options.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise TookTooLong(f"took longer than {self.options.limit} s") from None
        try:
            answer = json.loads(said or wrong)
        except json.JSONDecodeError:
            return process.returncode, (said + wrong).strip() or f"said nothing and ended with {process.returncode}"
        if "detail" in answer and "title" in answer:
            return process.returncode, answer["detail"]
        return process.returncode, answer.get("result") or answer

    def simulated(self, graph, precision, batch, *arguments):
        return self.ask("probe", graph, precision, "--device", SIMULATED, "--batch", str(batch), *arguments)

    def limit_of(self, graph, precision):
        """A limit at which a few samples fit, in MiB."""
        for batch in BATCHES:
            code, answer = self.simulated(graph, precision, batch)
            if code == 0:
                return math.ceil(1.05 * answer["peak_reserved_bytes"] / 2**20)
        raise ValueError(answer if isinstance(answer, str) else f"does not fit: {answer['cause']}")

    def explained(self, graph, precision):
        """What of a model would not run on a GPU."""
        row = {"model": graph.name.split(".json")[0], "precision": precision, "gaps": []}
        try:
            _, answer = self.simulated(graph, precision, 2, "--explain")
            row["gaps"] = [answer] if isinstance(answer, str) else [gap["operation"] for gap in answer["variants"][0]["gaps"]]
        except TookTooLong as error:
            row["gaps"] = [str(error)]
        return row

    def fit(self, graph, precision):
        """Everything there is to know of one model in one precision."""
        began = time.time()
        row = {"model": graph.name.split(".json")[0], "precision": precision, "runs": False, "exact": None}
        try:
            row["limit_mib"] = self.limit_of(graph, precision)
            limit = ("--memory-limit", f"{row['limit_mib']}MiB")
            deadline = ("--probe-deadline", str(max(5, self.options.limit // 2)), "--gpu-wait", str(self.options.limit))
            code, answer = self.ask("fit", graph, precision, "--device", self.options.device, *limit, *deadline,
                                    "--database", self.database)
            row["fit_s"] = round(time.time() - began, 2)
            if isinstance(answer, str):
                row["why"] = f"exit {code}: {answer}"[:1500]
            else:
                self.judge(graph, precision, limit, answer, row)
        except TookTooLong as error:
            row.update(why=str(error), late=True)
        except Exception as error:  # One model's trouble must not hide the others' results.
            row["why"] = f"{type(error).__name__}: {error}"[:1500]
        row["seconds"] = round(time.time() - began, 2)
        return row

    def judge(self, graph, precision, limit, answer, row):
        best, work = answer["recommendation"], answer.get("gpu_work")
        real = [probe for probe in answer["probes"] if probe["evidence"] == "probed"]
        row.update(batch=best["micro_batch"], max_batch=best["max_batch_without_retries"], evidence=best["evidence"],
                   notes=[*best["notes"], *answer.get("assumptions", [])], probes=work["probes"] if work else 0,
                   start_ms=work and round(work["worker_start_ms"]))
        wrong, row["of_losses"] = [], []
        if self.options.device.startswith("sim:"):
            real = answer["probes"]
        elif best["evidence"] != "probed" or not real:
            because = [note for note in row["notes"] if "because" in note] or row["notes"]
            wrong.append(f"the answer is {best['evidence']}: {' '.join(because)}")
        if row["probes"] > MOST_PROBES:
            batches = ", ".join(f"{run['batch']} {run['verdict']}" for run in work["runs"])
            wrong.append(f"{row['probes']} real probes ({batches})")
        for probe in real:
            for problem in problems_of(probe):
                (row["of_losses"] if "loss" in problem else wrong).append(problem)
        row["peaks"] = [self.beside(graph, precision, limit, probe) for probe in real if probe["verdict"] != "failed"]
        row["exact"] = all(peaks["real"]["allocated"] == peaks["simulated"]["allocated"] for peaks in row["peaks"])
        row["exact_reserved"] = all(peaks["real"] == peaks["simulated"] for peaks in row["peaks"])
        row["runs"] = not wrong
        if wrong:
            row["why"] = "; ".join(wrong)[:1500]

    def beside(self, graph, precision, limit, probe):
        """The peaks of a probe's steps, beside those of simulation."""
        _, answer = self.simulated(graph, precision, probe["batch"], *limit)
        verdicts = {"real": probe["verdict"], "simulated": answer["verdict"]}
        told = {"batch": probe["batch"], **({"verdicts": verdicts} if len(set(verdicts.values())) > 1 else {})}
        for side, steps in (("real", probe["steps"]), ("simulated", answer["steps"])):
            told[side] = {kind: [step[f"peak_{kind}_bytes"] for step in steps] for kind in ("allocated", "reserved")}
        return told


def problems_of(probe):
    """What is wrong with a probe on a GPU."""
    batch, steps = probe["batch"], probe["steps"]
    if probe["verdict"] == "failed":
        yield f"batch {batch} failed: {probe['cause']}"
    elif probe["evidence"] == "probed" and probe["verdict"] in ("fits", "fits_with_retries"):
        losses = [loss for step in steps for loss in step["losses"]]
        if len(steps) != 3 or not all(step["launches"] > 0 for step in steps):
            yield f"batch {batch} ran {len(steps)} steps of {[step['launches'] for step in steps]} launches"
        if any(loss is None for loss in losses):
            yield f"batch {batch} lost its loss: {losses}"
        elif len(set(losses)) < 2:
            yield f"the loss of batch {batch} does not change: {losses}"


def kind_of(why):
    """A reason without what differs between models."""
    return re.sub(r"\d+", "N", why.splitlines()[0])[:140]


def gaps(rows):
    """Prints what a GPU could not run, by how many models need it; tells whether enough need nothing."""
    needed, alone = collections.defaultdict(set), collections.defaultdict(set)
    for row in rows:
        for gap in row["gaps"]:
            needed[kind_of(gap)].add(row["model"])
        if len(row["gaps"]) == 1:
            alone[kind_of(row["gaps"][0])].add(row["model"])
    for gap, models in sorted(needed.items(), key=lambda item: -len(item[1])):
        print(f"{len(models):4} models, {len(alone[gap]):3} of them but for this alone: {gap}\n      {', '.join(sorted(models)[:6])}{' ...' if len(models) > 6 else ''}")
    models = {row["model"] for row in rows}
    free = models - {row["model"] for row in rows if row["gaps"]}
    print(f"{len(free)} of {len(models)} models need nothing that a GPU cannot run")
    return len(free) >= ENOUGH * len(models)


def table(rows, seconds):
    """Prints how many run, and why the others do not; tells whether enough do."""
    models = collections.defaultdict(dict)
    for row in rows:
        models[row["model"]][row["precision"]] = row
    ran = {name: all(row["runs"] for row in found.values()) for name, found in models.items()}
    libraries = collections.defaultdict(list)
    for name, good in ran.items():
        libraries[name.split("-")[0]].append(good)
    reasons = collections.defaultdict(list)
    for row in rows:
        if not row["runs"]:
            reasons[kind_of(row["why"])].append(f"{row['model']} {row['precision']}")
    for why, who in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(who):4}  {why}\n      {', '.join(who[:6])}{' ...' if len(who) > 6 else ''}")
    for row in rows:
        if row["exact"] is False:
            off = [(p["batch"], p.get("verdicts"), a, b) for p in row["peaks"]
                   for a, b in [(p["real"]["allocated"], p["simulated"]["allocated"])] if a != b]
            print(f"      {row['model']} {row['precision']} PEAKS DIFFER {off}")
    compared = [row for row in rows if row.get("peaks")]
    print(f"peaks allocated as simulated in {sum(row['exact'] for row in compared)} of {len(compared)} fits, reserved as well in "
          f"{sum(row['exact_reserved'] for row in compared)}")
    if len(libraries) <= 5:
        for library, goods in sorted(libraries.items()):
            print(f"{library:14} {sum(goods)} of {len(goods)} run")
    for precision in PRECISIONS:
        here = [row for row in rows if row["precision"] == precision]
        print(f"{precision:14} {sum(row['runs'] for row in here)} of {len(here)} run")
    took = sorted(row["fit_s"] for row in rows if "fit_s" in row)
    if took:
        print(f"a fit took {took[len(took) // 2]} s in the median, {took[-1]} s at most; {seconds:.0f} s in all")
    print(f"{sum(ran.values())} of {len(ran)} models run in {' and '.join(PRECISIONS)}")
    return bool(ran) and sum(ran.values()) >= ENOUGH * len(ran)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("graphs", type=pathlib.Path)
    parser.add_argument("--only", help="models, by the start of their names, with commas")
    parser.add_argument("--out", type=pathlib.Path, help="where results are added, public.jsonl in the folder that OUT names without")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--jobs", type=int, default=max(2, min(8, (os.cpu_count() or 2) // 2)), help="fits at a time")
    parser.add_argument("--limit", type=int, default=40, help="seconds for one command")
    parser.add_argument("--seconds", type=int, default=340, help="nothing is begun after so many seconds")
    parser.add_argument("--explain", action="store_true", help="only list what a GPU could not run; needs none")
    parser.add_argument("--table", action="store_true", help="only print what FILE says")
    options = parser.parse_args()
    out = options.out or pathlib.Path(os.environ.get("OUT", ".")) / "public.jsonl"
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    graphs = [path for path in sorted(options.graphs.glob("*.json*")) if path.name.startswith(wanted)]
    if not graphs:
        sys.exit(f"no graph in {options.graphs} is called {options.only or '*.json.gz'}")
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    rows = {(row["model"], row["precision"]): row for row in known if row["model"].startswith(wanted)}
    done = {key for key, row in rows.items() if not row.get("late")}
    began, lock, lanes = time.time(), threading.Lock(), threading.local()
    cells = [(graph, precision) for graph in graphs for precision in PRECISIONS
             if (graph.name.split(".json")[0], precision) not in done]
    left = 0

    def run(cell, folder, file):
        nonlocal left
        if time.time() - began > options.seconds:
            with lock:
                left += 1
            return
        if not hasattr(lanes, "lane"):
            lanes.lane = Lane(os.path.abspath(options.batchfit), folder / str(threading.get_ident()), options)
        row = lanes.lane.fit(*cell)
        with lock:
            rows[row["model"], row["precision"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            if not row["runs"]:
                print(f"{row['model']} {row['precision']}: {row['why'][:200]}", flush=True)

    if options.explain:
        with tempfile.TemporaryDirectory() as folder, futures.ThreadPoolExecutor(options.jobs) as pool:
            lane = Lane(os.path.abspath(options.batchfit), pathlib.Path(folder, "lane"), options)
            found = list(pool.map(lambda cell: lane.explained(*cell), [(graph, precision) for graph in graphs for precision in PRECISIONS]))
        sys.exit(0 if gaps(found) else 1)
    if not options.table:
        with tempfile.TemporaryDirectory() as folder, out.open("a") as file:
            with futures.ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(lambda cell: run(cell, pathlib.Path(folder), file), cells))
    enough = table(list(rows.values()), time.time() - began)
    if left:
        print(f"no time was left for {left} of {len(cells)} fits")
    sys.exit(0 if enough and not left else 1)


if __name__ == "__main__":
    main()
