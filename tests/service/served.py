"""A `batchfit serve` of one's own, for scripts that hurt it. Standard library only, Linux."""
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request

# No wait for anything takes longer.
SECONDS = 60


class Failed(Exception):
    """A check that does not hold."""


def check(holds, what):
    if not holds:
        raise Failed(what)


def until(condition, what, seconds=SECONDS):
    """How long it took."""
    begun = time.monotonic()
    while not condition():
        check(time.monotonic() < begun + seconds, f"waited {seconds} s in vain until {what}")
        time.sleep(0.02)
    return time.monotonic() - begun


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# What the C library says of the time of day, so many seconds off as the first eight bytes of a file say. Time that only counts up is left alone.
SHIM = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long none, *off = &none;
__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("CLOCK_OFF"), O_RDONLY);
  void *page = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) off = page;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  int status = syscall(SYS_clock_gettime, clock, now);
  if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *off;
  return status;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
"""


class Clock:
    """A clock for the processes that have its environment."""

    def __init__(self, folder):
        shim, source, self.off = folder / "clock.so", folder / "clock.c", folder / "off"
        source.write_text(SHIM)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source], check=True)
        self.off.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(shim), "CLOCK_OFF": str(self.off)}

    def set_off(self, seconds):
        with open(self.off, "r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))


class Server:
    """A running server. `kill` ends it as `kill -9` does; its log is in `log`, beside the database or where one of that name would be, of which a
    panic fails every check."""

    def __init__(self, batchfit, database, *arguments, url=None, environment=None, ready=True, before=None, port=None):
        self.database, self.port = pathlib.Path(database), port or free_port()
        self.log = self.database.with_suffix(".log")
        with open(self.log, "ab") as log:
            # A write past the limit on file sizes is an error of the disk, not a signal.
            self.process = subprocess.Popen(
                [str(batchfit), "serve", "--listen", f"127.0.0.1:{self.port}", "--database", str(url or database), *map(str, arguments)],
                stderr=log, stdout=subprocess.DEVNULL, restore_signals=False, env={**os.environ, **(environment or {})},
                preexec_fn=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), before and before()),
            )
        if ready:
            until(lambda: self.is_well() or self.process.poll() is not None, "the server answers")
            check(self.process.poll() is None, f"the server does not start: {self.log.read_text()[-500:]}")

    def call(self, path, body=None, method=None, headers={}, timeout=SECONDS):
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            with contextlib.suppress(ValueError):
                return error.code, json.loads(text or b"null")
            return error.code, text

    def status(self, path, timeout=SECONDS):
        """None where nobody answers."""
        try:
            return self.call(path, timeout=timeout)[0]
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def is_well(self):
        return self.status("/healthz", timeout=5) == 200

    def signal(self, which):
        self.process.send_signal(which)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def rss_mib(self, what="VmHWM"):
        return rss_mib(self.process.pid, what)

    def descendants(self):
        return descendants(self.process.pid)

    def panics(self):
        text = self.log.read_text(errors="replace")
        return [line for line in text.splitlines() if "panicked" in line]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


def key_of(server, batchfit, name):
    """The headers of a new key."""
    command = [batchfit, "keys", "create", "--name", name, "--scope", "fit", "--database", str(server.database)]
    return {"Authorization": f"Bearer {subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]}"}


def rss_mib(pid, what="VmHWM"):
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(what):
                return int(line.split()[1]) // 1024
    return 0


def descendants(pid):
    """The processes that a process started, and those that they did: each with the moment it began, so that none is taken for another."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents[int(entry)] = (int(fields[1]), fields[19], fields[0])
    found, more = set(), {pid}
    while more:
        more = {child for child, (parent, _, state) in parents.items() if parent in more and state != "Z"}
        found |= more
    return {(child, parents[child][1]) for child in found}


def alive(processes):
    """Those of them that have not ended."""
    left = set()
    for pid, begun in processes:
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[19] == begun and fields[0] != "Z":
                left.add((pid, begun))
    return left


def asked(database, question, timeout=SECONDS):
    with contextlib.closing(sqlite3.connect(database, timeout=timeout)) as connection:
        return connection.execute(question).fetchall()


def states(database):
    return dict(asked(database, "SELECT state, count(*) FROM fit GROUP BY state"))


def quick_check(database):
    found = [row[0] for row in asked(database, "PRAGMA quick_check")]
    check(found == ["ok"], f"the database is damaged: {found[:3]}")
    dangling = asked(database, "PRAGMA foreign_key_check")
    check(not dangling, f"rows refer to rows that are not there: {dangling[:3]}")


def run(checks):
    """Runs each check, prints its line, and says whether one failed. A check gives its figures."""
    failed = False
    for name, trial in checks:
        begun = time.monotonic()
        try:
            passed, figures = True, trial()
        except (Failed, OSError, ValueError) as why:
            passed, figures = False, str(why) or repr(why)
        failed |= not passed
        print(f"{name:22} {'ok    ' if passed else 'FAILED'} {figures} ({time.monotonic() - begun:.0f} s)", flush=True)
    return sys.exit(failed)
