#!/usr/bin/env python3
"""What is left behind when ranks of a real probe on several GPUs are killed.

Starts `batchfit probe` of a small model under DDP again and again, and kills or stops one of its workers at a random moment: while
they open their GPUs, find each other, or run. A probe starts all its workers again once, so some get a second blow. After each:
did the command end, with a report or an error that names the loss; how long did the other ranks live on; are all workers gone, is
each GPU's memory back to what it was, is nothing of NCCL's left in /dev/shm. Exits 1 when something is not.

Usage: parallel_kills.py BATCHFIT [--kills 60] [--world 2] [--stop SHARE] [--seed N] [--seconds N]
       (on a machine with as many idle NVIDIA GPUs of one kind as ranks)
"""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
# How long the driver may take to give memory back, and how much of it may stay in use by who knows whom.
RETURN_SECONDS, RETURN_SLACK = 5, 32
# How long a probe may take in all, its workers started twice.
END_SECONDS = 60


def used():
    """MiB in use on each GPU."""
    asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True)
    return [int(line) for line in asked.stdout.split()]


def workers(parent):
    """Processes that this one started, as long as they live, in the order of their numbers."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(status[1]) == parent and status[0] not in "ZX":
                found.append(int(entry.name))
    return sorted(found)


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def shared():
    return sorted(path.name for path in pathlib.Path("/dev/shm").glob("nccl-*"))


def strike(process, rng, seen, blow):
    """Hits one worker. Gives how long the others lived on, or nothing where there was none to hit."""
    alive = workers(process.pid)
    seen.update(alive)
    if not alive:
        return None
    victim = rng.choice(alive)
    try:
        os.kill(victim, blow)
    except ProcessLookupError:
        return None
    began, others = time.time(), [pid for pid in alive if pid != victim]
    while blow == signal.SIGKILL and any(map(lives, others)) and time.time() - began < END_SECONDS:
        time.sleep(0.005)
    return time.time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--stop", type=float, default=0.0, help="share of blows that stop a worker instead: minutes each, until its deadline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="no probe is begun later")
    parser.add_argument("--limit", type=float, default=END_SECONDS)
    options = parser.parse_args()
    rng, binary = random.Random(options.seed), os.path.abspath(options.batchfit)
    before, files = used(), shared()
    request = {
        "model": {"preset": "resnet18"}, "device": "auto",
        "training": {"precision": "amp_bf16", "optimizer": "adamw", "parallel": {"strategy": "ddp", "world_size": options.world}},
    }
    kills, lived, problems, ends, began = 0, [], [], collections.Counter(), time.time()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "request.json")
        path.write_text(json.dumps(request))
        command = [binary, "probe", str(path), "--batch", "32", "--json"]
        environment = {**os.environ, "BATCHFIT_LOCKS": folder}
        calm = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=4 * options.limit)
        report = json.loads(calm.stdout or "{}")
        print(f"undisturbed: {time.time() - began:.1f} s, {report.get('verdict')}, {report.get('evidence')}, ranks {report.get('ranks')} {calm.stderr[-500:]}", flush=True)
        if report.get("evidence") != "probed":
            sys.exit("it is not probed on GPUs")
        alone = time.time()
        subprocess.run(command, env=environment, capture_output=True, timeout=4 * options.limit)
        alone = time.time() - alone
        while kills < options.kills and time.time() - began < options.seconds:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            seen, blows, start = set(), 0, time.time()
            for _ in range(rng.choice((1, 2, 2))):
                moment = time.time() + rng.uniform(0.0, 0.95 * alone)
                while time.time() < moment and process.poll() is None:
                    seen.update(workers(process.pid))
                    time.sleep(0.01)
                blow = signal.SIGSTOP if rng.random() < options.stop else signal.SIGKILL
                after = strike(process, rng, seen, blow)
                if after is not None:
                    blows += 1
                    if blow == signal.SIGKILL:
                        lived.append(after)
            try:
                said, wrong = process.communicate(timeout=options.limit)
                end = json.loads(said)["verdict"] if process.returncode == 0 else f"exit {process.returncode}"
                if process.returncode != 0 and "worker" not in wrong + said:
                    problems.append(f"the error names no loss: {(wrong + said)[-300:]}")
            except subprocess.TimeoutExpired:
                problems.append(f"the command did not end within {options.limit} s")
                process.kill()
                process.communicate()
                end = "HUNG"
            left = [pid for pid in seen if lives(pid)]
            deadline = time.time() + RETURN_SECONDS
            while time.time() < deadline and any(after > earlier + RETURN_SLACK for after, earlier in zip(used(), before)):
                time.sleep(0.2)
            kept = [after - earlier for after, earlier in zip(used(), before)]
            rest = [name for name in shared() if name not in files]
            if left:
                problems.append(f"workers {left} live on")
            if max(kept) > RETURN_SLACK:
                problems.append(f"MiB kept on the GPUs: {kept}")
            if rest:
                problems.append(f"left in /dev/shm: {rest}")
            kills += blows
            ends[end] += 1
            print(f"{kills:3} kills, {time.time() - start:5.1f} s, {end}{'' if not problems else '; ' + problems[-1]}", flush=True)
    worst = f"{max(lived):.2f} s at most, {statistics.median(lived):.2f} s in the median" if lived else "-"
    print(f"{kills} kills of single ranks in {sum(ends.values())} probes: {dict(ends)}; other ranks lived on for {worst}; "
          f"{len(problems)} problems; MiB in use before {before}, after {used()}; {time.time() - began:.0f} s")
    for problem in problems:
        print(f"  {problem}")
    sys.exit(1 if problems or kills < options.kills else 0)


if __name__ == "__main__":
    main()
