"""Who leads a search: the batchfit binary on this machine, or a batchfit server."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional, Protocol

from . import _http, binary

# Seconds that an answer may take: recordings of 100,000 events take a few.
_PATIENCE = 120.0

Document = dict[str, Any]


class SearchError(RuntimeError):
    """The search service refuses, or does not answer. The message says why."""


class Refused(SearchError):
    """The search service rejects an observation; the search goes on without it."""


class Leader(Protocol):
    """Says which batch to run next, and in the end which to train with."""

    def begin(self, terms: Mapping[str, Any]) -> Document:
        """Begins a search."""

    def tell(self, observation: Mapping[str, Any], recording: Optional[Path]) -> Document:
        """Tells what came of a batch."""

    def close(self) -> None:
        """Ends the conversation."""


def leader(server: Optional[str]) -> Leader:
    """The server of this address, or the binary on this machine."""
    return Server(server) if server is not None else Local()


class Local:
    """`batchfit search --ask-tell`: a line out for each line in."""

    def __init__(self) -> None:
        try:
            path = binary.find()
        except FileNotFoundError as error:
            raise SearchError(str(error)) from error
        self._errors = tempfile.TemporaryFile()
        self._buffer = b""
        # It does no work on the GPU, and what the training has set for its own allocator is none of its business.
        self._process = subprocess.Popen(
            [str(path), "search", "--ask-tell"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            # Ctrl-C is ours to handle.
            start_new_session=True,
        )

    def begin(self, terms: Mapping[str, Any]) -> Document:
        return self._ask(terms)

    def tell(self, observation: Mapping[str, Any], recording: Optional[Path]) -> Document:
        line = dict(observation)
        if recording is not None:
            line["recorded"] = str(recording)
        return self._ask(line)

    def close(self) -> None:
        process = self._process
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            # At the end of its input it stores what is known.
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._errors.close()

    def _ask(self, line: Mapping[str, Any]) -> Document:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise SearchError(f"`batchfit search --ask-tell` has ended{self._last_words()}") from error
        return _document(self._line(), "`batchfit search --ask-tell`")

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        end = time.monotonic() + _PATIENCE
        file = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([file], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise SearchError(f"`batchfit search --ask-tell` did not answer within {_PATIENCE:.0f} s")
            more = os.read(file, 1 << 16)
            if not more or len(self._buffer) > _http.LONGEST:
                raise SearchError(f"`batchfit search --ask-tell` has ended{self._last_words()}")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self._errors.seek(0)
        lines = self._errors.read(1 << 16).decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:500]}" if lines else f" with exit code {self._process.returncode}"


class Server:
    """`POST /v1/searches` and what follows, over HTTP."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"server must be an address such as \"http://127.0.0.1:8080\", not {address!r}")
        self._address = address.rstrip("/")
        self._id = ""

    def begin(self, terms: Mapping[str, Any]) -> Document:
        document = self._post("/v1/searches", json.dumps(terms).encode())
        self._id = urllib.parse.quote(str(document.get("id", "")), safe="", errors="replace")
        return document

    def tell(self, observation: Mapping[str, Any], recording: Optional[Path]) -> Document:
        body = dict(observation)
        if recording is not None:
            body["recorded"] = self._post("/v1/graphs", recording.read_bytes()).get("digest")
        return self._post(f"/v1/searches/{self._id}/observations", json.dumps(body).encode())

    def close(self) -> None:
        """Nothing is held: the server keeps the search."""

    def _post(self, path: str, body: bytes) -> Document:
        request = urllib.request.Request(self._address + path, data=body, method="POST")
        request.add_header("Content-Type", "application/octet-stream" if path == "/v1/graphs" else "application/json")
        try:
            return _document(_http.ask(request, _PATIENCE), self._address)
        except _http.Refused as refused:
            raise Refused(f"{self._address} refuses: {refused}") from refused
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise SearchError(f"{self._address} does not answer: {reason}") from error


def _document(line: bytes, who: str) -> Document:
    try:
        document = _http.document(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise SearchError(f"{who} answered {line[:200]!r}, which is no JSON object")
    error = document.get("error")
    if error is not None:
        raise Refused(f"{who} refuses: {_http.problem(json.dumps(error).encode())}")
    return document

