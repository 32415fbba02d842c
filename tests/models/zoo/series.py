"""Time series: tsai, pytorch-tcn, transformers and others."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import model

HF, TSAI = "transformers", "tsai"
SERIES = ("x=f32[B,6,96]", "y=i64[B]")


def _tsai(module: str, cls: str, *, args: tuple = (6, 5), on_gpu: bool = False, **options) -> None:
    def build():
        import importlib

        return getattr(importlib.import_module(f"tsai.models.{module}"), cls)(*args, **options)

    build.__module__ = __name__
    model(f"tsai-{cls.lower()}", TSAI, *SERIES, on_gpu=on_gpu)(build)


_tsai("InceptionTime", "InceptionTime", on_gpu=True)
_tsai("RNN", "LSTM", n_layers=2, bidirectional=True)
_tsai("RNN_FCN", "LSTM_FCN", args=(6, 5, 96))
_tsai("TST", "TST", args=(6, 5, 96), d_model=64, n_heads=4, d_ff=128)
_tsai("ResNet", "ResNet")
_tsai("XceptionTime", "XceptionTime")
_tsai("OmniScaleCNN", "OmniScaleCNN", args=(6, 5, 96))
_tsai("gMLP", "gMLP", args=(6, 5, 96), d_model=64, d_ffn=128)
_tsai("TSiTPlus", "TSiTPlus", args=(6, 5, 96), d_model=64, depth=2, n_heads=4)
_tsai("TCN", "TCN")


@model("pytorch-tcn", "pytorch-tcn", "x=f32[B,8,100]", "y=f32[B,16,100]", loss="mse", on_gpu=True)
def tcn():
    from pytorch_tcn import TCN

    return TCN(8, [16, 32, 16], kernel_size=4, dropout=0.1)


@model("pytorch-tcn-gated", "pytorch-tcn", "x=f32[B,8,100]", "y=f32[B,16,100]", loss=lambda m, x, y: F.huber_loss(m(x), y))
def tcn_gated():
    from pytorch_tcn import TCN

    return TCN(8, [16, 32, 16], kernel_size=4, use_norm="layer_norm", use_gate=True, activation="gelu")


@model("transformers-patchtst", HF, "past_values=f32[B,96,4]", "future_values=f32[B,24,4]", loss="model")
def patchtst():
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    return PatchTSTForPrediction(PatchTSTConfig(num_input_channels=4, context_length=96, prediction_length=24, patch_length=8, patch_stride=8, d_model=64, num_attention_heads=4, ffn_dim=128, num_hidden_layers=2, loss="mse"))


@model("transformers-patchtsmixer", HF, "past_values=f32[B,96,4]", "future_values=f32[B,24,4]", loss="model")
def patchtsmixer():
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    return PatchTSMixerForPrediction(PatchTSMixerConfig(num_input_channels=4, context_length=96, prediction_length=24, patch_length=8, patch_stride=8, d_model=32, num_layers=2))


FORECAST = {"prediction_length": 24, "context_length": 48, "lags_sequence": [1, 2, 3], "num_time_features": 2, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
PAST = ("past_values=f32[B,51]", "past_time_features=f32[B,51,2]", "past_observed_mask=f32[B,51]", "future_values=f32[B,24]", "future_time_features=f32[B,24,2]")


def _forecast(name: str, config: str, cls: str, **options) -> None:
    def build():
        import transformers

        return getattr(transformers, cls)(getattr(transformers, config)(**{**FORECAST, **options}))

    build.__module__ = __name__
    model(f"transformers-{name}", HF, *PAST, loss="model")(build)


_forecast("informer", "InformerConfig", "InformerForPrediction")
_forecast("autoformer", "AutoformerConfig", "AutoformerForPrediction", label_length=24, moving_average=5)
_forecast("time-series-transformer", "TimeSeriesTransformerConfig", "TimeSeriesTransformerForPrediction")


@model("transformers-timesfm", HF, "x=f32[B,128]", "y=f32[B,32]", loss=lambda m, x, y: F.mse_loss(m.decoder(past_values=x, past_values_padding=torch.zeros(x.shape[0], 160, device=x.device)[:, :128], freq=torch.zeros(x.shape[0], 1, dtype=torch.long, device=x.device)).last_hidden_state.mean((1, 2)), y.mean(1)))
def timesfm():
    from transformers import TimesFmConfig, TimesFmModelForPrediction

    return TimesFmModelForPrediction(TimesFmConfig(patch_length=32, context_length=128, horizon_length=32, hidden_size=64, intermediate_size=64, head_dim=16, num_hidden_layers=2, num_attention_heads=4))


class NLinear(torch.nn.Module):
    """DLinear and N-BEATS, in one: decomposition by a moving average, and blocks with a back cast."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.trend, self.season = torch.nn.Linear(96, 24), torch.nn.Linear(96, 24)
        block = lambda: torch.nn.Sequential(torch.nn.Linear(96, 128), torch.nn.ReLU(), torch.nn.Linear(128, 120))  # noqa: E731
        self.blocks = torch.nn.ModuleList(block() for _ in range(4 if kind == "nbeats" else 0))

    def forward(self, x):
        if self.kind == "nbeats":
            forecast = x.new_zeros(x.shape[0], x.shape[1], 24)
            for block in self.blocks:
                back, ahead = block(x).split([96, 24], -1)
                x, forecast = x - back, forecast + ahead
            return forecast
        padded = torch.cat([x[..., :1].repeat(1, 1, 12), x, x[..., -1:].repeat(1, 1, 12)], -1)
        trend = F.avg_pool1d(padded, 25, stride=1)
        return self.trend(trend) + self.season(x - trend)


@model("dlinear", "torch", "x=f32[B,7,96]", "y=f32[B,7,24]", loss=lambda m, x, y: (m(x) - y).abs().mean())
def dlinear():
    return NLinear("dlinear")


@model("nbeats", "torch", "x=f32[B,7,96]", "y=f32[B,7,24]", loss=lambda m, x, y: (lambda out: 200 * ((out - y).abs() / (out.abs() + y.abs() + 1e-8)).mean())(m(x)))
def nbeats():
    return NLinear("nbeats")


@model("quantile-forecast", "torch", "x=f32[B,96]", "y=f32[B,24]", loss=lambda m, x, y: pinball(m(x).view(-1, 24, 3), y))
def quantile():
    return torch.nn.Sequential(torch.nn.Linear(96, 128), torch.nn.ELU(), torch.nn.Linear(128, 72))


def pinball(out, y):
    """The loss of quantile regression."""
    quantiles = torch.tensor([0.1, 0.5, 0.9], device=y.device)
    error = y[..., None] - out
    return torch.maximum((quantiles - 1) * error, quantiles * error).sum(-1).mean()
