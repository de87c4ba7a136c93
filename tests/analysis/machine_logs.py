"""Machine logs written by hand: ten samples a second of the GPU, two of processes and CPUs, from 0 s on."""

from typing import Any

from inferlens.record.machine import NOT_USED, CpuSamples, GpuProcesses, GpuSamples, MachineLog

SECONDS = 10


def gpu_log(*, processes: dict[str, Any] | None = None, absent: dict[str, str] | None = None, **gpu: Any) -> MachineLog:
    """A log with these columns of the GPU; one value stands for all of a column."""
    fast, slow = times(0.1), times(0.5)
    columns = {"reasons": 0, "sm_clock": 1_980_000_000, "utilisation": 0.9, "energy": None, **gpu}
    others = {"foreign": 0, **(processes or {})}
    return MachineLog(
        interval=0.1, cpus=4, cpu=cpu_samples(), absent=absent or {},
        gpu=GpuSamples(times=fast, **{name: column(value, fast) for name, value in columns.items()}),
        processes=GpuProcesses(times=slow, **{name: column(value, slow) for name, value in others.items()}),
    )  # fmt: skip


def cpu_log(cpus: int = 4, **cpu: Any) -> MachineLog:
    return MachineLog(interval=0.1, cpus=cpus, cpu=cpu_samples(**cpu), absent={"gpu": NOT_USED})


def cpu_samples(**cpu: Any) -> CpuSamples:
    slow = times(0.5)
    columns = {"busy": 1.0, "case": 1.0, "others": 0.0, "steal": 0.0, **cpu}
    return CpuSamples(times=slow, **{name: column(value, slow) for name, value in columns.items()})


def times(interval: float) -> tuple[float, ...]:
    return tuple(round(i * interval, 4) for i in range(round(SECONDS / interval) + 1))


def column(value: Any, stamps: tuple[float, ...]) -> tuple[Any, ...]:
    if callable(value):
        return tuple(value(time) for time in stamps)
    return () if value is None else (value,) * len(stamps)


def during(begin: float, end: float, value: Any, otherwise: Any) -> Any:
    """A column that is ``value`` from ``begin`` to ``end``."""
    return lambda time: value if begin <= time <= end else otherwise
