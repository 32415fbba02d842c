"""Loads the object that computes small tensors (`../values`), built for this PyTorch; compiles it where nobody did.

    PYTHON values.py FOLDER     # builds it for the PyTorch of PYTHON, as releases carry it (prebuild.sh)

It is run inside the first `cudaGetDeviceCount` of a process, so nothing here may ask for devices. Without the object a script runs on, with
nothing known of any tensor: that is said as a problem.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

import torch

# Compiling takes 20 s of one core, and far longer where every rank of a busy machine imports PyTorch at the same time.
LONGEST = 600

FLAGS = ["-std=c++20", "-O2", "-fPIC", "-shared", "-w", "-fvisibility=hidden", "-Wl,--unresolved-symbols=ignore-all"]


class Problem(Exception):
    """Why there are no values."""


def say(line):
    ctypes.CDLL(None).batchfit_vgpu_say(line.replace("\n", " | ").encode("utf-8", "replace"))


def names_of_object(own):
    """What it is called as a release carries it, where this is a release of PyTorch, and as it is compiled here: for a minor version, whose classes
    stay as they are, and for this very one. Both have a digest of everything that the object is made from."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in sorted(name for name in os.listdir(own) if name.endswith((".cpp", ".h"))):
        with open(os.path.join(own, name), "rb") as file:
            digest.update(file.read())
    kind = f"abi{int(torch._C._GLIBCXX_USE_CXX11_ABI)}-{digest.hexdigest()[:16]}.so"
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+(cu\d+|cpu))?", torch.__version__)
    return release and f"values-{release[1]}-{kind}", f"values-{torch.__version__}-{kind}"


def cache():
    """Where objects are kept: `BATCHFIT_VGPU_CACHE`, or the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (os.environ.get("BATCHFIT_VGPU_CACHE"), os.path.join(home, "batchfit")):
        with contextlib.suppress(OSError):
            if folder:
                os.makedirs(folder, exist_ok=True)
                if os.access(folder, os.W_OK):
                    return folder
    folder = os.path.join(tempfile.gettempdir(), f"batchfit-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise Problem(f"{folder} belongs to another user")
    return folder


@contextlib.contextmanager
def locked(path, until):
    """One process of a machine at a time; the others wait for what it makes."""
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Problem("another process compiles them and does not end") from None
                time.sleep(0.2)
            except OSError:  # a file system without locks: at worst they are compiled twice
                break
        yield


def compile_object(source, to, until):
    """Compiles `source` against the headers that came with PyTorch."""
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    home = os.path.dirname(torch.__file__)
    include, libraries = os.path.join(home, "include"), os.path.join(home, "lib")
    if not compiler:
        raise Problem("no C++ compiler (g++) to build them for PyTorch " + torch.__version__)
    if not os.path.exists(os.path.join(include, "ATen", "ATen.h")):
        raise Problem("PyTorch came without its headers")
    # The compiler is no part of the run: the preload is not for it.
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "BATCHFIT_VGPU")}
    fresh = f"{to}.{os.getpid()}"
    command = [compiler, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [f"-I{include}", f"-I{include}/torch/csrc/api/include", source, "-o", fresh, f"-L{libraries}", "-ltorch_cpu", "-lc10"]
    try:
        limit = max(until - time.monotonic(), 1)
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
            raise Problem(f"they do not compile for PyTorch {torch.__version__}: {errors[0][:400]}")
        os.replace(fresh, to)
    except subprocess.TimeoutExpired:
        raise Problem(f"compiling them took longer than {LONGEST} s") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(fresh)


def sources(folder):
    for own in (os.path.join(folder, "values"), os.path.join(os.path.dirname(folder), "values")):
        if os.path.isdir(own):
            return own
    raise Problem(f"their source is not in {folder}")


def objects(folder):
    """Objects for this PyTorch: one that came with batchfit; and, where it is not there or does not load, one compiled before, or now."""
    own = sources(folder)
    carried, name = names_of_object(own)
    if carried and os.path.exists(os.path.join(own, "prebuilt", carried)):
        yield os.path.join(own, "prebuilt", carried)
    path = os.path.join(cache(), name)
    if not os.path.exists(path):
        until = time.monotonic() + LONGEST
        with locked(path + ".lock", until):
            if not os.path.exists(path):
                compile_object(os.path.join(own, "values.cpp"), path, until)
    yield path


def load(folder):
    """Wraps PyTorch's kernels, and gives the object that does; `folder` holds `values/*.cpp`, and objects that were built before in `values/prebuilt`."""
    try:
        if sysconfig.get_platform() != "linux-x86_64":
            raise Problem("they are for Linux on x86-64")
        library = None
        for path in objects(folder):
            with contextlib.suppress(OSError):  # it was built with newer libraries than those here
                library = ctypes.CDLL(path)
                break
        if library is None or library.batchfit_values_install() <= 0:
            raise Problem(f"{path} does not load, or found no kernels")
        return library
    except (Problem, OSError, AttributeError) as error:
        say(f"problem\tvalues: {error}")
        return None


HERE = os.path.dirname(os.path.abspath(__file__))
if __name__ == "batchfit_values":  # run by hooks.py
    library = load(HERE)
elif __name__ == "__main__":
    carried, _ = names_of_object(sources(HERE))
    if not carried:
        sys.exit(f"PyTorch {torch.__version__} is no release")
    os.makedirs(sys.argv[1], exist_ok=True)
    compile_object(os.path.join(sources(HERE), "values.cpp"), os.path.join(sys.argv[1], carried), time.monotonic() + LONGEST)
    print(carried)
