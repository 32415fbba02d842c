"""Which module asks for memory, by the qualified name that the script's own model gives it. Run by hooks.py; looked at when memory runs out, and
when more is allocated than ever.

Of a forward pass, the innermost module whose code is running, which also holds where a checkpoint runs it again. Of a backward pass, the
module whose parameters the running node of the graph uses; of nodes that use none, nobody knows it.
"""

import ctypes
import gc
import sys
import weakref

import torch

# Modules that wrap another, and are no part of its name.
WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}

# Nodes between a parameter and the product that uses it: transposed, cast by autocast, viewed.
BETWEEN = ("TBackward", "TransposeBackward", "PermuteBackward", "ViewBackward", "ToCopyBackward", "AccumulateGrad")
DEEPEST = 4


def working(is_over=False):
    """A reference to what is at work: a module whose code runs, or a parameter that the running node of a backward pass uses. `is_over`
    where memory has run out."""
    found = running(sys._getframe(1), is_over)
    if found is None:
        node = getattr(torch._C, "_current_autograd_node", lambda: None)()
        found = next(parameters(node), None) if node is not None else None
    return found if found is None else weakref.ref(found)


def told(reference):
    """`model.layers.3.mlp`, `backward of model.layers.3.mlp.down_proj`; None where it is not known."""
    found = None if reference is None else reference()
    if found is None or is_module(found):
        return None if found is None else name_of(found)
    owner = next((module for module in modules() if any(own is found for own in module._parameters.values())), None)
    return None if owner is None else f"backward of {name_of(owner)}"


if sys.version_info >= (3, 12):
    _variable = ctypes.pythonapi.PyFrame_GetVar
    _variable.argtypes, _variable.restype = [ctypes.py_object, ctypes.py_object], ctypes.py_object


def variable(frame, name, is_over):
    """Of a running frame, without `f_locals`: that copies all of them, and the copy keeps tensors as long as the frame runs. Before Python
    3.12, which has no other way, only where the frame is about to end with an error."""
    try:
        return _variable(frame, name)
    except NameError:
        return frame.f_locals.get(name) if is_over else None


def running(frame, is_over):
    while frame is not None:
        if "self" in frame.f_code.co_varnames:
            found = variable(frame, "self", is_over)
            if is_module(found):
                return found
        frame = frame.f_back
    return None


def parameters(node, depth=DEEPEST):
    """Those that a node of the graph uses, or casts and transposed ones of them."""
    for below, _ in node.next_functions:
        name = below.name() if below is not None else ""
        if name.rpartition("::")[2].startswith(BETWEEN):
            if hasattr(below, "variable"):
                yield below.variable
            elif depth:
                yield from parameters(below, depth - 1)


def is_module(found):
    # Not `isinstance`, which asks an object what it would like to be.
    return issubclass(type(found), torch.nn.Module)


def modules():
    return [found for found in gc.get_objects() if is_module(found)]


def unwrapped(module):
    inner = next((held for name, held in module._modules.items() if name in WRAPPERS), None)
    return module if inner is None else unwrapped(inner)


def name_of(module):
    """Its name in the outermost module that holds it; its class where it is that one."""
    above = {}
    for holder in modules():
        for name, held in holder._modules.items():
            above.setdefault(id(held), (name, holder))
    names, seen, at = [], set(), module
    while id(at) in above and id(at) not in seen:
        seen.add(id(at))
        name, at = above[id(at)]
        if name not in WRAPPERS:
            names.append(name)
    return ".".join(reversed(names)) or type(module).__name__


class Highest:
    """What was at work on each device when most was allocated."""

    # A name is looked for among all objects: at the ends of so many phases that went higher, and at the very end.
    MOST_LOOKS = 8

    def __init__(self):
        self.seen = {}  # device: the open phase, whose name comes first, places, a reference to what was at work, and its name
        self.looks = 0

    def rise(self, device, phase, places):
        self.seen[device] = [phase, places, working(), None]

    def name(self, is_last=False):
        """Before what was at work is gone."""
        for seen in self.seen.values():
            if seen[2] is not None and (is_last or self.looks < self.MOST_LOOKS):
                self.looks += 1
                seen[2:] = None, told(seen[2])

    def told(self):
        self.name(True)
        return [(device, phase[0], places, name) for device, (phase, places, _, name) in sorted(self.seen.items())]
