from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferlens.measure.monitor import cpu as module
from inferlens.measure.monitor.cpu import THREAD_VARIABLES, TICK, Cpus, Packages, Tree, default_threads
from inferlens.measure.monitor.monitor import SampledColumns


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def process(root: Path, pid: int, ticks: tuple[int, int, int, int], children: str = "", name: str = "a) (b c") -> None:
    user, system, waited_user, waited_system = ticks
    fields = f"S 1 1 1 0 -1 0 0 0 0 0 {user} {system} {waited_user} {waited_system} 20 0 1 0 100"
    write(root, f"proc/{pid}/stat", f"{pid} ({name}) {fields}")
    write(root, f"proc/{pid}/task/{pid}/children", children)


def stat(root: Path, user: int, steal: int = 0) -> None:
    write(root, "proc/stat", f"cpu0 {user} 0 0 0 0 0 0 {steal} 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")


def test_load_is_told_apart_from_the_cases_and_children_that_were_waited_for_still_count(tmp_path: Path) -> None:
    stat(tmp_path, user=1000)
    process(tmp_path, 7, (100, 0, 0, 0), children="8 ")
    process(tmp_path, 8, (30, 20, 0, 0))
    cpus = Cpus(lambda: [7], usable=(0, 1), root=tmp_path)
    assert set(cpus.load(10.0).values()) == {None}
    stat(tmp_path, user=1150, steal=20)
    process(tmp_path, 7, (120, 10, 50, 20))
    load = cpus.load(11.0)
    assert load == pytest.approx({"busy": 150 * TICK, "case": 50 * TICK, "others": 100 * TICK, "steal": 20 * TICK})


def test_too_short_an_interval_has_no_load_and_once_the_case_has_ended_others_are_not_known(tmp_path: Path) -> None:
    stat(tmp_path, user=1000)
    process(tmp_path, 7, (0, 0, 0, 0))
    cpus = Cpus(lambda: [7], usable=(0, 1), root=tmp_path)
    cpus.load(10.0)
    stat(tmp_path, user=1010)
    assert set(cpus.load(10.05).values()) == {None}
    stat(tmp_path, user=1100)
    (tmp_path / "proc/7/stat").unlink()
    load = cpus.load(11.0)
    assert (load["busy"], load["others"]) == (pytest.approx(100 * TICK), None)


def test_energy_counters_that_begin_again(tmp_path: Path) -> None:
    for zone, used in (("intel-rapl:0", 900_000), ("intel-rapl:1", 0), ("intel-rapl:0:0", 5)):
        write(tmp_path, f"{zone}/energy_uj", f"{used}\n")
        write(tmp_path, f"{zone}/max_energy_range_uj", "1000000\n")
    packages = Packages(tmp_path)
    assert packages.read() == 0.0
    write(tmp_path, "intel-rapl:0/energy_uj", "100000\n")
    write(tmp_path, "intel-rapl:1/energy_uj", "300000\n")
    assert packages.read() == pytest.approx(0.2 + 0.3)


def test_throttling_and_quota(tmp_path: Path) -> None:
    for cpu in (0, 1, 2):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        write(tmp_path, f"{folder}/thermal_throttle/core_throttle_count", "3\n")
        write(tmp_path, f"{folder}/thermal_throttle/package_throttle_count", "1\n")
    write(tmp_path, "proc/self/cgroup", "0::/mine\n")
    write(tmp_path, "sys/fs/cgroup/mine/cpu.stat", "usage_usec 1\nnr_throttled 2\nthrottled_usec 2500000\n")
    cpus = Cpus(lambda: [7], usable=(0, 1), root=tmp_path)
    answers = {name: value for read in list(cpus.readings().values())[2:] for name, value in read(0.0).items()}
    assert answers == {
        "throttle_events": 8,
        "quota_wait": 2.5,
    }


def test_waiting_for_the_quota_is_counted_in_version_1_too(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/mine\n")
    write(tmp_path, "sys/fs/cgroup/cpu/mine/cpu.stat", "nr_throttled 2\nthrottled_time 2500000000\n")
    assert Cpus(lambda: [7], usable=(0, 1), root=tmp_path).readings()["quota_wait"](0.0) == {"quota_wait": 2.5}


@pytest.mark.parametrize(
    ("variables", "quota", "threads"),
    [
        ({}, "", (2, "")),  # four CPUs of two cores
        ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "1"}, "", (1, "MKL_NUM_THREADS=1 is set")),
        ({"OMP_NUM_THREADS": "8,2"}, "50000", (8, "OMP_NUM_THREADS=8 is set")),
        ({"OMP_NUM_THREADS": "2"}, "", (2, "")),
        ({"OMP_NUM_THREADS": "many"}, "", (2, "")),
        ({}, "150000", (1, "The CPU quota is 1.5 CPUs")),
        ({}, "50000", (1, "The CPU quota is 0.5 CPUs")),
        ({}, "200000", (2, "")),
    ],
)
def test_all_ways_get_the_threads_that_the_environment_sets_or_one_for_each_core(
    variables: dict[str, str], quota: str, threads: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "usable_cpus", lambda: {0, 1, 2, 3})
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{siblings}\n")
    write(tmp_path, "proc/self/cgroup", "0::/mine\n")
    write(tmp_path, "sys/fs/cgroup/mine/cpu.max", f"{quota or 'max'} 100000\n")
    assert default_threads(tmp_path) == threads


def test_without_topology_each_cpu_is_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cpus", lambda: {0, 1, 2})
    assert module.usable_cores(tmp_path) == 3


def test_a_bare_system_tells_nothing_and_says_so(tmp_path: Path) -> None:
    cpus = Cpus(lambda: [7], usable=(0,), root=tmp_path)
    table = SampledColumns(cpus.readings(), lambda: 1.0)
    table.take()
    assert table.as_columns() == {"times": (1.0,)}
    assert set(table.absent) == set(cpus.readings())


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("mine", [True, False], ids=["its own", "another's"])
def test_a_busy_process_is_the_load_of_the_case_or_of_others(mine: bool) -> None:
    """Real time and real processes: ours works or does nothing; some process works for half a second of CPU time."""
    busy = subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    idle = subprocess.Popen(["sleep", "60"])
    try:
        assert busy.stdout
        busy.stdout.readline()
        cpus, work = Cpus(lambda: [busy.pid if mine else idle.pid]), Tree(lambda: [busy.pid])
        begin = time.perf_counter()
        cpus.load(begin)
        used = work.seconds()
        while work.seconds() - used < 0.5 or time.perf_counter() - begin < 0.5:
            time.sleep(0.01)
        seconds = time.perf_counter() - begin
        load = cpus.load(begin + seconds)
    finally:
        for item in (idle, busy):
            item.kill()
            item.communicate()
    assert load["case"] * seconds >= 0.4 if mine else load["others"] * seconds >= 0.4
    assert mine or load["case"] * seconds <= 0.2
    assert load["others"] <= load["busy"] - load["case"] + 0.01
