"""Tests of keeping and putting back what steps change, on the processor."""

import collections
import copy
import random
import types
import unittest
from unittest import mock

import numpy
import torch
from torch import nn

import fake_device
from batchfit.micro_steps import accumulate, never_skip, steps_are_taken
from batchfit.state import State, StateError


class Counter:
    """An object of the user's own."""

    __slots__ = ("count", "_State__hidden", "__dict__")

    def __init__(self):
        self.count = 0
        self.names = ["a"]
        self.seen = {1}
        self.recent = collections.deque([1], maxlen=4)
        self.deep = {"a": [types.SimpleNamespace(x=1)]}


def scramble(tensor):
    with torch.no_grad():
        tensor.view(-1).copy_(torch.arange(tensor.numel()).to(tensor.dtype))


class StateTest(unittest.TestCase):
    def put_back(self, things, change):
        state = State(things)
        state.keep()
        change()
        state.put_back()
        return state

    def test_training_steps_leave_no_trace(self):
        names = ("Adam", "Adagrad", "Rprop", "LBFGS", "Muon")
        for kind in [getattr(torch.optim, name) for name in names if hasattr(torch.optim, name)]:
            with self.subTest(kind.__name__):
                torch.manual_seed(0)
                layers = [nn.Linear(8, 8, bias=kind.__name__ != "Muon")]
                model = nn.Sequential(*layers, nn.Dropout(0.5))
                optimizer = kind(model.parameters(), lr=0.1)
                schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
                average = torch.optim.swa_utils.AveragedModel(model)

                def step():
                    loss = model(torch.randn(4, 8)).square().sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step(lambda: loss.detach()) if kind is torch.optim.LBFGS else optimizer.step()
                    schedule.step(1.0)
                    average.update_parameters(model)
                    return loss.item()

                for begun in (0, 2):
                    for _ in range(begun):
                        step()
                    before = fake_device.values(model, optimizer, schedule, average, torch.get_rng_state())
                    identities = [(id(p), p.data_ptr()) for p in model.parameters()]
                    states = {id(p): {name: id(value) for name, value in one.items()} for p, one in optimizer.state.items()}
                    alone = [copy.deepcopy(before)]

                    def run():
                        alone.append([step() for _ in range(3)])

                    self.put_back([model, optimizer, schedule, average], run)
                    self.assertEqual(fake_device.values(model, optimizer, schedule, average, torch.get_rng_state()), before)
                    self.assertEqual([(id(p), p.data_ptr()) for p in model.parameters()], identities)
                    now = {id(p): {name: id(value) for name, value in one.items()} for p, one in optimizer.state.items()}
                    self.assertEqual(now, states)
                    # And they go the same way again.
                    self.assertEqual([step() for _ in range(3)], alone[1])

    def test_tensors_of_every_kind(self):
        base = torch.arange(12.0).view(3, 4)
        tensors = {
            "view": base[1:, ::2],
            "transposed": base.t(),
            "expanded": torch.zeros(1).expand(5),
            "complex": torch.randn(3, dtype=torch.complex64),
            "bool": torch.tensor([True, False]),
            "bits": torch.randint(255, (7,), dtype=torch.uint8),
            "half": torch.randn(4).bfloat16(),
            "eight": torch.randn(4).to(torch.float8_e4m3fn),
            "empty": torch.empty(0),
            "scalar": torch.tensor(3),
            "sparse": torch.eye(3).to_sparse(),
            "rows": torch.eye(3).to_sparse_csr(),
            "quantized": torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
            "nan": torch.tensor([float("nan"), -0.0]),
        }

        def bits(tensor):
            if tensor.layout is torch.sparse_coo:
                return [bits(tensor._indices()), bits(tensor._values())]
            if tensor.layout is torch.sparse_csr:
                return [bits(tensor.crow_indices()), bits(tensor.values())]
            return bytes(tensor.untyped_storage().tolist())

        before = {name: bits(tensor) for name, tensor in tensors.items()}

        def change():
            for tensor in tensors.values():
                parts = [tensor]
                if tensor.layout is torch.sparse_coo:
                    parts = [tensor._indices(), tensor._values()]
                if tensor.layout is torch.sparse_csr:
                    parts = [tensor.values()]
                for part in parts:
                    whole = torch.empty(0, dtype=torch.uint8).set_(part.untyped_storage())
                    whole.add_(1)

        self.put_back([tensors], change)
        self.assertEqual({name: bits(tensor) for name, tensor in tensors.items()}, before)

    def test_tensors_that_were_replaced_are_put_where_they_were(self):
        model = nn.Linear(4, 4)
        weight, place, value = model.weight, model.weight.data_ptr(), model.weight.detach().clone()
        buffer = nn.BatchNorm1d(4)

        def change():
            model.weight.data = torch.zeros(4, 4)
            model.bias = nn.Parameter(torch.zeros(4))
            model.weight.requires_grad_(False)
            model.weight.note = "new"
            buffer.running_mean.untyped_storage().resize_(0)
            buffer.register_buffer("more", torch.zeros(1))
            buffer.eval()

        bias = model.bias
        self.put_back([model, buffer], change)
        self.assertIs(model.weight, weight)
        self.assertIs(model.bias, bias)
        self.assertEqual(weight.data_ptr(), place)
        self.assertTrue(torch.equal(weight, value))
        self.assertTrue(weight.requires_grad)
        self.assertFalse(hasattr(weight, "note"))
        self.assertTrue(torch.equal(buffer.running_mean, torch.zeros(4)))
        self.assertEqual([name for name, _ in buffer.named_buffers()], ["running_mean", "running_var", "num_batches_tracked"])
        self.assertTrue(buffer.training)

    def test_tied_weights_are_kept_once(self):
        table, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        head.weight = table.weight
        state = self.put_back([table, head, nn.ModuleList([table])], lambda: scramble(head.weight))
        self.assertEqual(len(state._storages), 1)
        self.assertIs(head.weight, table.weight)

    def test_gradients_come_back_as_the_same_tensors(self):
        model = nn.Linear(2, 2)
        model(torch.ones(1, 2)).sum().backward()
        gradient, value = model.weight.grad, model.weight.grad.clone()
        state = State([model])
        state.keep()
        state.without_gradients()
        self.assertIsNone(model.weight.grad)
        model(torch.ones(1, 2)).sum().backward()
        gradient.zero_()
        state.put_back()
        self.assertIs(model.weight.grad, gradient)
        self.assertTrue(torch.equal(gradient, value))

    def test_objects_of_ones_own_and_random_generators(self):
        counter = Counter()
        inner = counter.deep["a"][0]
        generators = [torch.Generator().manual_seed(1), random.Random(1), numpy.random.default_rng(1), numpy.random.RandomState(1)]
        array = numpy.arange(4.0)
        sampler = torch.utils.data.RandomSampler(range(10), generator=torch.Generator().manual_seed(2))
        loader = torch.utils.data.DataLoader(list(range(10)), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3))

        def draw():
            return [
                torch.rand(1, generator=generators[0]).item(), generators[1].random(), generators[2].random(), generators[3].rand(),
                list(sampler), [batch.tolist() for batch in loader], random.random(), numpy.random.rand(), torch.rand(1).item(),
            ]

        drawn = []

        def change():
            drawn.append(draw())
            counter.count = 5
            counter.names += ["b"]
            counter.seen.add(2)
            counter.recent.extend(range(9))
            counter.deep["a"][0].x = 2
            counter.deep["b"] = counter.deep.pop("a")
            counter.new = 1
            array[:] = 7

        self.put_back([counter, *generators, array, sampler, loader], change)
        self.assertEqual(draw(), drawn[0])
        self.assertEqual((counter.count, counter.names, counter.seen, list(counter.recent)), (0, ["a"], {1}, [1]))
        self.assertEqual(counter.deep, {"a": [inner]})
        self.assertEqual(inner.x, 1)
        self.assertFalse(hasattr(counter, "new"))
        self.assertEqual(array.tolist(), [0, 1, 2, 3])

    def test_subclasses_of_tensors(self):
        from torch.testing._internal.two_tensor import TwoTensor

        both = nn.Parameter(TwoTensor(torch.ones(3), torch.ones(3)))

        def change():
            both.a.zero_()
            both.b.fill_(2)

        self.put_back([[both]], change)
        self.assertTrue(torch.equal(both.a, torch.ones(3)) and torch.equal(both.b, torch.ones(3)))

    def test_what_cannot_be_kept_is_refused(self):
        for thing, words in ((lambda: 1, "no state"), (None, "no state"), (3, "no state"), (iter([1]), "put back"), ((i for i in []), "put back")):
            with self.assertRaisesRegex(StateError, words):
                State([thing])

    def test_too_much_for_the_host_is_told_before_anything_runs(self):
        with mock.patch("batchfit.state._free_host_memory", lambda: 1 << 10):
            with self.assertRaisesRegex(MemoryError, "GiB are needed"):
                State([nn.Linear(64, 64)]).keep()

    def test_data_sets_are_not_looked_at(self):
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.samples = [torch.zeros(3)]

        data = Data()
        state = State([torch.utils.data.DataLoader.__new__(torch.utils.data.DataLoader), types.SimpleNamespace(data=data)])
        self.assertNotIn(id(data.samples), state._seen)


class HoldingTest(unittest.TestCase):
    def test_optimizers_step_in_the_last_micro_step_alone(self):
        for zero_grad_first in (False, True):
            for of_module in (False, True):
                model = nn.Linear(2, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
                state = State([model, optimizer, scaler, schedule])
                before = fake_device.values(model)
                seen = []

                def step(batch):
                    def zero_grad():
                        (model if of_module else optimizer).zero_grad()

                    if zero_grad_first:
                        zero_grad()
                    loss = scaler.scale(model(torch.ones(batch, 2)).sum())
                    # What lives through the forward pass.
                    seen.append((model.weight.grad is not None, fake_device.values(model) == before, schedule.last_epoch))
                    loss.backward()
                    scaler.unscale_(optimizer)
                    scaler.step(optimizer)
                    scaler.update()
                    schedule.step()
                    if not zero_grad_first:
                        zero_grad()

                with self.subTest(zero_grad_first=zero_grad_first, of_module=of_module):
                    for _ in range(2):
                        accumulate(state, step, 1, 3)
                    first = [(False, True, 0), (True, True, 0), (True, True, 0)]
                    second = [(False, False, 1), (True, False, 1), (True, False, 1)]
                    self.assertEqual(seen, first + second)
                    self.assertEqual(model.weight.grad is None, not zero_grad_first)
                    self.assertNotIn("zero_grad", vars(optimizer))
                    self.assertNotIn("zero_grad", vars(model))

    def test_two_optimizers_let_go_of_gradients_each_in_its_turn(self):
        one, other = nn.Linear(1, 1), nn.Linear(1, 1)
        pairs = [(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (one, other)]
        seen = []

        def step(batch):
            for model, optimizer in pairs:
                optimizer.zero_grad()
                seen.append(model.weight.grad is not None)
                model(torch.ones(batch, 1)).sum().backward()
                optimizer.step()

        accumulate(State([pairs]), step, 1, 2)
        self.assertEqual(seen, [False, False, True, True])

    def test_a_step_with_infinite_gradients_is_taken(self):
        for in_state in (True, False):
            model = nn.Linear(2, 1)
            optimizer = torch.optim.Adam(model.parameters())
            scaler = torch.amp.GradScaler("cpu")
            state = State([model, optimizer] + [scaler] * in_state)
            state.keep()
            never_skip(state)
            with steps_are_taken():
                scaler.scale(model(torch.full((1, 2), float("inf"))).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            self.assertEqual(len(optimizer.state), 2)
            state.put_back()
            self.assertEqual(len(optimizer.state), 0)
            if in_state:
                self.assertEqual(scaler.get_scale(), 65536.0)
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), float("inf"))).sum()).backward()
            scaler.step(optimizer)
            self.assertEqual(len(optimizer.state), 0)

    def test_lazy_modules_are_refused(self):
        with self.assertRaisesRegex(StateError, "forward pass once"):
            State([nn.LazyLinear(3)])


if __name__ == "__main__":
    unittest.main()
