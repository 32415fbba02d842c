#!/usr/bin/env python3
"""How long work goes on that nobody waits for any more: a probe and a fit of the largest graph, given up at many moments.

    cargo build --release
    python3 tests/attack/cancel.py target/release/batchfit

Starts a batchfit of its own. Sends the graph, and after so many seconds goes away (a probe) or sends DELETE (a fit). Then
watches the server's threads until none is left that reads, checks or answers, and prints how long that took. Standard
library only, Linux only.
"""

import gzip
import http.client
import json
import os
import sys
import tempfile
import time

from bodies import Server, mlp, request

#: Threads that serve connections, or wait: everything else works on a request.
KEPT = ("batchfit", "tokio", "sqlx")


def working(server):
    """The names of the threads that work on a request."""
    folder = f"/proc/{server.process.pid}/task"
    names = []
    # The first thread only waits, and is called what the file is called.
    for task in set(os.listdir(folder)) - {str(server.process.pid)}:
        try:
            with open(f"{folder}/{task}/comm") as comm:
                names.append(comm.read().strip())
        except OSError:
            continue
    return [name for name in names if not name.startswith(KEPT)]


def until_idle(server):
    began = time.monotonic()
    at_first = sorted(set(working(server)))
    while working(server):
        time.sleep(0.002)
        if time.monotonic() - began > 30:
            raise SystemExit(f"still at work after 30 s: {working(server)}")
    return time.monotonic() - began, at_first


def main():
    graph = {"exported": mlp(100_000)}
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        server = Server(sys.argv[1], folder)
        try:
            for kind in ("probe", "fit"):
                for tenths in range(2, 34, 4):
                    more = {"batch": 4} if kind == "probe" else {}
                    limit = f"{9000 + tenths}MiB"
                    body = gzip.compress(request(graph, memory_limit=limit, **more), 1)
                    connection = http.client.HTTPConnection("127.0.0.1", 8971, timeout=120)
                    connection.request("POST", f"/v1/{kind}s", body, headers)
                    if kind == "fit":
                        fit = json.loads(connection.getresponse().read())["id"]
                    time.sleep(tenths / 10)
                    if kind == "fit":
                        server.ask("DELETE", f"/v1/fits/{fit}")
                    connection.close()
                    took, names = until_idle(server)
                    slowest = max(slowest, took)
                    print(f"a {kind} given up after {tenths / 10:.1f} s: {took * 1000:4.0f} ms {names}")
        finally:
            server.process.terminate()
            server.process.wait()
    print(f"slowest: {slowest * 1000:.0f} ms")


if __name__ == "__main__":
    main()
