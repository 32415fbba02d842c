#!/usr/bin/env python3
"""Hurts workers at each message of their protocol, in both directions, and at random moments.

The server is the real one, and so are its workers, but for the GPU, which is a fake one (`--misbehave none`). Between them stands
this script: it passes lines on until the one that was chosen, and there, before it is passed on or after it, or with half of it, it

  kill     kills the worker, as `kill -9` does
  hang     passes nothing on any more; the server's deadline ends it
  stop     stops the worker (SIGSTOP), which then never ends by itself
  babble   writes something that is no message
  server   kills the server; another one is started
  pause    waits for a second, while the server is stopped (SIGSTOP) for longer than a worker may take

Once: the answer is what it is without faults, by another worker or after the restart. Always (kill, hang): the fit ends, by
simulation or with an error that names the loss. After each: no worker is left, and the next fit answers as it should.

Usage: tests/service/messages.py BATCHFIT [--random 200] [--repeat N]    (Linux, Python 3.9, no GPU)
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from served import Failed, Server, alive, check, quick_check, run, until

# Seconds that a worker may take for each answer: on a busy machine it takes some to start this script.
DEADLINE = 6
DEADLINES = {"BATCHFIT_PROBE_DEADLINE": str(DEADLINE), "BATCHFIT_OPEN_DEADLINE": str(DEADLINE)}
ALONE = {"device": "cuda:0"}
TOGETHER = {"device": "auto", "world_size": 2, "training": {"parallel": {"strategy": "ddp"}}}


def stand_between(arguments):
    """What is started in the place of a worker."""
    folder = pathlib.Path(__file__).parent
    plan = json.loads((folder / "plan").read_text() or "{}") if (folder / "plan").exists() else {}
    worker = subprocess.Popen([folder / "real", *arguments, "--misbehave", "none"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    turn, out = threading.Lock(), sys.stdout.buffer

    def strike(line, to):
        if plan.get("once") and not claim(folder / "struck"):
            return
        how = plan["fault"]
        if how == "pause":
            time.sleep(1)
            return
        if plan["moment"] == "after":
            to.write(line)
            to.flush()
        elif plan["moment"] == "half":
            to.write(line[: len(line) // 2])
            to.flush()
        if how == "kill":
            worker.kill()
            worker.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "server":
            os.kill(int((folder / "server").read_text()), signal.SIGKILL)
            time.sleep(60)
        elif how == "stop":
            worker.send_signal(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "babble":
            out.write(b"Segmentation fault (core dumped)\n")
            out.flush()
        time.sleep(600)

    def two_gpus(line):
        """There is one fake GPU; two ranks need one each."""
        answer = json.loads(line)
        [gpu] = answer["inventory"]["gpus"]
        answer["inventory"]["gpus"].append({**gpu, "ordinal": 1})
        return json.dumps(answer).encode() + b"\n"

    def note(direction, line):
        kind = "?"
        with contextlib.suppress(OSError, ValueError), open(folder / "heard", "a") as heard:
            told = json.loads(line)
            [kind] = [told] if isinstance(told, str) else told
            heard.write(f"{direction} {kind}\n")
        return kind

    def pass_on(source, to, direction):
        for line in source:
            kind = note(direction, line)
            if kind == "inventory":
                line = two_gpus(line)
            if plan.get("at") == f"{direction} {kind}":
                with turn:
                    strike(line, to)
            with contextlib.suppress(OSError):
                to.write(line)
                to.flush()
        if direction == "order":
            with contextlib.suppress(OSError):
                to.close()

    threading.Thread(target=pass_on, args=(sys.stdin.buffer, worker.stdin, "order"), daemon=True).start()
    pass_on(worker.stdout, out, "answer")
    sys.stdout.flush()
    os._exit(worker.wait())


def claim(path):
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    return False


class Place:
    """A server whose workers are stood between."""

    def __init__(self, batchfit, folder):
        self.folder = folder
        self.program = folder / "batchfit"
        shutil.copy(batchfit, folder / "real")
        self.asked = random.randrange(1 << 20)
        self.plan = folder / "plan"
        self.server = None
        self.start()

    def start(self):
        # A server starts workers by the path that it was started by, and this script is there as soon as it runs: under that name, and under
        # the one that the kernel gives to a program whose file was replaced.
        self.program.unlink(missing_ok=True)
        os.link(self.folder / "real", self.program)
        shutil.copy(pathlib.Path(__file__).with_name("served.py"), self.folder)
        text = f"#!{sys.executable}\n" + pathlib.Path(__file__).read_text()
        script = self.folder / "between"
        for place in (self.folder / "batchfit (deleted)", script):
            place.write_text(text)
            place.chmod(0o755)
        self.server = Server(self.program, self.folder / "fits.db", environment=DEADLINES, ready=False)
        os.replace(script, self.program)
        (self.folder / "server").write_text(str(self.server.process.pid))
        until(lambda: self.server.is_well() or self.server.process.poll() is not None, "the server answers")
        check(self.server.process.poll() is None, f"the server does not start: {self.server.log.read_text()[-500:]}")

    def ask(self, members, wait=60):
        """A question that nobody asked before; gives its document once it has ended."""
        self.asked += 1
        body = {"model": {"preset": "resnet18"}, "memory_limit": (4 << 30) + self.asked * (3 << 10), "timeout_seconds": 600, **members}
        begun, status, answer = time.monotonic(), None, None
        while time.monotonic() < begun + 150:
            try:
                status, answer = self.server.call("/v1/fits", body, headers={"prefer": f"wait={wait}"}, timeout=wait + 10)
                if status == 200 and answer["state"] in ("done", "failed"):
                    return body, answer
                # Before it is queued: two workers that were to list GPUs were lost.
                if status == 502 and "worker" in answer["detail"]:
                    return body, answer
                check(status in (200, 202, 503), f"a fit got {status}: {answer}")
            except (OSError, ValueError, http.client.HTTPException):
                if self.server.process.poll() is None:
                    continue
                self.server.process.wait()
                self.start()
        raise Failed(f"no end of {body}: {status} {answer}")

    def clear(self, plan=None):
        (self.folder / "struck").unlink(missing_ok=True)
        (self.folder / "heard").unlink(missing_ok=True)
        text = json.dumps(plan) if plan else "{}"
        temporary = self.folder / "plan.new"
        temporary.write_text(text)
        os.replace(temporary, self.plan)

    def struck(self):
        return (self.folder / "struck").exists()

    def heard(self):
        heard = self.folder / "heard"
        return set(heard.read_text().splitlines()) if heard.exists() else set()


def shown(answer):
    """What of an answer does not depend on who gave it."""
    best = (answer.get("result") or {}).get("recommendation") or {}
    return {name: best.get(name) for name in ("micro_batch", "accumulation_steps", "max_batch", "evidence")}


def messages(place):
    """What is said in fits on one GPU and on two."""
    said = []
    for members in (ALONE, TOGETHER):
        place.clear()
        # GPUs were listed for an earlier one, perhaps, and are not looked for again so soon.
        time.sleep(0.5)
        _, answer = place.ask(members)
        check(answer["state"] == "done" or members is TOGETHER, f"without faults: {answer}")
        said.append((members, sorted(place.heard()), answer))
    return said


def each_message(place, faults, repeat):
    said = messages(place)
    points, hits, slowest = 0, {}, 0.0
    for members, heard, honest in said:
        for at in heard:
            for fault in faults:
                moments = ["before"] if fault in ("babble", "hang", "stop") else ["before", "after"]
                if fault == "kill" and at.startswith("answer"):
                    moments.append("half")
                for moment in moments * repeat:
                    plan = {"at": at, "fault": fault, "moment": moment, "once": True}
                    place.clear(plan)
                    if at.split()[1] in ("list", "inventory", "hello"):
                        fresh_devices(place)
                    begun = time.monotonic()
                    before = place.server.descendants()
                    body, answer = place.ask(members)
                    took = time.monotonic() - begun
                    if not place.struck():
                        continue
                    points += 1
                    hits[fault] = hits.get(fault, 0) + 1
                    slowest = max(slowest, took)
                    named = json.dumps(answer)
                    same = shown(answer) == shown(expected(place, members, body))
                    check(same or "worker" in named, f"{plan}: neither the answer nor the loss by name: {named[:600]}")
                    until(lambda: not workers(place), f"{plan}: workers are left: {workers(place)}", 10)
                    check(place.server.is_well(), f"{plan}: the server is not well")
    place.clear()
    quick_check(place.folder / "fits.db")
    check(not place.server.panics(), f"panics: {place.server.panics()[:2]}")
    told = ", ".join(f"{number} {fault}" for fault, number in hits.items())
    lines = sorted({line for _, heard, _ in said for line in heard})
    return f"{points} faults at {len(lines)} messages ({', '.join(lines)}): {told}; the slowest answer after {slowest:.1f} s"


def frozen(place, stops=5, seconds=2 * DEADLINE):
    """The server is stopped while a worker takes a second to answer, for longer than a worker may take."""
    for _ in range(stops):
        place.clear({"at": "order probe", "fault": "pause", "moment": "before", "once": True})
        answers = []
        asking = threading.Thread(target=lambda: answers.append(place.ask(ALONE)[1]))
        asking.start()
        until(place.struck, "a worker is asked")
        place.server.signal(signal.SIGSTOP)
        time.sleep(seconds)
        place.server.signal(signal.SIGCONT)
        asking.join()
        work = answers[0]["result"]["gpu_work"]
        check(work["workers"] == 1, f"a worker that had answered was given up: {work}")
    place.clear()
    return f"{stops} times {seconds} s, twice what a worker may take: {stops} answers by the first worker"


def fresh_devices(place):
    """GPUs are looked for again after a while."""
    time.sleep(1.1)


KNOWN = {}


def expected(place, members, body):
    """The answer to the same question without faults. The fake GPU answers all alike but for the limit, which is far above what 64
    samples take."""
    key = json.dumps(members)
    if key not in KNOWN:
        place.clear()
        KNOWN[key] = place.ask(members)[1]
    return KNOWN[key]


def workers(place):
    found = []
    for pid, begun in place.server.descendants():
        with contextlib.suppress(OSError):
            found.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-60:])
    return found


def random_kills(place, kills, seed):
    chance, done, failed, struck = random.Random(seed), 0, 0, 0
    place.clear()
    ended = threading.Event()
    outcomes, trouble = [], []

    def ask():
        while not ended.is_set():
            try:
                _, answer = place.ask(ALONE if chance.random() < 0.8 else TOGETHER)
                outcomes.append(answer)
            except Exception as error:
                trouble.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    while struck < kills and not trouble:
        time.sleep(chance.uniform(0, 0.25))
        children = list(place.server.descendants())
        if children:
            pid, _ = chance.choice(children)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                struck += 1
    ended.set()
    for thread in threads:
        thread.join()
    check(not trouble, f"{trouble[:1]}")
    right = 0
    for answer in outcomes:
        named = json.dumps(answer)
        if answer.get("state") == "done":
            right += 1
        else:
            failed += 1
            check("worker" in named or "ended" in named, f"an error that names no loss: {named[:400]}")
    until(lambda: not workers(place), f"workers are left: {workers(place)}", 10)
    _, answer = place.ask(ALONE)
    check(answer["state"] == "done", f"the next fit: {answer}")
    check(not place.server.panics(), f"panics: {place.server.panics()[:2]}")
    return f"{struck} kills of worker processes, {len(outcomes)} fits: {right} answered, {failed} failed by the loss's name; the next one is answered"


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("worker", "answer"):
        if sys.argv[1] == "answer":
            # A fit apart starts workers of its own, by the path that it has: it gets its question once this script is there.
            folder = pathlib.Path(__file__).parent
            link = folder / f"apart-{os.getpid()}"
            os.link(folder / "real", link)
            shutil.copy(__file__, f"{link} (deleted)")
            apart = subprocess.Popen([link, *sys.argv[1:]], stdin=subprocess.PIPE)
            os.replace(shutil.copy(__file__, f"{link}-new"), link)

            def pass_on():
                with contextlib.suppress(OSError), apart.stdin as to:
                    while read := os.read(0, 65536):
                        to.write(read)
                        to.flush()

            threading.Thread(target=pass_on, daemon=True).start()
            os._exit(apart.wait())
        stand_between(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--faults", default="kill,server,babble,hang,stop")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as folder:
        place = Place(arguments.batchfit.resolve(), pathlib.Path(folder))
        try:
            run([
                ("each message", lambda: each_message(place, arguments.faults.split(","), arguments.repeat)),
                ("frozen", lambda: frozen(place)),
                ("worker killed", lambda: random_kills(place, arguments.random, arguments.seed)),
            ])
        finally:
            place.server.kill()


if __name__ == "__main__":
    main()
