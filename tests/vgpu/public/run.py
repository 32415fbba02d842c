#!/usr/bin/env python3
"""Runs the scripts of cases.py in copies of their clones, and compares the peaks of their steps with those recorded on a GPU: see README.md."""
import argparse, json, os, shutil, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

from cases import HERE, cases

LINKS = {"data/imgs": "imgs", "data/masks": "masks", "data/chars": "chars", "data/mnist": ".", "datasets": ".", "edu_fineweb10B": "edu_fineweb10B"}
SETS = ("MNIST", "cifar-10-batches-py", "cifar-100-python")


def link(to, at):
    if not os.path.lexists(at) and os.path.isdir(os.path.dirname(at)): os.symlink(to, at)


def prepare(clones, data, work, folder):
    """Copies a clone, and puts the data where the script looks for it."""
    top, cwd = os.path.join(work, folder.split("/")[0]), os.path.join(work, folder)
    shutil.copytree(os.path.join(clones, folder.split("/")[0]), top, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    for at in ("data", "../data", "../../data"): link(data, os.path.normpath(os.path.join(cwd, at)))
    for at in {os.path.join(cwd, "data"), os.path.join(top, "data")}:
        if os.path.isdir(at) and not os.path.islink(at):
            for name in SETS: link(f"{data}/{name}", f"{at}/{name}")
    for at, name in LINKS.items():
        at = os.path.join(top, at)
        if os.path.isdir(at) and not os.path.islink(at) and not os.path.islink(os.path.dirname(at)): shutil.rmtree(at)
        link(os.path.normpath(os.path.join(data, name)), at)
    return cwd


def one(options, data, root, name, folder, steps, command):
    work = os.path.join(root, name)
    os.makedirs(work)
    link(data, os.path.join(work, "data"))  # ~/data
    cwd, rows, log = prepare(options.clones, data, work, folder), os.path.join(work, "rows"), os.path.join(work, "log")
    path = [os.path.join(options.clones, n) for n in ("denoising-diffusion-pytorch", "minGPT")] + os.environ.get("PYTHONPATH", "").split(os.pathsep)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "2", "BATCHFIT_DATABASE": work + "/runs.db", "PATH": f"{root}:{os.environ['PATH']}"}
    if folder in ("dino", "vicreg"): env.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", SLURM_PROCID="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + hash(name) % 20000))
    if folder == "mixup-cifar10": env["HOME"] = work
    argv = [] if options.record else [options.batchfit, "run", "--on", options.on, "--steps", "0", "--"]
    start = time.time()
    with open(log, "wb") as f:
        try: code = subprocess.run([*argv, options.python, f"{HERE}/script.py", rows, str(steps), *command.split()], cwd=cwd, env=env, stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=options.timeout).returncode
        except subprocess.TimeoutExpired: code = "timeout"
    seen = [json.loads(line) for line in open(rows)] if os.path.exists(rows) else []
    with open(log, errors="replace") as f: tail = f.read()[-1500:]
    print(f"{name}: {code} in {time.time() - start:.1f} s, {len(seen)} phases", flush=True)
    shutil.rmtree(work, ignore_errors=True)
    return {"exit_code": code, "rows": seen, **({"tail": tail} if code else {})}


def compare(found, recorded):
    """The worst phase of each script that is off, and how many phases are equal."""
    errors = {"peak_allocated": [], "peak_reserved": []}
    for name, there in recorded.items():
        here = found.get(name)
        if here is None: continue
        if [row["phase"] for row in here["rows"]] != [row["phase"] for row in there["rows"]]: print(f"{name}: other phases: {here['exit_code']} here, {there['exit_code']} recorded")
        # Where one ended earlier, or a loss scaler skipped other steps, what both have is compared.
        pairs = [(a, b) for a, b in zip(here["rows"], there["rows"]) if a["phase"] == b["phase"]]
        off = {what: [(a[what] - b[what]) / b[what] for a, b in pairs] for what in errors}
        for what in errors: errors[what] += off[what]
        worst = {what: max(off[what], key=abs, default=0) for what in errors}
        if max(map(abs, worst.values())) > 0.003: print(f"{name:32} {100 * worst['peak_allocated']:+8.3f} % allocated {100 * worst['peak_reserved']:+8.3f} % reserved")
    for what, all_ in errors.items():
        sizes = sorted(map(abs, all_))
        if sizes: print(f"{what}: {len(sizes)} phases, {100 * sum(e == 0 for e in sizes) / len(sizes):.1f} % equal, p95 {100 * sizes[int(.95 * (len(sizes) - 1))]:.3f} %, worst {100 * sizes[-1]:.3f} %")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("clones", type=os.path.abspath)
    p.add_argument("out", type=os.path.abspath)
    p.add_argument("--record", action="store_true")
    p.add_argument("--batchfit", type=os.path.abspath)
    p.add_argument("--on", default="h200")
    p.add_argument("--only", default="")
    p.add_argument("--slots", type=int, default=2)
    p.add_argument("--timeout", type=float, default=300)
    p.add_argument("--python", default=sys.executable)
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as root:
        data = os.path.join(root, "data")
        subprocess.run([options.python, f"{HERE}/data.py", data], check=True)
        # pytorch-cifar reads the width of the terminal.
        with open(f"{root}/stty", "w") as f: f.write("#!/bin/sh\necho 24 80\n")
        os.chmod(f"{root}/stty", 0o755)
        asked = {name: case for name, case in cases(data).items() if not options.only or name in options.only.split(",")}
        with ThreadPoolExecutor(options.slots) as pool: found = dict(zip(asked, pool.map(lambda case: one(options, data, root, *case), [(name, *case) for name, case in asked.items()])))
    with open(options.out, "w") as f: json.dump(found, f)
    if not options.record:
        with open(f"{HERE}/h200.json") as f: compare(found, json.load(f))


if __name__ == "__main__":
    main()
