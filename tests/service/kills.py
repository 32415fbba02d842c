#!/usr/bin/env python3
"""Kills a server again and again at random moments while clients ask, cancel, upload, lead searches and make keys.

Each write has a name of its own (`Idempotency-Key`, a digest, an observation), and is sent again after the kill when it got no
answer. After each kill: SQLite's quick check, no row that refers to nothing, and no process of the server's left after 20 s. Whatever was
accepted once is there for ever, with the same id, and what a fit answered once it answers always. In the end every fit has
ended, none failed, and none was answered twice.

A kill comes 0 to 0.6 s after the server answers; one in ten while it starts.

Usage: tests/service/kills.py BATCHFIT [--kills 500] [--minutes 120] [--seed N]    (Linux, Python 3.9, no GPU; about 0.8 s a kill)
"""
import argparse
import collections
import gzip
import hashlib
import http.client
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

from served import Failed, Server, alive, asked, check, quick_check, run, states, until

GRAPH = pathlib.Path(__file__).resolve().parent.parent / "golden" / "exported" / "cifarnet.json.gz"
CLIENTS = 4
# What somebody sees whose server is killed.
LOST = (OSError, json.JSONDecodeError, http.client.HTTPException)
# How long what a server started may live on.
ORPHANS_END = 20


class Client:
    """One that remembers what it was told."""

    def __init__(self, number, seed, batchfit, database):
        self.number, self.random = number, random.Random(f"{seed} {number}")
        self.batchfit, self.database = batchfit, database
        self.count = collections.Counter()
        self.unanswered = []     # writes of which nobody knows what became
        self.fits = {}           # name -> (body, id)
        self.results = {}        # id -> result as it was told
        self.cancelled = set()
        self.searches = {}       # id -> observations that were taken
        self.uploads = {}        # digest -> kind of answer
        self.keys = set()
        self.made = 0

    def act(self, server):
        if self.unanswered:
            self.write(server, *self.unanswered.pop())
            return
        act = self.random.choices(
            [self.fit, self.same, self.look, self.cancel, self.search, self.observe, self.upload, self.look_at_upload, self.key],
            [30, 10, 25, 4, 4, 12, 4, 6, 1])[0]
        act(server)

    def write(self, server, kind, *what):
        """Sends a write; keeps it to be sent again where the answer did not come."""
        try:
            getattr(self, "send_" + kind)(server, *what)
        except LOST:
            self.unanswered.append((kind, *what))
            self.count["cut off"] += 1
            raise

    def fit(self, server):
        self.made += 1
        model = self.random.choice(["resnet18", "resnet50", "vgg16"])
        body = {"model": {"preset": model}, "device": "sim:rtx4090", "memory_limit": (4 << 30) + self.random.randrange(3000) * (2 << 20)}
        if self.random.random() < 0.2:
            body["training"] = {"precision": ["fp32", "amp_bf16"]}
        if self.random.random() < 0.1:
            body["model"] = {"exported": json.loads(gzip.decompress(GRAPH.read_bytes()))}
        self.write(server, "fit", f"client {self.number}, {self.made}", body)

    def send_fit(self, server, name, body):
        status, answer = server.call("/v1/fits", body, headers={"idempotency-key": name})
        if status == 503:
            self.count["queue full"] += 1
            return
        check(status in (200, 202), f"a fit got {status}: {answer}")
        known = self.fits.setdefault(name, (body, answer["id"]))
        check(known[1] == answer["id"], f"{name!r} was fit {known[1]} and is fit {answer['id']}")
        self.count["fits accepted"] += 1
        self.told(answer)

    def told(self, fit):
        if fit["state"] in ("done", "failed"):
            result = json.dumps([fit["state"], fit["result"], fit["error"]])
            before = self.results.setdefault(fit["id"], result)
            check(before == result, f"fit {fit['id']} answered two things:\n{before[:300]}\n{result[:300]}")
            check(fit["state"] == "done", f"fit {fit['id']} failed: {fit['error']}")
            self.count["answers read"] += 1
        if fit["id"] in self.cancelled:
            check(fit["state"] == "cancelled", f"fit {fit['id']} was cancelled and is {fit['state']}")

    def same(self, server):
        if self.fits:
            name = self.random.choice(list(self.fits))
            self.write(server, "fit", name, self.fits[name][0])

    def look(self, server):
        if self.fits:
            _, id = self.random.choice(list(self.fits.values()))
            status, answer = server.call(f"/v1/fits/{id}")
            check(status == 200, f"fit {id} was accepted and got {status}")
            self.told(answer)

    def cancel(self, server):
        if self.fits:
            self.write(server, "cancel", self.random.choice(list(self.fits.values()))[1])

    def send_cancel(self, server, id):
        status, answer = server.call(f"/v1/fits/{id}", method="DELETE")
        check(status in (200, 409), f"cancelling fit {id} got {status}")
        if status == 200:
            self.cancelled.add(id)
            self.count["cancelled"] += 1

    def search(self, server):
        status, answer = server.call("/v1/searches", {"memory_limit": "24GiB", "target_batch": self.random.randrange(64, 4096)})
        check(status == 201, f"a search got {status}: {answer}")
        self.searches[answer["id"]] = []

    def observe(self, server):
        if self.searches:
            id = self.random.choice(list(self.searches))
            status, answer = server.call(f"/v1/searches/{id}")
            check(status == 200, f"search {id} was begun and got {status}")
            had = [(o["batch"], o["outcome"], o["peak_reserved_bytes"]) for o in answer["observations"]]
            lost = [taken for taken in self.searches[id] if taken not in had]
            check(not lost and len(set(had)) == len(had), f"search {id} lost {lost} of {had}")
            if answer["next_batch"]:
                batch = answer["next_batch"]
                outcome = "fits" if batch <= 700 else "out_of_memory"
                self.write(server, "observation", id, batch, outcome, (2 << 30) + (batch << 20) if outcome == "fits" else None)

    def send_observation(self, server, id, batch, outcome, peak):
        body = {"batch": batch, "outcome": outcome, "peak_reserved_bytes": peak}
        status, answer = server.call(f"/v1/searches/{id}/observations", {key: value for key, value in body.items() if value})
        check(status in (200, 201, 409), f"an observation got {status}: {answer}")
        if status < 300:
            self.searches[id].append((batch, outcome, peak))
            self.count["observations"] += 1

    def upload(self, server):
        graph = json.loads(gzip.decompress(GRAPH.read_bytes()))
        graph["client"] = [self.number, self.random.random()]
        self.write(server, "upload", json.dumps(graph).encode())

    def send_upload(self, server, contents):
        digest = "sha256:" + hashlib.sha256(contents).hexdigest()
        status, answer = server.call(f"/v1/graphs/{digest}", contents, method="PUT")
        check(status in (200, 201), f"an upload got {status}: {answer}")
        self.uploads[digest] = answer["bytes"]
        self.count["uploads"] += 1

    def look_at_upload(self, server):
        if self.uploads:
            digest, bytes = self.random.choice(list(self.uploads.items()))
            status, answer = server.call(f"/v1/graphs/{digest}")
            check(status == 200 and answer["bytes"] == bytes, f"{digest} was kept and got {status}")

    def key(self, _):
        """By the command, beside the server."""
        self.made += 1
        name = f"key-{self.number}-{self.made}"
        made = subprocess.run([self.batchfit, "keys", "create", "--name", name, "--scope", "read", "--database", self.database],
                              capture_output=True, text=True)
        if made.returncode == 0:
            self.keys.add(name)
            self.count["keys"] += 1
        else:
            self.count["keys refused"] += 1
            check("locked" in made.stderr or "taken" in made.stderr, f"a key was not made: {made.stderr}")


def round_of(server, clients, seconds):
    """Has all clients ask until the server is killed, so many seconds from now."""
    ended, failures = threading.Event(), []

    def ask(client):
        while not ended.is_set():
            try:
                client.act(server)
            except LOST:
                ended.wait(0.005)
            except Exception as failure:
                failures.append(failure if isinstance(failure, Failed) else Failed(repr(failure)))
                return

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    ended.wait(seconds)
    before = server.descendants()
    server.kill()
    killed = time.monotonic()
    ended.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return before, killed


def settle(server, clients):
    """Has every write answered, and every fit end."""
    for client in clients:
        while client.unanswered:
            client.act(server)
    took = until(lambda: not states(server.database).keys() & {"queued", "running"}, "every fit has ended", 600)
    for client in clients:
        for _, id in client.fits.values():
            status, answer = server.call(f"/v1/fits/{id}")
            check(status == 200, f"fit {id} was accepted and got {status}")
            client.told(answer)
        for digest in client.uploads:
            status, _ = server.call(f"/v1/graphs/{digest}")
            check(status == 200, f"{digest} was kept and got {status}")
    return took


def killed(batchfit, folder, most, minutes, seed):
    chance = random.Random(seed)
    database = folder / "killed.db"
    Server(batchfit, database).kill()
    clients = [Client(number, seed, batchfit, database) for number in range(CLIENTS)]
    slowest, processes, starting, kills = 0.0, 0, 0, 0
    begun = time.monotonic()
    while kills < most and time.monotonic() < begun + 60 * minutes:
        kills += 1
        if chance.random() < 0.1:
            server = Server(batchfit, database, ready=False)
            time.sleep(chance.uniform(0, 0.1))
            before = server.descendants()
            server.kill()
            ended, starting = time.monotonic(), starting + 1
        else:
            server = Server(batchfit, database)
            before, ended = round_of(server, clients, chance.uniform(0, 0.6))
        processes += len(before)
        quick_check(database)
        until(lambda: not alive(before), f"{alive(before)} end after their server", ORPHANS_END)
        if before:
            slowest = max(slowest, time.monotonic() - ended)
    server = Server(batchfit, database)
    took = settle(server, clients)
    counts = sum((client.count for client in clients), collections.Counter())
    known = {name for name, *_ in asked(database, "SELECT name FROM api_key")}
    check(all(client.keys <= known for client in clients), "a key is gone")
    found = states(database)
    check("failed" not in found, f"fits failed: {found}")
    twice = asked(database, "SELECT fingerprint FROM fit WHERE state = 'done' GROUP BY fingerprint HAVING count(*) > 1")
    check(not twice, f"{len(twice)} questions were answered twice")
    panics = server.panics()
    check(not panics, f"the server panicked: {panics[:2]}")
    server.kill()
    quick_check(database)
    told = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
    return (f"{kills} kills ({starting} while it starts), {told}; rows {found}; {processes} child processes left behind, the slowest gone "
            f"within {slowest:.1f} s; the last fit ends {took:.1f} s after the last start")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=120, help="no more kills after so many")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed}")
    with tempfile.TemporaryDirectory() as folder:
        trial = lambda: killed(str(arguments.batchfit.resolve()), pathlib.Path(folder), arguments.kills, arguments.minutes, arguments.seed)
        run([("server killed", trial)])


if __name__ == "__main__":
    main()
