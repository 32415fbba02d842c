#!/usr/bin/env python3
"""Kills agents and servers at random while fits are asked for, and counts what came of them: every fit ends once, with the answer that a
fit without any trouble has.

    tests/service/agents.py target/release/batchfit [--servers 1] [--agents 5] [--kills 50] [--database URL] [--seed 1]

Agents have simulated cards. One server works on a SQLite file; several need a database that they share (--database postgres://...).
Standard library only, Linux.
"""
import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from served import check, free_port, until

LEASE = 2
KINDS = ["h100-80g", "a100-80g"]


class Process:
    """A process that can be killed and started again, with its log in a file."""

    def __init__(self, folder, name, arguments):
        self.name, self.arguments, self.log = name, arguments, pathlib.Path(folder) / f"{name}.log"
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.arguments, stderr=log, stdout=subprocess.DEVNULL, env={**os.environ, "no_proxy": "*"})

    def kill(self, which=signal.SIGKILL):
        self.process.send_signal(which)
        return self.process.wait()


def call(port, path, body=None, timeout=30, headers={}):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body and json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read() or b"null")


def asked(ports, path, body=None):
    """Of whichever server answers; asked again while none does."""
    begun = time.monotonic()
    for port in itertools.cycle(ports):
        try:
            return call(port, path, body)
        except urllib.error.HTTPError as error:
            text = error.read()[:300]
            check(error.code in (500, 502, 503), f"{path}: {error.code} {text}")
        except OSError:
            pass
        check(time.monotonic() - begun < 60, f"nobody answers {path}")
        time.sleep(0.1)


def question(number, kind):
    # Of a size of its own each, so that no two are the same question.
    return {
        "model": {"preset": "resnet50"}, "training": {"precision": ["fp32", "amp_fp16"], "optimizer": ["sgd", "adamw"], "checkpointing": ["none", "per_block"]},
        "device": kind, "memory_limit": (20 << 30) + number * (16 << 20), "target_batch": 1024,
    }


def figures(recommendation):
    names = ["micro_batch", "accumulation_steps", "max_batch", "max_batch_without_retries", "peak_reserved_bytes", "limit_bytes"]
    return tuple(recommendation[name] for name in names)


def trial(arguments, folder):
    chance = random.Random(arguments.seed)
    batchfit = str(pathlib.Path(arguments.batchfit).resolve())
    ports = [free_port() for _ in range(arguments.servers)]
    database = arguments.database or f"{folder}/batchfit.db"
    check(arguments.servers == 1 or arguments.database, "several servers need a database that they share: --database")
    servers = [
        Process(folder, f"server{number}", [batchfit, "serve", "--listen", f"127.0.0.1:{port}", "--database", database, "--agent-lease", str(LEASE),
                                            "--queue-size", "10000", "--allow-anonymous"])
        for number, port in enumerate(ports)
    ]
    everything = list(servers)
    try:
        until(lambda: asked(ports, "/healthz"), "a server answers")
        agents = [
            Process(folder, f"agent{number}", [batchfit, "agent", "--server", f"http://127.0.0.1:{ports[number % len(ports)]}", "--name", f"node{number}",
                                               "--simulate", KINDS[number % len(KINDS)]])
            for number in range(arguments.agents)
        ]
        everything += agents
        until(lambda: len(asked(ports, "/v1/agents")["items"]) == len(agents), "all agents are registered")
        counts, ids = collections.Counter(), []
        begun = time.monotonic()
        for number in range(arguments.kills):
            fit = asked(ports, "/v1/fits", question(number, KINDS[number % len(KINDS)]))
            ids.append(fit["id"])
            time.sleep(chance.uniform(0, arguments.pause))
            of_server = chance.random() < arguments.of_servers
            victim = chance.choice(servers if of_server else agents)
            how = signal.SIGTERM if not of_server and chance.random() < 0.1 else signal.SIGKILL
            counts[("server" if of_server else "agent") + (" drained" if how == signal.SIGTERM else " killed")] += 1
            if how == signal.SIGTERM:
                # It finishes what it works on; meanwhile others go on.
                threading.Thread(target=lambda victim=victim: (victim.kill(how), victim.start())).start()
            else:
                victim.kill()
                victim.start()
        last = time.monotonic()
        states = lambda: collections.Counter(asked(ports, f"/v1/fits/{one}")["state"] for one in ids)
        until(lambda: not set(states()) & {"queued", "running"}, "all fits have ended", 600)
        took = time.monotonic() - last
        fits = {one: asked(ports, f"/v1/fits/{one}") for one in ids}
        stored, cursor = collections.Counter(), None
        while True:
            page = asked(ports, "/v1/recommendations?limit=500" + (f"&cursor={cursor}" if cursor else ""))
            stored.update((one["fit_id"], one["rank"]) for one in page["items"])
            cursor = page["next"]
            if not cursor:
                break
        # What a service without agents and without trouble says of a tenth of them.
        wrong = 0
        for number, one in list(enumerate(ids))[:: max(1, len(ids) // 20)]:
            asked_alone = question(number, "sim:" + KINDS[number % len(KINDS)])
            alone = asked(ports, "/v1/fits", asked_alone)["id"]
            until(lambda: asked(ports, f"/v1/fits/{alone}")["state"] == "done", "a simulated fit has ended", 120)
            want = asked(ports, f"/v1/fits/{alone}")["result"]["recommendation"]
            wrong += figures(want) != figures(fits[one]["result"]["recommendation"])
        logs = [process.log.read_text(errors="replace") for process in everything]
        panics = sum(log.count("panicked") for log in logs)
        again = sum(log.count("of which their holders have said nothing") for log in logs)
        refused = sum(log.count("is not taken") + log.count("any more: attempt") for log in logs)
        ended = collections.Counter(fit["state"] for fit in fits.values())
        print(f"{len(servers)} servers, {len(agents)} agents, {arguments.kills} kills in {last - begun:.0f} s: {dict(counts)}")
        print(f"fits               {len(ids)}: {dict(ended)}, the last {took:.1f} s after the last kill")
        print(f"leases that passed {again}, late words refused {refused}")
        print(f"recommendations    {sum(1 for (_, rank) in stored if rank == 1)} of rank 1, {max(stored.values())} at most for each fit and rank")
        print(f"answers            {wrong} differ from those without trouble; panics {panics}")
        check(ended == {"done": len(ids)}, f"fits ended as {dict(ended)}: {[fit['error'] for fit in fits.values() if fit['error']][:3]}")
        check(max(stored.values()) == 1 and all((one, 1) in stored for one in ids), "a fit has no answer, or two")
        check(not wrong and not panics, "see above")
    finally:
        for process in everything:
            if process.process.poll() is None:
                process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("batchfit")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--of-servers", type=float, default=0.2, help="which part of the kills is of servers")
    parser.add_argument("--pause", type=float, default=1.0, help="longest pause between two kills, in seconds")
    parser.add_argument("--database")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            trial(given, folder)
        except Exception as why:
            for log in sorted(pathlib.Path(folder).glob("*.log")):
                print(f"-- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
            sys.exit(f"FAILED: {why}")
