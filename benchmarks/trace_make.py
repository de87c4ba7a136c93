"""Makes traces of a given size with torch.profiler, for the benchmarks of the trace reader: ``make(path, megabytes)``.

Every event is one that the profiler wrote, of training steps on the CPU with shapes, stacks and memory. As the profiler
holds all events in memory until it is stopped, a large trace is written from one of at most 100 MB, whose events are
repeated, each time later, with numbers of its own. Times, lengths and names stay those that were measured.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

ONE = 100
_TIME = re.compile(rb'("ts": )(\d+)(\.\d+)?')
_ID = re.compile(rb'("(?:External id|correlation|Ev Idx|Python id|Python parent id)": )(\d+)')


def make(path: Path, megabytes: int) -> None:
    """Writes a trace of about so many megabytes, not packed."""
    measured = path.with_suffix(".measured")
    _profiled(measured, min(megabytes, ONE))
    head, events, foot = _parts(measured.read_bytes())
    measured.unlink()
    times = [int(match[2]) for match in _TIME.finditer(events)]
    span = max(times) - min(times) + 1000
    with path.open("wb") as file:
        file.write(head)
        for number in itertools.count():
            file.write((b"" if number == 0 else b",\n") + _later(events, number * span, number * 10_000_000))
            if file.tell() > megabytes * 1_000_000 - len(events) // 2:
                break
        file.write(foot)


def _profiled(path: Path, megabytes: int) -> None:
    """A trace of at least so many megabytes, in as many steps as that takes."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()) for _ in range(20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()

    steps = 4
    while True:
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(
            activities=activities, schedule=schedule, record_shapes=True, profile_memory=True, with_stack=True
        ) as profiler:
            for _ in range(steps + 1):
                step()
                profiler.step()
        profiler.export_chrome_trace(str(path))
        size = path.stat().st_size / 1e6
        if size >= megabytes:
            return
        steps = int(steps * max(1.2 * megabytes / size, 1.1)) + 1


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """What is before the first event, the events, and what is behind the last."""
    start = data.index(b"[", data.index(b'"traceEvents"')) + 1
    end = data.rindex(b"]")
    return data[:start], data[start:end], data[end:]


def _later(events: bytes, microseconds: int, numbers: int) -> bytes:
    """The same events that much later."""
    if not microseconds:
        return events
    events = _TIME.sub(lambda match: b"%s%d%s" % (match[1], int(match[2]) + microseconds, match[3] or b""), events)
    return _ID.sub(lambda match: b"%s%d" % (match[1], int(match[2]) + numbers), events)
