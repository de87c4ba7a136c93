"""The watch on a real GPU: what NVML tells while another process works. Uses the time it takes, some ten seconds."""

import math
import subprocess
import sys
from contextlib import contextmanager

import pytest

from inferlens.analysis.interference import energy_per_item, mark_samples
from inferlens.measure.environment import collect
from inferlens.measure.monitor import Monitor, gpu_before
from inferlens.record.machine import peak_device_memory

pytestmark = pytest.mark.alone

MIB = 1 << 20
# Holds 512 MiB, then works for the seconds that it reads, line by line, and prints begin and end of perf_counter.
WORK = f"""
import sys, time, torch
held = torch.zeros({512 * MIB}, dtype=torch.uint8, device="cuda")
x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
print("ready", flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    calls = 0
    while time.perf_counter() - begin < float(line):
        x @ x
        torch.cuda.synchronize()
        calls += 1
    print(begin, time.perf_counter(), calls, flush=True)
"""


@contextmanager
def worker():
    process = subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert line(process) == ["ready"]
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process):
    return process.stdout.readline().split()


def tell(process, seconds):
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()


def work(process, seconds):
    tell(process, seconds)
    begin, end, calls = line(process)
    return float(begin), float(end), int(calls)


@pytest.fixture(scope="module")
def run():
    """The GPU before, the log of three seconds of work, and when and how much was done."""
    before = gpu_before()
    with worker() as process, Monitor(lambda: [process.pid], gpu=True, before=before) as watch:
        work(process, 0.5)  # until the first reading is there
        span = work(process, 3.0)
    return before, watch.log(), span


def test_the_gpu_tells_clocks_and_reasons(run):
    _, log, (begin, end, _) = run
    assert "watch" not in log.absent, log.absent
    gpu = log.between(begin, end).gpu
    assert gpu is not None, log.absent
    assert len(gpu.times) >= 20
    for name in ("sm_clock", "reasons", "utilisation", "temperature", "memory_used"):
        column = getattr(gpu, name)
        assert len(column) == len(gpu.times), (name, log.absent)
        assert None not in column, name
    assert max(gpu.utilisation) > 0.5
    assert max(gpu.sm_clock) > 300_000_000


def test_times_and_memory_are_those_of_the_child(run):
    """NVML's memory rises with the work of the other process, whose stamps are of the same clock."""
    _, log, (begin, end, _) = run
    peak = peak_device_memory(log)
    assert peak, log.absent
    assert 512 * MIB < peak[0] < 8192 * MIB
    assert log.gpu.times[0] < begin < end <= log.gpu.times[-1] + 0.2
    assert not {"reasons", "clocks", "gpu", "watch"} & log.absent.keys()


def test_energy_is_below_the_power_limit(run):
    _, log, (begin, end, calls) = run
    energy = energy_per_item(log, "cuda", begin, end, calls)
    assert energy.joules is not None, energy.reason
    watts = energy.joules * calls / (end - begin)
    assert 10.0 < watts < 1.1 * (collect().gpus[0].power_limit or math.inf)


def test_another_process_is_foreign_or_unknown_and_never_denied():
    """On the system's own process numbers it is found; in a container it may be hidden, which has to be said."""
    before = gpu_before()
    with worker() as process, Monitor(lambda: [process.pid], gpu=True, before=before) as watch:
        work(process, 1.5)
        with worker() as other:
            tell(other, 2.0)
            begin, end, _ = work(process, 1.5)
    marks = mark_samples([begin], [end - begin], watch.log(), least=1)
    assert "foreign process" in marks.touched or {"foreign", "processes"} & watch.log().absent.keys(), (
        watch.log().processes
    )
