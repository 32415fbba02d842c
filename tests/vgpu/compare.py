"""Runs the recorded programs on the virtual GPU and compares the allocator's peaks, phase by phase, with what a GPU did.

    python3 compare.py BATCHFIT OUT.json [--on h100-80g] [--recorded h100.json] [--only a,b] [--slots 2] [--timeout 300] [--python PYTHON]

OUT.json keeps every run (rows as in h100.json, with the recorded ones beside them), so that a run that was cut goes on where it ended. Printed at the end: of all phases of all runs
how many are equal to the byte, and how far off the 95th of 100 is, for peak allocated and reserved; the worst programs; and the programs that did not run.
"""
import argparse, concurrent.futures, difflib, json, os, re, subprocess, sys, tempfile, time
HERE = os.path.dirname(os.path.abspath(__file__))
FIGURES = ("peak_allocated", "peak_reserved")


def one(a, program, batch):
    with tempfile.TemporaryDirectory() as folder:
        measure, start = os.path.join(folder, "measure"), time.time()
        env = dict(os.environ, MEASURE=measure, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", DS_BUILD_OPS="0", HF_HOME=os.path.join(folder, "hf"), WANDB_DISABLED="true", TORCHINDUCTOR_COMPILE_THREADS="1",
                   RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29000 + os.getpid() % 500 + int(start * 1e3) % 400))
        command = [a.batchfit, "run", "--on", a.on, "--steps", "0", "--", a.python, os.path.join(HERE, "programs", program + ".py"), "--batch", str(batch)]
        log = os.path.join(folder, "log")
        with open(log, "w") as f:
            p = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, start_new_session=True)
            try: rc = p.wait(a.timeout)
            except subprocess.TimeoutExpired: os.killpg(p.pid, 9); rc = "timeout"
        rows = [json.loads(line) for line in open(measure)] if os.path.exists(measure) else []
        return dict(program=program, batch=batch, rc=rc, seconds=round(time.time() - start, 1), rows=rows, said=open(log, errors="replace").read()[-3000:])


def pairs(truth, mine):
    """The phases that two runs have in common, in order: name, recorded row, own row. Where a loss scaler skipped other steps in one than in the other, which the numbers decide, what
    lies between two marks of the program is one phase."""
    truth, mine = ([row for row in rows if not row["rank"]] for rows in (truth, mine))
    is_step = lambda row: re.fullmatch(r"step\d+", row["phase"])
    marks = lambda rows: [row["phase"] for row in rows if not is_step(row)]
    match = difflib.SequenceMatcher(None, marks(truth), marks(mine), autojunk=False)
    common = [(block.a + i, block.b + i) for block in match.get_matching_blocks() for i in range(block.size)]
    ends = [[i for i, row in enumerate(rows) if not is_step(row)] for rows in (truth, mine)]
    before = (0, 0)
    for a, b in common:
        after = ends[0][a] + 1, ends[1][b] + 1
        parts = truth[before[0]:after[0]], mine[before[1]:after[1]]
        before = after
        if len(parts[0]) == len(parts[1]): yield from ((t["phase"], t, m) for t, m in zip(*parts))
        else: yield (parts[0][-1]["phase"], *({f: max(row[f] for row in part) for f in FIGURES} for part in parts))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("batchfit"); p.add_argument("out"); p.add_argument("--on", default="h100-80g"); p.add_argument("--recorded", default=os.path.join(HERE, "h100.json")); p.add_argument("--only", default="")
    p.add_argument("--slots", type=int, default=2); p.add_argument("--timeout", type=float, default=300); p.add_argument("--python", default=sys.executable); p.add_argument("--again", action="store_true")
    a = p.parse_args()
    recorded = json.load(open(a.recorded))
    runs = json.load(open(a.out)) if os.path.exists(a.out) and not a.again else []
    of = lambda run, rows: [row for row in rows if (row["program"], row["batch"]) == (run["program"], run["batch"])]
    asked = [r for r in recorded["runs"] if r["ok"] and (not a.only or r["program"] in a.only.split(","))]
    have = {(r["program"], r["batch"]) for r in runs}
    with concurrent.futures.ThreadPoolExecutor(a.slots) as pool:
        waiting = [pool.submit(one, a, r["program"], r["batch"]) for r in asked if (r["program"], r["batch"]) not in have]
        for done in concurrent.futures.as_completed(waiting):
            run = done.result(); runs.append(run)
            print(f"{run['program']} {run['batch']}: {run['rc']} in {run['seconds']} s, {len(run['rows'])} phases", flush=True)
            with open(a.out + ".tmp", "w") as f: json.dump(runs, f)
            os.replace(a.out + ".tmp", a.out)
    errors, per_run, failed = {f: [] for f in FIGURES}, {}, []
    for r in asked:
        run = next(x for x in runs if (x["program"], x["batch"]) == (r["program"], r["batch"]))
        if run["rc"] or "end" not in [row["phase"] for row in run["rows"]]:
            failed.append((run["program"], run["batch"], run["rc"], run["said"].strip().splitlines()[-1:]))
            continue
        for phase, truth, mine in pairs(of(r, recorded["rows"]), run["rows"]):
            for figure in FIGURES:
                error = 100 * (mine[figure] - truth[figure]) / max(truth[figure], 1)
                errors[figure].append(error); worst = per_run.setdefault((run["program"], run["batch"]), {})
                if abs(error) >= abs(worst.get(figure, (0,))[0]): worst[figure] = (error, phase)
    print("\nprogram, batch: the worst phase's error of peak allocated, of peak reserved")
    for (program, batch), w in sorted(per_run.items(), key=lambda item: max(abs(e[0]) for e in item[1].values())):
        if any(e[0] for e in w.values()): print(f"{program:28} {batch:6} " + "  ".join(f"{w[f][0]:+8.3f} % ({w[f][1]})" for f in FIGURES))
    for f in FIGURES:
        off = sorted(abs(e) for e in errors[f])
        if off: print(f"{f}: {len(off)} phases, {100 * sum(e == 0 for e in off) / len(off):.1f} % equal, p95 {off[int(0.95 * (len(off) - 1))]:.3f} %, worst {off[-1]:.3f} %")
        most = sorted(abs(w[f][0]) for w in per_run.values())
        if most: print(f"{f}: {len(most)} runs, {100 * sum(e == 0 for e in most) / len(most):.1f} % equal in all phases, p95 {most[int(0.95 * (len(most) - 1))]:.3f} %")
    for f in failed: print("did not run to its end:", *f)


if __name__ == "__main__": main()
