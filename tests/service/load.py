#!/usr/bin/env python3
"""How fast a service answers, and what it takes, under load.

Starts `batchfit serve` on a database of its own with so many stored recommendations, and has wrk ask it, both on the same
processors (two of them, unless --cpus says otherwise):

  by id        GET /v1/recommendations/{id}, ids at random              >= 15,000 /s, p99 < 10 ms
  pages        every filter, pairs of filters that never meet, pages    p99 < 5 ms
  known        POST /v1/fits, answered before                           >= 4,000 /s
  beside fits  GET by id while 100 simulated fits are worked on         p99 <= 20 ms
  memory       all of it again, for --minutes                           < 100 MiB, flat

Prints a line for each, with the processor time that the service took for a request: that does not depend on who else uses the
machine. Exits 1 where a figure is missed.

Usage: tests/service/load.py BATCHFIT [--rows 100000] [--seconds 10] [--minutes 3] [--cpus 0,1]    (Linux, Python 3.9, wrk)
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

QUESTION = {"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "12GiB"}
MODELS = [f"model{number}" for number in range(40)]
CARDS = [("sim:h200", "NVIDIA H200"), ("sim:a100-80g", "NVIDIA A100"), ("sim:rtx4090", "NVIDIA GeForce RTX 4090"), ("cuda:0", "NVIDIA H200")]
PRECISIONS = ["fp32", "amp_fp16", "amp_bf16", "bf16", "fp16"]
OPTIMIZERS = ["sgd", "sgd_momentum", "adam", "adamw"]
COLUMNS = """id, fit_id, rank, model, model_kind, device, gpu, precision, optimizer, optimizer_impl, checkpointing, mode, limit_bytes,
    micro_batch, accumulation_steps, global_batch, max_batch, max_batch_without_retries, peak_allocated_bytes, peak_reserved_bytes,
    headroom_bytes, limited_by, evidence, batchfit_version, created_at, world_size"""
# What all answers of one version have alike.
ALIKE = """samples_per_second, step_ms, optimizer_step_ms, speed_from, pareto, strategy, pytorch, rules, headroom_millionths, headroom_from,
    headroom_outcomes"""

TICK = os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, batchfit, database, cpus):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [batchfit, "serve", "--listen", f"127.0.0.1:{self.port}", "--database", str(database)],
            stderr=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                assert self.call("/readyz")[0] == 200
                return
            except (OSError, AssertionError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    sys.exit("FAILED: the server does not answer")
                time.sleep(0.05)

    def call(self, path, body=None, headers=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body and json.dumps(body).encode(), headers or {})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def stored(rows, begin=0):
    """So many recommendations from number `begin` on, four of each fit, whose values are as mixed as those of many users: their fits (id, model,
    device, time) and they themselves (COLUMNS), one after the other. Their ids are in the order of time, as real ones are, and before those."""
    chance = random.Random(begin + 1)
    begun = 1_790_000_000_000
    for number in range(begin, begin + rows):
        model, (device, gpu) = chance.choice(MODELS), chance.choice(CARDS)
        # Two values that are frequent and never meet.
        precision = chance.choice([p for p in PRECISIONS if (p, device) != ("fp16", "cuda:0")])
        fit, limit = f"0fit{number // 4:013}", chance.choice([8, 12, 16, 24, 40, 80]) << 30
        new = (fit, model, device, begun + number) if number % 4 == 0 else None
        yield new, (
            f"0answer{number:010}", fit, number % 4 + 1, model, "preset", device, gpu, precision, chance.choice(OPTIMIZERS), "foreach",
            chance.choice(["none", "per_block"]), "train", limit, 296, 4, 1184, 300, 297, limit - 10**9, limit - 10**8, 10**8,
            "activations (96% of the peak)", chance.choice(["simulated", "probed"]), "0.1.0", begun + number,
            chance.choice([1, 1, 1, 2, 4, 8]),
        )


def fill(database, rows):
    """So many recommendations; what they do not say is that of the one there."""
    fits, recommendations = [], []
    for fit, recommendation in stored(rows):
        fits.extend([fit] if fit else [])
        recommendations.append(recommendation)
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO request (digest, text) VALUES ('asked', '{}')")
        connection.executemany(
            """INSERT INTO fit (id, fingerprint, batchfit_version, state, model, device, lane, request_digest, result, created_at, finished_at)
               VALUES (?1, ?1, '0.0.0', 'done', ?2, ?3, 'simulated', 'asked', '{}', ?4, ?4)""", fits)
        marks = ",".join("?" * len(recommendations[0]))
        connection.executemany(
            f"INSERT INTO recommendation ({COLUMNS}, {ALIKE}) SELECT {marks}, {ALIKE} FROM recommendation WHERE rank = 1 LIMIT 1",
            recommendations)


def wrk(server, cpus, seconds, connections, script):
    """Requests a second, the 99th percentile in milliseconds, and microseconds of the server's processor time for each."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        before = server.cpu()
        run = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--latency", "-s", file.name, f"http://127.0.0.1:{server.port}"],
            capture_output=True, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
        spent = server.cpu() - before
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", run.stdout)[1])
    number, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", run.stdout).groups()
    p99 = float(number) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]
    count = int(re.search(r"(\d+) requests in", run.stdout)[1])
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", run.stdout)
    if bad and int(bad[1]) > count // 1000:
        sys.exit(f"FAILED: {bad[1]} of {count} requests were refused\n{run.stdout}")
    return rate, p99, spent / count * 1e6


def gets(paths):
    listed = ",".join(json.dumps(path) for path in paths)
    return f'local paths = {{{listed}}}\nlocal n = 0\nrequest = function()\n n = n % #paths + 1\n return wrk.format("GET", paths[n])\nend\n'


def posts(question):
    return f'wrk.method = "POST"\nwrk.path = "/v1/fits"\nwrk.body = [[{json.dumps(question)}]]\nwrk.headers["Prefer"] = "wait=10"\n'


def filters(rows):
    """Each filter alone and each two of them, at the start and in the middle, in pages of every size."""
    single = [
        {"model": "model7"}, {"device": "cuda:0"}, {"gpu": "NVIDIA A100"}, {"precision": "fp16"}, {"optimizer": "sgd"},
        {"checkpointing": "per_block"}, {"evidence": "probed"}, {"limit_bytes": "12GiB"}, {"world_size": "8"}, {"model": "none such"},
    ]
    both = [{**a, **b} for a, b in itertools.combinations(single[:9], 2)]
    all_of = [{key: value for one in single[:9] for key, value in one.items()}]
    for query in [{}] + single + both + all_of:
        for cursor in [None, f"0answer{rows // 2:010}"]:
            for limit in [None, "500"]:
                full = {**query, **({"cursor": cursor} if cursor else {}), **({"limit": limit} if limit else {})}
                yield "/v1/recommendations?" + urllib.parse.urlencode(full)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("batchfit")
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--seconds", type=int, default=10)
    arguments.add_argument("--minutes", type=float, default=3)
    arguments.add_argument("--cpus", default="0,1")
    given = arguments.parse_args()
    cpus = {int(cpu) for cpu in given.cpus.split(",")}
    missed = []

    def line(name, rate, p99, spent, least=None, most=None, note=""):
        is_missed = (least and rate < least) or (most and p99 > most)
        missed.extend([name] if is_missed else [])
        each = f"{spent:6.0f} us of processor each" if spent else " " * 28
        print(f"{name:14} {rate:8.0f} /s   p99 {p99:8.2f} ms   {each}   {'MISSED' if is_missed else 'ok'} {note}",
              flush=True)

    with tempfile.TemporaryDirectory() as directory:
        database = pathlib.Path(directory) / "batchfit.db"
        server = Server(given.batchfit, database, cpus)
        status, fit = server.call("/v1/fits", QUESTION, {"Prefer": "wait=60"})
        assert (status, fit["state"]) == (200, "done"), fit
        server.process.terminate()
        server.process.wait()
        fill(database, given.rows)
        begun = time.monotonic()
        server = Server(given.batchfit, database, cpus)
        print(f"{given.rows} rows: ready after {time.monotonic() - begun:.1f} s, {server.resident_mib():.0f} MiB", flush=True)
        try:
            run(server, given, cpus, line)
        finally:
            server.process.terminate()
            server.process.wait()
    print("all figures are met" if not missed else f"missed: {', '.join(missed)}")
    sys.exit(1 if missed else 0)


def run(server, given, cpus, line):
    chance = random.Random(2)
    by_id = gets([f"/v1/recommendations/0answer{chance.randrange(given.rows):010}" for _ in range(20_000)])
    known = posts(QUESTION)
    pages = list(filters(given.rows))
    for path in pages:
        status, page = server.call(path)
        assert status == 200, (path, page)

    line("by id", *wrk(server, cpus, given.seconds, 32, by_id), least=15_000, most=10)
    line("pages", *wrk(server, cpus, given.seconds, 1, gets(pages)), most=5, note=f"{len(pages)} queries, one after the other")
    line("known", *wrk(server, cpus, given.seconds, 32, known), least=4_000)

    questions = [{**QUESTION, "model": {"preset": "resnet152"}, "memory_limit": (8 << 30) + number * (2 << 20),
                  "training": {"precision": ["fp32", "amp_bf16"]}} for number in range(100)]

    def fits():
        for question in questions:
            while server.call("/v1/fits", question)[0] == 503:
                time.sleep(0.05)

    asking = threading.Thread(target=fits)
    asking.start()
    time.sleep(0.3)
    rate, p99, _of_fits_too = wrk(server, cpus, min(given.seconds, 5), 4, by_id)
    status, waiting = server.call("/v1/fits?state=queued&limit=500")
    line("beside fits", rate, p99, None, most=20, note=f"{len(waiting['items'])} fits still waited at the end")
    asking.join()

    seen, end = [], time.monotonic() + 60 * given.minutes
    while time.monotonic() < end:
        for script in [by_id, gets(pages), known]:
            wrk(server, cpus, 3, 16, script)
            seen.append(server.resident_mib())
    # The first fifth is when caches fill.
    settled = seen[len(seen) // 5:]
    half = len(settled) // 2
    early, late = sum(settled[:half]) / half, sum(settled[half:]) / (len(settled) - half)
    is_well = max(seen) < 100 and late - early < 5
    print(f"memory         {given.minutes:g} min of load: {seen[0]:.0f} MiB at first, {early:.0f} and {late:.0f} MiB on average of the halves, "
          f"{max(seen):.0f} MiB at most   {'ok' if is_well else 'MISSED'}", flush=True)
    if not is_well:
        sys.exit("missed: memory")


if __name__ == "__main__":
    main()
