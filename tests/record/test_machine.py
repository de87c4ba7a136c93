import msgspec

from inferlens.record.machine import Before, MachineLog, peak_device_memory
from tests.analysis.machine_logs import gpu_log


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
