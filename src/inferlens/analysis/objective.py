"""What records have of the measures that a tuning aims at or is limited by, and how far they miss limits.

A value is the one that tables show: of several processes the geometric mean for latencies and rates, the mean for
energy, and the worst for memory, build and error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import Struct

from inferlens.analysis.accuracy import accuracy_of, worth
from inferlens.analysis.findings.notes import worst_agreement
from inferlens.analysis.runs import CaseRuns
from inferlens.record.machine import Energy
from inferlens.record.record import MEMORY_APART, Record
from inferlens.spec.objective import Constraint
from inferlens.stats.comparison import estimate
from inferlens.units import ratio


class Violation(Struct, frozen=True):
    """A constraint that is not met: the value, ``None`` where it is not known, and how far it is beyond the limit."""

    constraint: Constraint
    value: float | None
    factor: float

    @property
    def sentence(self) -> str:
        """What is the matter."""
        measure = self.constraint.measure
        title, limit = measure.title, measure.show(self.constraint.limit)
        if self.value is None:
            return f"The {title} is not known, so that nothing says whether it keeps the limit of {limit}."
        return f"The {title} is {measure.show(self.value)}, beyond the limit of {limit} by {ratio(self.factor)}."


def value(of: CaseRuns | Record, name: str) -> float | None:
    """The value of the measure of that name, in its unit; ``None`` where it is not known, or nothing ran to its end."""
    run = CaseRuns((of,)) if isinstance(of, Record) else of
    found = _VALUES[name](run) if run.ran and name in _VALUES else None
    return found if found is not None and math.isfinite(found) else None


def violations(of: CaseRuns | Record, constraints: Iterable[Constraint]) -> list[Violation]:
    """The constraints that are not met, the worst first; one whose value is not known is not met."""
    found = []
    for constraint in constraints:
        known = value(of, constraint.name)
        factor = constraint.factor(known)
        if not factor <= 1:
            found.append(Violation(constraint, known, factor))
    return sorted(found, key=lambda violation: -violation.factor)


def miss(of: CaseRuns | Record, constraints: Iterable[Constraint]) -> tuple[float, ...]:
    """How far constraints are missed, the worst first: the nearest miss is the least of these; ``()`` misses none."""
    return tuple(violation.factor for violation in violations(of, constraints))


def build_seconds(record: Record) -> float | None:
    """Seconds of export and build together, as long as they took: of what was in a cache, hardly any."""
    built = [seconds for name in ("export", "build") if (seconds := record.phase_seconds(name)) is not None]
    return sum(built) if built else None


def with_export(record: Record) -> bool:
    """Whether its memory is that of a process that exported or quantized the model: more than any call takes."""
    exported = any(phase.name in ("export", "quantize") and phase.note != "cached" for phase in record.phases)
    return exported and MEMORY_APART not in record.facts


def host_peak(run: CaseRuns) -> int | None:
    """Bytes of host memory, the most of its processes that did not export; ``None`` where all did."""
    return max((one.memory.host_peak or 0 for one in run.records if not with_export(one)), default=0) or None


def device_peak(run: CaseRuns) -> int | None:
    """Bytes of device memory, the most of its processes, read from outside: the only basis all backends share.

    Of those alone that did not export, if there are any.
    """
    seen = [one for one in run.records if one.memory.device_basis.startswith("NVML")]
    apart = [one for one in seen if not with_export(one)]
    return max((one.memory.device_peak or 0 for one in apart or seen), default=0) or None


def energies(run: CaseRuns) -> list[Energy]:
    """The energy of each process that knows it."""
    return [energy for record in run.ran for energy in (record.energy, record.cpu_energy) if energy and energy.joules]


def _latency(run: CaseRuns) -> float | None:
    found = estimate(run.processes)
    return found.median if found else run.latency("median")


def _throughput(run: CaseRuns) -> float | None:
    """Items per second; a call without a batch is one item."""
    found = estimate(run.windows)
    return found.median * (run.first.batch or 1) if found else None


def _energy(run: CaseRuns) -> float | None:
    found = [energy.joules or 0.0 for energy in energies(run)]
    return sum(found) / len(found) if found else None


def _build(run: CaseRuns) -> float | None:
    built = [seconds for record in run.ran if (seconds := build_seconds(record)) is not None]
    return max(built, default=None)


def _error(run: CaseRuns) -> float | None:
    agreement = worst_agreement(run)
    return agreement.rel_l2 if agreement else None


def _drop(run: CaseRuns) -> float | None:
    known = worth(accuracy_of(run))
    return known.drop if known else None


_VALUES: Mapping[str, Callable[[CaseRuns], float | None]] = {
    "latency": _latency,
    "latency.p95": partial(CaseRuns.latency, name="p95"),
    "latency.p99": partial(CaseRuns.latency, name="p99"),
    "throughput": _throughput,
    "energy": _energy,
    "memory": lambda run: host_peak(run) if run.first.case.device == "cpu" else device_peak(run),
    "build": _build,
    "error": _error,
    "accuracy-drop": _drop,
}
