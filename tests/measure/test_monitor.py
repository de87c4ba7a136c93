"""The monitor of the machine: GPUs and CPUs by a fake driver and files, on a fake clock; and what a machine is."""

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest

from inferlens.analysis.interference import all_spans, energy_per_item
from inferlens.measure import monitor
from inferlens.measure.environment import collect
from inferlens.measure.monitor import TICK, Cpus, Monitor, Packages, SampledColumns, Tree, gpu_before
from inferlens.record.machine import Before, MachineLog, peak_device_memory
from inferlens.record.record import Gpu
from tests.analysis.machine_logs import gpu_log
from tests.measure.fake_nvml import LOST, NOT_SUPPORTED, Device, FakeNvml, NVMLError

PID = 4242


def log_of(nvml, root, **words):
    return watched(nvml, root, **words).log()


def watched(nvml, root, *, ticks=20, at=None, pids=(PID,), first_namespace=True, environ=None, **words):
    """Return a monitor after ``ticks`` waits of a tenth of a second; ``at`` maps some of them to events.

    The machine in the folder ``root`` has two CPUs and the case's processes ``pids``.
    """
    now, steps = [100.0], itertools.count(1)

    def wait(seconds):
        step = next(steps)
        now[0] += seconds
        (at or {}).get(step, lambda: None)()
        for device in nvml.devices:
            device.millijoules += round(device.milliwatts * seconds)
        return step >= ticks

    cpus = Cpus(lambda: [PID], usable=(0, 1), root=root)
    cpus.tree.pids = lambda: list(pids)
    words = {"gpu": True, **words, "cpus": cpus, "clock": lambda: now[0], "wait": wait}
    with (
        mock.patch.dict(sys.modules, pynvml=nvml),
        mock.patch.object(monitor, "in_first_namespace", return_value=first_namespace),
        mock.patch.dict(os.environ, environ or {"HOME": "/"}, clear=True),
        Monitor(lambda: [PID], **words) as watch,
    ):
        watch._thread.join(10)
    return watch


def kinds(log):
    return {span.kind: (span.begin, span.end) for span in all_spans(log, 100.0, 102.0)}


def test_readings_of_a_gpu_are_columns(tmp_path):
    nvml = FakeNvml(Device(compute={PID: 700}, utilisation=90, reasons=2))
    log = log_of(nvml, tmp_path)
    assert (log.gpu.times[:3], len(log.gpu.times)) == ((100.0, 100.1, 100.2), 21)
    assert (log.gpu.energy[:3], set(log.gpu.sm_clock)) == ((0.0, 10.0, 20.0), {1_980_000_000})
    assert (log.gpu.temperature[0], log.gpu.reasons[0], log.gpu.utilisation[0]) == (40, 2, 0.9)
    assert (set(log.processes.case_memory), set(log.processes.foreign)) == ({700}, {0})
    assert (log.gpu_uuid, kinds(log), nvml.open) == ("GPU-11111111-aaaa", {}, 0)
    assert msgspec.json.decode(msgspec.json.encode(log), type=MachineLog) == log


def test_processes_in_turns_have_peaks_of_their_memory(tmp_path):
    device = Device(compute={PID: 700, 4243: 5, 77: 9})
    step = {7: lambda: device.compute.update({PID: 300, 4243: 800}), 12: lambda: device.compute.pop(4243)}
    watch = watched(FakeNvml(device), tmp_path, at=step, pids=(PID, 4243))
    assert [watch.log_of(pid).peak_case_memory for pid in (PID, 4243, 77, None)] == [700, 800, None, None]
    assert watch.log().peak_case_memory == 1100


def test_an_unsupported_reading_is_absent_with_its_reason(tmp_path):
    nvml = FakeNvml()
    nvml.refuse = {"nvmlDeviceGetTotalEnergyConsumption": NOT_SUPPORTED}
    log = log_of(nvml, tmp_path)
    assert (log.gpu.energy, nvml.calls["nvmlDeviceGetTotalEnergyConsumption"]) == ((), 1)
    assert "Not Supported" in log.absent["energy"] == energy_per_item(log, "cuda", 100.0, 102.0, 10).reason


def test_a_gpu_that_is_lost_leaves_holes(tmp_path):
    nvml = FakeNvml()
    log = log_of(nvml, tmp_path, ticks=30, at={5: lambda: nvml.refuse.update({"nvmlDeviceGetTemperature": LOST})})
    assert (log.gpu.temperature[4], {*log.gpu.temperature[5:]}, len(log.gpu.temperature)) == (40, {None}, 31)


@pytest.mark.parametrize(("steps", "expected"), [
    ({5: {"reasons": 0x40}, 8: {"reasons": 0x04}, 10: {"reasons": 0}},
     {"throttled": (100.4, 100.8), "power cap": (100.7, 101.0)}),
    ({12: {"sm_clock": 1500}, 15: {"sm_clock": 1950}}, {"clock change": (101.1, 101.5)}),  # slower while busy
    ({15: {"sm_clock": 345, "reasons": 1, "utilisation": 0}}, {}),  # idle
])  # fmt: skip
def test_changes_of_clocks_are_spans(steps, expected, tmp_path):
    device = Device(compute={PID: 1}, utilisation=99)
    at = {step: lambda fields=fields: vars(device).update(fields) for step, fields in steps.items()}
    assert kinds(log_of(FakeNvml(device), tmp_path, at=at)) == expected


def test_a_new_process_on_the_gpu_is_a_span(tmp_path):
    nvml = FakeNvml(Device(compute={PID: 1, 77: 5}))  # 77 was there and does nothing
    nvml.refuse["nvmlDeviceGetProcessUtilization"] = NOT_SUPPORTED
    log = log_of(nvml, tmp_path, at={7: lambda: nvml.devices[0].graphics.update({78: 5})})
    assert log.processes.foreign == (1, 1, 2, 2, 2)
    assert kinds(log) == {"foreign process": (100.5, 102.0)}


def test_a_process_that_starts_to_work_is_a_span(tmp_path):
    device, far = Device(compute={PID: 1, 77: 5}), 10**18
    steps = {7: lambda: device.activity.append((77, far, 50)), 11: lambda: device.activity.append((PID, far + 1, 90))}
    log = log_of(FakeNvml(device), tmp_path, at=steps)
    assert log.processes.foreign_utilisation == (0.0, 0.0, 0.5, 0.0, 0.0)
    assert kinds(log) == {"foreign process": (100.5, 101.5)}


ABROAD = {"first_namespace": False}  # as in a container


@pytest.mark.parametrize(("compute", "words", "memory", "foreign", "absent"), [
    ({PID: 3, 4243: 4}, {"pids": (PID, 4243)}, {7}, {0}, ""), ({2**30: 600}, {}, set(), set(), ""),
    ({2_000_000: 600}, {**ABROAD, "before": Before(processes=(), memory_used=400)}, set(), set(), "container"),
    ({2_000_000: 600, 9: 5}, {**ABROAD, "before": Before(processes=(9,))}, set(), {1}, ""),
    ({PID: 600}, ABROAD, {600}, set(), "hidden"),
], ids=["its tree", "no process here", "others' numbers", "there before", "hidden"])  # fmt: skip
def test_processes_on_the_gpu_are_recognized_as_far_as_possible(compute, words, memory, foreign, absent, tmp_path):
    log = log_of(FakeNvml(Device(compute=compute, memory_used=1000)), tmp_path, **words)
    assert (set(log.processes.case_memory), set(log.processes.foreign)) == (memory, foreign)
    assert absent in log.absent.get("foreign", "")
    if absent:  # its own memory, or what is used of the whole device but not before
        assert peak_device_memory(log)[0] == 600


TWO = (Device("GPU-1"), Device("GPU-2", name="Other"))


@pytest.mark.parametrize(("devices", "expected"), [
    (None, "GPU-1"), ("1", "GPU-2"), ("gpu-2,0", "GPU-2"), ("MIG-1", "slice"),
    *[(none, "no GPU that is visible") for none in ("", "-1", "7", "GPU-9")],
])  # fmt: skip
def test_the_gpu_is_the_one_that_cuda_calls_the_first(tmp_path, devices, expected):
    nvml = FakeNvml(*TWO)
    log = log_of(nvml, tmp_path, environ={} if devices is None else {"CUDA_VISIBLE_DEVICES": devices})
    assert (expected in (log.gpu_uuid or log.absent["gpu"]), nvml.open) == (True, 0)


@pytest.mark.parametrize(("variable", "expected"), [("1", ["GPU-2"]), ("MIG-1", ["GPU-1", "GPU-2"])])
def test_all_gpus_are_listed_if_it_is_unknown_which_cuda_uses(variable, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert [device.uuid for device in monitor.visible(FakeNvml(*TWO))] == expected


@pytest.mark.parametrize(("mig", "refused", "absent"), [(1, {}, "MIG"), (0, {"nvmlInit": 12}, "error 12"), (0, {}, "")])
def test_a_gpu_that_cannot_be_watched_is_an_absence(mig, refused, absent, tmp_path):
    nvml = FakeNvml(Device(mig=mig))
    nvml.refuse = refused
    log = log_of(nvml, tmp_path)
    assert (log.gpu is None, nvml.open, absent in log.absent.get("gpu", "")) == (bool(absent), 0, True)


def test_a_thread_that_hangs_does_not_hang_the_run(monkeypatch):
    monkeypatch.setattr(monitor, "PATIENCE", 0.05)
    entered, released = threading.Event(), threading.Event()

    def hang(seconds):
        entered.set()
        return released.wait(60)

    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    with Monitor(lambda: [PID], gpu=True, wait=hang) as watch:
        entered.wait(60)
    assert "hung" in watch.log().absent["watch"]
    released.set()
    watch._thread.join(10)
    assert not watch._thread.is_alive()


def test_a_real_watch_ends_promptly_and_leaves_no_thread(monkeypatch):
    before = threading.active_count()
    monkeypatch.setattr(monitor, "INTERVAL", 60.0)
    with Monitor(lambda: [os.getpid()]) as watch:
        pass
    assert threading.active_count() == before
    log = watch.log()
    assert ("watch" in log.absent, log.cpus) == (False, len(os.sched_getaffinity(0)))


def test_the_gpu_before_a_case(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = FakeNvml(Device(compute={9: 1}, graphics={3: 2}, memory_used=77))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    before = gpu_before()
    assert (before.memory_used, before.processes, before.absent, nvml.open) == (77, (3, 9), {}, 0)
    nvml.refuse["nvmlInit"] = 12
    assert "NVML" in gpu_before().absent["gpu"]


def sampled(readings, times, now, **words):
    """The readings taken at these times, on the clock ``now``."""
    table = SampledColumns(readings, lambda: now[0], **words)
    for now[0] in times:
        table.take()
    return table, table.as_columns()


# Files of ``/proc`` and ``/sys``.


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def process(root, pid, *ticks, children=""):
    """CPU time of a user and of the system, its own and of children that it waited for."""
    fields = f"S 1 1 1 0 -1 0 0 0 0 0 {' '.join(map(str, ticks))} 20 0 1 0 100"
    write(root, f"proc/{pid}/stat", f"{pid} (a) (b c) {fields}")
    write(root, f"proc/{pid}/task/{pid}/children", children)


def stat(root, user, steal=0):
    write(root, "proc/stat", f"cpu0 {user} 0 0 0 0 0 0 {steal} 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")


@pytest.fixture
def cpus(tmp_path):
    """Two CPUs, and the processes of case 7."""
    stat(tmp_path, user=1000)
    process(tmp_path, 7, 100, 0, 0, 0, children="8 ")
    process(tmp_path, 8, 30, 20, 0, 0)
    return Cpus(lambda: [7], usable=(0, 1), root=tmp_path)


def test_load_of_others_excludes_the_case_and_its_ended_children(cpus, tmp_path):
    assert set(cpus.load(10.0).values()) == {None}
    stat(tmp_path, user=1150, steal=20)
    process(tmp_path, 7, 120, 10, 50, 20)
    load = {"busy": 150 * TICK, "case": 50 * TICK, "others": 100 * TICK, "steal": 20 * TICK}
    assert cpus.load(11.0) == pytest.approx(load)


def test_load_is_unknown_for_short_intervals_and_after_the_case(cpus, tmp_path):
    cpus.load(10.0)
    stat(tmp_path, user=1010)
    assert set(cpus.load(10.05).values()) == {None}
    stat(tmp_path, user=1100)
    (tmp_path / "proc/7/stat").unlink()
    load = cpus.load(11.0)
    assert (load["busy"], load["others"]) == (pytest.approx(100 * TICK), None)


def test_energy_counters_that_begin_again(tmp_path):
    for zone, used in (("intel-rapl:0", 900_000), ("intel-rapl:1", 0), ("intel-rapl:0:0", 5)):
        write(tmp_path, f"{zone}/energy_uj", f"{used}\n")
        write(tmp_path, f"{zone}/max_energy_range_uj", "1000000\n")
    packages = Packages(tmp_path)
    assert packages.read() == 0.0
    write(tmp_path, "intel-rapl:0/energy_uj", "100000\n")
    write(tmp_path, "intel-rapl:1/energy_uj", "300000\n")
    assert packages.read() == pytest.approx(0.2 + 0.3)


@pytest.mark.parametrize(("cgroup", "name", "waited"), [
    ("0::/mine", "mine", "throttled_usec 2500000"), ("4:cpu,cpuacct:/mine", "cpu/mine", "throttled_time 2500000000"),
])  # fmt: skip
def test_throttling_and_waits_for_the_quota_are_counted(tmp_path, cgroup, name, waited):
    for cpu, (kind, count) in itertools.product((0, 1, 2), (("core", 3), ("package", 1))):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/{kind}_throttle_count", f"{count}\n")
    write(tmp_path, "proc/self/cgroup", f"{cgroup}\n")
    write(tmp_path, f"sys/fs/cgroup/{name}/cpu.stat", f"usage_usec 1\nnr_throttled 2\n{waited}\n")
    readings = Cpus(lambda: [7], usable=(0, 1), root=tmp_path).readings()
    answers = {name: value for read in [*readings.values()][2:] for name, value in read(0.0).items()}
    assert answers == {"throttle_events": 8, "quota_wait": 2.5}


@pytest.mark.parametrize(("variables", "quota", "threads"), [
    ({}, "", (2, "")),  # four CPUs of two cores
    ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "1"}, "", (1, "MKL_NUM_THREADS=1 is set")),
    ({"OMP_NUM_THREADS": "8,2"}, "50000", (8, "OMP_NUM_THREADS=8 is set")),
    ({"OMP_NUM_THREADS": "2"}, "", (2, "")), ({"OMP_NUM_THREADS": "many"}, "", (2, "")), ({}, "200000", (2, "")),
    ({}, "150000", (1, "The CPU quota is 1.5 CPUs")), ({}, "50000", (1, "The CPU quota is 0.5 CPUs")),
])  # fmt: skip
def test_default_threads_come_from_the_environment_or_the_cores(variables, quota, threads, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "usable_cpus", lambda: {0, 1, 2, 3})
    for name in monitor.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert monitor.usable_cores(tmp_path) == 4, "without a topology each CPU is a core"
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{siblings}\n")
    write(tmp_path, "proc/self/cgroup", "0::/mine\n")
    write(tmp_path, "sys/fs/cgroup/mine/cpu.max", f"{quota or 'max'} 100000\n")
    assert monitor.default_threads(tmp_path) == threads


def test_a_bare_system_has_no_readings(tmp_path):
    cpus = Cpus(lambda: [7], usable=(0,), root=tmp_path)
    table, columns = sampled(cpus.readings(), [1.0], [0.0])
    assert (columns, set(table.absent)) == ({"times": (1.0,)}, set(cpus.readings()))


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
def test_a_busy_process_is_the_load_of_its_case_and_of_others():
    """Use real time and two real processes. One works for half a second of CPU time, the other sleeps."""
    busy = subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    idle = subprocess.Popen(["sleep", "60"])
    try:
        busy.stdout.readline()
        watches, work = [Cpus(lambda pid=process.pid: [pid]) for process in (busy, idle)], Tree(lambda: [busy.pid])
        begin, used = time.perf_counter(), work.seconds()
        for cpus in watches:
            cpus.load(begin)
        while work.seconds() - used < 0.5 or time.perf_counter() - begin < 0.5:
            time.sleep(0.01)
        seconds = time.perf_counter() - begin
        working, sleeping = (cpus.load(begin + seconds) for cpus in watches)
    finally:
        for process in (idle, busy):
            process.kill()
            process.communicate()
    assert min(working["case"], sleeping["others"]) * seconds >= 0.4
    assert sleeping["case"] * seconds <= 0.2
    for load in (working, sleeping):
        assert load["others"] <= load["busy"] - load["case"] + 0.01


# Waiting for a quiet machine

BUSY = "other programs use 0.9 of 2 CPUs"


@pytest.mark.parametrize(("readings", "limit", "expected"), [
    ([""], 600, []),
    ([BUSY, BUSY, ""], 600,
     [f"Waiting up to 10 min 00 s for a quiet machine: {BUSY}.", "The machine is quiet after 6.00 s."]),
    ([BUSY] * 9, 4, [f"Waiting up to 4.00 s for a quiet machine: {BUSY}.",
                     f"Still busy after 4.00 s, measured as it is: {BUSY}."]),
])  # fmt: skip
def test_waiting_for_a_quiet_machine_is_reported(readings, limit, expected):
    """A reading takes two seconds."""
    remarks, doing, ticks, left = [], [], itertools.count(0.0, 2), iter(readings)
    monitor.wait_for_quiet(limit, remarks.append, doing.append, look=lambda: next(left), clock=lambda: next(ticks))
    assert (remarks, set(doing)) == (expected, {f"waiting for a quiet machine: {BUSY}"} if expected else set())
    assert limit < 600 or len(doing) == readings.count(BUSY)


@pytest.mark.parametrize(("others", "expected"), [(0.2, ""), (1.5, "other programs use 1.5 of 2 CPUs")])
def test_a_busy_machine_is_reported(monkeypatch, others, expected):
    loads = iter([{"others": None}, {"others": others}])
    monkeypatch.setattr(monitor.Cpus, "load", lambda *_: next(loads))
    monkeypatch.setattr(monitor.time, "sleep", lambda _: None)
    monkeypatch.setattr("inferlens.measure.monitor.usable_cpus", lambda: (0, 1))
    assert monitor.other_programs(2.0) == expected


# The log, and the machine itself


def test_a_part_of_a_log_keeps_one_sample_more_on_either_side():
    log = gpu_log(utilisation=lambda time: time).between(2.0, 4.05)
    assert (log.gpu.times[0], log.gpu.times[-1]) == (1.9, 4.1)
    assert log.gpu.utilisation == log.gpu.times
    assert log.gpu.energy == ()
    assert log.processes.times == log.cpu.times == (1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5)


def test_the_peak_is_the_processs_own_where_nvml_tells():
    log = MachineLog(interval=0.1, peak_case_memory=5, peak_memory_used=100, before=Before(memory_used=70))
    found = (
        peak_device_memory(machine_log) for machine_log in (log, msgspec.structs.replace(log, peak_case_memory=None))
    )
    assert [peak and peak[0] for peak in found] == [5, 30]
    assert peak_device_memory(MachineLog(interval=0.1, peak_memory_used=100)) is None


@pytest.mark.parametrize(("milliwatts", "watts"), [(699_500, 699.5), (None, None)])
def test_a_gpu_and_its_power_limit_if_it_has_one(milliwatts, watts, monkeypatch):
    nvml = FakeNvml(Device("GPU-1"))
    vars(nvml).update(
        nvmlSystemGetDriverVersion=lambda: "570.1", nvmlSystemGetCudaDriverVersion_v2=lambda: 12080,
        nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0), nvmlDeviceGetEnforcedPowerLimit=lambda _: milliwatts,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=2**30),
    )  # fmt: skip
    if milliwatts is None:
        nvml.nvmlDeviceGetEnforcedPowerLimit = mock.Mock(side_effect=NVMLError(NOT_SUPPORTED))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    environment = collect()
    gpu = Gpu(name="NVIDIA Fake", memory=2**30, compute_capability="9.0", uuid="GPU-1", power_limit=watts)
    assert (environment.gpus, environment.driver, environment.cuda_driver) == ((gpu,), "570.1", "12.8")


KEPT = ("OMP_PROC_BIND", "ONEDNN_DEFAULT_FPMATH_MODE", "TORCHINDUCTOR_FREEZING", "TRITON_PTXAS_PATH", "LD_PRELOAD")
LEFT_OUT = ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_REDIS_URL", "CUBLAS_LOGDEST_DBG", "TRITON_HOME", "AN_API_KEY")


def test_variables_that_change_speed_are_kept_and_others_are_not(monkeypatch):
    for name in (*KEPT, *LEFT_OUT):
        monkeypatch.setenv(name, "")
    assert {*KEPT, *LEFT_OUT} & collect().variables.keys() == {*KEPT}
