"""What steps change, kept and put back bit for bit.

`State` walks through the objects that it is given: modules, optimizers, scalers, schedulers, averages of weights, generators,
loaders, or objects of the user's own. What it finds is kept where it is: the bytes of every tensor's memory on the host, the
contents of dicts, lists and sets, the attributes of objects, the state of every random generator. Putting it back writes the
same values into the same objects. No tensor is replaced, and one that steps replaced is put where it was.
"""

from __future__ import annotations

import collections
import io
import logging
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import torch
import torch.amp.grad_scaler
import torch.utils.data
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# Most objects that are looked at: a model with 100,000 parameters and its optimizer's state have fewer.
_MOST_OBJECTS = 20_000_000

# What has no state that a step changes, or none that could be put back.
_OPAQUE: tuple[type, ...] = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    types.FrameType,
    types.GeneratorType,
    types.TracebackType,
    types.MappingProxyType,
    weakref.ReferenceType,
    logging.Logger,
    io.IOBase,
    Path,
    threading.Thread,
    threading.Event,
    threading.Condition,
    torch.utils.data.Dataset,
    torch.dtype,
    torch.device,
    torch.Size,
    str,
    bytes,
    int,
    float,
    complex,
    range,
    slice,
)

# Objects of PyTorch whose attributes are what they are about; of others its own attributes are its own business.
_OF_TORCH: tuple[type, ...] = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.utils.data.Sampler,
    torch.utils.data.DataLoader,
)

_SCHEDULERS = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

# Packages whose objects are left alone: PyTorch's own machinery, Python's, and what keeps files and connections.
_FOREIGN = {"torch", "tensorboard", "tensorboardX", "wandb", "mlflow", "comet_ml", "neptune", "clearml", "swanlab", "datasets", "tokenizers"} | (
    set(sys.stdlib_module_names) - {"types", "argparse", "collections", "functools", "__main__"}
)

# Wrappers whose attributes go with objects in C++, or with what was compiled; what they wrap is kept.
_WRAPPERS = ("OptimizedModule", "DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


class StateError(TypeError):
    """Something in `state` cannot be kept. The message says what, and what would do instead."""


class _Storage:
    """The memory of one or more tensors: its bytes."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.size = storage.nbytes()
        self._kept: Optional[torch.Tensor] = None

    def _bytes(self) -> torch.Tensor:
        # A tensor of its own over the same memory: the tensors' version counters do not move, whatever their dtype.
        return torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)

    def keep(self) -> None:
        self._kept = self._bytes().to("cpu", copy=True) if self.size else None

    def put_back(self) -> None:
        if self.storage.nbytes() != self.size:
            self.storage.resize_(self.size)
        if self._kept is not None:
            self._bytes().copy_(self._kept)


class _Tensor:
    """Where a tensor's memory is, and what autograd knows of it."""

    def __init__(self, tensor: torch.Tensor, has_storage: bool) -> None:
        self.tensor = tensor
        self.is_leaf = tensor.is_leaf
        self.requires_grad = tensor.requires_grad
        self.grad = tensor.grad if tensor.is_leaf else None
        # Another tensor over the same memory, in case that the first is given other memory.
        self.alias = tensor.detach() if has_storage and not is_traceable_wrapper_subclass(tensor) else None

    def put_back(self) -> None:
        tensor, alias = self.tensor, self.alias
        if alias is not None and _place(tensor) != _place(alias):
            tensor.data = alias
        if self.is_leaf and tensor.is_leaf:
            if tensor.requires_grad != self.requires_grad:
                tensor.requires_grad_(self.requires_grad)
            if tensor.grad is not self.grad:
                tensor.grad = self.grad


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


class State:
    """All that can be reached from some objects, and the random generators of the process."""

    def __init__(self, objects: Iterable[object]) -> None:
        self.modules: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.scalers: list[Any] = []
        self.schedulers: list[Any] = []
        self._seen: dict[int, object] = {}
        self._storages: dict[int, _Storage] = {}
        self._tensors: list[_Tensor] = []
        self._restores: list[Callable[[], None]] = []
        self._waiting: collections.deque[object] = collections.deque()
        self._random: Optional[Generators] = None
        for thing in objects:
            _check(thing)
            self._waiting.append(thing)
        while self._waiting:
            self._visit(self._waiting.popleft())
            if len(self._seen) > _MOST_OBJECTS:
                raise StateError(f"more than {_MOST_OBJECTS} objects can be reached from `state`; leave data sets out")

    @property
    def device_bytes(self) -> int:
        """What its tensors take of the memory of GPUs."""
        return sum(kept.size for kept in self._storages.values() if kept.storage.device.type == "cuda")

    def keep(self) -> None:
        """Copies all of it."""
        needed = sum(kept.size for kept in self._storages.values())
        free = _free_host_memory()
        if free is not None and needed > free:
            gib = 1 << 30
            raise MemoryError(
                f"tuning keeps a copy of `state` in the host's memory: {needed / gib:.1f} GiB are needed, {free / gib:.1f} GiB "
                "are free"
            )
        with torch.no_grad():
            for kept in self._storages.values():
                kept.keep()
        self._random = Generators()

    def put_back(self, *, contents: bool = True) -> None:
        """Makes everything what it was; without `contents`, all but the values of tensors on GPUs."""
        for restore in self._restores:
            restore()
        with torch.no_grad():
            for tensor in self._tensors:
                tensor.put_back()
            for kept in self._storages.values():
                if contents or kept.storage.device.type != "cuda":
                    kept.put_back()
        if self._random is not None:
            self._random.put_back()

    def without_gradients(self) -> None:
        """Lets go of all gradients."""
        for kept in self._tensors:
            if kept.tensor.is_leaf and kept.tensor.grad is not None:
                kept.tensor.grad = None

    def _visit(self, thing: object) -> None:
        if thing is None or isinstance(thing, _OPAQUE) or id(thing) in self._seen:
            return
        if isinstance(thing, torch.Tensor):
            self._seen[id(thing)] = thing
            self._tensor(thing)
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, torch.Generator):
            generator_state = thing.get_state()
            self._restores.append(lambda: _ignore(thing.set_state(generator_state)))
        elif isinstance(thing, random.Random):
            python_state = thing.getstate()
            self._restores.append(lambda: thing.setstate(python_state))
        elif _of_numpy(thing):
            self._of_numpy(thing)
        elif isinstance(thing, (dict, list, set, collections.deque, bytearray)):
            self._container(thing)
        elif isinstance(thing, (tuple, frozenset)):
            self._waiting.extend(thing)
        else:
            self._object(thing)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if any(kind.__name__ == "UninitializedTensorMixin" for kind in type(tensor).__mro__):
            raise StateError("`state` has a lazy module in it, whose weights are not made yet: run its forward pass once before")
        if tensor.device.type == "meta":
            return
        has_storage = True
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            self._waiting.extend(getattr(tensor, name) for name in names)
        elif tensor.layout is torch.sparse_coo:
            has_storage = False
            self._waiting.extend((tensor._indices(), tensor._values()))
        elif tensor.layout is not torch.strided:
            has_storage = False
            parts = ("crow_indices", "ccol_indices", "row_indices", "col_indices", "values")
            self._waiting.extend(getattr(tensor, part)() for part in parts if _has(tensor, part))
        else:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                self._storages[storage._cdata] = _Storage(storage)
        kept = _Tensor(tensor, has_storage)
        self._tensors.append(kept)
        if kept.grad is not None:
            self._waiting.append(kept.grad)
        attributes = getattr(tensor, "__dict__", None)
        if isinstance(attributes, dict):
            self._container(attributes)

    def _container(self, thing: Any) -> None:
        if isinstance(thing, dict):
            items = list(thing.items())
            self._waiting.extend(key for key, _ in items if isinstance(key, torch.Tensor))
            self._waiting.extend(value for _, value in items)
            self._restores.append(lambda: _restore_dict(thing, items))
            return
        values = list(thing)
        if not isinstance(thing, bytearray):
            self._waiting.extend(values)
        self._restores.append(lambda: _restore_sequence(thing, values))

    def _object(self, thing: Any) -> None:
        if isinstance(thing, torch.nn.Module):
            self._module(thing)
        elif isinstance(thing, torch.optim.Optimizer):
            self.optimizers.append(thing)
            self._attributes(thing)
        elif is_scaler(thing):
            self.scalers.append(thing)
            self._attributes(thing)
        elif isinstance(thing, _SCHEDULERS):
            self.schedulers.append(thing)
            self._attributes(thing)
        elif isinstance(thing, torch.utils.data.DataLoader):
            # Its workers and its data set are left alone.
            self._attributes(thing, leave={"dataset", "_iterator", "collate_fn", "worker_init_fn"})
        elif isinstance(thing, _OF_TORCH) or type(thing).__module__.split(".")[0] not in _FOREIGN:
            self._attributes(thing)

    def _module(self, module: torch.nn.Module) -> None:
        self.modules.append(module)
        if type(module).__name__ in _WRAPPERS:
            training = module.training
            self._restores.append(lambda: _set(module, "training", training))
            self._waiting.extend(module.children())
        else:
            self._attributes(module)
        # Those of scripted modules are in no dict.
        self._waiting.extend(module.parameters())
        self._waiting.extend(module.buffers())

    def _attributes(self, thing: Any, leave: Iterable[str] = ()) -> None:
        attributes = getattr(thing, "__dict__", None)
        if isinstance(attributes, dict):
            items = [(name, value) for name, value in attributes.items() if name not in leave]
            self._waiting.extend(value for _, value in items)
            kept = list(attributes.items())
            self._restores.append(lambda: _restore_dict(attributes, kept))
        for name in _slots(type(thing)):
            if hasattr(thing, name):
                value = getattr(thing, name)
                self._waiting.append(value)
                self._restores.append(_setter(thing, name, value))

    def _of_numpy(self, thing: Any) -> None:
        numpy = sys.modules["numpy"]
        if isinstance(thing, numpy.ndarray):
            if thing.flags.writeable and not thing.dtype.hasobject:
                values = thing.copy()
                self._restores.append(lambda: numpy.copyto(thing, values))
        elif isinstance(thing, numpy.random.RandomState):
            state = thing.get_state()
            self._restores.append(lambda: thing.set_state(state))
        else:
            bits = thing.bit_generator if isinstance(thing, numpy.random.Generator) else thing
            kept = bits.state
            self._restores.append(lambda: _set(bits, "state", kept))


class Generators:
    """The random generators that a process has from the start."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def put_back(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


def is_scaler(thing: object) -> bool:
    """Whether it is a GradScaler, of any PyTorch."""
    return isinstance(thing, torch.amp.grad_scaler.GradScaler)


def _check(thing: object) -> None:
    """Refuses what cannot be kept."""
    if isinstance(thing, Iterator) and not hasattr(thing, "__dict__") and not isinstance(thing, io.IOBase):
        raise StateError(
            f"`state` has a {type(thing).__name__} in it, which cannot be put back where it was; let step(batch) make its batch "
            "from the data itself"
        )
    if thing is None or isinstance(thing, _OPAQUE):
        raise StateError(
            f"`state` has {thing!r} in it, which has no state that could be kept; name the model, its optimizers, the scaler and "
            "whatever else a step changes"
        )


def _of_numpy(thing: object) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    return isinstance(
        thing, (numpy.ndarray, numpy.random.RandomState, numpy.random.Generator, numpy.random.BitGenerator)
    )


def _has(tensor: torch.Tensor, part: str) -> bool:
    try:
        getattr(tensor, part)()
    except RuntimeError:
        return False
    return True


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _setter(thing: Any, name: str, value: object) -> Callable[[], None]:
    return lambda: _set(thing, name, value)


def _ignore(_value: object) -> None:
    """For what gives something that nobody wants."""


def _set(thing: Any, name: str, value: object) -> None:
    # What is frozen cannot have changed.
    if name == "state" or getattr(thing, name, None) is not value:
        setattr(thing, name, value)


def _restore_dict(thing: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    if [id(key) for key in thing] == [id(key) for key, _ in items]:
        for key, value in items:
            if thing[key] is not value:
                thing[key] = value
        return
    thing.clear()
    for key, value in items:
        thing[key] = value


def _restore_sequence(thing: Any, values: list[Any]) -> None:
    if len(thing) == len(values) and all(now is was for now, was in zip(thing, values)):
        return
    if isinstance(thing, (list, bytearray)):
        thing[:] = values
        return
    thing.clear()
    if isinstance(thing, set):
        thing.update(values)
    else:
        thing.extend(values)


def _free_host_memory() -> Optional[int]:
    """Bytes of the host's memory that can be had; None where nobody says."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
