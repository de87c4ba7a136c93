"""Energy of one item, from a machine log: a value with its bounds, or the reason why there is none. Never a guess.

What is measured is the whole board or package, whoever used it, idle power included: by a GPU's counter of energy
(Volta and later have one), and by the RAPL counters of CPUs. The value is the mean power inside the span times the
seconds for one item, so the items must be spread evenly over it. The bounds are no confidence interval: they hold the
value if the sensors are right within :data:`SENSOR` and readings are no older than one update.

NVML's counter is updated about every 100 ms (ml.energy, "Thermally Stable Profiling for Accurate GPU Energy
Measurement"). A100 and H100 sample their power during only 25 % of the time (Yang, Adamek and Armour, "Part-time Power
Measurements: nvidia-smi's Lack of Attention", arXiv 2312.02741): right for loads that repeat faster than that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from inferlens.analysis.interference.spans import cpu_busy, foreign
from inferlens.record.machine import Energy, MachineLog, Span

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


def energy_per_item(log: MachineLog, begin: float, end: float, items: int) -> Energy:
    """Energy of the GPU for one item, from ``begin`` to ``end`` in seconds of the log's clock.

    Between the two there was nothing but calls with so many ``items``, batch times calls.
    """
    gpu = log.gpu
    if gpu is None:
        return Energy(reason=log.absent.get("gpu", "the GPU was not watched"))
    if _touches(foreign(log), begin, end):
        return Energy(reason="another process used the GPU meanwhile, and its energy cannot be separated")
    if not gpu.energy:
        why = log.absent.get("energy", "NVML has no counter of this GPU's energy")
        return Energy(reason=why, seconds=end - begin, items=items)
    return _counted(gpu.times, gpu.energy, begin, end, items, UPDATE, "NVML: counter of the board's energy")


def cpu_energy_per_item(log: MachineLog, begin: float, end: float, items: int) -> Energy:
    """Energy of all CPU packages for one item; see :func:`energy_per_item`."""
    cpu = log.cpu
    if cpu is None or not cpu.energy:
        return Energy(reason=log.absent.get("cpu_energy", "the CPUs were not watched"))
    if _touches(cpu_busy(log), begin, end):
        return Energy(reason="other processes kept the CPUs busy, and their energy cannot be separated")
    return _counted(cpu.times, cpu.energy, begin, end, items, RAPL_UPDATE, "RAPL: all CPU packages, whoever used them")


def _touches(spans: Sequence[Span], begin: float, end: float) -> bool:
    return any(span.end > begin and span.begin < end for span in spans)


def _counted(
    times: Sequence[float],
    counter: Sequence[float | None],
    begin: float,
    end: float,
    items: int,
    update: float,
    basis: str,
) -> Energy:
    """From a counter, between the first sample inside the span and the last one.

    Either value may be as old as one update, so that up to one update's energy is missing, or too much.
    """
    span = end - begin
    known = [
        (time, joules)
        for time, joules in zip(times, counter, strict=True)
        if joules is not None and begin <= time <= end
    ]
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(known)]
    grown = [later[1] - earlier[1] for earlier, later in itertools.pairwise(known)]
    reason = ""
    if items <= 0 or span < LEAST_SPAN or len(known) < LEAST_READINGS:
        reason = f"{max(0, items)} items and {len(known)} readings in {span:.2g} s are too few"
    elif max(known[0][0] - begin, end - known[-1][0]) > 2 * max(gaps):
        reason = "the watch did not cover the whole span"
    elif min(grown) < 0:
        reason = "the counter of energy went back, as when the driver is loaded anew"
    if reason:
        return Energy(reason=reason, seconds=span, items=items)
    watts = (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])
    off = watts * (update / (known[-1][0] - known[0][0]) + SENSOR)
    if watts <= 0 or off > MOST_RELATIVE * watts:
        reason = f"{watts:.3g} W over {span:.2g} s, uncertain by {off:.2g} W: too coarse to be of use"
        return Energy(reason=reason, basis=basis, seconds=span, items=items)
    joules, error = watts * span / items, off * span / items
    return Energy(joules=joules, low=joules - error, high=joules + error, basis=basis, seconds=span, items=items)
