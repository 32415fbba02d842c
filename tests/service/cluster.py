#!/usr/bin/env python3
"""Servers, agents and one PostgreSQL, of which anything is killed at any time while the network between them is cut, silent and slow.

Whoever ends is started again, as a supervisor does. Clients ask any server, with an `Idempotency-Key`, until they have an answer, for kinds of cards that agents have (simulated), for one
that none has, and for simulated ones; some questions are asked by all of them. A reader looks at any fit at any server meanwhile.
In the end every fit that was accepted has ended, at every server; no fit was ever shown with two results; every question has one answer,
which is that of `batchfit fit` on the command line; and no row says that somebody still works.

Prints a table. The database is a cluster of its own in a temporary folder, as `many_servers.py` starts one.

    tests/service/cluster.py BATCHFIT [--kills 20] [--restarts 1] [--servers 3] [--agents 5] [--pause 1.0] [--seed 1] [--keep FOLDER]

Standard library only, Linux.
"""
import argparse
import collections
import contextlib
import http.client
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error

from agents import KINDS, Process, call, figures
from many_servers import Database
from proxy import Network, Proxy
from served import Failed, check, free_port, until

LOST = (OSError, json.JSONDecodeError, http.client.HTTPException)
CLIENTS = 4
LEASE = 3
# No agent has the last but one.
DEVICES = [*KINDS, *KINDS, "l4", "sim:h200"]
# What no table may have.
TWICE = {
    "questions have two fits that are done": "SELECT fingerprint FROM fit WHERE state = 'done' GROUP BY fingerprint HAVING count(*) > 1",
    "answers are stored twice": "SELECT fit_id FROM recommendation GROUP BY fit_id, rank HAVING count(*) > 1",
    "fits are done without an answer": "SELECT id FROM fit WHERE state = 'done' AND NOT EXISTS (SELECT 1 FROM recommendation WHERE fit_id = fit.id)",
}


class Cluster:
    """All processes, and the network between them."""

    def __init__(self, batchfit, database, folder, servers, agents):
        self.batchfit, self.database, self.network = batchfit, database, Network()
        self.to_database = [Proxy(self.network, f"server{number} to PostgreSQL", database.port) for number in range(servers)]
        self.ports = [free_port() for _ in range(servers)]
        self.servers = [
            Process(folder, f"server{number}", [batchfit, "serve", "--listen", f"127.0.0.1:{port}", "--database", self.url(self.to_database[number].port),
                                                "--agent-lease", str(LEASE), "--queue-size", "10000"])
            for number, port in enumerate(self.ports)
        ]
        self.to_servers = [Proxy(self.network, f"agents to server{number}", port) for number, port in enumerate(self.ports)]
        self.agents = [
            Process(folder, f"agent{number}", [batchfit, "agent", "--server", f"http://127.0.0.1:{self.to_servers[number % servers].port}", "--name", f"node{number}",
                                               "--simulate", KINDS[number % len(KINDS)]])
            for number in range(agents)
        ]
        self.busy, self.threads, self.counts = set(), [], collections.Counter()
        self.folder = folder

    def url(self, port):
        return f"postgres://batchfit@127.0.0.1:{port}/postgres"

    def proxies(self):
        return self.to_database + self.to_servers

    def processes(self):
        return self.servers + self.agents

    def aside(self, what, work):
        """Does something in a thread of its own, to something that nothing else is done to meanwhile."""
        def go():
            try:
                work()
            finally:
                self.busy.discard(what)
        self.busy.add(what)
        thread = threading.Thread(target=go)
        self.threads.append(thread)
        thread.start()

    def kill(self, process, how):
        if how == signal.SIGKILL:
            process.kill()
            process.start()
            return

        def end():
            process.process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.process.wait(20)
            # An agent that cannot bring its answer does not end by itself for long.
            if process.process.poll() is None:
                process.kill()
            process.start()
        self.aside(process, end)

    def hurt(self, proxy, how, seconds):
        def silence():
            proxy.silence(True)
            time.sleep(seconds)
            proxy.silence(False)

        def vanish():
            silence()
            proxy.cut()

        def slow():
            proxy.slow(0.2)
            time.sleep(seconds)
            proxy.slow(0)
        if how == "cut":
            proxy.cut()
        else:
            self.aside(proxy, {"silent": silence, "silent, then cut": vanish, "slow": slow}[how])

    def supervise(self):
        """Starts those again that have ended by themselves: a server does where it does not reach its database when it starts."""
        for process in self.processes():
            if process not in self.busy and process.process.poll() is not None:
                kind = "server" if process in self.servers else "agent"
                self.counts[f"{kind}: ended by itself, status {process.process.returncode}"] += 1
                process.start()

    def whole(self):
        """Waits until nothing is hurt any more."""
        for thread in self.threads:
            thread.join()

    def end(self):
        self.whole()
        for process in self.processes():
            if process.process.poll() is None:
                process.kill()
        self.network.end()


class Faults:
    """What is done to a cluster, by chance."""

    def __init__(self, cluster, seed):
        self.cluster, self.chance, self.counts = cluster, random.Random(seed), collections.Counter()

    def kill(self):
        """Kills a server, an agent or connections."""
        cluster, draw = self.cluster, self.chance.random()
        if draw < 0.65:
            name, among = ("server", cluster.servers) if draw < 0.25 else ("agent", cluster.agents)
            process = self.chance.choice([one for one in among if one not in cluster.busy] or among)
            how = signal.SIGTERM if self.chance.random() < 0.25 and process not in cluster.busy else signal.SIGKILL
            if process in cluster.busy:
                return self.kill()
            self.counts[f"{name}: {'SIGTERM' if how == signal.SIGTERM else 'SIGKILL'}"] += 1
            cluster.kill(process, how)
        elif draw < 0.85:
            which = "ORDER BY random() LIMIT 1" if self.chance.random() < 0.7 else ""
            self.counts["connections: ended by PostgreSQL"] += 1
            cluster.database.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'batchfit' {which}")
        else:
            proxy = self.chance.choice(cluster.proxies())
            self.counts["connections: reset by the network"] += 1
            cluster.hurt(proxy, "cut", 0)

    def network(self):
        """Makes a part of the network silent or slow for some seconds."""
        cluster = self.cluster
        free = [proxy for proxy in cluster.proxies() if proxy not in cluster.busy]
        if free:
            how = self.chance.choice(["silent", "silent, then cut", "slow"])
            # Sometimes for longer than a lease.
            seconds = self.chance.uniform(31, 45) if self.chance.random() < 0.1 else self.chance.uniform(1, 12)
            self.counts[f"network: {how}"] += 1
            cluster.hurt(self.chance.choice(free), how, seconds)

    def restart(self):
        self.counts["database: restarted"] += 1
        self.cluster.database.kill()
        time.sleep(self.chance.uniform(0, 2))
        self.cluster.database.start()


class Clients:
    """What they asked, and what they were told."""

    def __init__(self, cluster, seed):
        self.ports, self.seed = cluster.ports, seed
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.accepted = {}      # key -> id
        self.questions = {}     # id -> question
        self.shown = {}         # id -> its result, as it was shown first
        self.wrong = []
        self.counts = collections.Counter()
        work = [lambda number=number: self.ask_on(number) for number in range(CLIENTS)] + [self.read_on]
        self.threads = [threading.Thread(target=one) for one in work]
        for thread in self.threads:
            thread.start()

    def body(self, question):
        device, limit = question
        return {"model": {"preset": "resnet18"}, "device": device, "memory_limit": f"{limit}MiB"}

    def ask_on(self, number):
        chance, made = random.Random(f"{self.seed} {number}"), 0
        while not self.stop.wait(0.3):
            made += 1
            shared = chance.random() < 0.33
            question = (chance.choice(DEVICES), chance.randrange(1000, 1040) if shared else 2000 + 5000 * number + made)
            for key in [f"{number}-{made}"] * (2 if chance.random() < 0.2 else 1):
                self.ask(key, question, chance)

    def ask(self, key, question, chance):
        while not self.stop.is_set():
            self.counts["sent"] += 1
            try:
                fit = self.post(chance.choice(self.ports), question, key)["id"]
            except urllib.error.HTTPError as error:
                text = error.read()[:300]
                if error.code not in (429, 503):
                    self.note(f"{key} is refused with {error.code}: {text}")
                    if error.code < 500:
                        return
                self.counts[f"answered with {error.code}"] += 1
            except LOST:
                self.counts["not answered"] += 1
            else:
                with self.lock:
                    if self.accepted.setdefault(key, fit) != fit:
                        self.wrong.append(f"{key} has two fits")
                    if self.questions.setdefault(fit, question) != question:
                        self.wrong.append(f"fit {fit} answers two questions")
                return
            time.sleep(0.1)

    def post(self, port, question, key):
        return call(port, "/v1/fits", self.body(question), timeout=40, headers={"Idempotency-Key": key})

    def read_on(self):
        chance = random.Random(f"{self.seed} reader")
        while not self.stop.wait(0.02):
            with self.lock:
                ids = list(self.questions)
            if ids:
                with contextlib.suppress(*LOST):
                    # Half of them while they are young.
                    one = chance.choice(ids[-20:] if chance.random() < 0.5 else ids)
                    self.look(call(chance.choice(self.ports), f"/v1/fits/{one}", timeout=5))

    def look(self, fit):
        self.counts["read"] += 1
        if fit["state"] in ("done", "failed"):
            said = json.dumps([fit["state"], fit["result"], fit["error"]], sort_keys=True)
            with self.lock:
                if self.shown.setdefault(fit["id"], said) != said:
                    self.wrong.append(f"fit {fit['id']} is shown with two results: {self.shown[fit['id']][:300]} and {said[:300]}")

    def note(self, what):
        with self.lock:
            self.wrong.append(what)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def on_the_command_line(cluster, question):
    device, limit = question
    done = subprocess.run([cluster.batchfit, "fit", "resnet18", "--on", device.removeprefix("sim:"), "--memory-limit", f"{limit}MiB", "--format", "json",
                           "--database", str(cluster.folder / "alone.db")], capture_output=True, text=True, check=True)
    return figures(json.loads(done.stdout)["result"]["recommendation"])


def verdict(cluster, clients, chance):
    """The figures at the end, and what is wrong."""
    open_fits = "SELECT count(*) FROM fit WHERE state IN ('queued', 'running')"
    wrong, begun = clients.wrong, time.monotonic()
    try:
        until(lambda: cluster.database.ask(open_fits) == "0", "all fits have ended", seconds=240)
    except Failed as why:
        rows = cluster.database.ask("SELECT state, lane, device, count(*) FROM fit WHERE state IN ('queued', 'running') GROUP BY 1, 2, 3")
        wrong.append(f"{why}: {rows}")
    took = time.monotonic() - begun
    ended, lost, answers = collections.Counter(), 0, collections.defaultdict(set)
    for one, question in clients.questions.items():
        for port in cluster.ports:
            try:
                fit = call(port, f"/v1/fits/{one}")
            except urllib.error.HTTPError as error:
                lost += 1
                wrong.append(f"fit {one} is {error.code} at {port}")
                continue
            clients.look(fit)
            if fit["state"] == "done":
                answers[question].add(figures(fit["result"]["recommendation"]))
            elif fit["state"] == "failed":
                wrong.append(f"fit {one} failed: {fit['error']}")
        ended[fit["state"]] += 1
    twice = 0
    for what, query in TWICE.items():
        count = int(cluster.database.ask(f"SELECT count(*) FROM ({query}) AS twice"))
        twice += count
        if count:
            wrong.append(f"{count} {what}")
    wrong += [f"{question} has {len(found)} answers" for question, found in answers.items() if len(found) != 1]
    some = chance.sample(sorted(answers), min(30, len(answers)))
    differ = [question for question in some if answers[question] != {on_the_command_line(cluster, question)}]
    wrong += [f"{question} is answered otherwise than on the command line" for question in differ]
    panics = sum(process.log.read_text(errors="replace").count("panicked") for process in cluster.processes())
    if panics:
        wrong.append(f"{panics} panics")
    wrong += [f"{what}, {count} times" for what, count in cluster.counts.items() if what.startswith("agent")]
    return [
        ("requests sent", clients.counts["sent"]),
        *sorted((f"  {what}", count) for what, count in clients.counts.items() if what not in ("sent", "read")),
        ("requests accepted", len(clients.accepted)),
        ("fits accepted", len(clients.questions)),
        *sorted((f"  {state} at the end", count) for state, count in ended.items()),
        ("  not found any more", lost),
        ("the last ended after", f"{took:.1f} s"),
        ("readings of fits", clients.counts["read"]),
        ("  with two results", sum("two results" in one for one in wrong)),
        ("questions", len(answers)),
        ("  with two answers", sum(len(found) > 1 for found in answers.values())),
        ("  worked out or stored twice", twice),
        (f"  of {len(some)}, unlike the command line", len(differ)),
        ("panics", panics),
    ], wrong


def trial(arguments, folder, stack):
    chance = random.Random(f"{arguments.seed} pauses")
    database = Database(folder)
    stack.callback(database.kill)
    cluster = Cluster(str(arguments.batchfit.resolve()), database, folder, arguments.servers, arguments.agents)
    stack.callback(cluster.end)
    until(lambda: all(ready(port) for port in cluster.ports), "all servers are ready")
    until(lambda: len(call(cluster.ports[0], "/v1/agents")["items"]) == arguments.agents, "all agents are registered")
    clients, faults = Clients(cluster, arguments.seed), Faults(cluster, arguments.seed)
    stack.callback(clients.end)
    restarts = {(number + 1) * arguments.kills // (arguments.restarts + 1) for number in range(arguments.restarts)}
    begun = time.monotonic()
    for number in range(arguments.kills):
        time.sleep(chance.uniform(0, 2 * arguments.pause))
        cluster.supervise()
        if number in restarts:
            faults.restart()
        if chance.random() < 0.2:
            faults.network()
        faults.kill()
    took = time.monotonic() - begun
    cluster.whole()
    clients.end()
    until(lambda: cluster.supervise() or all(ready(port) for port in cluster.ports), "all servers are ready again")
    rows, wrong = verdict(cluster, clients, chance)
    print(f"{arguments.servers} servers, {arguments.agents} agents, {arguments.kills} kills in {took:.0f} s, seed {arguments.seed}")
    for what, count in [*sorted((faults.counts + cluster.counts).items()), *rows]:
        print(f"  {what:40} {count:>8}")
    check(not wrong, f"{len(wrong)} things are wrong\n" + "\n".join(wrong[:20]))


def ready(port):
    with contextlib.suppress(*LOST):
        return call(port, "/readyz", timeout=5) is not None
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0, help="between two kills, in seconds, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the logs when something is wrong")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            trial(arguments, folder, stack)
        except Failed as why:
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                for log in folder.glob("*.log"):
                    shutil.copy(log, arguments.keep)
            sys.exit(f"FAILED: {why}")


if __name__ == "__main__":
    main()
