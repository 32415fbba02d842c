"""Recurrent networks on padded sequences: cells, layers, directions, projections, states, types."""

import torch
from cases import BATCH, case
from torch import nn

STEPS, FEATURES = 4, 3
# Elements are as good as never dropped, but the kernels that may drop them run.
RARELY = 1e-9


class Sequence(nn.Module):
    """A network from the middle of a step, so that its input wants a gradient; `read` turns its results into a number."""

    def __init__(self, network: nn.RNNBase, read, states=None) -> None:
        super().__init__()
        self.before = nn.Linear(FEATURES, network.input_size)
        self.network, self.read = network, read
        self.states = nn.ParameterList(torch.randn(shape) for shape in states or [])

    def forward(self, x):
        x = torch.tanh(self.before(x))
        if not self.network.batch_first:
            x = x.transpose(0, 1)
        samples = x.shape[0 if self.network.batch_first else 1]
        states = [state.expand(-1, samples, -1).contiguous() for state in self.states]
        if not states:
            return self.read(*self.network(x))
        return self.read(*self.network(x, tuple(states) if len(states) > 1 else states[0]))


def outputs(y, states):
    return (y * torch.cos(y.detach() * 3 + 1)).sum()


def last_step(y, states):
    return (y[-1] * torch.cos(y[-1].detach() * 3 + 1)).sum()


def last_hidden(y, states):
    hidden = states[0] if isinstance(states, tuple) else states
    return (hidden * torch.cos(hidden.detach() * 3 + 1)).sum()


def all_of_lstm(y, states):
    return outputs(y, None) + sum(((i + 1) * state * state).sum() for i, state in enumerate(states))


def all_of_other(y, hidden):
    return outputs(y, None) + (2 * hidden * hidden).sum()


def sequence(name: str, build, read, states=None, dtype=torch.float32) -> None:
    @case(name, dtype=dtype)
    def made():
        return Sequence(build(), read, states), {"x": torch.randn(BATCH, STEPS, FEATURES)}


sequence("lstm", lambda: nn.LSTM(3, 5), outputs)
sequence("lstm-deep", lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True, dropout=RARELY), all_of_lstm)
sequence("lstm-states", lambda: nn.LSTM(3, 5, num_layers=2, bias=False), all_of_lstm, [(2, 1, 5), (2, 1, 5)])
sequence("lstm-projected", lambda: nn.LSTM(3, 6, num_layers=2, bidirectional=True, proj_size=2), all_of_lstm, [(4, 1, 2), (4, 1, 6)])
sequence("lstm-last", lambda: nn.LSTM(3, 5, batch_first=True), last_hidden)
sequence("lstm-bf16", lambda: nn.LSTM(3, 5, num_layers=2, batch_first=True), outputs, dtype=torch.bfloat16)
sequence("gru", lambda: nn.GRU(3, 5, bidirectional=True), last_step)
sequence("gru-deep", lambda: nn.GRU(3, 5, num_layers=3, batch_first=True, dropout=RARELY), all_of_other, [(3, 1, 5)])
sequence("gru-bare", lambda: nn.GRU(2, 5, num_layers=2, bidirectional=True, bias=False), last_hidden, [(4, 1, 5)])
sequence("gru-bf16", lambda: nn.GRU(3, 5, batch_first=True), outputs, dtype=torch.bfloat16)
sequence("rnn-tanh", lambda: nn.RNN(3, 5, num_layers=2, bidirectional=True), all_of_other, [(4, 1, 5)])
sequence("rnn-relu", lambda: nn.RNN(3, 5, nonlinearity="relu", batch_first=True), all_of_other)
