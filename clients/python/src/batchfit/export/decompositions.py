"""Composite operators whose C++ code asks for sizes or values that tracing does not have, written out in Python.

Each does what PyTorch 2.11's own does, statement by statement; `aten/src/ATen/native` has the originals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def _quantile(self: Tensor, q: Tensor, dim: Optional[int], keepdim: bool, interpolation: str, ignore_nan: bool) -> Tensor:
    """`quantile_compute` in `Sorting.cpp`."""
    wrapped = 0 if dim is None else dim % max(self.dim(), 1)
    kept = list(self.shape) if dim is not None and keepdim else [1] * self.dim() if keepdim else []
    if dim is not None:
        kept = [n for at, n in enumerate(self.shape) if at != wrapped] if not keepdim else kept
        if keepdim:
            kept[wrapped] = 1
        last = wrapped == self.dim() - 1
        ordered = self.sort(-1)[0] if last else self.unsqueeze(-1).transpose(wrapped, -1).sort(-1)[0]
    else:
        ordered = self.flatten().sort()[0]
    ordered = ordered.view([*kept, ordered.shape[-1]])
    if ignore_nan:
        ranks = q * (ordered.isnan().logical_not_().sum(-1, True) - 1)
        ranks.masked_fill_(ranks < 0, 0)
    else:
        at_most = ordered.shape[-1] - 1
        is_nan = ordered.isnan().any(-1, True)
        ranks, is_nan = torch.broadcast_tensors(q * at_most, is_nan)  # type: ignore[no-untyped-call]
        ranks = ranks.masked_fill(is_nan, at_most)
        del is_nan
    if interpolation in ("lower", "higher", "nearest"):
        ranks = {"lower": ranks.floor_, "higher": ranks.ceil_, "nearest": ranks.round_}[interpolation]()
    below = ranks.to(torch.int64)
    values = ordered.gather(-1, below)
    if interpolation in ("linear", "midpoint"):
        weights = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - below
        above = ranks.ceil_().to(torch.int64)
        higher = ordered.gather(-1, above)
        values = values.lerp_(higher, weights)
    return values.squeeze(-1) if q.dim() == 0 else values.unsqueeze(0).transpose(0, -1).squeeze(-1)


def _of_tensor(ignore_nan: bool) -> Callable[..., Tensor]:
    def quantile(self: Tensor, q: Tensor, dim: Optional[int] = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
        return _quantile(self, q, dim, keepdim, interpolation, ignore_nan)

    return quantile


def _of_number(ignore_nan: bool) -> Callable[..., Tensor]:
    def quantile(self: Tensor, q: float, dim: Optional[int] = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
        scalar = torch.scalar_tensor(q, dtype=self.dtype, device=self.device)
        return _quantile(self, scalar, dim, keepdim, interpolation, ignore_nan)

    return quantile


def _take_along_dim(self: Tensor, indices: Tensor, dim: Optional[int] = None) -> Tensor:
    """`take_along_dim` in `TensorAdvancedIndexing.cpp`."""
    if dim is None:
        return self.view(-1).gather(0, indices.view(-1))
    dim = dim % self.dim()
    # The batch is no one, whatever it is compared with.
    ours = [b if isinstance(a, int) and a == 1 else a for a, b in zip(self.shape, indices.shape)]
    theirs = list(ours)
    ours[dim], theirs[dim] = self.shape[dim], indices.shape[dim]
    return torch.broadcast_to(self, ours).gather(dim, torch.broadcast_to(indices, theirs))


def _cov(self: Tensor, *, correction: int = 1, fweights: Optional[Tensor] = None, aweights: Optional[Tensor] = None) -> Tensor:
    """`cov` in `Correlation.cpp`."""
    rows = self.unsqueeze(0) if self.dim() < 2 else self
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    total: Any = rows.shape[1] if weights is None else weights.sum()
    average = (rows if weights is None else rows * weights).sum(1) / total
    factor = total - correction
    rows = rows - average.unsqueeze(1)
    product = torch.mm(rows, (rows if weights is None else rows * weights).t())
    return torch.true_divide(product, factor).squeeze()


def _corrcoef(self: Tensor) -> Tensor:
    """`corrcoef` in `Correlation.cpp`."""
    covariance = _cov(self)
    if covariance.dim() == 0:
        return covariance / covariance
    deviation = covariance.diag().sqrt()
    covariance = covariance / deviation.view([-1, 1])
    covariance = covariance / deviation.view([1, -1])
    return covariance.clip(-1, 1)


def _istft(
    self: Tensor,
    n_fft: int,
    hop_length: Optional[int] = None,
    win_length: Optional[int] = None,
    window: Optional[Tensor] = None,
    center: bool = True,
    normalized: bool = False,
    onesided: Optional[bool] = None,
    length: Optional[int] = None,
    return_complex: bool = False,
) -> Tensor:
    """`istft` in `SpectralOps.cpp`. Its check of the window finds nothing wrong."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    parts = torch.view_as_real(self)
    whole = parts.dim() == 3
    frames, bins = parts.shape[-2], parts.shape[-3]
    longest = n_fft + hop * (frames - 1)
    shape = torch.ones(width, dtype=parts.dtype, device=parts.device) if window is None else window
    if width != n_fft:
        left = (n_fft - width) // 2
        shape = aten.constant_pad_nd(shape, [left, n_fft - width - left], 0)
    if whole:
        parts = parts.unsqueeze(0)
    spectrum = torch.view_as_complex(parts.transpose(1, 2))
    norm = 1 if normalized else 2
    if return_complex:
        signal = aten._fft_c2c(spectrum, [spectrum.dim() - 1], norm, False)
    else:
        if onesided is False or (onesided is None and bins == n_fft and n_fft > 1):
            spectrum = spectrum.narrow(-1, 0, n_fft // 2 + 1)
        signal = aten._fft_c2r(spectrum, [spectrum.dim() - 1], norm, n_fft)
    del spectrum, parts
    weighted = signal * shape.view([1, 1, n_fft])
    y: Tensor = aten.unfold_backward(weighted, [weighted.shape[0], longest], 1, n_fft, hop)
    shape = shape.pow(2).expand([1, frames, n_fft])
    envelope = aten.unfold_backward(shape, [1, longest], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else longest - n_fft // 2 if center else longest
    stop = min(end, longest)
    y = y.narrow(1, start, stop - start)
    envelope = envelope.narrow(1, start, stop - start)
    envelope.abs().min().lt(1e-11)
    y = y / envelope
    if whole:
        y = y.squeeze(0)
    if end > longest:
        y = aten.constant_pad_nd(y, [0, end - longest], 0)
    return y


def _window(steps: int) -> Callable[..., Tensor]:
    """`hann_window` and its like in `TensorFactories.cpp`: a range with one place more where the window is periodic, computed in
    place, or in as many steps beside it."""

    def window(length: int, periodic: Any = True, *_: Any, dtype: Any = None, device: Any = None, **__: Any) -> Tensor:
        count = length + 1 if periodic is not False else length
        places = torch.arange(count, dtype=dtype or torch.get_default_dtype(), device=device)
        held = [places * 1.0 for _ in range(steps)]
        del held
        return places.narrow(0, 0, length) if periodic is not False else places

    return window


def _windows() -> dict[Any, Callable[..., Any]]:
    steps = {"hann_window": 0, "hamming_window": 0, "bartlett_window": 0, "blackman_window": 4, "kaiser_window": 1}
    packets = {getattr(aten, name): count for name, count in steps.items()}
    return {
        getattr(packet, overload): _window(count)
        for packet, count in packets.items()
        for overload in packet.overloads()
        if "out" not in overload
    }


def _of_each(func: Any) -> Callable[..., Any]:
    """`_foreach_*`, which does the same to each tensor of its lists; what it makes it makes in their order."""
    name = func.overloadpacket.__name__.removeprefix("_foreach_")
    one = getattr(Tensor, name)

    def each(self: Any, *args: Any, **kwargs: Any) -> Any:
        count = len(self) if isinstance(self, (list, tuple)) else len(args[0])

        def part(value: Any, index: int) -> Any:
            return value[index] if isinstance(value, (list, tuple)) and len(value) == count else value

        named = {key: value for key, value in kwargs.items() if value is not None}
        made = [
            one(part(self, index), *(part(arg, index) for arg in args), **{key: part(value, index) for key, value in named.items()})
            for index in range(count)
        ]
        return None if name.endswith("_") else made

    return each


def written_out(func: Any) -> Optional[Callable[..., Any]]:
    """What stands for an operator, if something does."""
    if func.namespace == "aten" and func.overloadpacket.__name__.startswith("_foreach_"):
        return _of_each(func)
    return WRITTEN_OUT.get(func)


WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    aten.quantile.default: _of_tensor(False),
    aten.quantile.scalar: _of_number(False),
    aten.nanquantile.default: _of_tensor(True),
    aten.nanquantile.scalar: _of_number(True),
    aten.take_along_dim.default: _take_along_dim,
    aten.cov.default: _cov,
    aten.corrcoef.default: _corrcoef,
    aten.istft.default: _istft,
    **_windows(),
}
