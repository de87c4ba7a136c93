"""The two tasks of a load test: ``serve`` is an instance with its runners, ``drive`` makes the traffic.

An instance takes batches, pads them to a prepared size, and reports the times of each call. It compares some answers
with the reference's after the last request, so that checking costs no time under load. ``drive`` measures how long
calls take, chooses the batching by a prediction if none is given, and finds the capacity. LoadGen may drive the same
instances through the same dispatcher.
"""

from __future__ import annotations

import math
import os
import select
import struct
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace as replaced
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.base import Inputs, Outputs, Runner
from inferlens.errors import InferlensError, library
from inferlens.execution.load.dispatcher import Dispatcher, Finished, Instances, Traffic, draw_mix, measure, measure_run
from inferlens.execution.protocol import CaseJob, Job
from inferlens.execution.tasks import TaskContext
from inferlens.measure.output_check import compare
from inferlens.models.inputs import read_arrays
from inferlens.record.files import write_whole
from inferlens.record.load import POOL, LoadgenVerdict, LoadRecord
from inferlens.record.record import Agreement
from inferlens.spec.case import TensorSpec

WARMUP_CALLS = 3
CONNECT_SECONDS = 30.0
NEVER_SERVED = "An instance ended before it could serve."
INTERRUPTED = "the measurement was interrupted"
KEPT_BATCHES, KEPT_EVERY, KEPT_BYTES = 64, 16, 256 << 20
MOST_PASSES = 4  # of warming up, while calls still compile
HELLO = struct.Struct("ii")  # the instance, and the largest size that it has prepared
ANSWER = struct.Struct("dd?")  # the times of a call, and whether it compiled


class ServeJob(CaseJob, frozen=True, kw_only=True):
    """Serve batches of ``sizes`` of all groups for the dispatcher at ``address``."""

    address: str
    instance: int
    sizes: tuple[int, ...]
    groups: tuple[tuple[tuple[TensorSpec, ...], str], ...]  # the inputs, and the file of the reference's samples
    reference: str = ""  # its name
    longest: float = 0.0  # seconds of a call beyond which larger sizes are not prepared; 0: all are


class ServeResult(Struct, frozen=True, kw_only=True):
    """The verdict on the kept answers; ``mixed_up`` counts the answers that fit another request better."""

    agreement: Agreement | None = None
    checked: int = 0
    mixed_up: int = 0


def serve(job: ServeJob, context: TaskContext) -> ServeResult:
    """Prepare the runners, then answer requests until the dispatcher is done."""
    with ExitStack() as stack:
        runners: dict[tuple[int, int], Runner] = {}
        pools: dict[int, Inputs] = {}
        expected: dict[int, Outputs] = {}
        module = None

        def call(number: int, size: int) -> float:
            """Return the seconds of a call of an entered runner."""
            inputs, begin = _stacked(pools[number], range(size), size), time.perf_counter()
            runners[number, size].answer(inputs)
            return time.perf_counter() - begin

        def enter(number: int, size: int) -> float:
            """Enter a runner; return the seconds of a call once it is warm."""
            context.runner = stack.enter_context(runners[number, size])
            return min(call(number, size) for _ in range(1 + WARMUP_CALLS))

        for size in job.sizes:
            for number, (_, samples) in enumerate(job.groups):
                group = group_context(job, number, size, context)
                model = group.load()
                module = module or model.module
                # All runners share one copy of the weights.
                runners[number, size] = runner = group.prepare(replaced(model, module=module))
                if number not in pools:
                    inputs, expected[number] = read_arrays(samples, "input", "output")
                    pools[number] = {spec.name: array for spec, array in zip(model.inputs, inputs, strict=True)}
            if job.longest and max(enter(number, size) for number in pools) > job.longest:
                break
        for key in () if job.longest else runners:  # a GPU's graphs read weights that preparing may move
            enter(*key)
        for _ in range(MOST_PASSES):  # entering a runner may discard what others have compiled
            compilations = runner.compilations()
            for key in [*runners] * WARMUP_CALLS:
                call(*key)
            if runner.compilations() == compilations:
                break
        context.model = group.model
        connection = stack.enter_context(_connected(job.address))
        connection.send_bytes(HELLO.pack(job.instance, size))
        kept = _answer(connection, runners, pools)
    return _checked(kept, expected, context.backend.tolerance(job.case), job.reference)


def _connected(address: str) -> Connection:
    """Return the connection to the dispatcher, which may still be starting. Raises OSError after a while."""
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return Client(address, "AF_UNIX")
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def group_context(job: ServeJob, number: int, size: int, parent: TaskContext) -> TaskContext:
    """Return the context of a group at one batch size, with a folder of its own; it reports to the task's context."""
    folder = Path(job.folder) / f"group-{number}-batch-{size}"
    folder.mkdir(exist_ok=True)
    case = replace(job.case, batch=size, inputs=job.groups[number][0])
    context = TaskContext(replace(job, case=case, folder=str(folder)), parent.send)
    context.preparation.phases, context.preparation.warnings = parent.preparation.phases, parent.preparation.warnings
    return context


def _stacked(pool: Inputs, samples: Sequence[int], size: int) -> Inputs:
    """Return the inputs of a batch; rows beyond the samples repeat the last one."""
    rows = [sample % POOL for sample in samples]
    rows += [rows[-1]] * (size - len(rows))
    return {name: array[rows] if array.shape[:1] == (POOL,) else array for name, array in pool.items()}


def _answer(
    connection: Connection, runners: dict[tuple[int, int], Runner], pools: Mapping[int, Inputs]
) -> list[tuple[list[int], Outputs]]:
    """Answer batches until the dispatcher sends an empty one, or is gone; return some of them with their outputs."""
    kept: list[tuple[list[int], Outputs]] = []
    number = held = 0
    with suppress(EOFError, OSError):
        while message := connection.recv_bytes():
            begin = time.perf_counter()
            size, *samples = array("i", message)
            group = samples[0] // POOL
            runner = runners[group, size]
            compilations = runner.compilations()
            outputs = runner.answer(_stacked(pools[group], samples, size))
            compiled = runner.compilations() != compilations
            connection.send_bytes(ANSWER.pack(begin, time.perf_counter(), compiled))
            if (number < KEPT_BATCHES or number % KEPT_EVERY == 0) and held < KEPT_BYTES:
                kept.append((samples, outputs))
                held += sum(output.nbytes for output in outputs)
            number += 1
    return kept


def _checked(
    kept: Sequence[tuple[list[int], Outputs]], expected: Mapping[int, Outputs], tolerance: float, name: str
) -> ServeResult:
    """Compare the kept answers with the rows of the reference for the same samples, and return the verdict."""
    if any(output.shape[:1] != (POOL,) for outputs in expected.values() for output in outputs):
        return ServeResult(agreement=Agreement(reference=name, reason="the outputs have no batch dimension"))
    agreements: list[Agreement] = []
    mixed_up = checked = 0
    for samples, outputs in kept:
        rows = [sample % POOL for sample in samples]
        targets = expected[samples[0] // POOL]
        answers = [output[: len(rows)] for output in outputs]
        agreements.append(compare(answers, [output[rows] for output in targets], tolerance, name))
        checked += len(rows)
        mixed_up += _count_mixed_up(answers, targets, rows)
    worst = max(agreements, key=lambda agreement: (agreement.agrees is False, agreement.rel_l2 or 0.0), default=None)
    if worst and mixed_up:
        worst = replace(worst, agrees=False, reason=f"{mixed_up} of {checked} answers belong to other requests")
    return ServeResult(agreement=worst, checked=checked, mixed_up=mixed_up)


def _count_mixed_up(answers: Outputs, expected: Outputs, samples: Sequence[int]) -> int:
    """Count the answers that are at least twice as close to another sample's outputs as to their own."""
    rows, targets = (
        np.concatenate([flat.reshape(len(flat), -1) for flat in outputs if flat.dtype.kind == "f"], axis=1)
        for outputs in (answers, expected)
    )
    if not rows.size:
        return 0
    distance = np.array([np.linalg.norm(targets - row, axis=1) for row in rows])
    own_distance = distance[np.arange(len(rows)), list(samples)]
    return int((2 * distance.min(axis=1) < own_distance).sum())


class ServedInstances(Instances):
    """Instances in other processes, which connect to ``listener``. One that is silent for ``patience`` seconds is lost.

    Raises InferlensError if the file ``stop`` appears before all have connected, because one of them has ended.
    """

    def __init__(self, listener: Listener, count: int, stop: Path, patience: float) -> None:
        self.count = count
        self.largest = 1 << 16  # size that all instances have prepared
        self._patience = patience
        self._connections: dict[int, Connection] = {}
        descriptor = listener._listener._socket.fileno()  # type: ignore[attr-defined]
        while len(self._connections) < count:
            if stop.exists():
                raise InferlensError(NEVER_SERVED)
            if select.select([descriptor], [], [], 0.2)[0]:
                connection = listener.accept()
                instance, largest = HELLO.unpack(connection.recv_bytes())
                self._connections[instance], self.largest = connection, min(self.largest, largest)
        self._wakes, self._waker = os.pipe()
        self._busy: dict[int, tuple[int, float]] = {}  # by descriptors: the instance, and since when

    def send(self, instance: int, samples: Sequence[int], size: int) -> None:
        connection = self._connections[instance]
        self._busy[connection.fileno()] = instance, time.perf_counter()
        with suppress(OSError):  # it is gone, which the next wait tells
            connection.send_bytes(array("i", [size, *samples]).tobytes())

    def wait(self, until: float) -> list[Finished]:
        # Not selectors, which round up to milliseconds. Without an end, look from time to time.
        now = time.perf_counter()
        silent = [descriptor for descriptor, (_, since) in self._busy.items() if now - since > self._patience]
        timeout = 0.0 if silent else max(0.0, min(until - now, 1.0))
        ready, _, _ = select.select([self._wakes, *self._busy], [], [], timeout)
        if self._wakes in ready:
            ready.remove(self._wakes)
            os.read(self._wakes, 1 << 16)
        silent = [descriptor for descriptor in silent if descriptor not in ready]
        lost = [Finished(self._busy.pop(descriptor)[0], now, now, failed=True, gone=True) for descriptor in silent]
        return [*(self._finished(self._busy.pop(descriptor)[0]) for descriptor in ready), *lost]

    def wake(self) -> None:
        """Let ``wait`` return at once; another thread may call this."""
        os.write(self._waker, b"w")

    def close(self) -> None:
        """Let the instances check their answers and end."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.send_bytes(b"")
            connection.close()

    def _finished(self, instance: int) -> Finished:
        try:
            begin, end, compiled = ANSWER.unpack(self._connections[instance].recv_bytes())
        except (EOFError, OSError):
            return Finished(instance, self.now(), self.now(), failed=True, gone=True)
        return Finished(instance, begin, end, compiled=compiled)


SCENARIOS = {"server": "Server", "offline": "Offline", "single-stream": "SingleStream", "multi-stream": "MultiStream"}
SUMMARY = "mlperf_log_summary.txt"
LEAST_QUERIES = 100
LIBRARY = 1024  # samples that LoadGen knows
# The error that LoadGen allows for the quantile; half as many queries more leave room for late ones.
SURE = 0.01
OFFLINE_SHARE = 1.1  # of the expected rate: LoadGen makes so many samples for the time of a run


class LoadgenTraffic(Traffic):
    """The queries that LoadGen has issued for samples of a ``pool``. A query is answered when its request ends."""

    def __init__(self, loadgen: Any, instances: ServedInstances, pool: Sequence[int]) -> None:
        self._queries: list[int] = []
        super().__init__((), self._queries)
        self.start: float = instances.now()
        self._loadgen, self._instances, self._pool = loadgen, instances, pool
        self._ids: list[int] = []
        self._finished = False

    def issue(self, queries: list[Any]) -> None:
        """Take queries from LoadGen, on its thread."""
        now = self._instances.now() - self.start
        self._queries += [self._pool[query.index] for query in queries]
        self._ids += [query.id for query in queries]
        self._due.extend([now] * len(queries))
        self._instances.wake()

    def finish(self) -> None:
        """Register that no query will follow."""
        self._finished = True
        self._instances.wake()

    @property
    def over(self) -> bool:
        return self._finished and not self._due

    def ended(self, request: int, now: float) -> None:  # noqa: ARG002
        response = self._loadgen.QuerySampleResponse(self._ids[request], 0, 0)
        self._loadgen.QuerySamplesComplete([response])


def loadgen_run(instances: ServedInstances, record: LoadRecord, rate: float, folder: Path) -> LoadgenVerdict:
    """Return the verdict on the scenario of a record at a rate; LoadGen's logs are written to a folder."""
    loadgen = library("mlperf_loadgen", extra="load")
    limit = record.limit
    folder.mkdir(parents=True, exist_ok=True)
    settings, logs = loadgen.TestSettings(), loadgen.LogSettings()
    settings.scenario = getattr(loadgen.TestScenario, SCENARIOS[record.scenario])
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = int(record.seconds * 1000)
    settings.min_query_count = max(LEAST_QUERIES, int(1.5 * math.log(SURE) / math.log(limit.quantile)))
    settings.server_target_qps, settings.offline_expected_qps = rate, rate * OFFLINE_SHARE
    settings.server_target_latency_ns = int(limit.seconds * 1e9)
    settings.server_target_latency_percentile = limit.quantile
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    drawn = draw_mix(record.mix, LIBRARY, record.round)  # LoadGen asks for any of them as often
    traffic = LoadgenTraffic(loadgen, instances, drawn)
    thread = threading.Thread(target=Dispatcher(traffic, instances, record.deployment).run)
    thread.start()
    system = loadgen.ConstructSUT(traffic.issue, lambda: None)
    samples = loadgen.ConstructQSL(LIBRARY, LIBRARY, lambda _: None, lambda _: None)
    try:
        loadgen.StartTestWithLogSettings(system, samples, settings, logs, "audit.config")
    finally:
        traffic.finish()
        thread.join()
        loadgen.DestroyQSL(samples)
        loadgen.DestroySUT(system)
    lines = (line.partition(":")[::2] for line in (folder / SUMMARY).read_text("utf-8").splitlines())
    values = {name.strip(): value.strip() for name, value in lines}
    latency = values.get(f"{100 * limit.quantile:.2f} percentile latency (ns)")
    rates = ("Completed samples per second", "Samples per second")
    return LoadgenVerdict(
        scenario=record.scenario,
        valid=values.get("Result is") == "VALID",
        at_limit=float(latency) / 1e9 if latency else None,
        rate=next((float(values[name]) for name in rates if name in values), None),
        reason="; ".join(name for name, value in values.items() if value == "NO" and "satisfied" in name),
        logs=str(folder),
    )


class DriveJob(Job, frozen=True, kw_only=True):
    """Make the traffic of a record for the instances that connect to ``address``."""

    address: str
    stop: str  # a file that appears if an instance ends before it could serve
    record: LoadRecord
    file: str  # has the record so far after each run; LoadGen's logs are in a folder beside it
    patience: float  # seconds after which an instance that does not answer is lost
    end: float  # the time by time.monotonic from which on the capacity is not narrowed further


def drive(job: DriveJob, context: TaskContext) -> LoadRecord:
    """Wait for the instances, measure, and let them end."""
    record, deployment = job.record, job.record.deployment
    with Listener(job.address, "AF_UNIX") as listener:
        instances = ServedInstances(listener, deployment.instances, Path(job.stop), job.patience)

    def keep(record: LoadRecord) -> None:
        context.value = record
        write_whole(Path(job.file), msgspec.json.encode(replace(record, status="failed", reason=INTERRUPTED)))

    with closing(instances):
        limited = replace(deployment, max_batch=min(deployment.max_batch, instances.largest))
        record = measure(replace(record, deployment=limited), instances, keep, job.end)
        rate = record.capacity or next(iter(record.rates), 0.0)
        if record.scenario and rate:
            verdict = loadgen_run(instances, record, rate, Path(job.file).parent / f"loadgen-{record.id[:6]}")
            if record.scenario == "server":
                ours = measure_run(instances, replace(record, rates=(rate,)), rate)  # not ended early
                verdict = replace(verdict, ours=ours.at_limit)
            record = replace(record, loadgen=verdict)
        return record
