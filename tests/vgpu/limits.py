#!/usr/bin/env python3
"""What happens to programs that the virtual GPU is preloaded into, where a limit or a file of the process is not as it should be.

    tests/vgpu/limits.py LIBRARY      # libcuda.so.1 as crates/vgpu/build.sh makes it
"""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SESSION = (Path(__file__).resolve().parents[2] / "crates/vgpu/session-example.txt").read_text()
LIBRARY = os.path.abspath(sys.argv[1])
FOLDER = Path(tempfile.mkdtemp())
NO_DEVICE, OUT_OF_MEMORY, NOT_INITIALIZED = 100, 2, 3

# What a program begins with, and a way to call a function with numbers.
BEGIN = """
import ctypes, os, resource, signal, sys, threading
cuda = ctypes.CDLL(None)
def call(name, *values):
    return getattr(cuda, name)(*[value if hasattr(value, "_type_") or not isinstance(value, int) else ctypes.c_uint64(value) for value in values])
def malloc(bytes=1):
    address = ctypes.c_uint64()
    return call("cudaMalloc", ctypes.byref(address), bytes), address.value
"""


def run(command, session=SESSION, listener=None, limits=(), **options):
    """Runs a program, which is Python's where it is text, with the library preloaded."""
    path = FOLDER / "session.txt"
    if isinstance(session, str):
        path.write_text(session + (f"socket {listener}\n" if listener else ""))
    elif session is not None:
        path.write_bytes(session)
    environment = {"LD_PRELOAD": LIBRARY, "PATH": os.environ["PATH"], "BATCHFIT_VGPU": str(options.pop("path", path))}
    command = [sys.executable, "-c", BEGIN + command] if isinstance(command, str) else command
    limit = lambda: [resource.setrlimit(which, (most, most)) for which, most in limits]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, env=environment, text=True, timeout=120, preexec_fn=limit, **streams)


def said(done):
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout.strip()


class Listener:
    """`batchfit run`, which reads what is said, or closes at once."""

    def __init__(self, closes=False):
        self.path, self.closes, self.heard = FOLDER / "socket", closes, []
        self.path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(self.path))
        self.socket.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            other, _ = self.socket.accept()
            other.close() if self.closes else threading.Thread(target=self.read, args=(other,), daemon=True).start()

    def read(self, other):
        for line in other.makefile(errors="replace"):
            self.heard.append(line)

    def count(self, word, most):
        """How often a line begins so, waiting for what is on its way."""
        until = time.monotonic() + 5
        while (count := sum(line.startswith(word) for line in self.heard)) < most and time.monotonic() < until:
            time.sleep(0.01)
        return count


def other_programs_are_left_alone():
    for session in (SESSION, None):
        done = run(["sh", "-c", "ls / | wc -l; echo $((1 + 1))"], session, path=FOLDER / "session.txt")
        assert said(done).split() == [str(len([one for one in os.listdir("/") if not one.startswith(".")])), "2"] and not done.stderr
    assert said(subprocess.run(["env", "-i", f"LD_PRELOAD={LIBRARY}", "/bin/ls", "-d", "/"], stdout=subprocess.PIPE, text=True)) == "/"
    if gcc := shutil.which("gcc"):
        source, program = FOLDER / "static.c", FOLDER / "static"
        source.write_text("#include <stdio.h>\nint main(void) { puts(\"static\"); return 0; }\n")
        subprocess.run([gcc, "-static", source, "-o", program], check=True)
        assert said(run([program])) == "static"


def without_a_session_there_is_no_device():
    wrong = [b"", b"\xff\xfe\0", os.urandom(4096), b"batchfit-vgpu 1\n", SESSION.replace("devices 1", "devices 99").encode(),
             SESSION.replace("memory 85", "memory 99999985").encode(), SESSION.replace("context 5", "context 99999999995").encode()]
    ask = "print(call('cuInit', 0), malloc()[0])"
    for session in wrong:
        done = run(ask, session)
        assert said(done) == f"{NO_DEVICE} 101" and done.stderr.count("no virtual GPU") == 1, (session[:40], done)
        with open("/dev/full", "w") as full:
            assert said(run(ask, session, stderr=full)) == f"{NO_DEVICE} 101"
    for path in ("/nowhere", "/", ""):
        assert said(run(ask, None, path=path)) == f"{NO_DEVICE} 101"


def addresses_may_be_forbidden():
    listener = Listener()
    done = run("print(malloc()[0])", listener=listener.path, limits=[(resource.RLIMIT_AS, 4 << 30)])
    assert said(done) == str(OUT_OF_MEMORY)
    assert listener.count("problem\t", 1) == 1


def a_peer_may_be_gone():
    # Python ignores SIGPIPE; other programs end by it.
    many = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nprint(sum(malloc()[0] for _ in range(1000)))"
    assert said(run(many, listener="/nowhere")) == "0"
    assert said(run(many, listener=Listener(closes=True).path)) == "0"


def files_may_be_many_or_closed():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(10_000, hard) if hard != resource.RLIM_INFINITY else 10_000
    fill = "call('cuInit', 0)\ntry:\n    while True: os.open('/dev/null', os.O_RDONLY)\nexcept OSError: pass\n"
    for left in (1, 0):
        listener = Listener()
        last = "os.close(100)\n" * left
        assert said(run(fill + last + "print(malloc()[0])", listener=listener.path, limits=[(resource.RLIMIT_NOFILE, most)])) == "0"
        assert listener.count("malloc\t", left) == left
    # One that closes all files and opens its own is not written into.
    own = FOLDER / "own"
    closes = f"malloc()\nos.closerange(3, 64)\nfor _ in range(8): os.open({str(own)!r}, os.O_RDWR | os.O_CREAT)\nprint(malloc()[0])"
    assert said(run(closes, listener=Listener().path)) == "0"
    assert own.read_bytes() == b""


def what_others_hold_may_not_be_known():
    # What is no record counts as none; without the file each process is alone with its device.
    held = FOLDER / "held"
    for wrong in (os.urandom(1000), b"\xff" * 4096, b"\0" * 144):
        held.write_bytes(wrong)
        assert said(run("print(malloc(1 << 36)[0])")) == "0"
    held.unlink()
    held.mkdir()
    assert said(run("print(malloc(1 << 36)[0], call('nvmlInit_v2'))")) == "0 0"
    held.rmdir()


def a_fork_in_the_midst_of_calls_waits_for_nothing():
    program = """
malloc()
def work():
    while True:
        cuda.cudaFree(ctypes.c_uint64(malloc()[1]))
[threading.Thread(target=work, daemon=True).start() for _ in range(4)]
wrong = 0
for _ in range(200):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        cuda.batchfit_vgpu_say(b"from a fork")
        os._exit(malloc()[0])
    wrong += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 3
print(wrong, flush=True)
os._exit(0)
"""
    listener = Listener()
    assert said(run(program, listener=listener.path)) == "0"
    assert listener.count("from a fork", 200) == 200


def threads_may_end_anywhere():
    program = """
def work():
    call("ncclGroupStart"), call("cudaSetDevice", 0), call("__cudaPushCallConfiguration", 1, 1, 1, 1, 0), malloc(), call("batchfit_vgpu_expect", 3)
for _ in range(100):
    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
print(malloc()[0])
"""
    assert said(run(program)) == "0"


def main():
    tests = [other_programs_are_left_alone, without_a_session_there_is_no_device, addresses_may_be_forbidden, a_peer_may_be_gone,
             files_may_be_many_or_closed, what_others_hold_may_not_be_known, a_fork_in_the_midst_of_calls_waits_for_nothing, threads_may_end_anywhere]
    for test in tests:
        test()
        print("ok", test.__name__, flush=True)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    signal.alarm(600)
    main()
