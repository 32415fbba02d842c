#!/usr/bin/env python3
"""How several servers on one PostgreSQL do as answers pile up.

For each number of stored recommendations: starts the servers, sends them so many requests a second at moments fixed in advance (an answer that is late
makes the next ones late, and counts so), and prints percentiles of what they took:

  by id     GET /v1/recommendations/{id}, ids at random
  page      GET /v1/recommendations with filters, some after a cursor
  known     POST /v1/fits, answered before
  new       POST /v1/fits, never asked: a small model, simulated
  claim     of these, from the moment that a fit is in the queue to the one at which a server has claimed it

Figures wanted at 1,000,000: p99 of reads and of claims < 20 ms. Exits 1 where one is missed.

Usage: tests/service/size.py BATCHFIT postgres://... [--rows 1000,10000,100000,1000000] [--servers 3] [--rate 200] [--seconds 30]
The database must be empty. Linux, Python 3.9, psql.
"""
import argparse
import http.client
import itertools
import json
import pathlib
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time

import load
import served

# Of a hundred requests.
MIX = [("by id", 84), ("page", 8), ("known", 6), ("new", 2)]
READS = ["by id", "page", "known"]
WANTED_MS = 20
THREADS = 16


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
        chance = random.Random(rows)
        pages = list(load.filters(rows))
        kinds = [kind for kind, share in MIX for _ in range(share)]
        self.due = queue.Queue()
        for number in range(int(rate * seconds)):
            kind = chance.choice(kinds)
            method, path, body = "GET", None, None
            if kind == "by id":
                path = f"/v1/recommendations/answer{chance.randrange(rows):010}"
            elif kind == "page":
                path = chance.choice(pages)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("database")
    parser.add_argument("--rows", default="1000,10000,100000,1000000")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    postgres, missed, before = Postgres(given.database), [], 0
    with tempfile.TemporaryDirectory() as directory:
        start = lambda number: served.Server(given.batchfit, pathlib.Path(directory) / f"{number}", url=given.database)
        with start("first") as server:
            status, fit = server.call("/v1/fits", load.QUESTION, headers={"Prefer": "wait=60"})
            served.check((status, fit["state"]) == (200, "done"), fit)
        for rows in map(int, given.rows.split(",")):
            postgres.fill(rows - before, before)
            begun, begun_at = time.monotonic(), int(1e3 * time.time())
            servers = [start(number) for number in range(given.servers)]
            ready = time.monotonic() - begun
            for server in servers:
                server.call("/v1/recommendations?limit=1")
            first = time.monotonic() - begun
            took = Load(servers, rows, given.rate, given.seconds, before * 7)
            took.run()
            print(f"{rows} rows: {given.servers} servers ready after {ready:.1f} s, first page after {first:.1f} s, "
                  f"{max(server.rss_mib() for server in servers)} MiB each at most, database {postgres.run('SELECT pg_size_pretty(pg_database_size(current_database()))')}")
            for kind, values in took.took.items():
                values.sort()
                is_missed = kind in READS and at(values, 0.99) >= WANTED_MS
                missed += [f"{kind} at {rows}"] if is_missed else []
                print(f"  {kind:8} {len(values):6}   median {at(values, 0.5):7.2f} ms   p99 {at(values, 0.99):7.2f} ms   most {values[-1]:7.1f} ms{'   MISSED' if is_missed else ''}", flush=True)
            for what, number in itertools.islice(((str(bad), sum(1 for one in took.bad if one == bad)) for bad in dict.fromkeys(took.bad)), 5):
                print(f"  refused: {what}, {number} times")
                missed.append("refused")
            claims = postgres.run(f"SELECT started_at - created_at FROM fit WHERE started_at IS NOT NULL AND lane = 'simulated' AND created_at > {begun_at} ORDER BY 1")
            claims = [float(line) for line in claims.split()]
            if claims:
                is_missed = at(claims, 0.99) >= WANTED_MS
                missed += [f"claim at {rows}"] if is_missed else []
                print(f"  claim    {len(claims):6}   median {at(claims, 0.5):7.0f} ms   p99 {at(claims, 0.99):7.0f} ms   most {claims[-1]:7.0f} ms{'   MISSED' if is_missed else ''}", flush=True)
            for server in servers:
                served.check(not server.panics(), server.panics())
                server.kill()
            before = rows
    print("all figures are met" if not missed else f"missed: {', '.join(missed)}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
