#!/usr/bin/env python3
"""Calls all of the virtual GPU's functions from several threads with wrong handles, sizes and devices, for SECONDS; it must not crash.

    tests/vgpu/fuzz.py LIBRARY SECONDS [SEED]      # LIBRARY: libcuda.so.1 as crates/vgpu/build.sh makes it

What a function takes is read from the crate as the compiler expands it. A pointer is null, a buffer, or memory of the device; a pointer to
anything else crashes a real CUDA, too, and so does a size that a buffer of the host does not have. All other numbers (handles, sizes, devices,
addresses of the device) are anything. Each worker is a process of its own, so that a crash is seen and the calls that led to it are printed.
Built with `-C overflow-checks=on -C debug-assertions=on`, the library also ends where numbers overflow.
"""

import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CRATE = Path(__file__).resolve().parents[2] / "crates/vgpu"
SESSION = (CRATE / "session-example.txt").read_text().replace("devices 1", "devices 2")
FUNCTION = re.compile(r'#\[unsafe\(no_mangle\)\]\s*(?:#\[[^\]]*\]\s*)*pub (?:unsafe )?extern "C" fn (\w+)\s*\(([^{]*?)\)\s*(?:->[^{(]*)?\{(?:\s*asm!\("jmp (\w+)@PLT)?')
STRUCT = re.compile(r"#\[repr\(C\)\]\s*(?:pub )?struct (\w+)\s*(?:\{(.*?)\}|\((.*?)\);)", re.S)
ALIASES = {"Status": "i32", "Answer": "i32", "Opaque": "*mut c_void", "Matrix": "*const c_void"}
NUMBERS = {
    "u8": "uint8", "c_char": "int8", "u16": "uint16", "c_int": "int32", "i32": "int32", "u32": "uint32", "c_uint": "uint32", "u64": "uint64", "i64": "int64",
    "usize": "uint64", "isize": "int64", "c_ulonglong": "uint64", "f32": "float", "c_float": "float", "f64": "double",
}
ADDRESS = re.compile(r"to|from|address|pointer|at|source|destination|send|receive|memory|start|host|device|buffer|device_pointer")
# How long an array or text is that a pointer beside them points to.
LENGTH = re.compile(r"\w*count|room|bytes|size|batch|rank|third|fourth|fifth|eighth|ninth")
ARRAY = re.compile(r"\*const |\*mut (u8|c_char|c_void)")
# They take memory of the host back, or only look it up.
NAMES_HOST = re.compile(r"Free|Host|Advise|Prefetch|Attribute|Ipc")
# By what an argument is called, what makes the handles that it takes; else what has the argument's name in its own.
MADE_BY = {
    "executable": "Instantiate", "function": "GetFunction|GetKernel", "kernel": "GetFunction|GetKernel", "library": "Load", "module": "Load", "parent": "ncclComm", "communicator": "ncclComm",
    "descriptor": "Desc", "configuration": "Desc", "plan": "Desc", "context": "Ctx", "matrix": "Csr", "a": "Csr", "object": "UserObject", "node": "Node", "stream": "StreamCreate|stream",
}
# What mapping memory takes.
USUAL = {"bytes": 2 << 20, "flags": 0, "_flags": 0, "kind": 1, "offset": 0, "alignment": 0}
ROOM = 1 << 16
BASE, TOP = 1 << 44, 1 << 45
# A function that takes anything and does nothing, in place of a program's own.
HARMLESS = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value


def expanded():
    command = ["rustc", "-Zunpretty=expanded", "--edition", "2024", "--crate-name", "batchfit_vgpu", "--cap-lints", "allow", CRATE / "src/lib.rs"]
    return subprocess.run(command, env=os.environ | {"RUSTC_BOOTSTRAP": "1"}, stdout=subprocess.PIPE, text=True, check=True).stdout


def fields(text):
    """The names and types of a list of arguments or members."""
    text = re.sub(r"//[^\n]*", "", text)
    parts = [" ".join(part.split()) for part in re.split(r",(?![^(<\[]*[)>\]])", text)]
    return [tuple(part.removeprefix("pub ").split(": ", 1)) if ": " in part else ("", part.removeprefix("pub ")) for part in parts if part]


class Types:
    """The C types of the crate's structures."""

    def __init__(self, text):
        # Threads make them, and all have to get the same.
        self.lock, self.made, self.members = threading.RLock(), {}, {name: fields(body or alone) for name, body, alone in STRUCT.findall(text)}

    def c(self, kind):
        kind = ALIASES.get(kind, kind)
        if kind.startswith(("*", "Option", "&")):
            return ctypes.c_void_p
        if kind in NUMBERS:
            return getattr(ctypes, "c_" + NUMBERS[kind])
        if array := re.fullmatch(r"\[(.*); (\d+)\]", kind):
            return self.c(array[1]) * int(array[2])
        kind = kind.split("::")[-1]
        with self.lock:
            if kind not in self.made:
                members = [(f"m{n}", self.c(member)) for n, (_, member) in enumerate(self.members[kind])]
                self.made[kind] = type(kind, (ctypes.Structure,), {"_fields_": members})
            return self.made[kind]


def functions(types, text):
    found = {name: (fields(arguments), same) for name, arguments, same in FUNCTION.findall(text)}
    for name, (arguments, same) in found.items():
        while same:
            arguments, same = found[same]
        yield name, [(one, re.sub(r"\w+$", lambda last: ALIASES.get(last[0], last[0]), kind)) for one, kind in arguments]


class Caller:
    def __init__(self, library, types, seed, handles, log):
        self.library, self.types, self.random, self.log = library, types, random.Random(seed), log
        self.buffers = [ctypes.create_string_buffer(ROOM + 64) for _ in range(32)]
        self.next, self.handles, self.device = 0, handles, []
        self.length, self.most, self.name, self.is_tame = 0, 0, "", False

    def handle(self, name):
        """One that would be right, or any."""
        of_library = re.match(r"[a-z]+", self.name)[0] + ".*(Create|Retain)" if name == "handle" else name
        made_by = re.compile(MADE_BY.get(name, of_library), re.I)
        right = [value for value, maker in self.handles if made_by.search(maker)]
        if right and "flags" not in name and self.random.random() < 0.8:
            return self.random.choice(right)
        return self.number(64) if self.is_tame else self.random.choice(self.handles)[0]

    def number(self, bits):
        one = self.random
        if self.is_tame:
            return one.choice([0, 0, 1, 1, 2, 2 << 20 if bits == 64 else 9])
        wild = [0, 0, 1, 1, 2, 3, 7, 63, 64, 512, 4096, 1 << 20, 2 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, one.getrandbits(64), one.getrandbits(8)]
        return one.choice(wild) & ((1 << bits) - 1)

    def buffer(self):
        """None that another argument of this call is in: what is written to the one is not to be followed in the other."""
        self.next = (self.next + 1) % 31
        return ctypes.addressof(self.buffers[self.next]) + self.random.choice([0, 0, 0, 8, 1])

    def pointer(self, kind):
        one = self.random
        address = self.buffer()
        if one.random() < 0.2:
            return 0
        pointee = kind.split(" ", 1)[1]
        if pointee.split("::")[-1] in self.types.members:
            value = self.value("", pointee)
            ctypes.memmove(address, ctypes.addressof(value), ctypes.sizeof(value))
        elif kind.startswith("*const *"):
            (ctypes.c_uint64 * 64).from_address(address)[:] = [one.choice([0, ctypes.addressof(self.buffers[31])]) for _ in range(64)]
        elif kind in ("*const u64", "*const i64", "*const c_int") and one.random() < 0.5:
            bits = 32 if kind.endswith("int") else 64
            # What a kernel's argument or a list of nodes may be; lengths of a transform.
            values = [one.choice([self.handle("node"), self.number(bits), self.address() if self.most > 16 else 1]) for _ in range(8)]
            (getattr(ctypes, f"c_uint{bits}") * 8).from_address(address)[:] = values
        elif "char" in kind:
            text = one.choice([b"\0", b"kernel\0", b"cuMemAlloc\0", b"0000:01:00.0\0", b"\xff\xfe\0"])
            ctypes.memmove(address, text, len(text))
        return address

    def address(self):
        """Of the device, right or wrong, or a buffer; after that, numbers are small."""
        one = self.random
        right = one.choice(self.device) if self.device else BASE
        if self.most > 16 and one.random() < 0.6:
            return one.choice([right, min(right + one.getrandbits(22), TOP - 1), BASE + one.getrandbits(44), TOP - 4096, 0])
        if NAMES_HOST.search(self.name):
            return self.handle("Host|Managed")
        # NCCL takes none of the host, whose buffers would have to be as large as there are ranks.
        if self.name.startswith("nccl"):
            return right
        self.most = 16
        return self.buffer()

    def value(self, name, kind):
        kind = ALIASES.get(kind, kind)
        of = self.types.c(kind)
        if kind.startswith("*"):
            return of(self.handle(name) if kind == "*mut c_void" and name in ("descriptor", "plan") else self.pointer(kind))
        if kind.startswith("Option"):
            return of(self.random.choice([0, HARMLESS]))
        if isinstance(of, type(ctypes.Structure)):
            made = of()
            for n, (one, member) in enumerate(self.types.members[kind.split("::")[-1]]):
                value = self.value(one, member)
                setattr(made, f"m{n}", value.value if hasattr(value, "value") and not isinstance(value, ctypes.Array) else value)
            if "IpcHandle" in kind and self.is_tame:
                made.m0[:2] = int.from_bytes(self.random.choice([b"bf-mem", b"bf-event"]), "little"), 1
            return made
        if isinstance(of, type(ctypes.Array)):
            return of(*[self.value("", kind[1:].rsplit(";", 1)[0]).value for _ in range(of._length_)])
        if of in (ctypes.c_float, ctypes.c_double):
            return of(self.random.uniform(-9, 9))
        bits = 8 * ctypes.sizeof(of)
        if ADDRESS.fullmatch(name) and kind == "u64":
            return of(self.address())
        if LENGTH.fullmatch(name) and self.length:
            return of(self.random.choice([0, 1, 2, self.random.randrange(self.length)]))
        if self.is_tame and name in USUAL and self.most > 16 and self.random.random() < 0.7:
            return of(USUAL[name])
        if bits == 64 and self.random.random() < 0.6 and self.most > 16:
            return of(self.handle(name))
        if "array" in name and self.random.random() < 0.8:
            return of(0)
        number = self.number(bits)
        # Sizes multiply: 15 * 15 * 15 * 15 are within a buffer.
        return of(number % 16 if self.most == 16 else number)

    def call(self, name, kinds):
        function = getattr(self.library, name)
        self.name, self.most, self.is_tame = name, self.random.choice([16, 1 << 64, 1 << 64]), self.random.random() < 0.5
        self.length = 64 if any(ARRAY.match(kind) and kind.split()[-1] not in self.types.members for _, kind in kinds) else 0
        if "MemcpyBatch" in name:
            arguments = self.batch(kinds)
        else:
            # Addresses come first: of the host, they bound all other numbers.
            order = sorted(range(len(kinds)), key=lambda n: not (ADDRESS.fullmatch(kinds[n][0]) or kinds[n][1].split("::")[-1] in self.types.members))
            made = {n: self.value(*kinds[n]) for n in order}
            if self.most == 16:
                made |= {n: self.value(*kinds[n]) for n in order if not ADDRESS.fullmatch(kinds[n][0])}
            arguments = [made[n] for n in range(len(kinds))]
        said = [one.value if hasattr(one, "value") else bytes(one).hex() for one in arguments]
        os.pwrite(self.log, f"{name} {said}".encode().ljust(4096)[:4096], (threading.get_native_id() % 8) * 4096)
        function.restype = ctypes.c_int
        status = function(*arguments)
        for argument, (_, kind) in zip(arguments, kinds):
            if status == 0 and kind in ("*mut u64", "*mut usize", "*mut *mut c_void") and argument.value:
                value = ctypes.c_uint64.from_address(argument.value).value
                if BASE <= value < TOP:
                    self.device = [*self.device, value][-64:]
                elif value:
                    self.handles[:] = [*self.handles[:8], *self.handles[8:][-500:], (value, name)]

    def batch(self, kinds):
        count = self.random.randrange(8)
        addresses = [[self.address() for _ in range(8)] for _ in range(2)]
        sizes = [self.number(64) if self.most > 16 else self.random.randrange(16) for _ in range(8)]
        lists = [(ctypes.c_uint64 * 8)(*values) for values in (*addresses, sizes)]
        self.kept = lists
        return [*[ctypes.c_void_p(ctypes.addressof(one)) for one in lists], ctypes.c_uint64(count), *[self.value("", kind) for _, kind in kinds[4:]]]


def work(path, text, seconds, seed, log):
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    types = Types(text)
    known = [one for one in functions(types, text) if hasattr(library, one[0])]
    # Most names do nothing, and are not worth most of the calls.
    typed = [one for one in known if one[1]]
    until = time.monotonic() + seconds
    # The default streams, a kernel, devices of NVML, contexts.
    handles = [(0, "stream"), (1, "stream"), (2, "stream"), (0x4000, "GetKernel"), (0x2000, "nvmlCreate"), (0x2001, "nvmlCreate"), (0x1000, "Ctx"), (0x1001, "Ctx")]
    library.__cudaRegisterFunction(ctypes.c_uint64(0), ctypes.c_uint64(0x4000), ctypes.c_uint64(0), ctypes.c_char_p(b"kernel"))

    def loop(number):
        caller = Caller(library, types, seed * 16 + number, handles, log)
        while time.monotonic() < until:
            caller.call(*caller.random.choice(known if caller.random.random() < 0.05 else typed))

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def main():
    path, seconds = os.path.abspath(sys.argv[1]), float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)               # graphs are printed to files of any name
    Path("session.txt").write_text(SESSION)
    os.environ["BATCHFIT_VGPU"] = f"{folder.name}/session.txt"
    os.environ.setdefault("BATCHFIT_VGPU_ALONE", "1")  # no other ranks come, which a collective would wait for
    text = expanded()
    crashes, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        seed += 1
        log = tempfile.TemporaryFile()
        child = os.fork()
        if child == 0:
            signal.alarm(300)           # a call that does not return is a crash, too; on a busy machine the others take long
            work(path, text, min(20, until - time.monotonic()), seed, log.fileno())
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            crashes += 1
            end = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
            last = [os.pread(log.fileno(), 4096, n * 4096).decode().strip("\0 ") for n in range(8)]
            print(f"seed {seed}: {end}; the last calls of its threads:", *filter(None, last), sep="\n    ", flush=True)
            if crashes == 20:
                break
    found = dict(functions(Types(text), text))
    print(f"{len(found)} functions, {sum(map(bool, found.values()))} of which take something; {crashes} crashes")
    sys.exit(bool(crashes))


if __name__ == "__main__":
    main()
