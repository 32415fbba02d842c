"""Watches a script that runs on a virtual GPU: which step and phase it is in, what memory each takes, and which line asked for it.

It is run inside the first `cudaGetDeviceCount` of a process that has PyTorch, so nothing here asks a device before PyTorch has
initialised CUDA by itself. What is seen goes to `batchfit run` as lines `report <tab> {JSON}`, each of at most 8 KiB (`src/channel.rs`).
Nothing that a script can see changes: its statistics of peaks stay its own, and an error in here never becomes one of the script's.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib.metadata
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
import types
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

HERE = os.path.dirname(os.path.abspath(__file__))
PROCESS, STARTED = os.getpid(), time.time()

# Events that PyTorch keeps of its allocator's history: about 100 MB with stacks, and some thirty steps of a model with a thousand
# allocations a step.
HISTORY = 100_000

# What runs in a phase of its own, where its module is loaded: module, class, method, phase.
SPANS = [
    ("transformers.trainer", "Trainer", "evaluate", "evaluation"),
    ("transformers.trainer", "Trainer", "predict", "evaluation"),
    ("transformers.trainer", "Trainer", "_save_checkpoint", "saving"),
    ("transformers.trainer", "Trainer", "save_model", "saving"),
    ("accelerate.accelerator", "Accelerator", "save_state", "saving"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint", "saving"),
    ("lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop", "run", "evaluation"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint", "saving"),
    ("pytorch_lightning.loops.evaluation_loop", "_EvaluationLoop", "run", "evaluation"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint", "saving"),
]


def load(name):
    """A file beside this one, as a module of which the script knows nothing."""
    module = types.ModuleType(f"batchfit_{name}")
    module.__file__ = os.path.join(HERE, name + ".py")
    with open(module.__file__, encoding="utf-8") as file:
        exec(compile(file.read(), module.__file__, "exec"), module.__dict__)
    return module


def read_session():
    """What `batchfit run` wrote down, `key value` a line."""
    with open(os.environ["BATCHFIT_VGPU"], encoding="utf-8") as file:
        lines = (line.rstrip("\n").split(" ", 1) for line in file)
        return {line[0]: line[1] for line in lines if len(line) == 2}


SESSION = read_session()
STEPS = int(SESSION.get("steps", 0))
FOLDER = SESSION.get("history")

lines, modules = load("lines"), load("modules")
frames, place, spot, stack, LONGEST = lines.frames, lines.place, lines.spot, lines.stack, lines.LONGEST

_say = ctypes.CDLL(None).batchfit_vgpu_say
_say.argtypes, _say.restype = [ctypes.c_char_p], None


def say(line):
    if os.getpid() == PROCESS:
        _say(line.encode("utf-8", "replace"))


def report(kind, **fields):
    say("report\t" + json.dumps({"kind": kind, **fields}))


def quietly(function):
    """What goes wrong while watching is said, and does not end the script."""

    @functools.wraps(function)
    def watched(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception:
            said = traceback.format_exc(limit=-3).strip().replace("\n", " | ")
            say("problem\tbatchfit's hooks: " + said[-LONGEST:])

    return watched


def alone(function):
    """Threads may train, each with its optimizer: one at a time moves the phase on."""

    @functools.wraps(function)
    def watched(*args, **kwargs):
        with MOVING:
            return function(*args, **kwargs)

    return watched


MOVING = threading.RLock()


@quietly
def doubt(size):
    """Somebody reads bytes that were never computed."""
    if any(frame.f_code.co_filename == torch.serialization.__file__ for frame in frames(sys._getframe(1))):
        return  # They go to a file, and nothing hangs on them.
    where = stack()
    if not where:
        return say(f"doubt\t{size}")
    said = place(*spot(where[0]), True)
    # The line of a library that reads it, where it is not the script itself.
    inner = next((frame for frame in frames(sys._getframe(1)) if not frame.f_code.co_filename.startswith(lines.NOT_A_READER)), where[0])
    if inner is not where[0]:
        said += f" (in {os.path.join(*inner.f_code.co_filename.split(os.sep)[-2:])}:{inner.f_lineno} {inner.f_code.co_name})"
    say(f"doubt\t{size}\t{said}")


# Phases -----------------------------------------------------------------------------------------------------------------------------


def raise_to(of_devices, seen):
    """Raises peaks to those that were seen; the rest is how things are now."""
    for device, allocated, reserved, *now in seen:
        before = of_devices.get(device, (0, 0))
        of_devices[device] = (max(before[0], allocated), max(before[1], reserved), *now)


class Phases:
    """Where the script is. One phase is open at a time; evaluation and saving interrupt the step that they come in."""

    def __init__(self):
        self.peaks = load("peaks").Peaks()
        self.open = [["start", {}]]  # the phase that is interrupted before the one that interrupts it
        self.evaluated = None  # the module that was told to evaluate when the open evaluation began
        self.steps = 0
        self.has_ended = self.tries_engines = False

    def fold(self):
        """Counts what was seen as the innermost phase's."""
        raise_to(self.open[-1][1], self.peaks.take())

    def close(self, then=None):
        """Reports the innermost phase; another may take its place."""
        highest.name()
        self.fold()
        if torch.backends.cudnn.benchmark and not self.tries_engines:
            self.tries_engines = True
            say("assumed\tcudnn.benchmark takes the engine that is fastest; here it is the one that cuDNN ranks first\t1")
        self.close_kept(then)

    def close_kept(self, then=None):
        name, of_devices = self.open.pop()
        if of_devices:
            report("phase", name=name, steps=self.steps, devices=[[device, *of_devices[device]] for device in sorted(of_devices)])
        if then is not None:
            self.open.append([then, {}])

    def is_in(self, name):
        return bool(self.open) and self.open[-1][0] == name

    @quietly
    @alone
    def began(self, module, is_training):
        """The first forward pass on the GPU."""
        if len(self.open) > 1:  # in an evaluation before the first step
            evaluation = self.open.pop()
            self.close_kept("step 1")
            self.open.append(evaluation)
        elif self.is_in("start"):
            self.close("step 1")
            if not is_training:
                self.interrupt("evaluation", module)

    def interrupt(self, name, module=None):
        self.fold()
        self.evaluated = None if module is None else weakref.ref(modules.unwrapped(module))
        self.open.append([name, {}])

    @quietly
    @alone
    def mode(self, module, is_training):
        """A module was told to train or to evaluate. Only a change that no `Trainer` made begins a phase, and only the module that began it ends it,
        or one that evaluates where that is not known: others, such as a student beside a teacher, take turns within a step."""
        if is_training and self.is_in("evaluation") and not spans and (self.evaluated() is module if self.evaluated else not module.training):
            self.close()
        elif not is_training and not spans and len(self.open) == 1 and not self.is_in("start"):
            self.interrupt("evaluation", module)

    @quietly
    @alone
    def stepped(self, is_over=True):
        """An optimizer was called, which may be all that a step waits for."""
        self.fold()
        while len(self.open) > 1:  # what was taken for an evaluation was a part of the step
            taken = self.open.pop()
            taken[0] = f"step {self.steps + 1}"
            raise_to(self.open[-1][1], ((device, *seen) for device, seen in taken[1].items()))
        if not is_over:
            return
        self.steps += 1
        self.open[0][0] = f"step {self.steps}"
        self.close(f"step {self.steps + 1}")
        if STEPS and self.steps >= STEPS:
            end("steps")
            leave()

    def end(self, has_failed):
        while self.open:
            # What comes after the last step is not a step, unless it failed.
            if self.open[-1][0] == f"step {self.steps + 1}" and (self.steps or has_failed):
                self.open[-1][0] = self.open[-1][0] + " (unfinished)" if has_failed else "after the last step"
            self.close()


spans = []  # names of phases that a framework's own method is in


def span(name):
    def around(method):
        @functools.wraps(method)
        def run(*args, **kwargs):
            if spans or not torch.cuda.is_initialized():
                return method(*args, **kwargs)
            quietly(phases.interrupt)(name)
            spans.append(name)
            try:
                return method(*args, **kwargs)
            finally:
                spans.pop()
                if phases.is_in(name) and len(phases.open) > 1:
                    quietly(phases.close)()

        return run

    return around


# What `Optimizer` puts around each `step`.
STEP = torch.optim.Optimizer.profile_hook_step(print).__code__


def trained(optimizer):
    return {id(one) for group in optimizer.param_groups for one in group["params"]}


class Steps:
    """A step is over when each optimizer that trains something was called, but for those that train the same: they take turns. Which do is known when
    one is called a second time: those that were not called until then wait for nobody."""

    def __init__(self):
        self.known, self.called, self.idle = (weakref.WeakSet() for _ in range(3))
        self.inside = 0  # whether DeepSpeed counts instead: it calls an optimizer for each part of the parameters

    @quietly
    @alone
    def made(self, optimizer):
        self.known.add(optimizer)
        wrap_loaded()

    @quietly
    @alone
    def after(self, optimizer, _args, _kwargs):
        if self.inside or torch.compiler.is_compiling():  # a step that is compiled is traced once, with this in it
            return
        if sum(frame.f_code is STEP for frame in frames(sys._getframe())) > 1:  # another optimizer calls it in its own step
            return
        self.known.add(optimizer)
        self.idle.discard(optimizer)
        if optimizer in self.called:
            self.idle.update(one for one in self.known if one not in self.called)
        self.called.add(optimizer)
        is_over = all(one in self.called or one in self.idle or not trained(one).isdisjoint(trained(optimizer)) for one in self.known)
        if is_over:
            self.called.clear()
        phases.stepped(is_over)

    def of_deepspeed(self, method):
        @functools.wraps(method)
        def take_step(*args, **kwargs):
            self.inside += 1
            try:
                done = method(*args, **kwargs)
            finally:
                self.inside -= 1
            if not self.inside:
                phases.stepped()
            return done

        return take_step


def wrap(module, kind, name, around):
    kind = getattr(sys.modules.get(module), kind, None)
    method = vars(kind).get(name) if isinstance(kind, type) else None
    if isinstance(method, types.FunctionType) and method.__code__.co_filename != __file__:  # not yet
        setattr(kind, name, around(method))


@quietly
def wrap_loaded():
    """Frameworks are imported before or after this: it is looked when CUDA starts and when an optimizer is made."""
    for module, kind, name, phase in SPANS:
        wrap(module, kind, name, span(phase))
    wrap("deepspeed.runtime.engine", "DeepSpeedEngine", "_take_model_step", steps.of_deepspeed)


# Out of memory, and the end ---------------------------------------------------------------------------------------------------------


@quietly
def out_of_memory(device, requested, _total, free):
    """Called by PyTorch's allocator before it raises, without its lock."""
    module = modules.told(modules.working(is_over=True))
    stats = phases.peaks.stats(device)
    allocated, reserved = (stats[name]["all"]["current"] for name in ("allocated_bytes", "reserved_bytes"))
    report(
        "out_of_memory",
        phase=phases.open[-1][0] if phases.open else "end",
        device=device,
        requested=requested,
        free=free,
        allocated=allocated,
        reserved=reserved,
        retries=stats["num_alloc_retries"],
        stack=[place(*spot(frame)) for frame in stack()],
        module=module and module[:LONGEST],
    )
    if FOLDER:
        with open(os.path.join(FOLDER, f"memory-summary-{PROCESS}.txt"), "w", encoding="utf-8") as file:
            file.write(torch.cuda.memory_summary(device))
        snapshot()


@quietly
def snapshot():
    torch.cuda.memory._dump_snapshot(os.path.join(FOLDER, f"snapshot-{PROCESS}.pickle"))


def is_out_of_memory(error):
    kinds = tuple(kind for kind in (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None)) if kind)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and "out of memory" in str(error).lower())


def chain(error):
    for _ in range(lines.DEEPEST):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


@quietly
def failed(error):
    """An error that nobody caught."""
    found = next((one for one in chain(error) if is_out_of_memory(one)), None)
    text = str(found or error)[:LONGEST]
    report("error", type=type(found or error).__name__, message=text, out_of_memory=found is not None)


def failed_in_thread(args, _before=threading.excepthook):
    if os.getpid() == PROCESS and args.exc_value is not None and is_out_of_memory(args.exc_value):
        failed(args.exc_value)
    _before(args)


@quietly
def end(how):
    if phases.has_ended or os.getpid() != PROCESS:
        return
    phases.has_ended = True
    error = getattr(sys, "last_value", None)  # Python has printed it: nobody caught it
    if how == "exit" and error is not None and not isinstance(error, SystemExit):
        failed(error)
    if torch.cuda.is_initialized():
        if how == "exit":
            phases.end(error is not None)
        for device, phase, places, name in highest.told():
            report("peak", device=device, phase=phase, stack=[place(*one) for one in places], module=name and name[:LONGEST])
        if FOLDER and not os.path.exists(os.path.join(FOLDER, f"snapshot-{PROCESS}.pickle")):
            snapshot()
    report("end", how=how, steps=phases.steps, fraction=own_fraction())


def own_fraction():
    """The share of the GPU that the script itself allows PyTorch, where that is not all that the session has."""
    asked = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    share = asked() if asked and torch.cuda.is_initialized() else None
    return share if share not in (1.0, float(SESSION.get("fraction") or 1)) else None


def leave():
    """Ends the process at once: an exception could be caught by the script, and what it does when it ends (saving, uploading) is of no use."""
    for stream, end in ((sys.stdout, ""), (sys.stderr, "\n")):  # a progress bar leaves its line open
        try:
            stream.write(end)
            stream.flush()
        except Exception:
            pass
    os._exit(0)


# The beginning ----------------------------------------------------------------------------------------------------------------------


@quietly
def initialised():
    """CUDA was initialised by PyTorch."""
    if os.getpid() != PROCESS:
        return
    wrap_loaded()
    limit = SESSION.get("fraction")
    if limit is not None:
        for device in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(float(limit), device)
    # PyTorch 2.11 loses the error that is on its way where it asks for the stack of what is freed (pytorch/pytorch#179536), as at the end of a recomputation.
    if FOLDER:
        context = "alloc" if torch.__version__.startswith("2.11.") else "all"
        torch.cuda.memory._record_memory_history(context=context, max_entries=HISTORY, stacks="python")
    torch._C._cuda_attach_out_of_memory_observer(out_of_memory)
    report(
        "start",
        script=sys.argv[0] if sys.argv else "",
        python=".".join(map(str, sys.version_info[:3])),
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda),
        cudnn=torch.backends.cudnn.version(),
        allocator=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        modules={name: version(name) for name in ("transformers", "peft", "trl", "accelerate", "deepspeed", "lightning", "bitsandbytes") if name in sys.modules},
    )


def version(name):
    """What a package says; as it was installed where it is just being imported, which may be what asks for devices first."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return str(getattr(sys.modules[name], "__version__", None) or importlib.metadata.version(name))
    return "?"


WITHOUT_GRADIENTS = tuple(os.path.join(os.path.dirname(torch.__file__), *path) for path in (("_dynamo", ""), ("_functorch", ""), ("utils", "checkpoint.py")))
CALLS = {torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__}


@quietly
def first_operator():
    """An operator begins on the GPU: the first one in a module's call begins the first forward pass. Hooks of all modules would tell, too, but
    `torch.compile` warns of them and compiles otherwise."""
    called = [frame for frame in frames(sys._getframe(1)) if frame.f_code in CALLS]
    if called and os.getpid() == PROCESS:
        values.batchfit_values_tell(None, told[1])
        # Compiled graphs and checkpoints compute with gradients off what has some.
        inside = any(frame.f_code.co_filename.startswith(WITHOUT_GRADIENTS) for frame in frames(called[0]))
        module = modules.variable(called[-1], "self", False)
        phases.began(module, getattr(module, "training", True) and (inside or torch.is_grad_enabled()))


def first_forward(module, _args):
    """The same where there are no values."""
    weight = next(module.parameters(), None)
    if weight is not None and weight.is_cuda and os.getpid() == PROCESS:
        forward.remove()
        phases.began(module, module.training and torch.is_grad_enabled())


train = torch.nn.Module.train


@functools.wraps(train)
def tell(self, mode=True):
    # Each module below the first is told, too: this is all that it costs them.
    if bool(mode) == phases.is_in("evaluation") and os.getpid() == PROCESS:
        phases.mode(self, bool(mode))
    return train(self, mode)


def as_of_pytorch(function):
    """Its frames count as PyTorch's own: `torch.compile` leaves them alone, and no line of them is named."""
    function.__code__ = function.__code__.replace(co_filename=torch.autograd.graph.__file__)
    return function


@as_of_pytorch
def is_working(thread):
    """Whether it is another thread of autograd that runs or waits for a core."""
    try:
        with open(f"/proc/self/task/{thread}/stat", encoding="utf-8") as file:
            return int(thread) != threading.get_native_id() and "(pt_autograd" in (text := file.read()) and ") R" in text
    except OSError:
        return False  # it has ended


run_backward = torch.autograd._engine_run_backward


@as_of_pytorch
@functools.wraps(run_backward)
def backward(*args, **kwargs):
    """The thread that computes gradients lets go of its last node after it said that it is done, on a busy machine so late that what a kept graph
    holds (`create_graph`, `torch.func`) counts in the next phase: then a run differs from itself."""
    done = run_backward(*args, **kwargs)
    for _ in range(100):
        if not any(map(is_working, os.listdir("/proc/self/task"))):
            break
        time.sleep(1e-4)
    return done


phases, steps = Phases(), Steps()
made = torch.optim.Optimizer.__init__


@functools.wraps(made)
def make(self, *args, **kwargs):
    made(self, *args, **kwargs)
    steps.made(self)


saved = torch.save


@functools.wraps(saved)
def save(obj, f, *args, **kwargs):
    """Numbers that no GPU computed do not take the place of a file that was there before."""
    if isinstance(f, (str, os.PathLike)) and os.path.isfile(f) and os.path.getmtime(f) < STARTED:
        return print(f"batchfit: {os.fspath(f)} was there before and is not overwritten: nothing was trained", file=sys.stderr)
    return saved(obj, f, *args, **kwargs)


torch.optim.Optimizer.__init__, torch.save = make, save
register_optimizer_step_post_hook(steps.after)
torch.nn.Module.train = tell
torch.autograd._engine_run_backward = backward
threading.excepthook = failed_in_thread
atexit.register(end, "exit")
wrap_loaded()

module = types.ModuleType(__name__)
module.__dict__.update(globals())
sys.modules[__name__] = module
# `_lazy_call` would take a lock that PyTorch holds where its own initialisation is what asks for devices first.
torch.cuda._queued_calls.append((initialised, traceback.format_stack()))


if multiprocessing.parent_process():
    os.environ["BATCHFIT_VGPU_ALONE"] = "0"  # a script that starts its ranks itself has them all
if os.environ.get("BATCHFIT_VGPU_ALONE") == "1":
    load("alone")
highest = modules.Highest()
# What computes small tensors; without it a script may take other turns than on a card.
values = load("values").library


@quietly
def rise(device):
    """More is allocated than ever."""
    if os.getpid() == PROCESS and phases.open:
        highest.rise(device, phases.open[-1], [spot(frame) for frame in stack()])


if values is None:
    forward = register_module_forward_pre_hook(first_forward)
else:
    told = ctypes.CFUNCTYPE(None)(first_operator), ctypes.CFUNCTYPE(None, ctypes.c_int)(rise)
    values.batchfit_values_tell(*told)
