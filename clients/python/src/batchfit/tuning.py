"""`batchfit.tune`: the largest micro-batch of a training step, found in the process that trains.

A few steps are recorded at small batches, from which batchfit learns what the step asks the allocator for at any batch; then the
recommended batch itself runs. Before each run and at the end, everything in `state` is what it was. See docs/use/tune.md.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import torch

from . import ask_tell, device, ranks
from .ask_tell import Document, Refused, SearchError
from .micro_steps import accumulate, never_skip, steps_are_taken
from .interrupts import Interrupts
from .plan import Plan, Run
from .recording import Recording
from .state import State

logger = logging.getLogger("batchfit")

# Steps of a recording: the second finds the optimizer's state in place, and the third repeats it.
_STEPS = 3

# Most runs of a search; most take three to six.
_MOST_RUNS = 60

# The largest batch that searches ask for.
_LARGEST_BATCH = 1 << 24

# Bytes that a step may leave behind outside `state` without a word.
_LEFT = 32 << 20

# Up to so many bytes weights are put back before each run; of larger models only in the end, which takes seconds each time. What
# they are does not matter to memory, but for programs that look at them.
_SMALL = 4 << 30

_MIB = 1 << 20

# The outcomes, the best first: of several ranks the worst counts.
_OUTCOMES = ("fits", "fits_with_retries", "out_of_memory")

Steps = Callable[[int, int], object]


class NothingFits(RuntimeError):
    """Not even a single sample fits."""


def tune(
    step: Callable[[int], object],
    *,
    batch: int,
    state: Optional[Sequence[object]] = None,
    target_batch: Optional[int] = None,
    memory_limit: Union[int, float, str, None] = None,
    server: Optional[str] = None,
    fresh: bool = False,
) -> Plan:
    """The micro-batch to train with, and how many accumulation steps make up `target_batch`.

    `step(b)` runs one real training step at batch `b`: forward, backward, optimizer.step(), zero_grad(). `batch` surely fits.
    `state` names all that a step changes: the model, its optimizers, the scaler, schedulers, averages, samplers. Afterwards it
    is bit for bit what it was, and so are all random generators; also after an error or Ctrl-C. `memory_limit` is in bytes,
    "12GiB", or a share of the card; by default it is what the card has free. `server` is the address of a batchfit server, which
    then leads the search in the place of the binary on this machine. What was found before for the same program is the answer at
    once, unless `fresh`.
    """
    if not callable(step):
        raise TypeError(f"step must be a function of the batch that runs one training step, not {step!r}")

    def steps(micro_batch: int, accumulation: int) -> None:
        accumulate(tuning.state, step, micro_batch, accumulation)

    tuning = Tuning(
        steps, batch=batch, state=state, target_batch=target_batch, memory_limit=memory_limit, server=server, fresh=fresh
    )
    return tuning.run()


class Tuning:
    """One search, from the first warm-up to the plan.

    `steps(b, n)` runs one optimizer step of `n` micro-steps at batch `b`. `prepare` is called whenever everything was put back.
    `accumulation` is how many micro-steps an optimizer step has whatever comes out, where no target says it. `reserved` bytes are
    left free where steps accumulate: what training needs beside what is recorded.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        batch: int,
        state: Optional[Iterable[object]],
        target_batch: Optional[int] = None,
        memory_limit: Union[int, float, str, None] = None,
        server: Optional[str] = None,
        max_batch: Optional[int] = None,
        fresh: bool = False,
        prepare: Optional[Callable[[], None]] = None,
        accumulation: Optional[int] = None,
        reserved: int = 0,
    ) -> None:
        self._world_size = ranks.world_size()
        _check_number("batch", batch)
        if target_batch is not None:
            _check_number("target_batch", target_batch)
            if target_batch < self._world_size:
                raise ValueError(f"target_batch is {target_batch}, which leaves some of {self._world_size} GPUs without a sample")
            batch = min(batch, target_batch // self._world_size)
        things = _listed(state)
        device.check()
        self._asked = None if memory_limit is None else device.limit_in_bytes(memory_limit, device.total())
        if server is not None:
            ask_tell.Server(server)
        self._server = server
        self._steps = steps
        self._batch = batch
        self._target = target_batch
        self._max_batch = max_batch
        self._is_fresh = fresh
        self._prepare = prepare
        self._accumulation = accumulation
        self._reserved = reserved
        self.state = State(things)
        if self.state.device_bytes == 0:
            raise ValueError(
                "`state` holds no memory of the GPU: name the model on the GPU, its optimizers, the scaler and whatever else a "
                "step changes, as in state=[model, optimizer, scaler]"
            )
        self._limit = 0
        self._runs: list[Run] = []
        self._warm_up_seconds = 0.0
        self._warm: set[int] = set()
        self._left_before = 0
        self._said: set[str] = set()
        self._allocator = ""
        self._leader: Optional[ask_tell.Leader] = None

    def run(self) -> Plan:
        """Searches, and puts everything back."""
        started = time.monotonic()
        share = device.fraction()
        benchmark = torch.backends.cudnn.benchmark
        self.state.keep()
        with Interrupts() as interrupts, tempfile.TemporaryDirectory(prefix="batchfit-") as folder:
            document: Optional[Document] = None
            try:
                try:
                    with steps_are_taken():
                        document = self._search(Path(folder))
                finally:
                    interrupts.hold()
            finally:
                self._end(share, benchmark, is_failing=document is None)
        assert document is not None
        plan = Plan.of(
            document,
            accumulation=self._accumulation,
            world_size=self._world_size,
            seconds=time.monotonic() - started,
            warm_up_seconds=self._warm_up_seconds,
            runs=tuple(self._runs),
        )
        if plan.micro_batch < 1:
            limit = f"{self._limit / (1 << 30):.2f} GiB"
            raise NothingFits(f"no batch fits in {limit}: {plan.limited_by or 'not even one sample does'}")
        logger.info("%s", plan)
        return plan

    def _search(self, folder: Path) -> Document:
        self._begin()
        is_leader = ranks.is_leader()
        try:
            document = self._together(self._first_words if is_leader else None)
            for number in range(_MOST_RUNS):
                batch = document.get("next_batch")
                if batch is None:
                    return document
                if type(batch) is not int or not 1 <= batch <= _LARGEST_BATCH:
                    raise SearchError("the search asked for an invalid batch")
                recording = folder / f"{number}.gz"
                observation = self._observe(batch, recording)
                path = recording if recording.exists() else None
                document = self._together((lambda: self._tell(observation, path)) if is_leader else None)
            raise SearchError(f"the search did not end within {_MOST_RUNS} runs")
        finally:
            if self._leader is not None:
                self._leader.close()

    def _first_words(self) -> Document:
        terms: dict[str, Any] = {
            "memory_limit": self._limit,
            "world_size": self._world_size,
            "allocator": self._allocator,
            "start_batch": self._batch,
            "avoid_out_of_memory": True,
            "gpu": device.name()[:200],
        }
        if self._target is not None:
            terms["target_batch"] = self._target
        if self._is_fresh:
            terms["fresh"] = True
        if self._max_batch is not None:
            terms["max_batch"] = self._max_batch
        self._leader = ask_tell.leader(self._server)
        return self._leader.begin(terms)

    def _tell(self, observation: dict[str, Any], path: Optional[Path]) -> Document:
        assert self._leader is not None
        try:
            return self._leader.tell(observation, path)
        except Refused as refused:
            if path is None:
                raise
            # A recording of something else than the ones before: what came of the batch counts all the same.
            logger.info("the recording of batch %d is of no use: %s", observation["batch"], refused)
            return self._leader.tell(observation, None)

    def _together(self, ask: Optional[Callable[[], Document]]) -> Document:
        """What the leader is told, in all processes; what fails there fails everywhere."""
        if ask is None:
            told = ranks.told_by_leader(None)
            if "failed" in told:
                raise SearchError(told["failed"])
            document: Document = told["told"]
            return document
        try:
            document = ask()
        except SearchError as error:
            ranks.told_by_leader({"failed": str(error)})
            raise
        ranks.told_by_leader({"told": document})
        return document

    def _begin(self) -> None:
        """Warms up at the first batch, and sets the limit."""
        if self._asked is not None:
            device.set_limit(self._asked)
        self._fresh()
        self._left_before = device.allocated()
        graphs = _compiled_graphs()
        self._warm_up(self._batch)
        if _compiled_graphs() > graphs:
            # torch.compile makes the batch symbolic when it meets a second one. Begin with that, so that all recordings are of
            # the same program.
            other = self._batch - 1 if self._batch > 2 else self._batch + 1
            if self._warm_up(other) == "fits":
                self._batch = other
        self._fresh()
        left = device.allocated() - self._left_before
        if left > _LEFT:
            logger.warning(
                "a step leaves %d MiB allocated that are not in `state`, and that tuning cannot put back: is an optimizer missing?",
                left // _MIB,
            )
        self._limit = self._set_limit()
        self._allocator = device.allocator_settings()

    def _set_limit(self) -> int:
        # All that there is, where that is less than what was asked for.
        limit = device.available() if self._asked is None else min(self._asked, device.reserved_and_free())
        if self._micro_steps(self._batch) > 1:
            limit -= self._reserved
        limit = -ranks.most([-limit])[0]
        if self._asked is not None and limit < self._asked - self._reserved:
            logger.warning("of the limit of %d MiB only %d MiB can be had", self._asked // _MIB, limit // _MIB)
        device.set_limit(limit)
        return limit

    def _observe(self, batch: int, path: Path) -> dict[str, Any]:
        """Runs a batch; where it fits, its recording is written to `path`."""
        outcome = "fits"
        if batch not in self._warm:
            outcome = self._warm_up(batch)
        accumulation = self._micro_steps(batch)
        started = time.monotonic()
        recording = Recording(batch, accumulation)
        if outcome == "fits":
            self._fresh()
            outcome = self._guarded(lambda: self._record(recording, batch, accumulation))
        if outcome == "fits" and not recording.is_steady:
            outcome = "fits_with_retries"
        # Whatever happened to one rank happened.
        worst, peak = ranks.most([_OUTCOMES.index(outcome), recording.peak_reserved_bytes])
        outcome = _OUTCOMES[worst]
        seconds = time.monotonic() - started
        told_peak = peak if outcome != "out_of_memory" and peak > 0 else None
        self._runs.append(Run(batch, outcome, seconds, told_peak))
        observation: dict[str, Any] = {"batch": batch, "outcome": outcome}
        if told_peak is not None:
            observation["peak_reserved_bytes"] = told_peak
        if outcome == "fits":
            if recording.is_complete:
                recording.write(path)
            else:
                self._say_once(
                    "the allocator's history was on before tuning and is too short for a step; the search goes by peaks alone"
                )
        logger.info("batch %d: %s%s", batch, outcome.replace("_", " "), f", {peak // _MIB} MiB reserved" if told_peak else "")
        return observation

    def _micro_steps(self, batch: int) -> int:
        """Two where steps accumulate, since gradients then live through forward passes; more would be no different."""
        if self._target is not None:
            return 2 if batch * self._world_size < self._target else 1
        return min(2, self._accumulation or 1)

    def _record(self, recording: Recording, batch: int, accumulation: int) -> None:
        with recording:
            for _ in range(_STEPS):
                recording.step()
                self._steps(batch, accumulation)

    def _warm_up(self, batch: int) -> str:
        """One step that is not recorded: compilation, autotuning, kernels that are loaded."""
        started = time.monotonic()
        self._fresh()
        outcome = self._guarded(lambda: self._steps(batch, self._micro_steps(batch)))
        self._warm_up_seconds += time.monotonic() - started
        if outcome == "fits":
            self._warm.add(batch)
        return outcome

    def _guarded(self, run: Callable[[], object]) -> str:
        try:
            run()
            device.synchronize()
            return "fits"
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            device.forget(error)
        return "out_of_memory"

    def _fresh(self) -> None:
        """Everything as before the first step, without gradients."""
        device.synchronize()
        self.state.put_back(contents=self.state.device_bytes <= _SMALL)
        self.state.without_gradients()
        never_skip(self.state)
        if self._prepare is not None:
            self._prepare()
        device.clean()

    def _end(self, share: float, benchmark: bool, *, is_failing: bool) -> None:
        """Puts everything back, and leaves an allocator that has cached nothing and whose peaks begin again."""
        try:
            device.synchronize()
            self.state.put_back()
            torch.backends.cudnn.benchmark = benchmark
            device.set_fraction(share)
            device.clean()
            device.reset_peaks()
        except RuntimeError as error:
            if not is_failing:
                raise
            # A device that has failed can do nothing more: what made it fail is what has to be told.
            logger.error("the state could not be put back: %s", error)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


def _listed(state: Optional[Iterable[object]]) -> list[object]:
    needs = (
        "tuning needs `state`: all that a step changes, so that it can be put back, as in state=[model, optimizer, scaler, "
        "scheduler]"
    )
    if state is None:
        raise TypeError(needs)
    if isinstance(state, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, str, dict)) or not isinstance(state, Iterable):
        if isinstance(state, str):
            raise TypeError(f"{needs}; not {state!r}")
        return [state]
    things = list(state)
    if not things:
        raise ValueError(needs)
    return things


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not 1 <= value <= 1 << 24:
        raise ValueError(f"{name} must be from 1 to {1 << 24}, not {value}")


def _compiled_graphs() -> int:
    """How many graphs torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    return 0 if counters is None else int(counters["stats"]["unique_graphs"])
