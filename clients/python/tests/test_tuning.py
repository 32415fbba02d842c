"""Tests of tuning without a GPU: who leads, what is told, limits, interrupts, recordings as text, plans."""

import contextlib
import http.server
import io
import json
import logging
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import batchfit
import fake_device
from batchfit import ask_tell, batches, binary, device, out_of_memory, ranks, recording
from batchfit.ask_tell import Local, Refused, SearchError, Server
from batchfit.interrupts import Interrupts
from batchfit.plan import Plan, Run
from batchfit.tuning import NothingFits

MIB = 1 << 20


class Program:
    """A training program on the processor."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batches = []

    def __call__(self, batch):
        self.batches.append(batch)
        self.model(torch.randn(batch, 8)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def tune(self, **named):
        return batchfit.tune(self, **{"batch": 4, "state": [self.model, self.optimizer], **named})

    def values(self):
        return fake_device.values(self.model, self.optimizer, torch.get_rng_state())


class TuneTest(unittest.TestCase):
    def test_each_batch_is_warmed_up_and_recorded_in_three_steps(self):
        program = Program()
        before = program.values()
        with fake_device.installed() as limits, self.assertLogs("batchfit", "INFO") as logs:
            plan = program.tune(memory_limit="100MiB")
        self.assertEqual(program.batches[:8], [4] * 4 + [8] * 4)
        self.assertEqual([recording.steps for recording in fake_device.MADE], [3] * len(plan.runs))
        self.assertEqual(plan.micro_batch, 97)
        self.assertEqual(program.values(), before)
        # Set before the first step, again when it is known what there is, and what was there in the end.
        self.assertEqual(limits, [100 * MIB, 100 * MIB, 1.0])
        self.assertEqual(len(logs.output), len(plan.runs) + 1)
        self.assertIn("batch 4: fits, 4 MiB reserved", logs.output[0])

    def test_out_of_memory_is_told_in_whatever_words(self):
        for error in (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
            RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ):
            program = Program()
            before = program.values()

            def step(batch):
                program(batch)
                if batch > 20:
                    try:
                        raise error
                    except RuntimeError as cause:
                        raise ValueError("a wrapper of it") from cause

            with self.subTest(str(error)), fake_device.installed():
                plan = batchfit.tune(step, batch=4, state=[program.model, program.optimizer], memory_limit="100MiB")
            self.assertTrue(4 < plan.micro_batch <= 20)
            self.assertGreater(plan.out_of_memory_errors, 0)
            self.assertEqual(program.values(), before)

    def test_other_errors_and_ctrl_c_go_through(self):
        for error in (RuntimeError("CUDA error: an illegal memory access"), KeyboardInterrupt(), MemoryError(), SystemExit(3)):
            for call in (1, 3, 7):
                program = Program()
                before = program.values()

                def step(batch):
                    program(batch)
                    if len(program.batches) == call:
                        raise error

                with self.subTest(repr(error)), fake_device.installed(), self.assertRaises(type(error)):
                    batchfit.tune(step, batch=4, state=[program.model, program.optimizer], memory_limit="100MiB")
                self.assertEqual(program.values(), before)

    def test_targets(self):
        with fake_device.installed():
            program = Program()
            plan = program.tune(memory_limit="20MiB", target_batch=64)
            self.assertEqual((plan.micro_batch, plan.accumulation_steps, plan.global_batch), (16, 4, 64))
            self.assertEqual({one.accumulation for one in fake_device.MADE}, {2})
            fake_device.MADE.clear()
            plan = program.tune(memory_limit="100MiB", target_batch=8)
            self.assertEqual((plan.micro_batch, plan.accumulation_steps), (8, 1))
            self.assertEqual([(one.batch, one.accumulation) for one in fake_device.MADE], [(4, 2), (8, 1)])
            # Less than the batch to begin with.
            self.assertEqual(program.tune(memory_limit="100MiB", target_batch=2).micro_batch, 2)

    def test_nothing_fits(self):
        program = Program()

        def step(batch):
            raise torch.OutOfMemoryError("CUDA out of memory")

        with fake_device.installed(), self.assertRaisesRegex(NothingFits, "no batch fits in 0.10 GiB"):
            batchfit.tune(step, batch=4, state=[program.model], memory_limit="100MiB")

    def test_what_is_asked_is_checked_first(self):
        program = Program()
        wrong = [
            (TypeError, "batch must be", {"batch": 1.5}),
            (TypeError, "batch must be", {"batch": True}),
            (ValueError, "from 1", {"batch": 0}),
            (ValueError, "target_batch", {"target_batch": 0}),
            (ValueError, "memory_limit", {"memory_limit": "12 apples"}),
            (ValueError, "less than 1 MiB", {"memory_limit": 12}),
            (TypeError, "memory_limit", {"memory_limit": True}),
            (ValueError, "http://", {"server": "localhost:8080"}),
            (TypeError, "state=", {"state": None}),
            (ValueError, "state=", {"state": []}),
            (TypeError, "state=", {"state": "model"}),
            (TypeError, "no state", {"state": [program.model, print]}),
        ]
        for error, words, named in wrong:
            with self.subTest(named), fake_device.installed(), self.assertRaisesRegex(error, words):
                program.tune(**named)
        with fake_device.installed(), self.assertRaisesRegex(TypeError, "function of the batch"):
            batchfit.tune(3, batch=1, state=[program.model])
        self.assertEqual(program.batches, [])

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU")
    def test_without_a_gpu_it_is_refused(self):
        program = Program()
        with self.assertRaisesRegex(RuntimeError, "needs an NVIDIA GPU"):
            program.tune()
        with mock.patch.object(torch, "__version__", "2.3.1+cu121"), self.assertRaisesRegex(RuntimeError, "2.4 or newer"):
            program.tune()
        with mock.patch.object(torch.version, "hip", "6.0"), self.assertRaisesRegex(RuntimeError, "ROCm"):
            program.tune()
        ran = []
        with self.assertLogs("batchfit") as log, batchfit.record_oom("x.pickle"):
            ran.append(True)
        self.assertTrue(ran)
        self.assertIn("without an NVIDIA GPU", log.output[0])

    def test_a_leader_that_dies_is_told_and_the_state_is_back(self):
        program = Program()
        before = program.values()
        for script, words in (
            ("import sys; sys.exit('the database is broken')", "has ended: the database is broken"),
            ("import sys; print('what?', flush=True); sys.stdin.read()", "no JSON object"),
            ("import sys; print('{\"error\": {\"detail\": \"no such thing\"}}', flush=True); sys.stdin.read()", "refuses: no such thing"),
        ):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "leader"
                path.write_text(f"#!{sys.executable}\n{script}\n")
                path.chmod(path.stat().st_mode | stat.S_IXUSR)
                with fake_device.installed(), mock.patch.object(binary, "find", lambda: path):
                    with self.subTest(script), self.assertRaisesRegex(SearchError, words):
                        program.tune(memory_limit="100MiB")
            self.assertEqual(program.values(), before)

    def test_a_binary_that_is_not_there(self):
        def missing():
            raise FileNotFoundError("install it")

        with fake_device.installed(), mock.patch.object(binary, "find", missing), self.assertRaisesRegex(SearchError, "install it"):
            Program().tune()


class ServerTest(unittest.TestCase):
    """A small server that speaks as batchfit's does, led by the fake leader."""

    def setUp(self):
        told = self.told = []
        leader = self.leader = subprocess.Popen([sys.executable, str(fake_device.LEADER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.refuse_recordings = False
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told.append((self.path, body))
                if self.path == "/v1/graphs":
                    return self.answer(201, b'{"digest": "sha256:abc"}')
                if test.refuse_recordings and b"recorded" in body:
                    return self.answer(422, b'{"title": "The request is not valid", "detail": "it does not align"}')
                leader.stdin.write(body + b"\n")
                leader.stdin.flush()
                self.answer(201, leader.stdout.readline())

            def answer(self, status, body):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{server.server_port}"
        for clean in (server.server_close, server.shutdown, leader.stdout.close, leader.wait, leader.stdin.close):
            self.addCleanup(clean)

    def test_recordings_are_uploaded_and_named(self):
        with fake_device.installed():
            plan = Program().tune(memory_limit="100MiB", server=self.address + "/")
        self.assertEqual(plan.micro_batch, 97)
        paths = [path for path, _ in self.told]
        self.assertEqual(paths[:3], ["/v1/searches", "/v1/graphs", "/v1/searches/x/observations"])
        terms = json.loads(self.told[0][1])
        self.assertEqual((terms["memory_limit"], terms["start_batch"], terms["avoid_out_of_memory"]), (100 * MIB, 4, True))
        self.assertEqual(json.loads(self.told[2][1])["recorded"], "sha256:abc")

    def test_a_recording_that_is_refused_is_left_out(self):
        self.refuse_recordings = True
        with fake_device.installed():
            self.assertEqual(Program().tune(memory_limit="100MiB", server=self.address).micro_batch, 97)
        with self.assertRaisesRegex(Refused, "does not align"):
            Server(self.address).tell({"batch": 1, "outcome": "fits", "recorded": "x"}, None)

    def test_a_server_that_is_not_there(self):
        with fake_device.installed(), self.assertRaisesRegex(SearchError, "does not answer"):
            Program().tune(server="http://127.0.0.1:9")


class LocalTest(unittest.TestCase):
    def test_an_answer_that_does_not_come(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "leader"
            path.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\n")
            path.chmod(0o755)
            with mock.patch.object(binary, "find", lambda: path), mock.patch.object(ask_tell, "_PATIENCE", 0.2):
                local = Local()
                with self.assertRaisesRegex(SearchError, "within"):
                    local.begin({})
                local.close()


class InterruptsTest(unittest.TestCase):
    def setUp(self):
        # It is ignored where these tests run in the background of a shell.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def test_the_first_goes_through_and_then_none(self):
        seen = []
        with self.assertRaises(KeyboardInterrupt):
            with Interrupts():
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    signal.raise_signal(signal.SIGINT)
                    seen.append("put back")
        self.assertEqual(seen, ["put back"])

    def test_what_came_while_held_comes_at_the_end(self):
        seen = []
        with self.assertRaises(KeyboardInterrupt):
            with Interrupts() as interrupts:
                interrupts.hold()
                signal.raise_signal(signal.SIGINT)
                seen.append("not yet")
        self.assertEqual(seen, ["not yet"])
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_a_handler_of_the_programs_own_is_asked(self):
        seen = []
        before = signal.signal(signal.SIGINT, lambda *_: seen.append("asked"))
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            interrupts.hold()
            signal.raise_signal(signal.SIGINT)
            self.assertEqual(seen, ["asked", "asked"])
        self.assertEqual(seen, ["asked"] * 3)

    def test_other_threads(self):
        done = []

        def run():
            with Interrupts():
                done.append(True)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        self.assertEqual(done, [True])


def entry(action, addr, size=512, stream=0, time=0):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": time}


class RecordingTest(unittest.TestCase):
    def text(self, segments, entries, steps):
        made = recording.Recording(8, 2)
        made._start = {"segments": segments, "allocator_settings": {"expandable_segments": True}}
        made._entries, made._steps = entries, steps
        with mock.patch.object(torch.cuda, "mem_get_info", lambda _: (1, 1000)), mock.patch.object(torch.cuda, "get_device_name", lambda _: "card"):
            return made.text().splitlines()

    def test_what_is_alive_comes_first_then_what_happens(self):
        blocks = [
            {"address": 0x1000, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
            {"address": 0x1400, "size": 512, "requested_size": 4, "state": "inactive"},
            {"address": 0x1600, "size": 512, "requested_size": 8, "state": "active_awaiting_free"},
        ]
        small = {"device": 0, "address": 0x1000, "total_size": 2048, "stream": 7, "segment_type": "small", "is_expandable": False, "blocks": blocks}
        pool = {**small, "address": 0x9000, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 1), "is_expandable": True,
                "blocks": [{"address": 0x9000, "size": 2048, "requested_size": 0, "state": "inactive"}]}
        elsewhere = {**small, "device": 1}
        entries = [
            entry("free_completed", 0x1600), entry("segment_alloc", 0x5000), entry("alloc", 0x5000, 100), entry("alloc", 0x6000, 200, 9),
            entry("free_requested", 0x6000), entry("free_completed", 0x6000), entry("free_requested", 0x5000), entry("free_completed", 0x5000),
            entry("alloc", 0x5000, 300), entry("snapshot", 0),
        ]
        lines = self.text([small, pool, elsewhere], entries, [(0, 0), (2, 2), (3, 2)])
        self.assertEqual(lines[0], "batchfit recording 1")
        self.assertEqual(
            json.loads(lines[1]),
            {"batch": 8, "accumulation": 2, "total_bytes": 1000, "gpu": "card", "allocator": "expandable_segments:True"},
        )
        self.assertEqual(
            lines[2:],
            ["g 2048 1 small", "b 0 1000 1024", "b 1536 8 512", "g 2048 0 large expandable", "b 0 2048 2048",
             "f 1", "s", "a 100", "a 200 2", "f 3", "f 4", "s", "a 300", "s"],
        )

    def test_our_part_of_a_history(self):
        made = recording.Recording(1)
        made._stats = {"allocation.all.allocated": 0, "allocation.all.freed": 0}
        before = [entry("alloc", 1, time=1), entry("alloc", 2, time=2)]
        ours = [entry("alloc", 3, time=3), entry("free_requested", 3, time=4), entry("free_completed", 3, time=4)]
        for kept, counts, complete in (
            (before + ours, (1, 1), True),
            (before[1:] + ours, (1, 1), True),
            (ours, (1, 1), False),
            (before + ours, (2, 1), False),
            (before + ours[:2], (1, 2), False),
        ):
            made._entries = None
            made._start = {"device_traces": [before]}
            made._take({"device_traces": [kept]}, counts)
            self.assertEqual(made.is_complete, complete)
        with self.assertRaisesRegex(recording.HistoryError, "max_entries"):
            made.text()

    def test_settings(self):
        off = {str(1 << n): 0 for n in range(16)}
        for told, text in (
            ({}, ""),
            ({"max_split_size": -1, "expandable_segments": False, "roundup_power2_divisions": off}, ""),
            ({"max_split_size": 128 * MIB, "garbage_collection_threshold": 0.8}, "max_split_size_mb:128,garbage_collection_threshold:0.8"),
            ({"roundup_power2_divisions": {size: 4 for size in off}}, "roundup_power2_divisions:4"),
            ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_non_split_rounding_mb:40", "expandable_segments": True},
             "expandable_segments:True,max_non_split_rounding_mb:40"),
        ):
            self.assertEqual(recording.settings(told), text)
        some = recording.settings({"roundup_power2_divisions": {**off, "256": 4}})
        self.assertIn("256:4,512:1", some)


class DeviceTest(unittest.TestCase):
    def test_limits(self):
        total = 1000 * MIB
        for limit, expected in (
            (5 * MIB, 5 * MIB), ("5MiB", 5 * MIB), ("1.5 GiB", 1536 * MIB), ("2GB", 2 * 10**9), (0.5, 500 * MIB), ("0.5", 500 * MIB),
            ("50%", 500 * MIB), ("1", total), (1.0, total), ("5242880", 5 * MIB),
        ):
            self.assertEqual(device.limit_in_bytes(limit, total), expected, limit)
        for limit in ("", "GiB", "-1GiB", "1e3", "12XiB", float("nan"), None, [1]):
            with self.assertRaises((TypeError, ValueError), msg=repr(limit)):
                device.limit_in_bytes(limit, total)

    def test_a_limit_is_exact_whatever_the_card(self):
        for total in (150109880320, 150754820096, 25393692672, 17):
            for limit in (total, total // 3, total // 7 * 5, 1):
                with mock.patch.object(device, "total", lambda: total), mock.patch.object(device, "set_fraction") as set_fraction:
                    device.set_limit(limit)
                self.assertEqual(int(set_fraction.call_args.args[0] * total), limit)

    def test_frames_are_let_go_of(self):
        import weakref

        class Activation:
            pass

        kept = []

        def step():
            activation = Activation()
            kept.append(weakref.ref(activation))
            raise torch.OutOfMemoryError("CUDA out of memory")

        try:
            step()
        except RuntimeError as error:
            device.forget(error)
            self.assertIsNone(kept[0]())


class PlanTest(unittest.TestCase):
    def test_one_line(self):
        runs = (Run(8, "fits", 1.0, 5 << 30), Run(64, "out_of_memory", 1.0))
        said = {"micro_batch": 8, "accumulation_steps": 4, "global_batch": 32, "max_batch": 9, "max_batch_without_retries": 8,
                "limit_bytes": 6 << 30, "evidence": "trained"}
        plan = Plan.of({"recommendation": said}, world_size=1, seconds=2.5, warm_up_seconds=0.5, runs=runs)
        self.assertEqual(
            str(plan),
            "micro-batch 8, 4 accumulation steps: 32 samples per optimizer step; 5.00 of 6.00 GiB reserved "
            "(trained; 2 runs in 2.5 s, 0.5 s of it warm-up)",
        )
        self.assertEqual(plan.out_of_memory_errors, 1)
        stored = Plan.of({"recommendation": said, "answered_by": "1mk"}, world_size=2, seconds=1, warm_up_seconds=1, runs=(), accumulation=3)
        self.assertIn("on 2 GPUs: 48 samples", str(stored))
        self.assertIn("a stored answer", str(stored))
        with self.assertRaises(AttributeError):
            plan.micro_batch = 9

    def test_an_answer_that_is_no_plan_is_an_error_of_the_search(self):
        said = {"micro_batch": 8, "accumulation_steps": 4, "global_batch": 32, "max_batch": 9, "max_batch_without_retries": 8}
        lies = [None, [], "x", {}, *({**said, name: lie} for name in (*said, "limit_bytes", "shortfall") for lie in (-1, "8", True, 1.5, [], 10**40))]
        lies += [{**said, "micro_batch": None}, {**said, "notes": 5}, {**said, "notes": [{}]}, {**said, "evidence": 1}]
        for lie in lies:
            with self.subTest(lie=lie), self.assertRaises(SearchError):
                Plan.of({"recommendation": lie}, world_size=1, seconds=1, warm_up_seconds=1, runs=())
        told = {**said, "evidence": "\x1b]0;owned\x07trained"}
        plan = Plan.of({"recommendation": told, "answered_by": "\x1b[2J"}, world_size=1, seconds=1, warm_up_seconds=1, runs=())
        self.assertTrue(str(plan).isprintable() and plan.evidence.isprintable() and plan.answered_by.isprintable())


class SamplesTest(unittest.TestCase):
    def test_batches_of_any_size_with_the_largest_samples_first(self):
        data = [torch.zeros(length) for length in (1, 5, 3)]
        loader = torch.utils.data.DataLoader(data, batch_size=2, collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True))
        loaded = batches.Batches(loader)
        self.assertEqual([tuple(loaded.of(size).shape) for size in (1, 2, 7)], [(1, 5), (2, 5), (7, 5)])
        self.assertEqual(loaded.sample_bytes(), 20)

    def test_loaders_keep_all_but_the_batch_size(self):
        class Own(torch.utils.data.Sampler):
            def __init__(self):
                self.batch_size = 2

            def __iter__(self):
                return iter([list(range(self.batch_size))])

        generator = torch.Generator().manual_seed(1)
        loader = torch.utils.data.DataLoader(list(range(10)), 2, shuffle=True, generator=generator, drop_last=True, num_workers=0)
        sampler, own = loader.sampler, torch.utils.data.DataLoader(list(range(10)), batch_sampler=Own())
        batches.set_batch_size(loader, 4)
        batches.set_batch_size(own, 5)
        self.assertEqual([len(batch) for batch in loader], [4, 4])
        self.assertEqual([len(batch) for batch in own], [5])
        self.assertIs(loader.sampler, sampler)
        self.assertIs(loader.generator, generator)
        self.assertTrue(loader.drop_last)
        with self.assertRaisesRegex(batches.LoaderError, "makes its batches itself"):
            batches.set_batch_size(torch.utils.data.DataLoader([1, 2], batch_size=None), 3)

        class Odd(torch.utils.data.Sampler):
            def __iter__(self):
                return iter([[0]])

        with self.assertRaisesRegex(batches.LoaderError, "no attribute `batch_size`"):
            batches.set_batch_size(torch.utils.data.DataLoader([1, 2], batch_sampler=Odd()), 3)


class VerdictTest(unittest.TestCase):
    def test_where_the_memory_went(self):
        frames = [{"filename": "/x/torch/nn/modules/linear.py", "line": 1, "name": "forward"}, {"filename": "/x/mine/train.py", "line": 7, "name": "step"}]
        blocks = [
            {"size": 3 * MIB, "state": "active_allocated", "frames": frames},
            {"size": 5 * MIB, "state": "active_allocated", "frames": []},
            {"size": 2 * MIB, "state": "inactive", "frames": []},
        ]
        snapshot = {
            "segments": [{"device": 0, "total_size": 10 * MIB, "blocks": blocks}],
            "device_traces": [[{"action": "oom", "size": MIB, "frames": frames}]],
        }
        with contextlib.ExitStack() as stack:
            for name, value in (("current_device", 0), ("mem_get_info", (4 * MIB, 20 * MIB)), ("get_device_name", "card")):
                stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, value=value: value))
            stack.enter_context(mock.patch.object(out_of_memory, "_replayed", lambda *_: []))
            lines = out_of_memory.verdict(snapshot, Path("oom.pickle"))
        text = "\n".join(lines)
        self.assertIn("asked for    1.0 MiB at mine/train.py:7 step", text)
        self.assertIn("in use       8.0 MiB in 2 tensors, of 10.0 MiB", text)
        self.assertIn("elsewhere    6.0 MiB of 20.0 MiB", text)
        self.assertIn("fragmentation", text)
        self.assertIn("from before the history began", text)


    def test_what_other_settings_would_have_done(self):
        row = {"allocator": "", "verdict": "out_of_memory", "smallest_limit_bytes": 3 << 30}
        other = {"allocator": "expandable_segments:True", "verdict": "fits", "smallest_limit_bytes": 2 << 30}
        lines = out_of_memory._compared({"allocator": "", "comparison": {"rows": [other, row]}})
        self.assertIn("3.00 GiB", lines[0])
        self.assertIn("=expandable_segments:True", lines[1])
        self.assertEqual(out_of_memory._compared({"allocator": "x", "comparison": {"rows": [row]}}), [])


class RanksTest(unittest.TestCase):
    def test_alone(self):
        self.assertEqual((ranks.world_size(), ranks.is_leader(), ranks.most([1, 2]), ranks.told_by_leader(3)), (1, True, [1, 2], 3))

    def test_two_processes_run_the_same_batches(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "ranks_process", folder]
            processes = [
                subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
                for rank in range(2)
            ]
            said = [process.communicate(timeout=120) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], said)
        one, other = (json.loads(out.splitlines()[-1]) for out, _ in said)
        self.assertEqual(one, other)
        # The second ran out of memory above 20, so the first counts it as such.
        self.assertLessEqual(one["micro_batch"], 20)
        self.assertEqual(one["world_size"], 2)
        self.assertIn("out_of_memory", [outcome for _, outcome in one["runs"]])


if __name__ == "__main__":
    logging.basicConfig(stream=io.StringIO())
    unittest.main()
