"""What a training came to: `with batchfit.outcome(answer, batch=64) as training: ...`.

Reports how a training that followed an answer ended and how much memory it reserved. Later answers for the same model and card
learn from it: see docs/operate/outcomes.md.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional, Union

import torch

from . import _http, binary, device

logger = logging.getLogger("batchfit")

# Seconds that telling may take: a training is not held up by a service that hangs.
_PATIENCE = 30

# Where the driver says its version, on Linux.
_DRIVER = Path("/proc/driver/nvidia/version")


class Training:
    """A training that is being watched."""

    def __init__(self) -> None:
        #: Optimizer steps that ran: `step()` counts them.
        self.steps = 0
        #: Retries of the allocator when the second step ended: what is freed by then stays free.
        self.retries_at_first: Optional[int] = None
        #: What was told, once it was; None where that was not possible.
        self.told: Optional[dict[str, Any]] = None

    def step(self) -> None:
        """Counts an optimizer step. A peak counts after three, and a retry after two."""
        self.steps += 1
        if self.steps <= 2:
            self.retries_at_first = _retries()


@contextlib.contextmanager
def outcome(
    answer: str,
    batch: int,
    *,
    url: Optional[str] = None,
    key: Optional[str] = None,
    database: Union[str, os.PathLike[str], None] = None,
    name: Optional[str] = None,
) -> Iterator[Training]:
    """Tells what the training inside came to. Never fails by itself: what cannot be told is logged.

    `answer` is the id of a fit or a recommendation. It is told to the service at `url` (with the API key `key`, or
    `BATCHFIT_KEY`), or else to the database that `batchfit fit` keeps answers in. `name` is this training's: told again under
    it, it counts once.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    training = Training()
    name = name or uuid.uuid4().hex
    retries = _start()
    ended = "fits"
    try:
        yield training
    except Exception as error:
        ended = "out_of_memory" if device.is_out_of_memory(error) else "crashed"
        raise
    except BaseException:
        ended = "crashed"
        raise
    finally:
        # Whatever goes wrong here must not hide what happened inside.
        try:
            counted = training.retries_at_first
            told = _seen(batch, ended, retries if counted is None else counted, training.steps)
            training.told = _to_service(answer, told, name, url, key) if url else _to_database(answer, told, name, database)
        except Exception as trouble:
            logger.warning("what the training came to could not be told: %s", trouble)


def _start() -> int:
    """Begins to watch the allocator; gives the number of its retries so far."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.reset_peak_memory_stats()
    return _retries()


def _retries() -> int:
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0)) if torch.cuda.is_available() else 0


def _seen(batch: int, ended: str, before: int, steps: int) -> dict[str, Any]:
    """The body of `POST /v1/recommendations/{id}/outcomes`."""
    told: dict[str, Any] = {"batch": batch, "outcome": ended, "steps": steps, "environment": environment()}
    if torch.cuda.is_available():
        retries = _retries() - before
        told["retries"] = retries
        told["peak_reserved_bytes"] = torch.cuda.max_memory_reserved() or None
        # Without counted steps nobody knows whether those were in the first two.
        if ended == "fits" and retries > 0 and steps > 2:
            told["outcome"] = "fits_with_retries"
    return told


def environment() -> dict[str, Optional[str]]:
    """Where this process trains, as far as PyTorch and the system say."""
    found: dict[str, Optional[str]] = {"pytorch": str(torch.__version__), "cuda": torch.version.cuda, "cudnn": _cudnn()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["driver"] = _driver()
    return found


def _cudnn() -> Optional[str]:
    version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    if version is None:
        return None
    # 91900 is 9.19.0; before 9, 8902 was 8.9.2.
    thousands = 10_000 if version >= 90_000 else 1_000
    major, rest = divmod(int(version), thousands)
    return f"{major}.{rest // 100}.{rest % 100}"


def _driver() -> Optional[str]:
    try:
        said = _DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", said)
    return found[1] if found else None


def _to_service(answer: str, told: dict[str, Any], name: str, url: str, key: Optional[str]) -> dict[str, Any]:
    where = f"{url.rstrip('/')}/v1/recommendations/{urllib.parse.quote(answer, safe='')}/outcomes"
    if urllib.parse.urlsplit(where).scheme not in ("http", "https"):
        raise ValueError(f"url must begin with http:// or https://, not {url!r}")
    headers = {"Content-Type": "application/json", "Idempotency-Key": name}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(where, data=json.dumps(told).encode(), headers=headers, method="POST")
    return _document(_http.ask(request, _PATIENCE))


def _to_database(
    answer: str, told: dict[str, Any], name: str, database: Union[str, os.PathLike[str], None]
) -> dict[str, Any]:
    command = [str(binary.find()), "outcome", answer, "-", "--name", name, "--json"]
    if database is not None:
        command += ["--database", os.fspath(database)]
    done = subprocess.run(command, input=json.dumps(told).encode(), capture_output=True, timeout=_PATIENCE, check=False)
    if done.returncode != 0:
        raise RuntimeError(_http.plain(done.stderr.decode(errors="replace")) or f"it ended with {done.returncode}")
    return _document(done.stdout)


def _document(text: bytes) -> dict[str, Any]:
    document = _http.document(text)
    if not isinstance(document, dict):
        raise ValueError("the answer is no JSON object")
    return document
