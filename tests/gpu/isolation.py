#!/usr/bin/env python3
"""What a service survives on a real GPU.

Starts `batchfit serve` on a database of its own and disturbs its fits: kills and stops workers in mid-probe, makes
kernels fault, fills the card from another process, kills the server, lets two servers ask for one GPU. After each case: was
the answer right or its cause named, did /healthz answer all the time, is the GPU's memory back to what it was, does the
next fit work. Prints a table; exits 1 when a check fails.

Usage: tests/gpu/isolation.py BATCHFIT [--only NAME]    (on a machine with an idle NVIDIA GPU; takes a minute or two)
"""
import argparse
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

REQUEST = pathlib.Path(__file__).resolve().parent.parent / "golden" / "truth" / "requests" / "cifarnet-fp32-sgd.json"
DEVICE = "cuda:0"
MIB, GIB = 1 << 20, 1 << 30
# How long the driver may take to give memory back, and how much of it may stay in use by who knows whom.
RETURN_SECONDS, RETURN_SLACK = 5, 32 * MIB
FIT_SECONDS = 60


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Card:
    """The first GPU, as the management library sees it."""

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        assert self.nvml.nvmlInit_v2() == 0, "NVML does not start"
        assert self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)) == 0, "there is no GPU"

    def memory(self):
        memory = Memory()
        assert self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)) == 0
        return memory

    def used(self):
        return self.memory().used


def hold(leave):
    """In a process of its own: once told to, takes what is free but for `leave` bytes, and whatever comes free later."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_ulonglong()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    print("ready", flush=True)
    sys.stdin.readline()
    told = False
    while True:
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        spare = (free.value - leave) // (2 * MIB) * (2 * MIB)
        while spare >= 2 * MIB and cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(min(spare, GIB))) == 0:
            spare -= min(spare, GIB)
        if not told:
            told = True
            print("full", flush=True)
        time.sleep(0.005)


class Holder:
    """Another process on the card."""

    def __init__(self, leave):
        self.process = subprocess.Popen([sys.executable, __file__, "--hold", str(leave)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def fill(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "full\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Server:
    """A running `batchfit serve`, with somebody who keeps asking whether it is well."""

    def __init__(self, batchfit, home, fault=None, once=True, deadline=None):
        self.home = pathlib.Path(home)
        self.marker = self.home / f"struck-{time.monotonic_ns()}"
        environment = dict(os.environ)
        if fault:
            environment["BATCHFIT_FAULT"] = fault
            if once:
                environment["BATCHFIT_FAULT_ONCE"] = str(self.marker)
        if deadline:
            environment["BATCHFIT_PROBE_DEADLINE"] = str(deadline)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(self.home / "log", "a")
        self.process = subprocess.Popen(
            [batchfit, "serve", "--listen", f"127.0.0.1:{self.port}", "--database", f"sqlite:{self.home}/fits.db"],
            env=environment, stderr=self.log)
        deadline = time.monotonic() + 20
        while True:
            try:
                if self.ask("GET", "/healthz")[0] == 200:
                    break
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, "the server does not start"
                time.sleep(0.02)
        self.unwell, self.slowest, self.watching = [], 0.0, True
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, body and json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def watch(self):
        while self.watching:
            began = time.monotonic()
            try:
                status, _ = self.ask("GET", "/healthz")
                if status != 200:
                    self.unwell.append(str(status))
            except OSError as error:
                if self.watching:
                    self.unwell.append(str(error))
            self.slowest = max(self.slowest, time.monotonic() - began)
            time.sleep(0.05)

    def begin(self, limit):
        """Asks for a fit within `limit` (None: all that is free) and gives its path."""
        request = json.loads(REQUEST.read_text())
        request["device"] = DEVICE
        if limit is None:
            request.pop("memory_limit", None)
        else:
            request["memory_limit"] = limit
        status, fit = self.ask("POST", "/v1/fits", request)
        assert status in (200, 202), f"{status}: {fit}"
        return f"/v1/fits/{fit['id']}"

    def end(self, path):
        """The finished fit, and what its progress said on the way."""
        notes, deadline = set(), time.monotonic() + FIT_SECONDS
        while True:
            _, fit = self.ask("GET", path)
            if fit["state"] in ("done", "failed", "cancelled"):
                return fit, notes
            if fit["progress"]:
                notes.add(fit["progress"]["note"])
            assert time.monotonic() < deadline, f"no answer within {FIT_SECONDS} s; last: {fit['progress']}"
            time.sleep(0.03)

    def fit(self, limit):
        return self.end(self.begin(limit))[0]

    def struck(self):
        """Waits until the planned fault has come."""
        deadline = time.monotonic() + FIT_SECONDS
        while not self.marker.exists():
            assert time.monotonic() < deadline, "the probe never got as far as the planned fault"
            time.sleep(0.005)

    def worker(self):
        """The process that probes."""
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and b"worker" in (entry / "cmdline").read_bytes():
                    return int(entry.name)
        raise AssertionError("the server has no worker")

    def kill(self):
        self.watching = False
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watching = False
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Case:
    """What one disturbance came to."""

    def __init__(self, name):
        self.name, self.wrong, self.said = name, [], ""

    def check(self, holds, complaint):
        if not holds:
            self.wrong.append(complaint)

    def well(self, server):
        self.check(not server.unwell, f"/healthz: {server.unwell[:2]}")
        self.check(server.slowest < 1, f"/healthz took {server.slowest:.1f} s")

    def answered(self, fit, workers=1):
        """A fit that recovered: probed, by so many workers in turn."""
        if fit["state"] != "done":
            return self.check(False, f"{fit['state']}: {fit['error']}")
        result = fit["result"]
        best, work = result["recommendation"], result["gpu_work"]
        self.check(best["micro_batch"] > 0 and best["evidence"] == "probed", f"{best['evidence']}: {best['notes']}")
        self.check(work["workers"] == workers, f"{work['workers']} workers instead of {workers}")
        self.check(work["probes"] >= 2, f"{work['probes']} probes")
        for probe in result["probes"]:
            steps = probe["steps"]
            losses = [loss for step in steps for loss in step["losses"]]
            if probe["verdict"] in ("fits", "fits_with_retries"):
                self.check(all(step["launches"] > 0 for step in steps) and len(steps) == 3, "steps without kernels")
                self.check(None not in losses and len(set(losses)) > 1, f"losses {losses}")
        self.said = (f"{best['micro_batch']} of {best['limit_bytes'] / GIB:.2f} GiB; {work['probes']} probes, "
                     f"{work['out_of_memory']} out of memory; {work['workers']} workers, "
                     f"start {work['worker_start_ms'] / 1000:.1f} s, waited {work['waited_ms'] / 1000:.1f} s")
        return None

    def failed(self, fit, cause):
        """A fit that failed by name."""
        if fit["state"] != "failed":
            return self.check(False, f"{fit['state']} instead of failed")
        self.check(cause in fit["error"]["detail"], f"`{cause}` is not in: {fit['error']['detail']}")
        self.said = f"{fit['error']['code']}: {fit['error']['detail']}"
        return None

    def noted(self, fit, word):
        notes = fit["result"]["recommendation"]["notes"] if fit["result"] else []
        self.check(any(word in note for note in notes), f"no note says `{word}`: {notes}")


def undisturbed(case, start, _):
    with start() as server:
        fit = server.fit("4GiB")
        case.answered(fit)
        others = [probe["used_by_others_bytes"] for probe in fit["result"]["probes"]]
        case.check(max(others) < 256 * MIB, f"others are said to use {others} bytes of an idle GPU")
        case.well(server)


def next_fit(case, server, limit="3GiB"):
    fit = server.fit(limit)
    case.check(fit["state"] == "done" and fit["result"]["recommendation"]["evidence"] == "probed",
               f"the next fit: {fit['state']} {fit['error']}")
    case.well(server)


def killed(case, start, _):
    with start(fault="pause=20") as server:
        path = server.begin("4GiB")
        server.struck()
        os.kill(server.worker(), signal.SIGKILL)
        case.answered(server.end(path)[0], workers=2)
        next_fit(case, server)


def stopped(case, start, _):
    with start(fault="pause=2", deadline=6) as server:
        path = server.begin("4GiB")
        server.struck()
        os.kill(server.worker(), signal.SIGSTOP)
        case.answered(server.end(path)[0], workers=2)
        next_fit(case, server)


def hung_again(case, start, _):
    with start(fault="hang", once=False, deadline=3) as server:
        case.failed(server.fit("4GiB"), "did not answer within 3.0 s while probing batch")
        case.well(server)
    with start() as server:
        next_fit(case, server)


def fault_once(case, start, _):
    with start(fault="illegal-access") as server:
        case.answered(server.fit("4GiB"), workers=2)
        next_fit(case, server)


def fault_again(case, start, _):
    with start(fault="illegal-access", once=False) as server:
        case.failed(server.fit("4GiB"), "ILLEGAL_ADDRESS")
        case.well(server)
    with start() as server:
        next_fit(case, server)


def filled_in_mid_probe(case, start, _):
    leave = 2 * GIB
    with start(fault="pause=3") as server, Holder(leave) as holder:
        path = server.begin("8GiB")
        server.struck()
        holder.fill()
        fit, _ = server.end(path)
        case.answered(fit)
        case.noted(fit, "other processes")
        if fit["result"]:
            limit = fit["result"]["recommendation"]["limit_bytes"]
            case.check(limit <= leave + 4 * MIB, f"the limit is {limit / GIB:.2f} GiB, but {leave / GIB:.2f} GiB were left")
        holder.__exit__()
        fit = server.fit("8GiB")
        limit = fit["result"]["recommendation"]["limit_bytes"] if fit["result"] else 0
        case.check(limit == 8 * GIB, f"afterwards the limit is {limit / GIB:.2f} GiB instead of 8")
        case.well(server)


def little_room(case, start, _):
    with start() as server, Holder(2 * GIB) as holder:
        holder.fill()
        fit = server.fit(None)
        case.answered(fit)
        case.noted(fit, "other processes use")
        holder.__exit__()
        next_fit(case, server)


def no_room(case, start, card):
    with start() as server, Holder(200 * MIB) as holder:
        holder.fill()
        fit = server.fit(None)
        if fit["state"] == "done":
            best = fit["result"]["recommendation"]
            case.check(best["micro_batch"] == 0 and (best["missing_bytes"] or 0) > 0, f"answered {best}")
            case.noted(fit, "the GPU has no room")
            case.said = "; ".join(note for note in best["notes"] if "no room" in note)
        else:
            case.check(False, f"{fit['state']}: {fit['error']}")
        holder.__exit__()
        next_fit(case, server)


def two_servers(case, start, _):
    with start(fault="pause=2") as first, start() as second:
        path = first.begin("4GiB")
        first.struck()
        other, notes = second.end(second.begin("3GiB"))
        case.answered(first.end(path)[0])
        case.answered(other)
        if other["result"]:
            waited = other["result"]["gpu_work"]["waited_ms"]
            case.check(waited > 500, f"the second server waited only {waited} ms")
        case.check(any("another batchfit process" in note for note in notes), f"nobody said why it waits: {notes}")
        case.well(first)
        next_fit(case, second, "2GiB")


def server_killed(case, start, card):
    idle = card.used()
    server = start(fault="pause=30")
    path = server.begin("4GiB")
    server.struck()
    server.kill()
    case.check(settled(card, idle), "the worker of a dead server keeps the GPU")
    with start(home=server.home) as server:
        case.answered(server.end(path)[0])
        next_fit(case, server)


CASES = {
    "undisturbed": undisturbed,
    "worker killed": killed,
    "worker stopped": stopped,
    "worker hangs again": hung_again,
    "kernel faults once": fault_once,
    "kernel faults again": fault_again,
    "card filled in mid-probe": filled_in_mid_probe,
    "little room": little_room,
    "no room": no_room,
    "two servers": two_servers,
    "server killed": server_killed,
}


def settled(card, idle):
    deadline = time.monotonic() + RETURN_SECONDS
    while card.used() > idle + RETURN_SLACK:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("batchfit", nargs="?")
    arguments.add_argument("--only", choices=CASES, action="append")
    arguments.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    arguments = arguments.parse_args()
    if arguments.hold is not None:
        return hold(arguments.hold)
    batchfit, card, failures = os.path.abspath(arguments.batchfit), Card(), 0
    for name in arguments.only or CASES:
        case, idle, began = Case(name), card.used(), time.monotonic()
        with tempfile.TemporaryDirectory() as homes:
            def start(home=None, **settings):
                home = home or tempfile.mkdtemp(dir=homes)
                return Server(batchfit, home, **settings)

            try:
                CASES[name](case, start, card)
            except (AssertionError, OSError, KeyError, TypeError) as error:
                case.check(False, f"{type(error).__name__}: {error}")
            seconds = time.monotonic() - began
            case.check(settled(card, idle), f"{(card.used() - idle) / MIB:.0f} MiB are still in use")
            failures += bool(case.wrong)
            print(f"{'WRONG' if case.wrong else 'ok':6} {name:26} {seconds:5.1f} s  memory {idle / MIB:.0f} -> "
                  f"{card.used() / MIB:.0f} MiB  {case.said}", flush=True)
            for complaint in case.wrong:
                print(f"       - {complaint}", flush=True)
            if case.wrong:
                for log in sorted(pathlib.Path(homes).glob("*/log")):
                    print("       | " + "\n       | ".join(log.read_text().splitlines()[-12:]), flush=True)
    print(f"{failures} failed" if failures else "all is well")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
