"""Recurrent nets, as tutorials write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import model


class Classifier(nn.Module):
    """Embedding, recurrent layers, a linear on the last state."""

    def __init__(self, kind: type, **options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.rnn = kind(64, 96, batch_first=True, **options)
        self.head = nn.Linear(96 * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, tokens):
        out, _ = self.rnn(self.embedding(tokens))
        return self.head(out[:, -1])


class Seq2Seq(nn.Module):
    """An encoder and a decoder with additive attention, one step at a time with teacher forcing."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(500, width), nn.Embedding(500, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.cell = nn.GRUCell(2 * width, width)
        self.score = nn.Linear(2 * width, 1)
        self.head = nn.Linear(width, 500)

    def forward(self, source, target):
        memory, state = self.encoder(self.source(source))
        state, words, out = state[0], self.target(target), []
        for step in range(words.shape[1]):
            query = state[:, None].expand_as(memory)
            weights = self.score(torch.cat([memory, query], -1)).softmax(1)
            context = (weights * memory).sum(1)
            state = self.cell(torch.cat([words[:, step], context], -1), state)
            out.append(self.head(state))
        return torch.stack(out, 1)


class LanguageModel(nn.Module):
    """Sequence first, with the states as inputs of the training loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(1000, 128), nn.LSTM(128, 128, 2, dropout=0.2)
        self.head = nn.Linear(128, 1000)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, h, c):
        out, _ = self.rnn(F.dropout(self.embedding(tokens), 0.2, self.training), (h, c))
        return self.head(out)


class Crnn(nn.Module):
    """Convolutions, a bidirectional LSTM and CTC: optical character recognition."""

    def __init__(self) -> None:
        super().__init__()
        layers = []
        for i, (a, b) in enumerate(((1, 32), (32, 64), (64, 128))):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True), nn.MaxPool2d((2, 2 if i < 2 else 1))]
        self.features = nn.Sequential(*layers)
        self.rnn = nn.LSTM(128 * 4, 64, 2, bidirectional=True)
        self.head = nn.Linear(128, 37)

    def forward(self, x):
        x = self.features(x).flatten(1, 2).permute(2, 0, 1)
        return self.head(self.rnn(x)[0]).log_softmax(-1)


class ConvLstm(nn.Module):
    """A convolutional LSTM over frames."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width, self.gates, self.head = width, nn.Conv2d(1 + width, 4 * width, 3, padding=1), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.width, *x.shape[3:])
        c = torch.zeros_like(h)
        for frame in x.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h)


class Cells(nn.Module):
    """A loop over an LSTM cell with layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm, self.head = nn.LSTMCell(32, 64), nn.LayerNorm(64), nn.Linear(64, 1)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 64, device=x.device)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
            h = self.norm(h)
        return self.head(h)


TEXT = ("tokens=i64[B,50]", "y=i64[B]")


@model("lstm-classifier", "torch", *TEXT, on_gpu=True)
def lstm():
    return Classifier(nn.LSTM, num_layers=2, dropout=0.1)


@model("bilstm-classifier", "torch", *TEXT, on_gpu=True)
def bilstm():
    return Classifier(nn.LSTM, num_layers=2, bidirectional=True)


@model("gru-classifier", "torch", *TEXT, on_gpu=True)
def gru():
    return Classifier(nn.GRU)


@model("rnn-classifier", "torch", *TEXT)
def rnn():
    return Classifier(nn.RNN, nonlinearity="tanh")


@model("seq2seq-attention", "torch", "source=i64[B,20]", "target=i64[B,12]", "y=i64[B,12]", loss=lambda m, s, t, y: F.cross_entropy(m(s, t).flatten(0, 1), y.flatten()), on_gpu=True)
def seq2seq():
    return Seq2Seq()


@model("lstm-language-model", "torch", "tokens=i64[35,B]", "h=f32[2,B,128]", "c=f32[2,B,128]", "y=i64[35,B]", loss=lambda m, tokens, h, c, y: F.cross_entropy(m(tokens, h, c).view(-1, 1000), y.reshape(-1)), on_gpu=True)
def language_model():
    return LanguageModel()


@model("crnn-ocr", "torch", "x=f32[B,1,32,100]", "target=i64[B,10]=1", "lengths=i64[B]=25", "target_lengths=i64[B]=10", loss=lambda m, x, target, lengths, target_lengths: F.ctc_loss(m(x), target, lengths, target_lengths), on_gpu=True)
def crnn():
    return Crnn()


@model("conv-lstm", "torch", "x=f32[B,8,1,32,32]", "y=f32[B,1,32,32]", loss="mse", on_gpu=True)
def conv_lstm():
    return ConvLstm()


@model("lstm-cells", "torch", "x=f32[B,16,32]", "y=f32[B,1]", loss="mse")
def cells():
    return Cells()
