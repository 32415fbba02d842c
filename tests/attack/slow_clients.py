"""Two thousand slow clients against a server, and ordinary requests beside them.

    python3 tests/attack/slow_clients.py target/release/batchfit

Starts a server on a port and a database of its own, opens the slow connections (half a head, half a body, idle after an
answer, and answers that nobody reads, a quarter each), and from that moment asks for `/healthz` and a fit again and
again, while slow clients come back a second after they are closed. Prints what ordinary requests took, and fails when one of them is
not answered as usual, or when the 99th percentile of `/healthz` is above the limit. Needs Python 3.9 and nothing else.
"""

import argparse
import collections
import json
import multiprocessing
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

FIT = json.dumps({"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "12GiB"})
SLOW = [
    b"POST /v1/fits HTTP/1.1\r\nhost: loc",
    b"POST /v1/fits HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{",
    b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /openapi.yaml HTTP/1.1\r\nhost: localhost\r\n\r\n" * 8,
]


def start(binary, directory, files):
    """A server that may open so many files, and its address."""
    server = subprocess.Popen(
        [binary, "serve", "--listen", "127.0.0.1:0", "--database", os.path.join(directory, "batchfit.db")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
    )
    for line in server.stderr:
        if "listening on http://" in line:
            host, port = line.rsplit("http://", 1)[1].strip().rsplit(":", 1)
            # Read on, or the server waits when the pipe is full.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            return server, (host, int(port))
    sys.exit("the server did not start")


def ask(address, text):
    """Sends a request on a connection of its own; gives the status and the seconds it took."""
    began = time.monotonic()
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(text.encode())
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
    return int(answer.split(b" ", 2)[1]), time.monotonic() - began


def keep_open(address, count, return_after, opened, closed):
    """Keeps so many slow connections; for each that the server closes, another comes after some seconds. Runs in a
    process of its own, so that it does not hold up those who measure."""
    selector, returning = selectors.DefaultSelector(), collections.deque()

    def open_one():
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        connection.connect_ex(address)
        selector.register(connection, selectors.EVENT_WRITE, SLOW[opened.value % len(SLOW)])
        opened.value += 1

    for _ in range(count):
        open_one()
    while True:
        while returning and returning[0] <= time.monotonic():
            returning.popleft()
            open_one()
        for key, ready in selector.select(0.01):
            try:
                if ready & selectors.EVENT_WRITE:
                    key.fileobj.send(key.data)
                    selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
                # Answers are read a little at a time: enough to notice the end of the connection.
                elif not key.fileobj.recv(1):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                closed.value += 1
                selector.unregister(key.fileobj)
                key.fileobj.close()
                returning.append(time.monotonic() + return_after)
        # Slow clients are slow.
        time.sleep(0.01)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def peak_memory(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--return-after", type=float, default=1, help="seconds until a slow client that was closed comes back")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--files", type=int, default=1024, help="how many files the server may open")
    parser.add_argument("--limit-ms", type=float, default=50, help="for the 99th percentile of /healthz")
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, arguments.clients + 200)), hard))
    with tempfile.TemporaryDirectory() as directory:
        server, address = start(arguments.binary, directory, arguments.files)
        opened, closed = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
        slow = multiprocessing.Process(
            target=keep_open, args=(address, arguments.clients, arguments.return_after, opened, closed), daemon=True
        )
        slow.start()
        try:
            failures, health, fits = [], [], []
            # From the first moment on, while they all arrive at once.
            end = time.monotonic() + arguments.seconds
            arriving = []
            while time.monotonic() < end:
                arrived = opened.value >= arguments.clients and time.monotonic() > end - arguments.seconds + 3
                for name, took, request in [
                    ("healthz", health if arrived else arriving, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
                    ("fit", fits, "POST /v1/fits HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nprefer: wait=20\r\n"
                     f"content-length: {len(FIT)}\r\n\r\n{FIT}"),
                ]:
                    try:
                        status, seconds = ask(address, request)
                        took.append(seconds * 1e3)
                        if status != 200:
                            failures.append(f"{name}: {status}")
                    except (OSError, IndexError) as error:
                        failures.append(f"{name}: {error!r}")
                time.sleep(0.02)
            slow.terminate()
            if not (health and arriving and fits):
                sys.exit(
                    f"too few requests were answered: {arriving} {health} {fits} {failures}; "
                    f"{opened.value} slow connections opened, {closed.value} closed"
                )
            p99 = percentile(health, 0.99)
            print(f"slow connections     {opened.value} opened, {closed.value} closed by the server")
            print(f"/healthz             {len(health)} asked, median {statistics.median(health):.1f} ms, p99 {p99:.1f} ms, worst {max(health):.1f} ms")
            print(f"  while they arrive  {len(arriving)} asked, median {statistics.median(arriving):.1f} ms, worst {max(arriving):.1f} ms")
            print(f"fits                 {len(fits)} asked, median {statistics.median(fits):.1f} ms, worst {max(fits):.1f} ms")
            print(f"not as usual         {len(failures)} {sorted(set(failures))}")
            print(f"server               {peak_memory(server.pid)} MiB at most")
            began = time.monotonic()
            server.terminate()
            server.wait(30)
            ended = time.monotonic() - began
            print(f"SIGTERM              ended after {ended:.2f} s")
            if failures or p99 > arguments.limit_ms or ended > 1:
                sys.exit(1)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
