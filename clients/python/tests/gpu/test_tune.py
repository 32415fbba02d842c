"""Tests of tuning and recording that need PyTorch's CUDA allocator. Without a GPU they are left out, and say so.

    python -m unittest gpu.test_tune          (in clients/python/tests, with PYTHONPATH=../src)
"""

import contextlib
import copy
import gc
import io
import os
import random
import signal
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import batchfit
from batchfit import binary
from batchfit.recording import is_history_on
from batchfit.state import State
from batchfit.tuning import NothingFits, Tuning

FAKE = Path(__file__).resolve().parents[1] / "fake_leader.py"
MIB = 1 << 20


def history_off():
    torch.cuda.memory._record_memory_history(enabled=None)


class Average(nn.Module):
    """An average of weights that counts its updates in a plain attribute."""

    def __init__(self, model):
        super().__init__()
        self.average = copy.deepcopy(model)
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for mean, now in zip(self.average.parameters(), model.parameters()):
            mean.lerp_(now, 0.1)


class Training:
    """A small training program with all that a step may change."""

    def __init__(self, amp=True):
        torch.manual_seed(1)
        random.seed(1)
        self.model = nn.Sequential(nn.Linear(1024, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2048, 64)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cuda", enabled=amp)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.average = Average(self.model)
        self.generator = torch.Generator("cpu").manual_seed(3)
        self.amp = amp
        self.calls = []
        self.steps = 0
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_):
        self.steps += 1

    @property
    def state(self):
        return [self.model, self.optimizer, self.scaler, self.schedule, self.average, self.generator]

    def __call__(self, batch):
        self.calls.append(batch)
        x = torch.randn(batch, 1024, generator=self.generator).cuda() * (1 + random.random())
        y = torch.randint(64, (batch,), device="cuda")
        with torch.autocast("cuda", torch.float16, enabled=self.amp):
            loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.average.update(self.model)
        return loss.detach()

    def values(self):
        """All of it, to be compared."""
        kept = [copy.deepcopy(thing.state_dict()) for thing in (self.model, self.optimizer, self.scaler, self.schedule)]
        flat = []

        def add(value):
            if isinstance(value, torch.Tensor):
                flat.append(value.detach().cpu().numpy().tobytes())
            elif isinstance(value, dict):
                for key in value:
                    add(value[key])
            elif isinstance(value, (list, tuple)):
                for one in value:
                    add(one)
            else:
                flat.append(repr(value))

        add([kept, self.average.state_dict(), self.average.updates, self.generator.get_state()])
        add([random.getstate(), torch.get_rng_state(), torch.cuda.get_rng_state_all()])
        add([None if p.grad is None else p.grad for p in self.model.parameters()])
        return flat


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class GpuTest(unittest.TestCase):
    def setUp(self):
        # What earlier tests left behind.
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        patch = mock.patch.object(binary, "find", lambda: FAKE)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        self.addCleanup(history_off)

    def tune(self, training, batch=64, **named):
        named.setdefault("memory_limit", "200MiB")
        return batchfit.tune(training, batch=batch, state=training.state, **named)


class TuneTest(GpuTest):
    def test_everything_is_put_back(self):
        training = Training()
        tensors = [id(tensor) for tensor in training.model.state_dict(keep_vars=True).values()]
        places = [p.data_ptr() for p in training.model.parameters()]
        before = training.values()

        plan = self.tune(training)

        self.assertGreater(plan.micro_batch, 64)
        self.assertEqual(plan.accumulation_steps, 1)
        self.assertEqual(training.values(), before)
        self.assertEqual(len(training.optimizer.state), 0)
        self.assertEqual([id(tensor) for tensor in training.model.state_dict(keep_vars=True).values()], tensors)
        self.assertEqual([p.data_ptr() for p in training.model.parameters()], places)
        self.assertFalse(is_history_on())
        self.assertIn("micro-batch", str(plan))

    def test_training_goes_on_as_if_nothing_had_been(self):
        alone = Training()
        for _ in range(2):
            alone(16)
        tuned = Training()
        for _ in range(2):
            tuned(16)
        self.assertEqual(alone.values(), tuned.values())
        random_states = random.getstate(), torch.get_rng_state(), torch.cuda.get_rng_state()
        without = [alone(16).item() for _ in range(4)]
        random.setstate(random_states[0])
        torch.set_rng_state(random_states[1])
        torch.cuda.set_rng_state(random_states[2])

        self.tune(tuned)

        self.assertEqual([tuned(16).item() for _ in range(4)], without)

    def test_gradients_that_were_there_come_back(self):
        training = Training(amp=False)
        nn.functional.cross_entropy(training.model(torch.randn(8, 1024, device="cuda")), torch.zeros(8, dtype=torch.long, device="cuda")).backward()
        gradients = [p.grad for p in training.model.parameters()]
        before = training.values()
        self.tune(training)
        self.assertEqual(training.values(), before)
        self.assertTrue(all(p.grad is gradient for p, gradient in zip(training.model.parameters(), gradients)))

    def test_running_out_of_memory_is_told_and_forgotten(self):
        training = Training()
        before, held = training.values(), torch.cuda.memory_allocated()
        plan = self.tune(training, batch=1 << 16)
        self.assertGreater(plan.out_of_memory_errors, 0)
        self.assertLess(plan.micro_batch, 1 << 16)
        self.assertEqual(training.values(), before)
        self.assertEqual(torch.cuda.memory_allocated(), held)

    def test_nothing_fits(self):
        training = Training()
        before = training.values()

        def step(batch):
            training(batch + 1)
            raise torch.OutOfMemoryError("CUDA out of memory.")

        with self.assertRaisesRegex(NothingFits, "no batch fits"):
            batchfit.tune(step, batch=8, state=training.state, memory_limit="200MiB")
        self.assertEqual(training.values(), before)

    def test_an_error_of_the_step_goes_through_and_all_is_put_back(self):
        for call in (1, 2, 3, 6):
            training = Training()
            before = training.values()

            def step(batch):
                training(batch)
                if len(training.calls) == call:
                    raise ZeroDivisionError("a fault of the program")

            with self.subTest(call), self.assertRaisesRegex(ZeroDivisionError, "a fault"):
                batchfit.tune(step, batch=8, state=training.state, memory_limit="200MiB")
            self.assertEqual(training.values(), before)
            self.assertFalse(is_history_on())

    def test_ctrl_c_while_steps_run(self):
        for call in (1, 3, 5):
            training = Training()
            before = training.values()

            def step(batch):
                training(batch)
                if len(training.calls) == call:
                    signal.raise_signal(signal.SIGINT)

            with self.subTest(call), self.assertRaises(KeyboardInterrupt):
                batchfit.tune(step, batch=8, state=training.state, memory_limit="200MiB")
            self.assertEqual(training.values(), before)
            self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_ctrl_c_again_while_the_state_is_put_back(self):
        training = Training()
        before = training.values()
        put_back = State.put_back
        ending = []

        def interrupted(state, **named):
            if ending:
                signal.raise_signal(signal.SIGINT)
            put_back(state, **named)
            if ending:
                signal.raise_signal(signal.SIGINT)

        def step(batch):
            training(batch)
            if len(training.calls) == 4:
                ending.append(True)
                signal.raise_signal(signal.SIGINT)

        with mock.patch.object(State, "put_back", interrupted), self.assertRaises(KeyboardInterrupt):
            batchfit.tune(step, batch=8, state=training.state, memory_limit="200MiB")
        self.assertEqual(training.values(), before)

    def test_ctrl_c_at_the_very_end_comes_after_everything_is_put_back(self):
        training = Training()
        before = training.values()
        end = Tuning._end

        def interrupted(tuning, *arguments, **named):
            signal.raise_signal(signal.SIGINT)
            end(tuning, *arguments, **named)

        with mock.patch.object(Tuning, "_end", interrupted), self.assertRaises(KeyboardInterrupt):
            self.tune(training)
        self.assertEqual(training.values(), before)

    def test_the_allocator_is_left_as_a_fresh_one(self):
        training = Training()
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved()
        torch.cuda.set_per_process_memory_fraction(0.5)
        self.tune(training)
        self.assertEqual(torch.cuda.memory_reserved(), reserved)
        self.assertEqual(torch.cuda.max_memory_reserved(), reserved)
        if hasattr(torch.cuda, "get_per_process_memory_fraction"):
            self.assertEqual(torch.cuda.get_per_process_memory_fraction(), 0.5)

    def test_accumulating_steps_add_up_gradients_and_step_once(self):
        training = Training()
        counted = []

        def step(batch):
            before = training.steps
            training(batch)
            counted.append((training.steps - before, training.model[0].weight.grad is not None))

        with mock.patch("batchfit.tuning.Recording", side_effect=batchfit.Recording) as recordings:
            plan = batchfit.tune(step, batch=32, state=training.state, memory_limit="200MiB", target_batch=4096)
        self.assertEqual(counted[:2], [(0, True), (1, False)])
        self.assertEqual(recordings.call_args_list[0].args, (32, 2))
        self.assertEqual(plan.micro_batch * plan.accumulation_steps, 4096)
        self.assertEqual(training.steps - sum(steps for steps, _ in counted), 0)

    def test_a_target_below_the_batch_is_one_step(self):
        training = Training()
        plan = self.tune(training, batch=64, target_batch=16)
        self.assertEqual((plan.micro_batch, plan.accumulation_steps, set(training.calls)), (16, 1, {16}))

    def test_a_scaler_skips_no_step(self):
        training = Training()

        def step(batch):
            training(batch)
            # Not even where gradients are not finite.
            self.assertGreater(len(training.optimizer.state), 0)

        with torch.no_grad():
            training.model[4].bias.fill_(float("inf"))
        batchfit.tune(step, batch=8, state=training.state, memory_limit="200MiB")
        self.assertEqual(training.scaler.get_scale(), 65536.0)

    def test_compiled_programs_are_recorded_with_a_symbolic_batch(self):
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = []

        def step(batch):
            batches.append(batch)
            compiled(torch.randn(batch, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        self.addCleanup(torch._dynamo.reset)
        batchfit.tune(step, batch=64, state=[model, optimizer], memory_limit="100MiB")
        # Once to be compiled, once more to be compiled for any batch, and from there on.
        self.assertEqual(batches[:5], [64, 63, 63, 63, 63])

    def test_what_is_left_outside_of_the_state_is_told(self):
        training = Training()
        leak = []

        def step(batch):
            training(batch)
            leak.append(torch.empty(20 * MIB, device="cuda", dtype=torch.uint8))

        with self.assertLogs("batchfit", "WARNING") as logs:
            batchfit.tune(lambda batch: (step(batch), step(batch)), batch=8, state=training.state, memory_limit="900MiB")
        self.assertIn("not in `state`", "".join(logs.output))

    def test_inference_mode_is_refused(self):
        training = Training()
        with torch.inference_mode(), self.assertRaisesRegex(RuntimeError, "inference_mode"):
            self.tune(training)
        self.assertEqual(training.calls, [])

    def test_state_must_be_there(self):
        training = Training()
        with self.assertRaisesRegex(TypeError, r"state=\[model, optimizer"):
            batchfit.tune(training, batch=8)
        with self.assertRaisesRegex(ValueError, r"state=\[model, optimizer"):
            batchfit.tune(training, batch=8, state=[])
        with self.assertRaisesRegex(ValueError, "no memory of the GPU"):
            batchfit.tune(training, batch=8, state=[nn.Linear(2, 2)])
        with self.assertRaisesRegex(TypeError, "cannot be put back"):
            batchfit.tune(training, batch=8, state=[training.model, iter([1])])
        self.assertEqual(training.calls, [])


class HistoryTest(GpuTest):
    def test_a_history_that_was_on_stays_with_its_entries(self):
        training = Training()
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=50_000)
        kept = torch.empty(777 * 1024, dtype=torch.uint8, device="cuda")
        with mock.patch("batchfit.ask_tell.Local.tell", autospec=True, side_effect=_tell) as told:
            self.tune(training)
        self.assertTrue(is_history_on())
        # All were told with recordings.
        fits = [call for call in told.call_args_list if call.args[1]["outcome"] == "fits"]
        self.assertGreater(len(fits), 1)
        self.assertTrue(all(call.args[2] is not None for call in fits))
        later = torch.empty(778 * 1024, dtype=torch.uint8, device="cuda")
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        for tensor in (kept, later):
            of_it = [one for one in entries if one["action"] == "alloc" and one["size"] == tensor.numel()]
            self.assertEqual(len(of_it), 1)
            self.assertTrue(of_it[0]["frames"])

    def test_with_a_short_history_peaks_alone_are_told(self):
        training = Training()
        torch.cuda.memory._record_memory_history(context=None, max_entries=20)
        with mock.patch("batchfit.ask_tell.Local.tell", autospec=True, side_effect=_tell) as told:
            with self.assertLogs("batchfit", "WARNING"):
                plan = self.tune(training)
        self.assertTrue(all(call.args[2] is None for call in told.call_args_list))
        self.assertGreater(plan.micro_batch, 64)
        self.assertTrue(is_history_on())

    def test_the_same_steps_make_the_same_recording(self):
        texts = []
        for on in (False, True):
            self.setUp()
            training = Training()
            if on:
                torch.cuda.memory._record_memory_history(context=None)
                torch.empty(3, device="cuda")
            training(16)
            training.optimizer.state.clear()
            with batchfit.Recording(16) as recording:
                for _ in range(3):
                    recording.step()
                    training(16)
            texts.append(recording.text())
            del training, recording
            gc.collect()
        first = texts[0].splitlines()
        self.assertEqual(first.count("s"), 3)
        self.assertEqual(texts[0], texts[1])
        allocated = sum(line.startswith(("a ", "b ")) for line in first)
        freed = sum(line.startswith("f ") for line in first)
        self.assertGreater(freed, 50)
        self.assertGreater(allocated, freed)


def _tell(local, observation, recording):
    """What a fake leader is told."""
    line = dict(observation)
    if recording is not None:
        line["recorded"] = str(recording)
    return local._ask(line)


class RecordOomTest(GpuTest):
    def test_a_snapshot_and_its_verdict(self):
        torch.cuda.set_per_process_memory_fraction(600 * MIB / torch.cuda.mem_get_info()[1])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "oom.pickle"
            errors = io.StringIO()
            kept = []
            with contextlib.redirect_stderr(errors), self.assertRaises(torch.OutOfMemoryError):
                with batchfit.record_oom(path):
                    for _ in range(100):
                        kept.append(torch.empty(100 * MIB, dtype=torch.uint8, device="cuda"))
            self.assertGreater(os.path.getsize(path), 100)
        said = errors.getvalue()
        self.assertIn("out of memory", said)
        self.assertIn("100.0 MiB at", said)
        self.assertIn("test_tune.py", said)
        self.assertFalse(is_history_on())

    def test_other_errors_and_histories_are_left_alone(self):
        torch.cuda.memory._record_memory_history(context=None)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(ZeroDivisionError), batchfit.record_oom(Path(folder) / "oom.pickle"):
                1 / 0
            self.assertEqual(os.listdir(folder), [])
        self.assertTrue(is_history_on())


if __name__ == "__main__":
    unittest.main()
