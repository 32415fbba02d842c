"""Makes tracing take the decisions that eager training takes.

Libraries ask whether they are being traced and then take another path: Hugging Face's mask helpers build masks that
eager training never has. Here the answer is no, and what can be known of the values they ask for is answered.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, Optional

import torch
import torch.export._trace
import torch.fx.experimental.proxy_tensor as tracing

from .checkpoints import Checkpoints, noting_checkpoints
from .dtypes import Conversions, noting_dtypes
from .errors import ExportError
from .failures import is_user_code, place, user_frame
from .lifetimes import Lifetimes
from .replacing import replaced
from .rules import gpu_rules
from .values import NEVER_SKIPS, KnownValues


@dataclass
class EagerOnly:
    """What eager training does and a traced graph does not show."""

    # Hugging Face's decoders look for packed sequences: the number of the value made last before each check, and that
    # of the position ids, of shape [batch, tokens], that are looked at.
    packed_checks: list[tuple[int, int]] = field(default_factory=list)
    # Regions that switch autocast off, which leaves no mark in a graph that is traced without: the number of the value made
    # last before each, and of the last one made in it.
    without_autocast: list[tuple[int, int]] = field(default_factory=list)
    # Whose dtype conversions ask for.
    conversions: Conversions = field(default_factory=Conversions)
    # What the code checkpoints.
    checkpoints: Checkpoints = field(default_factory=list)


@contextlib.contextmanager
def eager_decisions(lifetimes: Lifetimes, values: KnownValues) -> Iterator[EagerOnly]:
    """Inside, code that is traced decides as it does in eager training."""
    found = EagerOnly()
    with contextlib.ExitStack() as stack:
        # `torch.compiler.is_compiling()` and `is_exporting()` follow this context.
        stack.enter_context(replaced(torch.export._trace, "_compiling_state_context", contextlib.nullcontext))
        stack.enter_context(_known_values(values))
        stack.enter_context(_never_skipping())
        stack.enter_context(_conversions_of_nothing())
        stack.enter_context(_copies_of_nothing())
        # What `pack_padded_sequence` and `pack_sequence` call, under whatever name the model's code knows them.
        stack.enter_context(replaced(torch._VF, "_pack_padded_sequence", _packed))
        stack.enter_context(replaced(torch.autograd, "grad", _differentiated))
        stack.enter_context(replaced(torch.Tensor, "__format__", _written(torch.Tensor.__format__)))
        stack.enter_context(_autocast_regions(lifetimes, found))
        found.conversions = stack.enter_context(noting_dtypes(lifetimes))
        found.checkpoints = stack.enter_context(noting_checkpoints(lifetimes))
        stack.enter_context(gpu_rules())
        _patch_transformers(stack, lifetimes, values, found)
        yield found


@contextlib.contextmanager
def _known_values(values: KnownValues) -> Iterator[None]:
    call = tracing.proxy_call

    def call_and_follow(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> object:
        known = values.read(func, args, mode)
        if known is not None:
            return known
        result = call(mode, func, pre_dispatch, args, kwargs)
        values.follow(func, args, kwargs, result)
        return result

    with replaced(tracing, "proxy_call", call_and_follow):
        yield


@contextlib.contextmanager
def _never_skipping() -> Iterator[None]:
    """Python's random numbers skip no layer, as those of PyTorch do: a step that runs all of them takes the most memory."""

    def between(low: float = 0.0, high: float = 1.0, *size: Any) -> Any:
        return low + (high - low) * NEVER_SKIPS

    instead_of: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
        (random.random, lambda: NEVER_SKIPS),
        (random.uniform, between),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # Numbers one by one decide about layers; whole arrays are noise.
        for drawn, number in ((numpy.random.random, between), (numpy.random.rand, between), (numpy.random.uniform, between)):
            instead_of.append((drawn, _single(drawn, number)))
    with contextlib.ExitStack() as stack:
        for function, instead in instead_of:
            for owner, name in _names_of(function):
                stack.enter_context(replaced(owner, name, instead))
        yield


def _single(drawn: Callable[..., Any], number: Callable[..., Any]) -> Callable[..., Any]:
    """What draws numbers, but for a single one, which is known."""

    def draw(*arguments: Any, **named: Any) -> Any:
        result = drawn(*arguments, **named)
        return number(*arguments, **named) if isinstance(result, float) else result

    return draw


def _names_of(function: Callable[..., object]) -> list[tuple[ModuleType, str]]:
    """The modules that have a function under a name of theirs: `from random import random` binds it for good."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    # Bound methods are made again each time: they are equal, not the same; what is asked must not be asked back (`__eq__` of arrays).
    alike = type(function)
    return [
        (module, name)
        for module in modules
        for name, value in list(vars(module).items())
        if type(value) is alike and value == function
    ]


def _packed(*_: Any, **__: Any) -> Any:
    frame = user_frame()
    where = "" if frame is None else f"\n  at {place(frame, frame.f_lineno)}"
    raise ExportError(
        f"the model packs sequences, and how much memory a packed one takes only data can tell{where}\n"
        "export it with padded sequences: give the recurrent net the padded tensor itself"
    )


def _differentiated(*_: Any, **__: Any) -> Any:
    frame = user_frame()
    where = "" if frame is None else f"\n  at {place(frame, frame.f_lineno)}"
    raise ExportError(
        f"the model differentiates in its forward pass (torch.autograd.grad), and gradients of gradients are not followed{where}\n"
        "export it with that term of the loss left out; it takes about as much memory again as what it differentiates"
    )


def _written(original: Callable[[torch.Tensor, str], str]) -> Callable[[torch.Tensor, str], str]:
    """A tensor with one number is written as the number where that is known, as in `f"expert_{index}"`."""

    def written(self: torch.Tensor, spec: str) -> str:
        counts = self.dim() == 0 and not self.is_floating_point() and tracing.get_proxy_mode() is not None
        number = self.item() if counts else None
        return format(number, spec) if isinstance(number, (int, float)) else original(self, spec)

    return written


@contextlib.contextmanager
def _conversions_of_nothing() -> Iterator[None]:
    """`module.to(dtype)` in the middle of a forward pass, where the module has that dtype: nothing to do, and PyTorch could not
    do it to what stands for parameters while they are traced."""
    to = torch.nn.Module.to

    def convert(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*self.parameters(), *self.buffers()]
        same_dtype = dtype is None or all(t.dtype == dtype for t in tensors if t.is_floating_point())
        if same_dtype and (device is None or all(t.device == device for t in tensors)):
            return self
        return to(self, *args, **kwargs)

    with replaced(torch.nn.Module, "to", convert):
        yield


@contextlib.contextmanager
def _copies_of_nothing() -> Iterator[None]:
    """`x.contiguous()` of what is traced row by row leaves no mark in a graph (`THPVariable_contiguous` returns early). On a GPU it
    may lie otherwise: convolutions make results channels-last of operands that are."""
    make = torch.Tensor.contiguous

    def contiguous(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_plain = not args and not kwargs and is_user_code(sys._getframe(1).f_code)
        if is_plain and tracing.get_proxy_mode() is not None:
            made: torch.Tensor = torch.ops.aten.contiguous.default(self)
            return made
        return make(self, *args, **kwargs)

    with replaced(torch.Tensor, "contiguous", contiguous):
        yield


@contextlib.contextmanager
def _autocast_regions(lifetimes: Lifetimes, found: EagerOnly) -> Iterator[None]:
    """Notes regions of the model that switch autocast off, also those for the device that its tensors are on while it is
    traced, for which PyTorch knows no autocast."""
    autocast: Any = torch.amp.autocast_mode.autocast
    init, enter, leave = autocast.__init__, autocast.__enter__, autocast.__exit__
    regions: dict[int, list[int]] = {}

    def make(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        if not is_user_code(_caller(sys._getframe(1)).f_code) or device_type not in ("cuda", "meta"):
            init(self, device_type, dtype, enabled, cache_enabled)
            return
        if enabled:
            raise ExportError(
                "the model switches autocast on itself; leave that to the training loop, and ask for the precision in the request"
            )
        init(self, "cuda", dtype, False, cache_enabled)
        regions[id(self)] = []

    def begin(self: Any) -> Any:
        if id(self) not in regions:
            return enter(self)
        regions[id(self)].append(lifetimes.made)
        return self

    def end(self: Any, *error: Any) -> Any:
        if id(self) not in regions:
            return leave(self, *error)
        before = regions[id(self)].pop()
        if lifetimes.made > before:
            found.without_autocast.append((before, lifetimes.made))
        return False

    with contextlib.ExitStack() as stack:
        for name, method in (("__init__", make), ("__enter__", begin), ("__exit__", end)):
            stack.enter_context(replaced(autocast, name, method))
        yield


def _caller(frame: FrameType) -> FrameType:
    """The frame that made an autocast region, past the constructors of its subclasses."""
    while frame.f_code.co_name == "__init__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _patch_transformers(
    stack: contextlib.ExitStack, lifetimes: Lifetimes, values: KnownValues, found: EagerOnly
) -> None:
    helpers = _imported("transformers.utils.import_utils")
    if helpers is not None and hasattr(helpers, "is_fake_tensor"):
        stack.enter_context(replaced(helpers, "is_fake_tensor", lambda _: False))

    masks = _imported("transformers.masking_utils")
    if masks is not None and hasattr(masks, "find_packed_sequence_indices"):

        def no_packed_sequences(position_ids: torch.Tensor) -> None:
            """Position ids that a model makes itself count up from 0: one sequence in each row."""
            number = lifetimes.number(position_ids)
            if number is not None:
                found.packed_checks.append((lifetimes.made, number))

        stack.enter_context(replaced(masks, "find_packed_sequence_indices", no_packed_sequences))
        for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"):
            if hasattr(masks, name):
                stack.enter_context(replaced(masks, name, _masking(getattr(masks, name), values)))


    caches = _imported("transformers.cache_utils")
    for name in ("DynamicLayer", "DynamicSlidingWindowLayer"):
        layer = getattr(caches, name, None)
        if layer is not None and "update" in vars(layer):
            stack.enter_context(replaced(layer, "update", _caching(layer.update, lifetimes, found)))

    tools = _imported("transformers.pytorch_utils")
    if tools is not None and hasattr(tools, "is_torchdynamo_compiling"):
        # Caches take no symbolic sizes as keys. Without them each call computes; a step that fills a cache does as well.
        stack.enter_context(replaced(tools, "is_torchdynamo_compiling", lambda: True))

    generic = _imported("transformers.utils.generic")
    if generic is not None and hasattr(generic, "maybe_autocast"):
        for module in _modules_with("maybe_autocast", generic.maybe_autocast):
            stack.enter_context(replaced(module, "maybe_autocast", _noting_autocast(lifetimes, found)))

    for module in [module for path, module in sys.modules.items() if path.startswith("transformers.models.")]:
        if "_compute_mask_indices" in vars(module):
            stack.enter_context(replaced(module, "_compute_mask_indices", _masked_spans))

    models = _imported("transformers.modeling_utils")
    if models is not None and hasattr(models.PreTrainedModel, "warn_if_padding_and_no_attention_mask"):
        # It looks for padding among the first and last ids, in a few bytes, and at most writes a warning.
        warning = "warn_if_padding_and_no_attention_mask"
        stack.enter_context(replaced(models.PreTrainedModel, warning, lambda *_, **__: None))


def _caching(update: Callable[..., Any], lifetimes: Lifetimes, found: EagerOnly) -> Callable[..., Any]:
    """A cache begins with empty tensors of the keys' dtype, and joining values to one gives that, where they have a narrower one."""

    def cached(self: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_initialized or tracing.get_proxy_mode() is None:
            return update(self, keys, values, *args, **kwargs)
        converted = values.to(keys.dtype)
        number = lifetimes.number(converted)
        if number is not None:
            found.conversions.found.append((number, lifetimes.number(keys) or 0))
        return update(self, keys, converted, *args, **kwargs)

    return cached


def _masked_spans(shape: Any, *_: Any, **__: Any) -> torch.Tensor:
    """SpecAugment's masks, which come from NumPy: one truth value for each frame or feature of each sample."""
    return torch.zeros(shape, dtype=torch.bool, device="meta")


def _masking(ignores: Callable[..., Any], values: KnownValues) -> Callable[..., Any]:
    """A padding mask in the batch is taken to mask something: then the whole mask is built, which takes the most memory."""
    signature = inspect.signature(ignores)

    def ignores_mask(*args: Any, **kwargs: Any) -> Any:
        mask = signature.bind(*args, **kwargs).arguments.get("padding_mask")
        if isinstance(mask, torch.Tensor) and not values.knows(mask):
            return False
        return ignores(*args, **kwargs)

    return ignores_mask


def _noting_autocast(lifetimes: Lifetimes, found: EagerOnly) -> Callable[..., contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def region(device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> Iterator[None]:
        before = lifetimes.made
        yield
        if not enabled and lifetimes.made > before:
            found.without_autocast.append((before, lifetimes.made))

    return region


def _modules_with(name: str, value: object) -> list[ModuleType]:
    """Modules of transformers that have imported this under this name."""
    modules = [module for path, module in sys.modules.items() if path.startswith("transformers.")]
    return [module for module in modules if vars(module).get(name) is value]


def _imported(name: str) -> Optional[ModuleType]:
    return sys.modules.get(name)
