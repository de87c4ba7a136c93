"""Energy of one item, from a machine log: a value with its bounds, or the reason why there is none. Never a guess.

What is measured is the whole board or package, whoever used it, idle power included. A GPU's counter of energy is used
where it has one (Volta and later), else samples of its power, else nothing; CPUs have RAPL's counters or nothing.

The value is the mean power inside the span times the seconds for one item, so the items must be spread evenly over it.
The bounds are no confidence interval: they hold the value if the sensors are right within :data:`SENSOR` and readings
are no older than one update. NVML's counter is updated about every 100 ms (ml.energy, "Thermally Stable Profiling for
Accurate GPU Energy Measurement"). Yang, Adamek and Armour, "Part-time Power Measurements: nvidia-smi's Lack of
Attention" (arXiv 2312.02741), found besides that A100 and H100 sample their power during only 25 % of the time, which
is right for loads that repeat faster than that and may be wrong for others, by how much no reading tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from msgspec import Struct

from inferlens.analysis.interference.spans import cpu_busy, foreign
from inferlens.record.machine import Energy, GpuSamples, MachineLog, Span

UPDATE = 0.1  # seconds between two values of NVML's counter of energy
RAPL_UPDATE = 0.001  # seconds; Intel's Software Developer's Manual, volume 3, on RAPL's energy status
# NVML's documentation of nvmlDeviceGetPowerUsage states 5 %, of old GPUs, and none of newer ones; Intel states none of
# RAPL. The same is assumed of all.
SENSOR = 0.05
# Ten updates of NVML's counter: with fewer, the two ends alone are more than a tenth of the whole.
LEAST_SPAN = 1.0
# A value whose bounds are further away than this is none.
MOST_RELATIVE = 0.25
LEAST_READINGS = 5


class _Mean(Struct, frozen=True):
    """Mean power over a span in watts, and how far it may be off, sensor apart, in watts."""

    watts: float
    off: float
    basis: str


class _None(Exception):
    """There is no value; the text says why."""


def energy_per_item(log: MachineLog, begin: float, end: float, items: int) -> Energy:
    """Energy of the GPU for one item, from ``begin`` to ``end``.

    Args:
        log: what the machine did.
        begin: seconds of the log's clock, the beginning of the first call.
        end: the end of the last call; there was nothing between the two but these calls.
        items: how many items these calls had, batch times calls.
    """
    gpu = log.gpu
    if gpu is None:
        return Energy(reason=log.absent.get("gpu", "the GPU was not watched"))
    if _touches(foreign(log), begin, end):
        return Energy(reason="another process used the GPU meanwhile, whose energy cannot be told apart")
    return _per_item(lambda: _gpu_mean(gpu, log, begin, end), begin, end, items)


def cpu_energy_per_item(log: MachineLog, begin: float, end: float, items: int) -> Energy:
    """Energy of all CPU packages for one item; see :func:`energy_per_item`."""
    cpu = log.cpu
    if cpu is None or not cpu.energy:
        return Energy(reason=log.absent.get("cpu_energy", "the CPUs were not watched"))
    if _touches(cpu_busy(log), begin, end):
        return Energy(reason="other processes kept the CPUs busy, whose energy cannot be told apart")
    basis = "RAPL: all CPU packages, whoever used them"
    return _per_item(lambda: _counted(cpu.times, cpu.energy, begin, end, RAPL_UPDATE, basis), begin, end, items)


def _touches(spans: Sequence[Span], begin: float, end: float) -> bool:
    return any(span.end > begin and span.begin < end for span in spans)


def _per_item(mean: Callable[[], _Mean], begin: float, end: float, items: int) -> Energy:
    seconds = end - begin
    try:
        if items <= 0 or seconds < LEAST_SPAN:
            raise _None(f"{max(0, items)} items in {seconds:.2g} s are too few: {LEAST_SPAN:g} s are needed")
        found = mean()
    except _None as error:
        return Energy(reason=str(error), seconds=seconds, items=items)
    off = found.off + SENSOR * found.watts
    if found.watts <= 0 or off > MOST_RELATIVE * found.watts:
        reason = f"{found.watts:.3g} W over {seconds:.2g} s, uncertain by {off:.2g} W: too coarse to be of use"
        return Energy(reason=reason, basis=found.basis, seconds=seconds, items=items)
    each = seconds / items
    return Energy(
        joules=found.watts * each,
        low=(found.watts - off) * each,
        high=(found.watts + off) * each,
        basis=found.basis,
        seconds=seconds,
        items=items,
    )


def _gpu_mean(gpu: GpuSamples, log: MachineLog, begin: float, end: float) -> _Mean:
    if gpu.energy:
        return _counted(gpu.times, gpu.energy, begin, end, UPDATE, "NVML: counter of the board's energy")
    if gpu.power:
        return _averaged(gpu, begin, end)
    raise _None(log.absent.get("power", "NVML tells neither energy nor power"))


def _counted(
    times: Sequence[float], counter: Sequence[float | None], begin: float, end: float, update: float, basis: str
) -> _Mean:
    """From a counter, between the first sample inside the span and the last one.

    Either value may be as old as one update, so that up to one update's energy is missing, or too much.
    """
    known = _inside(times, counter, begin, end)
    if any(later[1] < earlier[1] for earlier, later in itertools.pairwise(known)):
        raise _None("the counter of energy went back, as when the driver is loaded anew")
    seconds = known[-1][0] - known[0][0]
    watts = (known[-1][1] - known[0][1]) / seconds
    return _Mean(watts, watts * update / seconds, basis)


def _averaged(gpu: GpuSamples, begin: float, end: float) -> _Mean:
    """From samples of power: trapezia between them.

    Readings near the ends tell of the time before: by as much as power changed in the span, for as long as a reading's
    own window and the time between two of them.
    """
    known = _inside(gpu.times, gpu.power, begin, end)
    seconds = known[-1][0] - known[0][0]
    joules = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(known))
    swing = max(watts for _, watts in known) - min(watts for _, watts in known)
    off = swing * (gpu.power_window + _widest(known)) / seconds
    return _Mean(joules / seconds, off, f"NVML: samples of the board's power ({gpu.power_basis})")


def _inside(
    times: Sequence[float], values: Sequence[float | None], begin: float, end: float
) -> list[tuple[float, float]]:
    """Times and values inside the span.

    Raises:
        _None: if they are too few, or do not reach from one end of it to the other.
    """
    known = [
        (time, value) for time, value in zip(times, values, strict=True) if value is not None and begin <= time <= end
    ]
    if len(known) < LEAST_READINGS:
        raise _None(f"{len(known)} readings in the span are too few: {LEAST_READINGS} are needed")
    gap = 2 * _widest(known)
    if known[0][0] - begin > gap or end - known[-1][0] > gap:
        raise _None("the watch did not cover the whole span")
    return known


def _widest(known: Sequence[tuple[float, float]]) -> float:
    return max(later[0] - earlier[0] for earlier, later in itertools.pairwise(known))
