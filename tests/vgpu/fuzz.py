#!/usr/bin/env python3
"""Calls the virtual GPU's functions from several threads with wrong handles, sizes and devices, for SECONDS; it must not crash.

    tests/vgpu/fuzz.py LIBRARY SECONDS [SEED]      # LIBRARY: libcuda.so.1 as crates/vgpu/build.sh makes it

What a function takes is read from its Rust source. A pointer is null, a buffer, or memory of the device; a pointer to anything else crashes a
real CUDA, too. Whole numbers (handles, sizes, devices, addresses of the device) are anything. Each worker is a process of its own, so that a crash
is seen and the calls that led to it are printed.
"""

import ctypes
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "crates/vgpu/src"
SESSION = """batchfit-vgpu 1
name NVIDIA H100 80GB HBM3
memory 85017493504
context 555745280
major 9
minor 0
multiprocessors 132
shared_per_block_optin 232448
shared_per_multiprocessor 233472
threads_per_multiprocessor 2048
blocks_per_multiprocessor 32
l2_cache 52428800
clock 1980000
memory_clock 2619000
bus 5120
devices 2
cuda 13000
host_memory 1073741824
"""
FUNCTION = re.compile(r'#\[unsafe\(no_mangle\)\]\s*(?:#\[[^\]]*\]\s*)*pub (?:unsafe )?extern "C" fn (\w+)\s*\(([^)]*(?:\([^)]*\)[^)]*)*)\)', re.S)
# The same in the runtime's macro.
WITHIN = re.compile(r"^    ((?:cuda|__cuda)\w+)\(([^)]*)\) \{", re.M)
# They run code that a caller passes, or follow pointers in what a caller passes.
LEFT_OUT = re.compile(r"LaunchHostFunc|AddCallback|RegisterFunction|RegisterFatBinary|PointerGetAttributes|LaunchKernel|Batch|batchfit_vgpu_say|batchfit_vgpu_mark|batchfit_vgpu_is_known|Register(Coredump|Complete)")
WIDTHS = {"u8": 8, "c_char": 8, "i8": 8, "u16": 16, "c_int": 32, "i32": 32, "u32": 32, "c_uint": 32, "Status": 32, "u64": 64, "i64": 64, "usize": 64, "isize": 64,
          "c_ulonglong": 64, "c_longlong": 64, "c_ulong": 64, "c_long": 64}
ADDRESS = re.compile(r"^(to|from|address|pointer|at|source|destination|send|receive|memory|start|host|device_pointer)$")
FLOATS = {"f32": ctypes.c_float, "c_float": ctypes.c_float, "f64": ctypes.c_double, "c_double": ctypes.c_double}
BUFFER = 1 << 16


def functions():
    for path in SOURCES.rglob("*.rs"):
        text = path.read_text()
        for name, arguments in FUNCTION.findall(text) + WITHIN.findall(text):
            kinds = []
            for argument in re.split(r",(?![^(<]*[)>])", arguments):
                argument = " ".join(argument.split())
                if argument:
                    kinds.append(tuple(part.strip() for part in argument.split(":", 1)))
            if not LEFT_OUT.search(name) and all(kind.startswith("*") or kind in WIDTHS or kind in FLOATS for _, kind in kinds):
                yield name, kinds


def is_device(value):
    return 0x100000000000 <= value < 0x200000000000


class Caller:
    def __init__(self, library, seed, log):
        self.library, self.random, self.log = library, random.Random(seed), log
        self.buffers = [ctypes.create_string_buffer(BUFFER + 64) for _ in range(8)]
        self.handles, self.device = [0, 1, 2], []

    def number(self, bits):
        one = self.random
        value = one.choice([0, 1, 2, 3, 7, 63, 64, 512, 4096, 1 << 20, 2 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, one.getrandbits(64), one.getrandbits(8)])
        return value & ((1 << bits) - 1)

    def pointer(self):
        one = self.random
        address = ctypes.addressof(one.choice(self.buffers)) + one.choice([0, 0, 0, 8, 1])
        return one.choice([0, address, address, address, address])

    def address(self):
        """Of the device, right or wrong, or a buffer."""
        one = self.random
        right = one.choice(self.device) if self.device else 0x100000000000
        return one.choice([right, min(right + one.getrandbits(22), (1 << 45) - 1), 0x100000000000 + one.getrandbits(44), (1 << 45) - 4096, self.pointer()])

    def argument(self, name, kind, small):
        if kind.startswith("*"):
            # Text has to end, and what is read has to be as long as it is said to be.
            return ctypes.c_void_p(self.pointer())
        if kind in FLOATS:
            return FLOATS[kind](self.random.uniform(-9, 9))
        bits = WIDTHS.get(kind, 64)
        if ADDRESS.search(name) and kind == "u64":
            return ctypes.c_uint64(self.address())
        if small:
            return ctypes.c_uint64(self.random.randrange(64))
        if bits == 64 and self.handles and self.random.random() < 0.4:
            return ctypes.c_uint64(self.random.choice(self.handles))
        return ctypes.c_uint64(self.number(bits))

    def call(self, name, kinds):
        function = getattr(self.library, name)
        # What is read or written has to be as long as it is said to be.
        small = any(kind.startswith("*") for _, kind in kinds)
        arguments = [self.argument(one, kind, small) for one, kind in kinds]
        addresses = [ADDRESS.search(one) and kind == "u64" for one, kind in kinds]
        if any(at and not is_device(a.value) for at, a in zip(addresses, arguments)):
            # Sizes multiply: 15 * 15 * 15 * 15 are within a buffer.
            arguments = [a if at or not isinstance(a, ctypes.c_uint64) else ctypes.c_uint64(self.random.randrange(16)) for at, a in zip(addresses, arguments)]
        os.pwrite(self.log, f"{name} {[getattr(a, 'value', a) for a in arguments]}".encode().ljust(4096)[:4096], (threading.get_native_id() % 8) * 4096)
        function.restype = ctypes.c_int
        status = function(*arguments)
        for n, (one, kind) in enumerate(kinds):
            if status == 0 and kind.startswith("*mut") and arguments[n].value:
                value = ctypes.c_uint64.from_address(arguments[n].value & ~7).value
                if is_device(value):
                    self.device = (self.device + [value])[-64:]
                elif value:
                    self.handles = (self.handles + [value])[-64:]


def work(path, seconds, seed, log):
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    known = [one for one in functions() if hasattr(library, one[0])]
    until = time.monotonic() + seconds

    def loop(number):
        caller = Caller(library, seed * 16 + number, log)
        while time.monotonic() < until:
            caller.call(*caller.random.choice(known))

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def main():
    path, seconds = sys.argv[1], float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    session = tempfile.NamedTemporaryFile("w", suffix=".txt")
    session.write(SESSION), session.flush()
    os.environ["BATCHFIT_VGPU"] = session.name
    crashes, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        seed += 1
        log = tempfile.TemporaryFile()
        child = os.fork()
        if child == 0:
            signal.alarm(40)            # a call that does not return is a crash, too
            work(path, min(20, until - time.monotonic()), seed, log.fileno())
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            crashes += 1
            end = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
            last = [os.pread(log.fileno(), 4096, n * 4096).decode().strip("\0 ") for n in range(8)]
            print(f"seed {seed}: {end}; the last calls of its threads:", *filter(None, last), sep="\n    ", flush=True)
            if crashes == 20:
                break
    print(f"{len(list(functions()))} functions, {crashes} crashes")
    sys.exit(bool(crashes))


if __name__ == "__main__":
    main()
