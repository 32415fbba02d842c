"""How a service is asked: without following it elsewhere, and not for longer or for more than was meant."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Union

# Most bytes of an answer: a search of a few dozen observations has a few KiB.
LONGEST = 16 << 20

# Most values in it: each takes some twenty times its two bytes when it is read.
_MOST_ITEMS = 200_000

# Bytes that are read of a refusal.
_REFUSAL = 1 << 16

# And beside its body: headers, interim responses, trailers.
_AROUND = 1 << 20

# What is said of a refusal, in characters.
_SAID = 1_000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A service of batchfit's redirects nobody; whoever does would get the key."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Bounded(io.RawIOBase):
    """What a service sends, its headers, interim responses and trailers included: of these no end need ever come."""

    def __init__(self, sent: io.BufferedIOBase, patience: float) -> None:
        self._sent = sent
        self._end = time.monotonic() + patience
        self._left = LONGEST + _AROUND

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if self._left <= 0:
            raise OSError("its answer is too long")
        if time.monotonic() > self._end:
            raise OSError("its answer takes too long")
        count = self._sent.readinto1(into)
        self._left -= count
        return count

    def close(self) -> None:
        self._sent.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp = io.BufferedReader(_Bounded(self.fp, sock.gettimeout() or 0.0))


class _ReadsBounded(urllib.request.AbstractHTTPHandler):
    def do_open(self, http_class: Any, req: urllib.request.Request, **more: Any) -> Any:
        def connection(*args: Any, **options: Any) -> http.client.HTTPConnection:
            made: http.client.HTTPConnection = http_class(*args, **options)
            made.response_class = _Response
            return made

        return super().do_open(connection, req, **more)


class _Http(_ReadsBounded, urllib.request.HTTPHandler):
    pass


class _Https(_ReadsBounded, urllib.request.HTTPSHandler):
    pass


_OPENER = urllib.request.build_opener(_NoRedirects, _Http, _Https)


class Refused(Exception):
    """The service refuses. The message says why."""


def ask(request: urllib.request.Request, patience: float) -> bytes:
    """The whole answer, within so many seconds, with the key in `BATCHFIT_KEY` where the request has none. Raises `Refused` and `OSError`."""
    key = os.environ.get("BATCHFIT_KEY")
    if key and not request.has_header("Authorization"):
        request.add_header("Authorization", f"Bearer {key}")
    done: list[Union[bytes, Exception]] = []

    def wait() -> None:
        try:
            done.append(_answer(request, patience))
        except Exception as trouble:
            done.append(trouble)

    # A socket's timeout begins again with each byte that comes; this one does not.
    waiting = threading.Thread(target=wait, name="batchfit", daemon=True)
    waiting.start()
    waiting.join(patience)
    if not done:
        raise OSError(f"no answer within {patience:.0f} s")
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0]


def _answer(request: urllib.request.Request, patience: float) -> bytes:
    try:
        with _OPENER.open(request, timeout=patience) as answer:
            body: bytes = answer.read(LONGEST + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(f"{error.code}: {problem(error.read(_REFUSAL))}") from error
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"its answer is not HTTP: {plain(repr(error))}") from error
    if len(body) > LONGEST:
        raise OSError("its answer is too long")
    return body


def document(text: bytes) -> Any:
    """What a JSON text says. Raises `ValueError` alone."""
    if sum(text.count(mark) for mark in (b"[", b"{", b",")) > _MOST_ITEMS:
        raise ValueError("it has too many items")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def problem(body: bytes) -> str:
    """What a problem document says."""
    try:
        found = document(body)
        text = str(found.get("detail") or found.get("title") or found)
    except (ValueError, AttributeError):
        text = body[:_SAID].decode(errors="replace")
    return plain(text)


def plain(text: str) -> str:
    """A text of somebody else as a line of a log: short, and nothing that a terminal acts on."""
    return "".join(c if c.isprintable() else " " for c in text[:_SAID]).strip()
