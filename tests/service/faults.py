#!/usr/bin/env python3
"""What a service survives of its machine, on simulated cards, with the real binary, SQLite and kernel.

  frozen    the server is stopped (SIGSTOP) for 6 s, again and again, while clients wait for fits and follow them
  clock     the system's clock goes a day ahead and back, and ten years, while fits wait, for a service that keeps answers for a day
  memory    less and less memory (a memory cgroup, where one can be made, and RLIMIT_AS) while graphs of 100,000 operations are asked
  full      the file system is full (a tmpfs of 8 MiB) while fits end, and has room again
  locked    another process keeps the database locked for 30 s
  damaged   pages of the database are overwritten while it is used
  deleted   the database is moved away while it is used, and put back; and deleted for good

Prints a line for each with its figures; exits 1 when a check fails.

Usage: tests/service/faults.py BATCHFIT [NAME...]    (Linux, Python 3.9, a C compiler for `clock`, root for tmpfs and cgroup, no GPU)
"""
import argparse
import contextlib
import gzip
import http.client
import json
import os
import pathlib
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from served import Clock, Server, asked, check, quick_check, rss_mib, run, states, until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "attack"))

DAY = 86_400
YEAR = 365 * DAY

def question(number, model="resnet50"):
    """Different for each number, and some tens of milliseconds of work."""
    return {"model": {"preset": model}, "device": "sim:h200", "memory_limit": (8 << 30) + number * (2 << 20), "training": {"precision": ["fp32", "amp_bf16"]}}


def ask(server, numbers, **headers):
    """The ids of fits, each asked until it is accepted."""
    ids = {}
    for number in numbers:
        def accepted():
            status, answer = server.call("/v1/fits", question(number), headers={"idempotency-key": f"number {number}", **headers})
            if status in (200, 202):
                ids[number] = answer["id"]
            return status in (200, 202)
        until(accepted, f"fit {number} is accepted")
    return ids


def all_done(server, ids):
    fits = {id: server.call(f"/v1/fits/{id}")[1] for id in ids.values()}
    left = {id: fit.get("state", "gone") for id, fit in fits.items()}
    check("failed" not in left.values() and "gone" not in left.values(), f"fits are {left}: {[fit.get('error') for fit in fits.values()]}")
    return set(left.values()) == {"done"}


def follow(server, id, events):
    """Notes the names of events until the stream ends."""
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/fits/{id}/events", timeout=120) as stream:
        for line in stream:
            if line.startswith(b"event: "):
                events.append(line[7:].strip().decode())


def ends_well(server):
    check(not server.panics(), f"the server panicked: {server.panics()[:2]}")
    server.kill()
    quick_check(server.database)


def frozen(batchfit, folder, stops=5, seconds=6):
    with Server(batchfit, folder / "frozen.db") as server:
        ids, followers, waits = {}, [], []
        for stop in range(stops):
            new = ask(server, range(10 * stop, 10 * stop + 10))
            ids |= new
            events = []
            thread = threading.Thread(target=follow, args=(server, new[10 * stop + 9], events))
            thread.start()
            followers.append((thread, events))
            begun = time.monotonic()
            patient = threading.Thread(target=lambda: waits.append(
                server.call("/v1/fits", question(10 * stop + 9), headers={"prefer": "wait=60"}, timeout=90)[1]["state"]))
            patient.start()
            time.sleep(0.05)
            server.signal(signal.SIGSTOP)
            time.sleep(seconds)
            server.signal(signal.SIGCONT)
            well = until(server.is_well, "the server answers again")
            patient.join()
        done = until(lambda: all_done(server, ids), "all fits are done")
        for thread, events in followers:
            thread.join(60)
            check(events[-1:] == ["result"], f"who followed was told {events[-3:]}")
        check(waits == ["done"] * stops, f"who waited got {waits}")
        ends_well(server)
    return f"{stops} times {seconds} s, 10 fits each: {len(ids)} of {len(ids)} done; /healthz {well:.2f} s after the last; all {stops} who waited and {stops} who followed got the result"


def clock(batchfit, folder):
    own = Clock(folder)

    def start():
        # Uploads expire after 8 s, so what is old is looked for every 2 s.
        return Server(batchfit, folder / "clock.db", "--keep-days", 1, "--upload-expiry", 8,
                      environment=own.environment)

    lost = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start())
        made = subprocess.run([batchfit, "keys", "create", "--name", "clock", "--scope", "fit", "--database", server.database], capture_output=True)
        check(made.returncode == 0, "a key is made")
        ids = ask(server, range(10))
        until(lambda: all_done(server, ids), "the first fits are done")
        _, search = server.call("/v1/searches", {"memory_limit": "24GiB"})
        server.call(f"/v1/searches/{search['id']}/observations", {"batch": 1, "outcome": "fits"})
        time.sleep(3)
        number, told = 10, []
        for jump in (DAY, -DAY, 3 * DAY, -YEAR, 10 * YEAR, -10 * YEAR, 40 * DAY):
            waiting = ask(server, range(number, number + 8))
            events = []
            follower = threading.Thread(target=follow, args=(server, waiting[number + 7], events))
            follower.start()
            own.set_off(jump)
            later = ask(server, range(number + 8, number + 10))
            number += 10
            until(lambda: all_done(server, {**waiting, **later}), f"fits are done after a jump of {jump} s")
            follower.join(60)
            check(events[-1:] == ["result"], f"who followed was told {events[-3:]}")
            server.call("/v1/searches", {"memory_limit": "8GiB"})
            # Two looks for what is old.
            time.sleep(5)
            ids |= waiting | later
            gone = [id for id in ids.values() if server.call(f"/v1/fits/{id}")[0] != 200]
            again = ask(server, ids)
            changed = [number for number, id in ids.items() if again[number] != id]
            kept = server.call(f"/v1/searches/{search['id']}")[0] == 200
            if gone or changed or not kept:
                lost.append(f"{jump / DAY:+g} d: {len(gone)} of {len(ids)} fits gone, {len(changed)} asked again under their keys are others, search {'kept' if kept else 'gone'}")
                ids = again
            told.append(f"{jump / DAY:+g}")
            check(server.is_well(), "the server is well")
        # Another server while the clock is ahead; and after it was set right.
        for jump in (40 * DAY, 0):
            server.kill()
            own.set_off(jump)
            server = stack.enter_context(start())
            time.sleep(3)
            gone = [id for id in ids.values() if server.call(f"/v1/fits/{id}")[0] != 200]
            if gone:
                lost.append(f"restarted {jump / DAY:+g} d off: {len(gone)} of {len(ids)} fits gone")
                ids = ask(server, ids)
        keys = subprocess.run([batchfit, "keys", "list", "--database", server.database], capture_output=True, text=True).stdout
        check("clock" in keys, f"the key is gone: {keys}")
        ends_well(server)
    check(not lost, "; ".join(lost))
    return f"{', '.join(told)} days, each with 10 fits under way or asked just then, and 2 restarts: {len(ids)} of {len(ids)} fits done and there under their names, keys, search and events too"


class Cgroup:
    """A memory cgroup of our own."""

    def __init__(self, mib):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        root = v1 if (v1 / "memory.limit_in_bytes").exists() else pathlib.Path("/sys/fs/cgroup")
        self.place = root / f"batchfit-faults-{os.getpid()}"
        self.place.mkdir()
        limit = "memory.limit_in_bytes" if root is v1 else "memory.max"
        (self.place / limit).write_text(str(mib << 20))

    def enter(self):
        (self.place / "cgroup.procs").write_text(str(os.getpid()))

    def close(self):
        until(lambda: not (self.place / "cgroup.procs").read_text(), "the cgroup is empty")
        self.place.rmdir()


def memory(batchfit, folder):
    import bodies

    large = bodies.request({"exported": bodies.mlp(100_000)})
    hostile = gzip.compress(bodies.fill(b'{"model":{"exported":[', b"{},", b"{}]}}"), 6)
    packed = gzip.compress(large, 6)
    told = []
    for kind, mib in (("cgroup", 512), ("cgroup", 192), ("cgroup", 96), ("RLIMIT_AS over idle", 512), ("RLIMIT_AS over idle", 96)):
        group, before = None, None
        database = folder / f"memory-{kind[0]}{mib}.db"
        if kind == "cgroup":
            try:
                group = Cgroup(mib)
            except OSError:
                told.append("no cgroup can be made here")
                continue
            before = group.enter
        starts, server = 1, Server(batchfit, database, before=before)
        try:
            def limited():
                if not group:
                    used = rss_mib(server.process.pid, "VmSize") << 20
                    limit = (used + (mib << 20), resource.RLIM_INFINITY)
                    resource.prlimit(server.process.pid, resource.RLIMIT_AS, limit)
            limited()

            def send(path, body, headers):
                """The status and the document; None where the server ended, which is then started again."""
                nonlocal server, starts
                try:
                    return server.call(path, body, headers={"content-encoding": "gzip", **headers}, timeout=120)
                except (OSError, ValueError, http.client.HTTPException):
                    if server.process.poll() is None:
                        time.sleep(0.5)
                    if server.process.poll() is None:
                        return None, {}
                    server = Server(batchfit, database, before=before)
                    starts += 1
                    limited()
                    return None, {}

            refused, _ = send("/v1/fits", hostile, {})
            status, answer = send("/v1/fits", packed, {"prefer": "wait=60"})
            until(lambda: not server.is_well() or not states(database).keys() & {"queued", "running"} or server.process.poll() is not None, "the large fit has ended", 120)
            if server.process.poll() is not None:
                server = Server(batchfit, database, before=before)
                starts += 1
                limited()
                until(lambda: not states(database).keys() & {"queued", "running"}, "the large fit has ended", 120)
            ended = states(database)
            ids = ask(server, range(3))
            until(lambda: all_done(server, ids), "ordinary fits are done")
            told.append(f"{kind} {mib} MiB: hostile body {refused or 'ended the server'}, 100,000 operations {status or 'ended the server'} {dict(ended)}, "
                        f"{starts - 1} restarts, ordinary fits done, peak {server.rss_mib()} MiB")
            check(starts <= 4, f"{starts} starts")
            ends_well(server)
        finally:
            if server.process.poll() is None:
                server.kill()
            if group:
                group.close()
    return "; ".join(told)


def full(batchfit, folder):
    place = folder / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True)
    check(mounted.returncode == 0, f"a tmpfs needs root: {mounted.stderr.decode().strip()} (storage.py has the same with RLIMIT_FSIZE)")
    try:
        with Server(batchfit, place / "full.db") as server:
            server.log = folder / "full.log"
            ids = ask(server, range(8))
            until(lambda: states(server.database).get("running"), "a fit runs")
            with contextlib.suppress(OSError), open(place / "filler", "wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
            noticed = until(lambda: server.status("/readyz") == 503, "/readyz notices")
            well = server.is_well()
            status, answer = server.call("/v1/fits", question(99))
            check(well and status == 503 and "full" in answer["detail"], f"on a full disk a fit got {status}: {answer}")
            upload, _ = server.call("/v1/graphs", os.urandom(100_000), method="POST")
            check(upload >= 400, f"an upload got {upload}")
            time.sleep(2)
            before = states(server.database)
            server.kill()
            failed = Server(batchfit, server.database, ready=False)
            time.sleep(1.5)
            starts = "starts" if failed.process.poll() is None and failed.is_well() else "does not start, and says so"
            failed.kill()
            (place / "filler").unlink()
            server = Server(batchfit, server.database)
            done = until(lambda: all_done(server, ids), "all fits are done")
            ready = until(lambda: server.status("/readyz") == 200, "the server is ready again")
            quick_check(server.database)
            server.kill()
    finally:
        subprocess.run(["umount", place], check=True)
    return f"/readyz 503 after {noticed:.1f} s, rows then {before}; killed there, a server {starts}; with room, 8 of 8 done {done:.1f} s later, ready {ready:.1f} s later"


def locked(batchfit, folder, seconds=30):
    with Server(batchfit, folder / "locked.db") as server:
        ids = ask(server, range(8))
        until(lambda: states(server.database).get("running"), "a fit runs")
        connection = sqlite3.connect(server.database, timeout=60, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        begun, statuses, slowest = time.monotonic(), [], 0.0
        while time.monotonic() < begun + seconds:
            asked_at = time.monotonic()
            check(server.is_well(), "/healthz answers while the database is locked")
            slowest = max(slowest, time.monotonic() - asked_at)
            status, answer = server.call("/v1/fits", question(50 + len(statuses)))
            statuses.append(status)
            check(status == 503 and "locked" in answer["detail"], f"a fit got {status}: {answer}")
        connection.execute("ROLLBACK")
        connection.close()
        done = until(lambda: all_done(server, ids), "all fits are done")
        ready = until(lambda: server.status("/readyz") == 200, "the server is ready again")
        check(len(asked(server.database, "SELECT id FROM fit")) == 8, "none of the refused fits was stored")
        ends_well(server)
    return f"{seconds} s: {len(statuses)} fits got 503, /healthz within {1000 * slowest:.0f} ms; unlocked, 8 of 8 done {done:.1f} s later, ready {ready:.1f} s later, nothing of the refused is stored"


def damaged(batchfit, folder):
    with Server(batchfit, folder / "damaged.db") as server:
        ids = ask(server, range(12))
        until(lambda: all_done(server, ids), "the first fits are done")
        copy = folder / "copy.db"
        check(subprocess.run([batchfit, "db", "backup", copy, "--database", server.database]).returncode == 0, "a backup is made")
        with contextlib.closing(sqlite3.connect(server.database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with open(server.database, "r+b") as file:
            pages = os.path.getsize(server.database) // 4096
            for page in range(2, pages):
                file.seek(page * 4096)
                file.write(b"\xff" * 512)
        statuses = {}
        for number in range(100, 130):
            status = server.call("/v1/fits", question(number, "resnet18"))[0]
            statuses[status] = statuses.get(status, 0) + 1
        for id in ids.values():
            status = server.call(f"/v1/fits/{id}")[0]
            statuses[status] = statuses.get(status, 0) + 1
        check(server.is_well(), "/healthz answers")
        panics = server.panics()
        check(not panics, f"the server panicked: {panics[:2]}")
        server.kill()
        said = subprocess.run([batchfit, "db", "check", "--database", server.database], capture_output=True, text=True)
        check(said.returncode == 1, f"db check finds nothing: {said.stdout}")
        again = subprocess.run([batchfit, "serve", "--listen", "127.0.0.1:0", "--database", server.database], capture_output=True, text=True, timeout=20)
        check(again.returncode == 1 and "damaged" in again.stderr, f"a server on it: {again.returncode} {again.stderr[-300:]}")
        for suffix in ("", "-wal", "-shm"):
            pathlib.Path(f"{server.database}{suffix}").unlink(missing_ok=True)
        shutil.copy(copy, server.database)
    with Server(batchfit, folder / "damaged.db") as server:
        check(all_done(server, ids), "the backup has all fits")
        ends_well(server)
    return f"{pages - 2} pages overwritten: answers {statuses}, /healthz 200, `db check` finds it, another server refuses it by name; from the backup 12 of 12 fits"


def deleted(batchfit, folder):
    with Server(batchfit, folder / "deleted.db") as server:
        ids = ask(server, range(8))
        until(lambda: states(server.database).get("running"), "a fit runs")
        files = [path for path in folder.glob("deleted.db*") if not path.name.endswith(".lock")]
        away = folder / "away"
        away.mkdir()
        for path in files:
            os.rename(path, away / path.name)
        status, answer = server.call("/v1/fits", question(99))
        check(status == 503 and "moved or deleted" in answer["detail"], f"a fit got {status}: {answer}")
        check(server.is_well(), "/healthz answers")
        time.sleep(3)
        for path in files:
            os.rename(away / path.name, path)
        done = until(lambda: all_done(server, ids), "all fits are done")
        check(not asked(server.database, "SELECT id FROM fit WHERE id NOT IN (%s)" % ",".join(f"'{id}'" for id in ids.values())), "the refused fit is not stored")
        for path in files:
            path.unlink(missing_ok=True)
        status, answer = server.call("/v1/fits", question(99))
        check(status == 503 and "moved or deleted" in answer["detail"], f"a fit got {status}: {answer}")
        check(not server.panics(), f"the server panicked: {server.panics()[:2]}")
        server.kill()
    with Server(batchfit, folder / "deleted.db") as server:
        until(lambda: all_done(server, ask(server, [1])), "a new database is used")
        ends_well(server)
    return f"moved for 3 s: fits got 503, put back: 8 of 8 done {done:.1f} s later; deleted: 503, and the next server makes a new one"


CHECKS = [frozen, clock, memory, full, locked, damaged, deleted]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    arguments = parser.parse_args()
    batchfit = str(arguments.batchfit.resolve())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def of(one):
            place = folder / one.__name__
            place.mkdir()
            return one.__name__, lambda: one(batchfit, place)

        run([of(one) for one in CHECKS if not arguments.names or one.__name__ in arguments.names])


if __name__ == "__main__":
    main()
