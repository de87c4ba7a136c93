"""The records of one side of a comparison: cases measured in several processes, exactly as fast as they are told."""

from pathlib import Path
from typing import Any

from inferlens.record.record import Measurement, Record
from inferlens.record.store import Store
from inferlens.spec.case import Case
from tests.views.samples import case, failure, record

PROCESSES = 5
# Of each process, around the case's own time: their mean of logarithms is near 0.
FACTORS = (0.998, 0.999, 1.0, 1.001, 1.002)


def ran(
    of: Case | None = None,
    seconds: float = 10e-3,
    *,
    run: str = "base",
    processes: int = PROCESSES,
    rate: float | None = None,
    gpu: float | None = None,
    noise: float = 1.0,
    **fields: Any,
) -> list[Record]:
    """One run of a case, in so many processes; ``noise`` stretches how far these differ."""
    of = of or case()
    found = []
    for repeat in range(processes):
        factor = FACTORS[repeat % len(FACTORS)] ** noise
        measured = [taken("latency", seconds * factor)]
        measured += [taken("GPU time", gpu * factor)] if gpu else []
        measured += [taken("throughput", rate / factor)] if rate else []
        given: dict[str, Any] = {
            "measurements": tuple(measured), "run": run, "repeat": repeat, "repeats": processes,
            "id": f"{of.digest}-{run}-{repeat}",
        }  # fmt: skip
        found.append(record(of, median=None, **{**given, **fields}))
    return found


def taken(metric: Any, middle: float, count: int = 100) -> Measurement:
    """Samples in a narrow band around ``middle``, neither rising nor falling."""
    samples = tuple(middle * (1 + 1e-4 * ((7 * index) % 11 - 5)) for index in range(count))
    unit: Any = "calls/s" if metric == "throughput" else "s"
    return Measurement(metric=metric, unit=unit, clock="a clock", samples=samples)


def broken(of: Case | None = None, status: str = "crashed", reason: str = "It fell.", run: str = "base", **fields: Any):
    """A record of a case that did not run to its end."""
    of = of or case()
    return failure(of, status, reason, **{"run": run, "id": f"{of.digest}-{run}-{status}", **fields})


def saved(root: Path, records: list[Record]) -> Path:
    """The records on disk, as a run leaves them."""
    store = Store(root)
    for item in records:
        store.save(store.claim(item.case, item.case.model), item)
    return root
