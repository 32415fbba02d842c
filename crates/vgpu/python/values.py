"""Loads the object that computes small tensors (`../values`), built for this PyTorch; compiles it where nobody did.

    PYTHON values.py FOLDER     # builds it for the PyTorch of PYTHON, as releases carry it (prebuild.sh)

It is run inside the first `cudaGetDeviceCount` of a process, so nothing here may ask for devices. Without the object a script runs on, with
nothing computed of any tensor: that is said as a problem.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import stat
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
    """What the object says that it was made from: a minor version of PyTorch, whose classes stay as they are, and a digest of source and flags. What it
    is called as a release carries it, where this is a release of PyTorch, and as it is compiled here, for this very version."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in sorted(name for name in os.listdir(own) if name.endswith((".cpp", ".h", ".def"))):
        with open(os.path.join(own, name), "rb") as file:
            digest.update(file.read())
    kind = f"abi{int(torch._C._GLIBCXX_USE_CXX11_ABI)}-{digest.hexdigest()[:16]}"
    made_of = f"{'.'.join(torch.__version__.split('.')[:2])}-{kind}"
    is_release = re.fullmatch(r"\d+\.\d+\.\d+(\+(cu\d+|cpu))?", torch.__version__)
    return made_of, is_release and f"values-{made_of}.so", f"values-{torch.__version__}-{kind}.so"


def is_ours_alone(path):
    """Whether a folder or file is the user's, no symbolic link, and nobody else may write to it: what is in it is run."""
    there = os.lstat(path)
    return there.st_uid == os.geteuid() and not stat.S_ISLNK(there.st_mode) and not there.st_mode & 0o022


def cache():
    """Where objects are kept: `BATCHFIT_VGPU_CACHE`, or the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for folder in (os.environ.get("BATCHFIT_VGPU_CACHE"), os.path.join(home, "batchfit")):
        with contextlib.suppress(OSError):
            if folder:
                os.makedirs(folder, mode=0o700, exist_ok=True)
                if os.access(folder, os.W_OK) and is_ours_alone(folder):
                    return folder
    folder = os.path.join(tempfile.gettempdir(), f"batchfit-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if not is_ours_alone(folder):
        raise Problem(f"{folder} is a symbolic link or others may write to it")
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
                    raise Problem("another process compiles what computes them and does not end") from None
                time.sleep(0.2)
            except OSError:  # a file system without locks: at worst they are compiled twice
                break
        yield


def compile_object(source, made_of, to, until):
    """Compiles `source` against the headers that came with PyTorch."""
    compiler = shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    home = os.path.dirname(torch.__file__)
    include, libraries = os.path.join(home, "include"), os.path.join(home, "lib")
    if not compiler:
        raise Problem(f"PyTorch {torch.__version__} needs a C++ compiler (g++) for that, and there is none")
    if not os.path.exists(os.path.join(include, "ATen", "ATen.h")):
        raise Problem("PyTorch came without its headers")
    # The compiler is no part of the run: the preload is not for it.
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "BATCHFIT_VGPU")}
    fresh = f"{to}.{os.getpid()}"
    command = [compiler, *FLAGS, f'-DMADE_OF="{made_of}"', f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [f"-I{include}", f"-I{include}/torch/csrc/api/include", source, "-o", fresh, f"-L{libraries}", "-ltorch_cpu", "-lc10"]
    try:
        limit = max(until - time.monotonic(), 1)
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if re.search("error|failed", line)] or done.stderr.splitlines() or [f"the compiler ended with {done.returncode}"]
            raise Problem(f"what computes them does not compile for PyTorch {torch.__version__}: {errors[0][:400]}")
        os.chmod(fresh, 0o755)  # whatever the umask says: one that others may write is not loaded
        os.replace(fresh, to)
    except subprocess.TimeoutExpired:
        raise Problem(f"compiling what computes them took longer than {LONGEST} s") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(fresh)


def sources(folder):
    for own in (os.path.join(folder, "values"), os.path.join(os.path.dirname(folder), "values")):
        if os.path.isdir(own):
            return own
    raise Problem(f"the source of what computes them is not in {folder}")


def opened(path, made_of, came=False):
    """The object at a path, which `came` with batchfit or was compiled here; nothing where there is none that was made from what is here, it was built with
    newer libraries, or others may have written it."""
    with contextlib.suppress(OSError, AttributeError):
        if not came and not is_ours_alone(path):
            return None
        library = ctypes.CDLL(path)
        library.batchfit_values_made_of.restype = ctypes.c_char_p
        return library if library.batchfit_values_made_of().decode() == made_of else None


def find(folder):
    """The object for this PyTorch: the one that came with batchfit, one compiled before, or now."""
    own = sources(folder)
    made_of, carried, name = names_of_object(own)
    path = os.path.join(cache(), name)
    library = carried and opened(os.path.join(own, "prebuilt", carried), made_of, came=True) or opened(path, made_of)
    if library:
        return library
    until = time.monotonic() + LONGEST
    with locked(path + ".lock", until):
        library = opened(path, made_of)  # another process may have compiled it meanwhile
        if not library:
            compile_object(os.path.join(own, "values.cpp"), made_of, path, until)
            library = opened(path, made_of)
    if not library:
        raise Problem(f"{path} does not load")
    return library


def load(folder):
    """Wraps PyTorch's kernels, and gives the object that does; `folder` holds `values/*.cpp`, and objects that were built before in `values/prebuilt`."""
    try:
        if sysconfig.get_platform() != "linux-x86_64":
            raise Problem("this needs Linux on x86-64")
        library = find(folder)
        if library.batchfit_values_install() <= 0:
            raise Problem("PyTorch has no kernels for CUDA")
        return library
    except (Problem, OSError) as error:
        say(f"problem\tno numbers are computed, not even small ones, and the script may have gone another way: {error}")
        return None


HERE = os.path.dirname(os.path.abspath(__file__))
if __name__ == "batchfit_values":  # run by hooks.py
    library = load(HERE)
elif __name__ == "__main__":
    made_of, carried, _ = names_of_object(sources(HERE))
    if not carried:
        sys.exit(f"PyTorch {torch.__version__} is no release")
    os.makedirs(sys.argv[1], exist_ok=True)
    compile_object(os.path.join(sources(HERE), "values.cpp"), made_of, os.path.join(sys.argv[1], carried), time.monotonic() + LONGEST)
    print(carried)
