"""Models and batches from Hugging Face configs, without weights."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import torch

from .batches import EXAMPLE_BATCH, Batch, as_batch
from .errors import ExportError


@dataclass(frozen=True)
class Sizes:
    """Lengths that a config does not fix: tokens (or samples of sound), tokens of the answer, pixels."""

    seq_len: Optional[int] = None
    target_len: Optional[int] = None
    image_size: Optional[int] = None


def from_config(path: str, sizes: Sizes) -> tuple[Callable[[], torch.nn.Module], Batch]:
    """What makes the model that a `config.json` (or a directory with one) describes, and the batch it is trained on.

    The class is the first of the config's `architectures`; its own loss is meant, so it has to have a head.
    """
    values = _read(path)
    try:
        import transformers
    except ImportError as error:
        raise ExportError("--hf needs the package transformers: pip install transformers") from error

    name = _architecture(values)
    model_class = getattr(transformers, name, None)
    if model_class is None:
        raise ExportError(f"transformers {transformers.__version__} has no class {name!r}, which {path} asks for")
    config = model_class.config_class.from_dict(values)
    _without_cache(config)
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    if "return_loss" in inspect.signature(model_class.forward).parameters:
        pixels = _floats(_of(config, "num_channels") or 3, *_image_size(config, sizes))
        tensors = {"input_ids": _ids(_required(sizes.seq_len, "--seq-len", 64)), "pixel_values": pixels}
        return lambda: _Pairs(model_class(config)), Batch(tensors, {name: {0: 1} for name in tensors})
    tensors = _inputs(name, model_class, config, sizes)
    return lambda: model_class(config), Batch(tensors, {name: {0: 1} for name in tensors})


class _Pairs(torch.nn.Module):
    """Two towers with the loss over all pairs of a batch, which CLIP and its like return where they are asked."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, pixel_values=pixel_values, return_loss=True)


def described(builder: Any, sizes: Sizes, missing: Sequence[str]) -> tuple[Any, Batch, Any]:
    """The builder, the batch and the loss of what says them itself: a function that gives `(model, batch, loss)` with an example batch,
    or one that gives a model of transformers, whose class knows both. `missing` are flags that would say them."""
    made = builder
    if callable(builder) and not isinstance(builder, torch.nn.Module):
        try:
            with torch.device("meta"):
                made = builder()
        except Exception:  # Code that reads values as it makes them.
            made = builder()
    if isinstance(made, tuple) and len(made) == 3:
        return (lambda: builder()[0]), as_batch(made[1], {}), made[2]
    inner = made.get_base_model() if hasattr(made, "get_base_model") else made
    if not type(inner).__module__.startswith("transformers."):
        raise ExportError(f"give {' and '.join(missing)}, or let the function return (model, batch, loss) with an example batch")
    if sizes.seq_len is None and sizes.target_len is None and hasattr(inner.config, "max_position_embeddings"):
        sizes = replace(sizes, seq_len=min(2048, inner.config.max_position_embeddings))
        print(f"batchfit: samples have {sizes.seq_len} tokens; --seq-len says otherwise", file=sys.stderr)
    tensors = _inputs(type(inner).__name__, type(inner), inner.config, sizes)

    def without_cache() -> torch.nn.Module:
        model: Any = builder() if made is not builder else builder
        _without_cache(model.config)
        return model  # type: ignore[no-any-return]

    return without_cache, Batch(tensors, {name: {0: 1} for name in tensors}), "model"


def _without_cache(config: Any) -> None:
    """Training reads no cache of keys and values; the parts of a config have switches of their own."""
    config.use_cache = False
    for part in vars(config).values():
        if hasattr(part, "use_cache"):
            _without_cache(part)


def _read(path: str) -> dict[str, Any]:
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"cannot read {file}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ExportError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ExportError(f"{file} is not a config: it holds a {type(values).__name__}")
    return values


def _architecture(values: dict[str, Any]) -> str:
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ExportError('the config names no class; add one, as in "architectures": ["LlamaForCausalLM"]')
    return architectures[0]


def _inputs(name: str, model_class: Any, config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    main = getattr(model_class, "main_input_name", "input_ids")
    given = _main_input(main, config, sizes)
    return {main: given, **_labels(name, given, config, sizes)}


def _main_input(main: str, config: Any, sizes: Sizes) -> torch.Tensor:
    if main == "input_ids":
        return _ids(_required(sizes.seq_len, "--seq-len"))
    if main == "pixel_values":
        height, width = _image_size(config, sizes)
        return _floats(_of(config, "num_channels") or 3, height, width)
    if main == "input_features":
        frames = sizes.seq_len or 2 * (_of(config, "max_source_positions") or 0)
        return _floats(_of(config, "num_mel_bins") or 80, _required(frames or None, "--seq-len"))
    if main == "input_values":
        return _floats(_required(sizes.seq_len, "--seq-len", 160_000))
    raise ExportError(f"the model's input is {main!r}, which --hf cannot make up; use my_module:build and --batch")


def _labels(name: str, given: torch.Tensor, config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    text = given.dtype == torch.int64
    if name.endswith(("ForCausalLM", "LMHeadModel")) and text:
        # One tensor, as training scripts do it: the model shifts its labels itself.
        return {"labels": given}
    if name.endswith(("ForMaskedLM", "ForTokenClassification")) and text:
        return {"labels": _ids(given.shape[1])}
    if name.endswith(("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")):
        return {"labels": _class_labels(config)}
    if name.endswith("ForConditionalGeneration") and getattr(config, "is_encoder_decoder", False):
        length = sizes.target_len or _of(config, "max_target_positions") or sizes.seq_len
        return {"labels": _ids(_required(length, "--target-len"))}
    if name.endswith("ForSemanticSegmentation"):
        return {"labels": _ids(*given.shape[2:])}
    if name.endswith("ForQuestionAnswering"):
        return {"start_positions": _ids(), "end_positions": _ids()}
    if name.endswith("ForCTC"):
        return {"labels": _ids(sizes.target_len or _LETTERS)}
    if name.endswith("ForXVector"):
        return {"labels": _ids()}
    main = _shown(given)
    raise ExportError(
        f"--hf does not know what {name} is trained on; write a function `build` in my.py that returns {name}(config), or a module around it "
        f'whose forward returns the loss, and name its tensors: batchfit fit my.py:build --batch "{main}" "labels=i64[B,100]" --loss model'
    )


# Letters of a transcript, where nobody says how many.
_LETTERS = 100


def _shown(tensor: torch.Tensor) -> str:
    """A tensor of the batch as `--batch` names it."""
    name = {2: "input_ids" if tensor.dtype == torch.int64 else "input_values", 3: "input_features", 4: "pixel_values"}[tensor.ndim]
    kind = "i64" if tensor.dtype == torch.int64 else "f32"
    return f"{name}={kind}[{','.join(['B', *map(str, tensor.shape[1:])])}]"


def _class_labels(config: Any) -> torch.Tensor:
    """Classes, or numbers where the config makes the model regress or give several classes at once."""
    problem, labels = getattr(config, "problem_type", None), getattr(config, "num_labels", 2)
    if problem == "multi_label_classification":
        return _floats(labels)
    if problem == "regression" or (problem is None and labels == 1):
        return _floats(*([labels] if labels > 1 else []))
    return _ids()


def _image_size(config: Any, sizes: Sizes) -> tuple[int, int]:
    size = sizes.image_size or _of(config, "image_size") or 224
    height, width = (size, size) if isinstance(size, int) else (size[0], size[1])
    return height, width


def _of(config: Any, name: str) -> Any:
    """A value of the config, or of the part of it that is about images."""
    found = getattr(config, name, None)
    return found if found is not None else getattr(getattr(config, "vision_config", None), name, None)


def _required(length: Optional[int], flag: str, usual: int = 1024) -> int:
    if length is None:
        raise ExportError(f"the config does not say how long a sample is; give {flag}, as in {flag} {usual}")
    return length


def _ids(*lengths: int) -> torch.Tensor:
    return torch.empty((EXAMPLE_BATCH, *lengths), dtype=torch.int64, device="meta")


def _floats(*lengths: int) -> torch.Tensor:
    return torch.empty((EXAMPLE_BATCH, *lengths), device="meta")
