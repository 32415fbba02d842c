"""Lines of the script: which of a thread's frames are the script's own, and what is said of a line. Loaded by hooks.py."""

import linecache
import os
import sys
import sysconfig
import threading

import torch

HERE = os.path.dirname(os.path.abspath(__file__))

# Frames and characters that a line has room for.
DEEPEST, LONGEST = 25, 1_500

_paths = sysconfig.get_paths()
# What `torch.compile` wrote is no part of it either.
_compiled = os.path.abspath(os.environ.get("TORCHINDUCTOR_CACHE_DIR", HERE))
NOT_THE_SCRIPT = tuple({_paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {HERE + os.sep, _compiled + os.sep, "<"})
NOT_A_READER = (HERE + os.sep, os.path.dirname(torch.__file__) + os.sep, "<")


# The package that `python -m` runs, which may be installed.
_main = getattr(sys.modules.get("__main__"), "__spec__", None)
_package = sys.modules.get(_main.name.partition(".")[0]) if _main else None
SCRIPT = tuple(path + os.sep for path in getattr(_package, "__path__", ()))


def is_of_script(name):
    return name.startswith(SCRIPT) or not name.startswith(NOT_THE_SCRIPT) and "-packages" + os.sep not in name


def frames(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


def stack():
    """At most so many of the script's frames, the innermost first; of the main thread where this one, such as autograd's, has none."""
    own = [frame for frame in frames(sys._getframe(1)) if is_of_script(frame.f_code.co_filename)]
    if own:
        return own[:DEEPEST]
    main = sys._current_frames().get(threading.main_thread().ident)
    return [frame for frame in frames(main) if is_of_script(frame.f_code.co_filename)][:DEEPEST]


def place(name, line, function, with_code=False):
    here = os.path.relpath(name) if name.startswith(os.getcwd() + os.sep) else name
    what = linecache.getline(name, line).strip() if with_code else function
    return f"{here}:{line} {what}"[-LONGEST:]


def spot(frame):
    """What is left of a frame when it has gone on."""
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
