#!/usr/bin/env python3
"""What a service survives of its disk and of being killed, on simulated cards.

Starts `batchfit serve` on a database of its own and checks, with the real SQLite and the real binary:

  locked   another process keeps the database locked for 8 s, longer than a statement waits, while fits end
  full     the disk is full while fits end, and has room again later
  killed   the server is killed again and again while fits run; none of them fails and none is lost
  owned    a second server on the same database is refused

Prints a line for each with its figures; exits 1 when a check fails.

Usage: tests/service/storage.py BATCHFIT [--kills 20]    (Linux, Python 3.9, no GPU; about 15 s and half a second a kill)
"""
import argparse
import pathlib
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time

from served import SECONDS, Failed, Server, states, until


def question(number):
    """Different for each number, and some tens of milliseconds of work."""
    return {
        "model": {"preset": "resnet152"}, "device": "sim:h200", "memory_limit": (8 << 30) + number * (2 << 20),
        "training": {"precision": ["fp32", "amp_bf16"]},
    }


def ask(server, numbers):
    for number in numbers:
        until(lambda: server.call("/v1/fits", question(number))[0] in (200, 202), "a fit is accepted")


def locked(batchfit, folder):
    database = folder / "locked.db"
    server = Server(batchfit, database)
    ask(server, range(8))
    until(lambda: states(database).get("running"), "a fit runs")
    connection = sqlite3.connect(database, timeout=SECONDS, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    noticed = until(lambda: server.status("/readyz") == 503, "/readyz notices")
    well = server.status("/healthz") == 200
    time.sleep(max(0, 8 - (time.monotonic() - begun)))
    connection.execute("ROLLBACK")
    connection.close()
    done = until(lambda: states(database) == {"done": 8}, "all fits are done")
    ready = until(lambda: server.status("/readyz") == 200, "the server is ready again")
    server.kill()
    return well, f"/readyz 503 after {noticed:.1f} s; unlocked after 8 s, 8 of 8 fits done {done:.1f} s later, ready {ready:.1f} s later"


def full(batchfit, folder):
    database = folder / "full.db"
    server = Server(batchfit, database)
    ask(server, range(8))
    until(lambda: states(database).get("running"), "a fit runs")
    used = max(path.stat().st_size for path in folder.glob("full.db*"))
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (used, unlimited))
    noticed = until(lambda: server.status("/readyz") == 503, "/readyz notices")
    time.sleep(2)
    before = states(database)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    done = until(lambda: states(database) == {"done": 8}, "all fits are done")
    ready = until(lambda: server.status("/readyz") == 200, "the server is ready again")
    server.kill()
    return "failed" not in before, f"/readyz 503 after {noticed:.1f} s, rows then {before}; with room, 8 of 8 done {done:.1f} s later, ready {ready:.1f} s later"


def killed(batchfit, folder, kills):
    database = folder / "killed.db"
    asked = 0
    for _ in range(kills):
        server = Server(batchfit, database)
        ask(server, range(asked, asked + 5))
        asked += 5
        until(lambda: states(database).get("running"), "a fit runs")
        server.kill()
    server = Server(batchfit, database)
    took = until(lambda: not states(database).keys() & {"queued", "running"}, "no fit is left", SECONDS + 2 * asked)
    found = states(database)
    server.kill()
    return found == {"done": asked}, f"{kills} kills, {asked} fits: {found}, the last {took:.1f} s after the last kill"


def owned(batchfit, folder):
    database = folder / "owned.db"
    server = Server(batchfit, database)
    second = subprocess.run(
        [batchfit, "serve", "--listen", "127.0.0.1:0", "--database", str(database)],
        capture_output=True, text=True, timeout=SECONDS,
    )
    server.kill()
    third = Server(batchfit, database)
    third.kill()
    return second.returncode == 1 and "another batchfit server" in second.stderr, second.stderr.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    batchfit, failed = str(arguments.batchfit.resolve()), False
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, check in [("locked", locked), ("full", full), ("killed", lambda *a: killed(*a, arguments.kills)), ("owned", owned)]:
            try:
                passed, figures = check(batchfit, folder)
            except Failed as why:
                passed, figures = False, str(why)
            failed |= not passed
            print(f"{name:8} {'ok    ' if passed else 'FAILED'} {figures}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
