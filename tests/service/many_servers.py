#!/usr/bin/env python3
"""Two servers on one PostgreSQL, and what becomes of what was accepted when they, or the database, are killed.

Clients ask either server for fits of their own and for some that all of them ask, with an `Idempotency-Key`, and ask again until
they have an answer. Answers are kept for a day, and the clock of the first server is 25 hours ahead. Meanwhile servers are killed (as
`kill -9` does) and started again, and then the database is. In the end every fit that was accepted is done under its id and its key, every
question has one answer wherever it is read, and no row says that somebody still works.

Prints a table. The database is a cluster of its own in a temporary folder (Debian's `postgresql`), as `tests/service/postgres.sh` starts
one; as root it runs as the user `postgres`.

Usage: tests/service/many_servers.py BATCHFIT [--kills 6] [--restarts 2] [--seed N]    (Linux, Python 3.9, a C compiler, no GPU; about 3 minutes)
"""
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import pwd
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from served import Clock, Failed, Server, check, free_port, until

LOST = (OSError, json.JSONDecodeError, http.client.HTTPException)
CLIENTS = 4


class Database:
    """A cluster of PostgreSQL."""

    def __init__(self, folder):
        found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        check(found, "there is no PostgreSQL here: apt-get install postgresql")
        self.bin, self.folder, self.as_user = found[-1].parent, folder, {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self.as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chmod(folder, 0o755)
        self.port = free_port()
        self.url = f"postgres://batchfit@localhost:{self.port}/postgres"
        self.run("initdb", "--username", "batchfit", "--auth", "trust", "--encoding", "UTF8", "--no-sync")
        self.start()

    def run(self, program, *arguments):
        done = subprocess.run([self.bin / program, "--pgdata", self.folder / "data", *arguments], cwd=self.folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **self.as_user)
        check(done.returncode == 0, f"{program}: {done.stdout}")

    def start(self):
        options = f"-c port={self.port} -c listen_addresses=localhost -c unix_socket_directories={self.folder}"
        self.run("pg_ctl", "--log", self.folder / "log", "--wait", "--silent", "--options", options, "start")

    def kill(self):
        self.run("pg_ctl", "--mode", "immediate", "--silent", "stop")

    def ask(self, query):
        done = subprocess.run([self.bin / "psql", "--no-psqlrc", "--tuples-only", "--no-align", "--command", query, self.url],
                              text=True, capture_output=True, check=True, cwd=self.folder)
        return done.stdout.strip()


class Servers:
    """Those that run now."""

    def __init__(self, batchfit, database, folder):
        self.batchfit, self.database, self.folder = batchfit, database, folder
        self.all, self.started = [None, None], 0
        self.clock = Clock(folder)
        self.clock.set_off(25 * 3600)
        for place in range(len(self.all)):
            self.start(place)

    def start(self, place):
        self.started += 1
        # What is old is looked for every 2 s.
        self.all[place] = Server(self.batchfit, self.folder / f"server{self.started}.db", "--keep-days", 1, "--upload-expiry", 8, url=self.database.url,
                                 environment=self.clock.environment if place == 0 else None)

    def replace(self, place):
        self.all[place].kill()
        begun = time.monotonic()
        self.start(place)
        return time.monotonic() - begun


class Clients:
    """What they asked, and what they were told."""

    def __init__(self, servers, seed):
        self.servers, self.seed = servers, seed
        self.lock, self.end = threading.Lock(), threading.Event()
        self.asked = {}       # key -> id
        self.answers = {}     # question -> set of answers
        self.ids = {}         # question -> ids
        self.sent = self.failed = 0
        self.threads = [threading.Thread(target=self.go, args=(number,)) for number in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def go(self, number):
        chance, made = random.Random(f"{self.seed} {number}"), 0
        while not self.end.is_set():
            made += 1
            # One in three is a question that others ask too.
            limit = chance.randrange(1000, 1040) if chance.random() < 0.33 else 2000 + 10_000 * number + made
            self.ask(f"{number}-{made}", limit, chance)

    def ask(self, key, limit, chance):
        body = {"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": f"{limit}MiB"}
        while True:
            server = self.servers.all[chance.randrange(2)]
            self.sent += 1
            try:
                status, fit = server.call("/v1/fits", body, headers={"Idempotency-Key": key}, timeout=20)
            except LOST:
                status = None
            if status in (200, 201, 202):
                break
            self.failed += 1
            time.sleep(0.05)
            if self.end.is_set():
                return
        with self.lock:
            check(self.asked.setdefault(key, fit["id"]) == fit["id"], f"{key} has two fits")
            self.ids.setdefault(limit, set()).add(fit["id"])

    def finish(self):
        self.end.set()
        for thread in self.threads:
            thread.join()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("batchfit", type=pathlib.Path)
    arguments.add_argument("--kills", type=int, default=6)
    arguments.add_argument("--restarts", type=int, default=2)
    arguments.add_argument("--seed", type=int, default=1)
    arguments = arguments.parse_args()
    chance = random.Random(arguments.seed)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        database = Database(folder)
        stack.callback(database.kill)
        servers = Servers(arguments.batchfit.resolve(), database, folder)
        stack.callback(lambda: [server.kill() for server in servers.all])
        clients = Clients(servers, arguments.seed)
        stack.callback(clients.finish)

        accepted = lambda: len(clients.asked)
        for kill in range(arguments.kills):
            before = accepted()
            until(lambda: accepted() >= before + 10, "clients are served")
            time.sleep(chance.uniform(0, 1))
            took = servers.replace(1 - kill % 2)
            print(f"server killed    {accepted():5} accepted; another one served after {took:.1f} s")
        for _ in range(arguments.restarts):
            before = accepted()
            until(lambda: accepted() >= before + 10, "clients are served")
            database.kill()
            until(lambda: all(server.status("/readyz", timeout=5) == 503 for server in servers.all), "both say that they are not ready")
            time.sleep(chance.uniform(1, 5))
            database.start()
            begun, before = time.monotonic(), accepted()
            until(lambda: all(server.status("/readyz", timeout=5) == 200 for server in servers.all), "both are ready again")
            until(lambda: accepted() >= before + 10, "clients are served again")
            print(f"database killed  {accepted():5} accepted; served again {time.monotonic() - begun:.1f} s after it was back")
        clients.finish()

        open_fits = "SELECT count(*) FROM fit WHERE state IN ('queued', 'running')"
        took = until(lambda: database.ask(open_fits) == "0", "all fits have ended", seconds=180)
        states = database.ask("SELECT state, count(*) FROM fit GROUP BY state ORDER BY state").replace("\n", ", ")
        print(f"ended            {states}, the last {took:.1f} s after the last question")
        wrong = []
        for limit, ids in clients.ids.items():
            answers = set()
            for number, fit in enumerate(sorted(ids)):
                for server in servers.all:
                    status, document = server.call(f"/v1/fits/{fit}")
                    if status != 200 or document["state"] != "done":
                        wrong.append(f"fit {fit} is {status} {document}")
                    else:
                        answers.add(json.dumps(document["result"]["recommendation"], sort_keys=True))
            if len(answers) != 1:
                wrong.append(f"{limit} MiB has {len(answers)} answers")
        twice = database.ask("SELECT count(*) FROM (SELECT fingerprint FROM fit WHERE state = 'done' GROUP BY fingerprint HAVING count(*) > 1) AS twice")
        check(not wrong, "\n".join(wrong[:10]))
        names = int(database.ask("SELECT count(*) FROM idempotency_key"))
        check(names >= len(clients.asked), f"{len(clients.asked)} keys of requests were used, and {names} are known")
        check(twice == "0", f"{twice} questions were answered twice")
        print(f"read             {len(clients.asked)} accepted fits at both servers, {len(clients.ids)} questions with one answer each; "
              f"{clients.failed} of {clients.sent} requests were sent again")


if __name__ == "__main__":
    try:
        main()
    except Failed as failed:
        sys.exit(f"FAILED: {failed}")
