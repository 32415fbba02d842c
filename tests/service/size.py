#!/usr/bin/env python3
"""How several servers on one PostgreSQL do as answers pile up.

For each number of stored recommendations: starts the servers, sends them so many requests a second at moments fixed in advance (an answer that is late
makes the next ones late, and counts so), several times over, and prints percentiles of what they took, each the median of those times:

  by id     GET /v1/recommendations/{id}, ids at random
  page      GET /v1/recommendations with filters, some after a cursor
  fit       GET /v1/fits/{id}, ids at random
  fits      GET /v1/fits, the newest of any state or of one
  known     POST /v1/fits, answered before
  new       POST /v1/fits, never asked: a small model, simulated
  claim     of these, from the moment that it is asked to the one at which a server has claimed it
  metrics   GET /metrics, a few times, when nothing else is asked

Beside them: what a request takes of the processors, of all servers and of PostgreSQL; what others took of them meanwhile; and memory.

Figures wanted at 1,000,000: p99 of reads and of claims < 20 ms. Exits 1 where one is missed.

Usage: tests/service/size.py BATCHFIT [--rows 1000,10000,100000,1000000] [--servers 3] [--rate 200] [--seconds 30] [--times 3]
       [--database postgres://...]

The database is a cluster of its own in a temporary folder (Debian's `postgresql`), with PostgreSQL's own settings; one that is named has to be empty.
Linux, Python 3.9, psql.
"""
import argparse
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import load
import many_servers
import served

# Of a hundred requests.
MIX = [("by id", 80), ("page", 8), ("fit", 3), ("fits", 1), ("known", 6), ("new", 2)]
READS = ["by id", "page", "fit", "fits", "known"]
WANTED_MS = 20
THREADS = 16
TICK = os.sysconf("SC_CLK_TCK")


class Postgres:
    def __init__(self, url):
        self.url = url

    def run(self, command, lines=()):
        told = subprocess.Popen(
            ["psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", command, self.url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for line in lines:
            told.stdin.write(line)
        told.stdin.close()
        text = told.stdout.read()
        if told.wait() != 0:
            sys.exit(f"FAILED: psql: {command[:200]}")
        return text.strip()

    def copy(self, table, columns, rows):
        plain = lambda value: "\\N" if value is None else str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
        self.run(f"COPY {table} ({columns}) FROM STDIN", ("\t".join(map(plain, row)) + "\n" for row in rows))

    def fill(self, count, begin):
        """Recommendations from number `begin` on; what they do not say is that of the first one there."""
        if begin == 0:
            self.run("INSERT INTO request (digest, text) VALUES ('asked', '{}')")
        alike = json.loads(self.run(f"SELECT to_json(one) FROM (SELECT {load.ALIKE} FROM recommendation WHERE rank = 1 ORDER BY number LIMIT 1) AS one"))
        alike = [int(value) if isinstance(value, bool) else value for value in alike.values()]
        fits = ((fit, fit, "0.0.0", "done", model, device, "simulated", "asked", "{}", at, at)
                for fit, model, device, at in (fit for fit, _ in load.stored(count, begin) if fit))
        self.copy("fit", "id, fingerprint, batchfit_version, state, model, device, lane, request_digest, result, created_at, finished_at", fits)
        rows = ((*row, *alike) for _, row in load.stored(count, begin))
        self.copy("recommendation", f"{load.COLUMNS}, {load.ALIKE}", rows)
        self.run("ANALYZE")


class Load:
    """Requests at fixed moments, spread over the servers."""

    def __init__(self, servers, rows, rate, seconds, first_new):
        self.servers, self.took, self.bad, self.lock = servers, {}, [], threading.Lock()
        chance = random.Random(first_new)
        pages = list(load.filters(rows))
        kinds = [kind for kind, share in MIX for _ in range(share)]
        self.due = queue.Queue()
        for number in range(int(rate * seconds)):
            kind = chance.choice(kinds)
            method, path, body = "GET", None, None
            if kind == "by id":
                path = f"/v1/recommendations/0answer{chance.randrange(rows):010}"
            elif kind == "page":
                path = chance.choice(pages)
            elif kind == "fit":
                path = f"/v1/fits/0fit{chance.randrange(rows) // 4:013}"
            elif kind == "fits":
                path = chance.choice(["/v1/fits", "/v1/fits?state=done", "/v1/fits?state=queued", "/v1/fits?state=failed"])
            else:
                method, path = "POST", "/v1/fits"
                body = dict(load.QUESTION)
                if kind == "new":
                    body["memory_limit"] = (4 << 30) + (first_new + number) * 4096
            self.due.put((number / rate, kind, chance.randrange(len(servers)), method, path, body and json.dumps(body)))

    def run(self):
        begun = time.monotonic() + 0.2
        threads = [threading.Thread(target=self.work, args=(begun,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def work(self, begun):
        connections = {}
        while True:
            try:
                due, kind, server, method, path, body = self.due.get_nowait()
            except queue.Empty:
                return
            time.sleep(max(0.0, begun + due - time.monotonic()))
            try:
                if server not in connections:
                    connections[server] = http.client.HTTPConnection("127.0.0.1", self.servers[server].port, timeout=60)
                connections[server].request(method, path, body)
                answer = connections[server].getresponse()
                answer.read()
                status = answer.status
            except OSError as error:
                connections.pop(server, None)
                status = repr(error)
            took = 1e3 * (time.monotonic() - begun - due)
            with self.lock:
                self.took.setdefault(kind, []).append(took)
                if status not in (200, 202):
                    self.bad.append((kind, path, status))


def at(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


class Processors:
    """What was taken of them, in seconds: by servers, by PostgreSQL, by this script, by others."""

    def __init__(self, servers):
        self.servers = {server.process.pid for server in servers}

    def now(self):
        fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        # Of idle time and of waiting for disks, nobody takes anything.
        taken = {"all": sum(fields[:8]) - fields[3] - fields[4], "servers": 0, "PostgreSQL": 0, "script": 0}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    name, _, rest = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")
                    fields = rest.split()
                    whose = "servers" if int(entry) in self.servers else "script" if int(entry) == os.getpid() else "PostgreSQL" if name.endswith("(postgres") else None
                    if whose:
                        taken[whose] += int(fields[11]) + int(fields[12])
        return {whose: ticks / TICK for whose, ticks in taken.items()}


def at(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def metrics_ms(servers):
    def once(server):
        begun = time.monotonic()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            connection.request("GET", "/metrics")
            served.check(connection.getresponse().status == 200, "/metrics is refused")
        return 1e3 * (time.monotonic() - begun)
    return sorted(once(server) for server in servers for _ in range(5))


def measure(given, postgres, servers, rows, first_new):
    """Prints the figures; those that are missed."""
    missed, runs, claims = [], [], []
    taken = dict.fromkeys(["servers", "PostgreSQL", "script", "all"], 0.0)
    processors = Processors(servers)
    for number in range(given.times):
        asked_at = int(1e3 * time.time())
        took, before = Load(servers, rows, given.rate, given.seconds, first_new + number * 1_000_000), processors.now()
        took.run()
        after = processors.now()
        for whose in taken:
            taken[whose] += after[whose] - before[whose]
        runs.append({kind: sorted(values) for kind, values in took.took.items()})
        of_new = postgres.run(f"SELECT started_at - created_at FROM fit WHERE started_at IS NOT NULL AND lane = 'simulated' AND created_at > {asked_at} ORDER BY 1")
        runs[-1]["claim"] = [float(line) for line in of_new.split()]
        for what, count in itertools.islice(((str(bad), took.bad.count(bad)) for bad in dict.fromkeys(took.bad)), 5):
            print(f"  refused: {what}, {count} times")
            missed.append("refused")
    for kind in [kind for kind, _ in MIX] + ["claim"]:
        of_all = [run[kind] for run in runs if run.get(kind)]
        if not of_all:
            continue
        median, p99, most = (statistics.median(at(values, share) for values in of_all) for share in (0.5, 0.99, 1))
        worst = max(at(values, 0.99) for values in of_all)
        is_missed = kind in [*READS, "claim"] and p99 >= WANTED_MS
        missed += [f"{kind} at {rows}"] if is_missed else []
        print(f"  {kind:8} {sum(map(len, of_all)):6}   median {median:7.2f} ms   p99 {p99:7.2f} ms ({worst:.1f} at worst)   most {most:7.1f} ms"
              f"{'   MISSED' if is_missed else ''}", flush=True)
    values = metrics_ms(servers)
    print(f"  metrics  {len(values):6}   median {at(values, 0.5):7.2f} ms   most {values[-1]:7.1f} ms")
    requests, wall = given.rate * given.seconds * given.times, given.seconds * given.times * os.cpu_count()
    others = taken["all"] - taken["servers"] - taken["PostgreSQL"] - taken["script"]
    print(f"  a request takes {1e6 * taken['servers'] / requests:.0f} us of the servers' processor time and {1e6 * taken['PostgreSQL'] / requests:.0f} us of PostgreSQL's; "
          f"of {os.cpu_count()} processors, this script took {taken['script'] / wall:.0%} and others {others / wall:.0%}", flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("--database")
    parser.add_argument("--rows", default="1000,10000,100000,1000000")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    missed, before = [], 0
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp())
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if not given.database:
            cluster = many_servers.Database(folder)
            stack.callback(cluster.kill)
            given.database = cluster.url
        postgres = Postgres(given.database)
        start = lambda name: served.Server(given.batchfit, folder / name, url=given.database, ready=False)
        with start("first") as server:
            served.until(server.is_well, "the first server answers")
            status, fit = server.call("/v1/fits", load.QUESTION, headers={"Prefer": "wait=60"})
            served.check((status, fit["state"]) == (200, "done"), fit)
        for rows in map(int, given.rows.split(",")):
            postgres.fill(rows - before, before)
            begun = time.monotonic()
            servers = [stack.enter_context(start(f"{rows}-{number}")) for number in range(given.servers)]
            served.until(lambda: all(server.is_well() for server in servers), "the servers answer", seconds=300)
            ready = time.monotonic() - begun
            missed += measure(given, postgres, servers, rows, before * 7)
            print(f"  {rows} rows: {given.servers} servers answer {ready:.1f} s after their start; {max(server.rss_mib('VmRSS') for server in servers)} MiB each, "
                  f"{max(server.rss_mib() for server in servers)} at most; database {postgres.run('SELECT pg_size_pretty(pg_database_size(current_database()))')}", flush=True)
            for server in servers:
                served.check(not server.panics(), server.panics())
                server.kill()
            before = rows
    print("all figures are met" if not missed else f"missed: {', '.join(missed)}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
