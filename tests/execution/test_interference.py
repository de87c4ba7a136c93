"""What the machine did to a case: marks of its samples, energy and memory."""

import msgspec
import pytest

from inferlens.execution.protocol import TaskResult
from inferlens.execution.scheduler import interference_of
from inferlens.execution.tasks import BenchmarkResult
from inferlens.record.machine import Before
from inferlens.record.record import Measurement, Memory
from tests.analysis.machine_logs import cpu_log, during, gpu_log
from tests.views.samples import case, facts

ON_GPU = case(device="cuda", batch=8)
ON_CPU = case(batch=8)
COUNT = 800
BUSY = during(3.0, 3.5, 3.9, 0.0)  # others' load: of 4 CPUs nearly all


def latencies(count=COUNT):
    """From 1 s to 9 s, without a gap."""
    each = 8 / count
    begins = tuple(1 + index * each for index in range(count))
    return Measurement(metric="latency", unit="s", clock="a clock", samples=(each,) * count, begins=begins)


def windows(count=10):
    """From 1 s to 9 s, without a gap, of 100 calls each."""
    rates = (100 * count / 8,) * count
    return msgspec.structs.replace(latencies(count), metric="throughput", unit="calls/s", samples=rates, calls=100)


def answer(*measurements, **fields):
    return TaskResult(model=facts(ON_GPU), value=BenchmarkResult(measurements=measurements or (latencies(),)), **fields)


def test_a_calm_machine_leaves_all_samples():
    found = interference_of(ON_CPU, answer(latencies(), windows()), cpu_log())
    assert (found.marks.count, found.marks.disturbed) == (COUNT, ())
    assert (found.window_marks.count, found.window_marks.disturbed) == (10, ())


def test_of_two_in_turns_no_energy_is_told_and_memory_of_the_gpu_where_processes_are_named():
    whole = msgspec.structs.replace(gpu_log(), peak_memory_used=900, before=Before(memory_used=300))
    named = msgspec.structs.replace(whole, peak_case_memory=500)
    told = ((named, True), (whole, True), (whole, False))
    beside, nameless, alone = (interference_of(ON_GPU, answer(), log, in_turns=both) for log, both in told)
    assert [each.memory.device_peak for each in (beside, nameless, alone)] == [500, None, 600]
    assert "in turns" in beside.energy.reason


def test_a_short_disturbance_leaves_samples_out():
    """A mean of half a second stands for the interval before it: from 2.5 s to 3.5 s, of windows three of ten."""
    log = cpu_log(others=BUSY, busy=during(3.0, 3.5, 4.0, 1.0))
    marks = interference_of(ON_CPU, answer(), log).marks
    first, last = (latencies().begins[place] for place in (marks.discarded[0], marks.discarded[-1]))
    assert (first, last) == (pytest.approx(2.495, abs=0.01), pytest.approx(3.495, abs=0.01))
    assert (marks.touched, marks.clean) == ({"cpu busy": len(marks.discarded)}, True)
    found = interference_of(ON_CPU, answer(latencies(), windows()), log)
    assert (found.window_marks.disturbed, found.window_marks.discarded) == ((1, 2, 3), (1, 2, 3))


def test_what_is_not_known_has_no_marks():
    for told, log in ((answer(), None), (TaskResult(status="failed"), cpu_log())):
        found = interference_of(ON_CPU, told, log)
        assert (found.machine, found.marks, found.energy, found.cpu_energy) == (None,) * 4
    old = msgspec.structs.replace(latencies(), begins=())
    assert interference_of(ON_CPU, answer(old), cpu_log()).marks is None


@pytest.mark.parametrize(("on", "log", "measured", "joules", "items"), [
    (ON_GPU, gpu_log(energy=lambda time: 300 * time), latencies(), 300 * 8 / (COUNT * 8), COUNT * 8),
    (ON_CPU, cpu_log(energy=lambda time: 40 * time), latencies(), 40 * 8 / (COUNT * 8), COUNT * 8),
    (ON_GPU, gpu_log(energy=lambda time: 300 * time), windows(), 300 * 8 / 8000, 10 * 100 * 8),
])  # fmt: skip
def test_energy_is_of_an_item_and_of_the_device(on, log, measured, joules, items):
    found = interference_of(on, answer(measured), log)
    energy, other = (found.energy, found.cpu_energy) if on is ON_GPU else (found.cpu_energy, found.energy)
    assert (energy.joules, energy.items, other) == (pytest.approx(joules), items, None)
    flushed = interference_of(msgspec.structs.replace(on, cold=True), answer(measured), log)
    energy = flushed.energy or flushed.cpu_energy
    assert (energy.joules, "flushed" in energy.reason) == (None, True)


def test_device_memory_is_that_of_the_watch_with_its_basis():
    own = Memory(host_peak=10, host_basis="ru_maxrss", library_peak=5, library_basis="PyTorch")
    log = msgspec.structs.replace(gpu_log(), peak_case_memory=700)
    found = interference_of(ON_GPU, answer(memory=own), log).memory
    assert (found.device_peak, found.host_peak, found.library_peak) == (700, 10, 5)
    assert found.device_basis.startswith("NVML: memory of the case's processes")


@pytest.mark.parametrize(("on", "status", "peak", "found"), [
    (ON_CPU, "ok", 700, None), (ON_GPU, "ok", None, None), (ON_GPU, "out of memory", 700, 700),
], ids=["on the CPU", "not watched", "failed"])  # fmt: skip
def test_device_memory_is_known_of_a_case_that_failed_and_on_the_cpu_is_none(on, status, peak, found):
    log = msgspec.structs.replace(gpu_log(), peak_case_memory=peak)
    memory = interference_of(on, answer(status=status, memory=Memory(host_peak=10)), log).memory
    assert (memory.host_peak, memory.device_peak) == (10, found)
