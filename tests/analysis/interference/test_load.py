"""How busy other programs kept the machine: the numbers of records, and the sentence that is said of a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from inferlens.analysis.interference import MachineLoad, mean_load, record_load
from inferlens.record.machine import Marks
from tests.analysis.interference.logs import cpu_log, during, gpu_log
from tests.views.samples import on_busy_machine, record

AS_IT_WAS = "This is the answer for the machine as busy as it was."


def test_a_record_of_a_busy_machine_says_what_other_programs_used() -> None:
    load = record_load(on_busy_machine(record()))
    assert (load.busy, load.other_cpus, load.cpus) == (True, 1.0, 2)
    assert load.sentence == f"Other programs used 1.0 of 2 CPUs. {AS_IT_WAS}"


def test_numbers_are_means_over_time_and_a_quiet_machine_has_no_sentence() -> None:
    half = record_load(replace(record(), machine=cpu_log(4, others=during(0.0, 5.0, 2.0, 0.0), busy=4.0, steal=1.0)))
    assert (half.busy, half.other_cpus, half.cpus, half.steal, half.sentence) == (False, 1.0, 4, 0.2, "")
    assert record_load(record()) == MachineLoad()


def test_what_was_left_out_does_not_make_a_machine_busy() -> None:
    marks = Marks(count=9, disturbed=(1, 2), discarded=(1, 2), touched={"cpu busy": 2})
    assert not record_load(replace(on_busy_machine(record()), marks=marks)).busy


def test_heat_is_no_other_program() -> None:
    marks = Marks(count=9, disturbed=(1, 2), touched={"throttled": 2})
    assert not record_load(replace(on_busy_machine(record()), marks=marks)).busy


def test_another_process_on_the_gpu_is_told_by_its_share_of_the_time() -> None:
    marks = Marks(count=9, disturbed=tuple(range(9)), touched={"foreign process": 9})
    log = gpu_log(processes={"foreign": 1, "foreign_utilisation": 0.35})
    load = record_load(replace(record(), marks=marks, machine=log))
    assert load.sentence == f"Other programs used 35 % of the GPU's time. {AS_IT_WAS}"
    unknown = replace(load, gpu_share=None)
    assert unknown.sentence == f"Other programs disturbed the machine. {AS_IT_WAS}"


@pytest.mark.parametrize(("loud", "quiet", "busy"), [(1, 1, True), (1, 2, False), (0, 1, False), (0, 0, False)])
def test_a_run_is_busy_if_half_of_what_was_watched_is(loud: int, quiet: int, busy: bool) -> None:
    loads = [MachineLoad(busy=True, other_cpus=1.2, cpus=2)] * loud + [MachineLoad(other_cpus=0.2, cpus=2)] * quiet
    machine_load = mean_load([*loads, MachineLoad()])
    assert machine_load.busy is busy
    if loads:
        assert machine_load.other_cpus == pytest.approx((1.2 * loud + 0.2 * quiet) / (loud + quiet), abs=1e-3)
