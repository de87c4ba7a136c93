"""What the machine did to a case: the monitor's log, held against the samples that the case's process took."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from inferlens.analysis.interference import cpu_energy_per_item, energy_per_item, mark_samples
from inferlens.execution.child_process import Outcome
from inferlens.execution.expand import Planned
from inferlens.execution.measure_case import Measured
from inferlens.execution.protocol import TaskResult
from inferlens.record.machine import Energy, MachineLog, Marks, peak_device_memory
from inferlens.record.record import Measurement, Memory, Metric
from inferlens.spec.case import Budget, Case

LEAST_WINDOWS = 5
NO_ENERGY = "another case was measured in turns with it, and took energy of its own"


class Interference(Struct, frozen=True, kw_only=True):
    """The part of a record that the case's own process cannot know; names as in the record."""

    memory: Memory
    machine: MachineLog | None = None
    marks: Marks | None = None
    window_marks: Marks | None = None
    energy: Energy | None = None
    cpu_energy: Energy | None = None

    @property
    def repeat(self) -> bool:
        """Whether to measure the case again: its latencies, or its rates alone, were disturbed for a short time."""
        decisive = self.marks or self.window_marks
        return decisive is not None and decisive.short


def interference(
    case: Case, result: TaskResult[Measured], log: MachineLog | None, *, interleaved: bool = False
) -> Interference:
    """Return what ``log`` says about what was measured; ``None`` if nothing watched.

    If it is ``interleaved`` with another case, memory of the whole GPU and energy are of both.
    """
    memory = result.memory
    device = peak_device_memory(log, shared=interleaved) if log and case.device == "cuda" else None
    if device:
        memory = replace(memory, device_peak=device.bytes, device_basis=device.basis)
    calls, windows = _timed(result, "latency"), _timed(result, "throughput")
    if log is None or not (calls or windows):
        return Interference(memory=memory)
    marks = mark_samples(calls.begins, calls.values, log) if calls else None
    window_marks = None
    if windows:
        seconds = [windows.calls / rate for rate in windows.values]
        window_marks = mark_samples(windows.begins, seconds, log, least=LEAST_WINDOWS)
    spans = [measured for measured in (calls, windows) if measured]
    energy = Energy(reason=NO_ENERGY) if interleaved else _energy(case, result, calls or windows, log)
    return Interference(
        memory=memory,
        machine=log.between(spans[0].begins[0], _end(spans[-1])),
        marks=marks,
        window_marks=window_marks,
        energy=energy if case.device == "cuda" else None,
        cpu_energy=energy if case.device == "cpu" else None,
    )


def _timed(result: TaskResult[Measured], metric: Metric) -> Measurement | None:
    """What was measured of a metric, if it is known when."""
    taken = result.found.measurements if result.found else ()
    found = next((each for each in taken if each.metric == metric), None)
    return found if found and found.samples and len(found.begins) == len(found.samples) else None


def _end(measured: Measurement) -> float:
    last = measured.values[-1]
    return measured.begins[-1] + (measured.calls / last if measured.unit == "calls/s" else last)


def _energy(case: Case, result: TaskResult[Measured], measured: Measurement | None, log: MachineLog) -> Energy:
    if case.cold:
        return Energy(reason="the caches were flushed between calls, which takes energy of its own")
    if measured is None:
        return Energy(reason="nothing was measured")
    inputs = result.model.inputs if result.model else ()
    batch = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    of = energy_per_item if case.device == "cuda" else cpu_energy_per_item
    return of(log, measured.begins[0], _end(measured), batch * measured.calls * len(measured.samples))


@dataclass(frozen=True)
class Attempt:
    """One process of a case: how it ended, and what the machine did to it."""

    planned: Planned
    repeat: int
    folder: Path
    created: datetime
    outcome: Outcome[Measured]
    found: Interference
    beside: str = ""  # the cases that it took turns with
    budget: Budget | None = None  # if not the plan's

    def watched(self, log: MachineLog) -> Attempt:
        """Return the attempt with the log that cases in turns have in common."""
        found = interference(self.planned.case, self.outcome.result, log, interleaved=bool(self.beside))
        return dataclasses.replace(self, found=found)
