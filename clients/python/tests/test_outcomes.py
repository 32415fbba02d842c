"""What a training came to is told, and telling never gets in its way."""

from __future__ import annotations

import http.server
import itertools
import json
import logging
import os
import stat
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import batchfit
from batchfit import outcomes


class Service(http.server.BaseHTTPRequestHandler):
    """Answers each outcome with itself, or with a problem."""

    heard: list[tuple[str, dict[str, str], dict[str, Any]]] = []
    status = 201

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).heard.append((self.path, dict(self.headers), body))
        said = json.dumps(body if self.status == 201 else {"detail": "there is no recommendation"}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


class a_gpu:
    """A GPU as PyTorch would show it."""

    def __init__(self, *retries: int, peak: int = 10 << 30) -> None:
        """`retries` before the training, after each of its first two steps, and at its end; the last one for all that follow."""
        counts = itertools.chain(retries, itertools.repeat(retries[-1] if retries else 1))
        stats = ({"num_alloc_retries": count} for count in counts)
        self.patches = [
            mock.patch.object(torch.cuda, "is_available", return_value=True),
            mock.patch.object(torch.cuda, "init"),
            mock.patch.object(torch.cuda, "reset_peak_memory_stats"),
            mock.patch.object(torch.cuda, "memory_stats", side_effect=lambda: next(stats)),
            mock.patch.object(torch.cuda, "max_memory_reserved", return_value=peak),
            mock.patch.object(torch.cuda, "get_device_name", return_value="NVIDIA H200"),
            mock.patch.object(torch.backends.cudnn, "version", return_value=91900),
        ]

    def __enter__(self) -> None:
        for patch in self.patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()


class OutcomeTest(unittest.TestCase):
    def setUp(self) -> None:
        Service.heard = []
        Service.status = 201
        self.server = http.server.HTTPServer(("127.0.0.1", 0), Service)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def test_a_training_that_ends_is_told_with_its_peak(self) -> None:
        with a_gpu(), batchfit.outcome("1mk3/x", 64, url=self.url, key="secret", name="run") as training:
            for _ in range(5):
                training.step()

        [(path, headers, body)] = Service.heard
        self.assertEqual(path, "/v1/recommendations/1mk3%2Fx/outcomes")
        self.assertEqual(headers["Idempotency-Key"], "run")
        self.assertEqual(headers["Authorization"], "Bearer secret")
        environment = body.pop("environment")
        self.assertEqual(environment["gpu"], "NVIDIA H200")
        self.assertEqual(environment["pytorch"], torch.__version__)
        expected = {"batch": 64, "outcome": "fits", "steps": 5, "retries": 0, "peak_reserved_bytes": 10 << 30}
        self.assertEqual(body, expected)
        self.assertEqual(training.told, {**expected, "environment": environment})

    def test_how_it_ended_is_told_and_goes_on(self) -> None:
        for error, ended in [
            (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
            (RuntimeError("shapes differ"), "crashed"),
            (KeyboardInterrupt(), "crashed"),
        ]:
            with self.assertRaises(type(error)), a_gpu(), batchfit.outcome("1", 64, url=self.url):
                raise error
            self.assertEqual(Service.heard[-1][2]["outcome"], ended)
        # The first two steps may retry: what they free stays free. Without counted steps nobody knows which they were.
        for retries, steps, outcome, told in [
            ((1, 1, 1, 3), 4, "fits_with_retries", 2),
            ((1, 4, 5, 5), 4, "fits", 0),
            ((1, 3), 0, "fits", 2),
        ]:
            with a_gpu(*retries), batchfit.outcome("1", 64, url=self.url) as training:
                for _ in range(steps):
                    training.step()
            body = Service.heard[-1][2]
            self.assertEqual((body["outcome"], body["retries"]), (outcome, told))
        names = {headers["Idempotency-Key"] for _, headers, _ in Service.heard}
        self.assertEqual(len(names), 6)

    def test_what_cannot_be_told_is_logged(self) -> None:
        Service.status = 404
        for url in [self.url, "http://127.0.0.1:1", "file:///etc/passwd"]:
            with self.assertLogs("batchfit", logging.WARNING) as logged, batchfit.outcome("1", 64, url=url) as training:
                pass
            self.assertIn("could not be told", logged.output[0])
            self.assertIsNone(training.told)
        with self.assertRaises(ValueError), batchfit.outcome("1", 0):
            pass

    def test_without_a_service_the_binary_keeps_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "batchfit"
            # No script: the finder passes those over.
            program.write_bytes(b"\x00")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            done = mock.Mock(returncode=0, stdout=b'{"id": 7}', stderr=b"")
            with mock.patch.dict(os.environ, {"BATCHFIT_BINARY": str(program)}), mock.patch.object(
                outcomes.subprocess, "run", return_value=done
            ) as run, batchfit.outcome("1mk3", 64, database="a.db", name="run") as training:
                pass
            command = run.call_args.args[0]
            self.assertEqual(command[1:], ["outcome", "1mk3", "-", "--name", "run", "--json", "--database", "a.db"])
            self.assertEqual(json.loads(run.call_args.kwargs["input"])["batch"], 64)
            self.assertEqual(training.told, {"id": 7})

    def test_versions_are_written_as_people_do(self) -> None:
        for version, written in [(91900, "9.19.0"), (90100, "9.1.0"), (8902, "8.9.2"), (None, None)]:
            with mock.patch.object(torch.backends.cudnn, "version", return_value=version):
                self.assertEqual(outcomes._cudnn(), written)
        said = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@x)\nGCC version: 13\n"
        with mock.patch.object(outcomes, "_DRIVER", mock.Mock(read_text=mock.Mock(return_value=said))):
            self.assertEqual(outcomes._driver(), "580.95.05")


if __name__ == "__main__":
    unittest.main()
