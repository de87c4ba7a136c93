"""Several traces: two compared, the ranks of one job, and runs in log folders as TensorBoard wants them.

Traces in one folder belong to a job's ranks only if all of them say so. Rows of two traces are matched by name and
shape, then by order. Rows of one trace alone are kept. Traces may have different numbers of steps, so times and calls
are those of one step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferlens.errors import InferlensError
from inferlens.record.files import TRACES, file_kind
from inferlens.trace.analysis import Analysis, Intervals, Overview, communication
from inferlens.trace.model import SECOND, Columns, Trace
from inferlens.trace.tables import kernels, module_tree, operators

SUFFIXES = (".json", ".json.gz", ".json.zst")
_RANK = re.compile(r"rank[-_]?(\d+)", re.I)
_NUMBER = re.compile(r"(\d+)")
_CLOCKS = 1_000_000_000  # nanoseconds that the clocks of a job's machines may differ by
USE = ("utilization", "sm_efficiency", "occupancy", "tensor_share", "tensor_untold")
BOTH, NEW, REMOVED = "", "new", "gone"
Key = tuple[Any, ...]
_VIEWS: dict[str, tuple[Callable[[Analysis], Columns], tuple[str, ...]]] = {
    "operators": (lambda analysis: operators(analysis, "shapes"), ("name", "shapes")),
    "kernels": (kernels, ("name",)),
    "modules": (module_tree, ("path",)),
}


def traces_in(folder: Path) -> list[Path]:
    """Return the traces in a folder in natural order of names. Raises InferlensError if the folder cannot be read."""
    traces = (path for path in _entries(folder) if path.name.endswith(SUFFIXES) and path.is_file())
    return sorted(traces, key=_natural_key)


def traces_under(path: Path) -> list[Path]:
    """Return the traces in a folder at any depth, or the file itself, without files that do not begin as traces."""
    traces = []
    for file in [path] if path.is_file() else path.rglob("*"):
        with suppress(OSError):
            if file.name.endswith(SUFFIXES) and file.is_file() and file_kind(file).kind in TRACES:
                traces.append(file)
    return sorted(traces, key=lambda file: _natural_key(file.relative_to(path)))


def runs_in(folder: Path) -> list[tuple[str, Path]]:
    """Return the names of runs and the traces in the log folders of a folder.

    Raises InferlensError if a folder cannot be read.
    """
    runs = []
    for log in sorted(filter(Path.is_dir, _entries(folder)), key=_natural_key):
        traces = traces_in(log)
        runs += [(log.name if len(traces) == 1 else f"{log.name}/{path.name}", path) for path in traces]
    return runs


class Origin(NamedTuple):
    """The origin of a trace; ``begin`` and ``end`` are nanoseconds of the writer's clock."""

    rank: int | None
    world_size: int | None
    begin: int
    end: int


def trace_origin(name: str, trace: Trace) -> Origin:
    """Return the origin of a trace."""
    begin, end = (int(trace.begin.min()), int((trace.begin + trace.duration).max())) if len(trace) else (0, 0)
    base, world_size = trace.about.base, trace.about.distributed.world_size
    return Origin(_rank(name, trace), world_size, base + begin, base + end)


def _rank(name: str, trace: Trace) -> int | None:
    """Return the rank that wrote a trace, which may be in its name only."""
    rank, named = trace.about.distributed.rank, _RANK.search(name)
    return int(named[1]) if rank is None and named else rank


def why_no_job(origins: Mapping[str, Origin]) -> str:
    """Return the reason why traces are not all ranks of one job; empty if they are."""
    all_origins = list(origins.values())
    if without_rank := [name for name, origin in origins.items() if origin.rank is None]:
        return f"{without_rank[0]} has no rank"
    if len({origin.rank for origin in all_origins}) < len(all_origins):
        return "several have the same rank"
    if len({origin.world_size for origin in all_origins} - {None}) > 1:
        return "they are of jobs of different sizes"
    gap = max(origin.begin for origin in all_origins) - min(origin.end for origin in all_origins)
    return "they were not taken at the same time" if gap > _CLOCKS else ""


def rank_of(name: str, analysis: Analysis) -> dict[str, Any]:
    """Return the summary of one rank, in seconds per step as means over its steps.

    ``computing`` is the time in which kernels other than those of communication ran. ``overlapped`` is the share of the
    communication during which such a kernel ran too; ``None`` without communication. ``waiting`` is the time in which
    the GPU waited for the host.
    """
    trace, steps, overview = analysis.trace, analysis.counted, analysis.overview

    def seconds(intervals: Intervals) -> float:
        return float(np.sum(intervals.covered(steps.begin, steps.end))) / max(len(steps), 1) / SECOND

    kernels, on_gpu = analysis.parts["kernel"], communication(trace, analysis.launch_links)
    # The host's part of communication counts only if none of it ran on a GPU.
    talks = Intervals.of_events(trace, trace.gpu.row[on_gpu]) if on_gpu.any() else analysis.parts["communication"]
    communicating = seconds(talks)
    return {
        "name": name,
        "rank": _rank(name, trace),
        "utilization": overview.gpus[0].utilization if overview.gpus else None,
        "step_time": overview.step_time,
        "computing": seconds(kernels),
        "communicating": communicating,
        "overlapped": seconds(talks.intersection(kernels)) / communicating if communicating else None,
        "waiting": overview.waiting,
    }


def run_of(name: str, overview: Overview) -> dict[str, Any]:
    """Return the summary of one run from its overview. Values of a GPU are those of the first one."""
    gpu = overview.gpus[0] if overview.gpus else None
    return {
        "name": name,
        "step_time": overview.step_time,
        "bound": overview.bound,
        **{key: getattr(gpu, key, None) for key in USE},
        **{part.lower(): overview.parts[part] for part in ("kernel", "copy", "runtime", "CPU")},
        "waiting": overview.waiting if overview.gpus else None,
    }


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise InferlensError(f"{folder} cannot be read: {error.strerror}.") from error


def _natural_key(path: Path) -> list[Any]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NUMBER.split(str(path))]


def rows_compared(view: str, before: Analysis, after: Analysis) -> Columns:
    """Compare ``operators`` by name and shapes, ``kernels`` by name or ``modules`` by path; equal keys in their order.

    Returns:
        The keys, then for every row calls and seconds of one step before and after, the ``change``, the sum of the
        changes so far, and whether the row is ``new`` or ``gone``. The largest change comes first, in either direction.
        Seconds are of the GPU, of operators and modules by themselves, or of the host where a trace has no GPU events.
    """
    table, keys = _VIEWS[view]
    value = "total" if view == "kernels" else "device_self" if _both_have_gpus(before, after) else "host_self"

    def per_step(analysis: Analysis) -> dict[Key, tuple[float, float]]:
        rows, steps = list(table(analysis).rows()), analysis.tables_of
        figures = [((row["calls"] or 0) / steps, (row[value] or 0.0) / steps) for row in rows]
        return _by_numbered_key([tuple(row[name] for name in keys) for row in rows], figures)

    first, second = per_step(before), per_step(after)
    rows = []
    for key in first | second:
        (calls_before, time_before), (calls_after, time_after) = first.get(key, (0.0, 0.0)), second.get(key, (0.0, 0.0))
        state = BOTH if key in first and key in second else NEW if key in second else REMOVED
        rows.append((*key[:-1], calls_before, calls_after, time_before, time_after, time_after - time_before, state))
    rows.sort(key=lambda row: -abs(row[-2]))
    sums = np.cumsum([row[-2] for row in rows]).tolist()
    names = (*keys, "calls_before", "calls_after", "before", "after", "change", "accumulated", "state")
    return Columns.named(names, [(*row[:-1], total, row[-1]) for row, total in zip(rows, sums, strict=True)])


def parts_compared(before: Mapping[str, float], after: Mapping[str, float]) -> Columns:
    pairs = [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in dict.fromkeys([*before, *after])]
    return Columns.named(("name", "before", "after", "change"), [(name, a, b, b - a) for name, a, b in pairs])


def execution(before: Analysis, after: Analysis) -> Columns:
    """Compare one step of two traces event by event, in the order of the first. The n-th events of a name are matched.

    Events are those of the GPU, or the outermost operators where one trace has no GPU events. A new event stands where
    it ran in the second trace.
    """
    on_gpu = _both_have_gpus(before, after)
    first, second = _first_step_events(before, on_gpu), _first_step_events(after, on_gpu)
    order = list(second)
    indices = {key: index for index, key in enumerate(order)}
    rows: list[tuple[Any, ...]] = []
    reached = 0

    def add_new_events(end: int) -> None:
        nonlocal reached
        new_keys = (key for key in order[reached:end] if key not in first)
        rows.extend((key[0], None, None, *second[key], None, NEW) for key in new_keys)
        reached = max(reached, end)

    for key, (begin, length) in first.items():
        if key not in second:
            rows.append((key[0], begin, length, None, None, None, REMOVED))
            continue
        add_new_events(indices[key])
        begin_after, length_after = second[key]
        rows.append((key[0], begin, length, begin_after, length_after, length_after - length, BOTH))
    add_new_events(len(second))
    names = ("name", "begin_before", "before", "begin_after", "after", "change", "state")
    return Columns.named(names, rows)


def _first_step_events(analysis: Analysis, on_gpu: bool) -> dict[Key, tuple[float, float]]:
    """Return the begin and duration of the events of the first counted step, by name and number of the event."""
    trace, steps = analysis.trace, analysis.counted
    if not len(steps):
        return {}
    first_step = Analysis(trace, steps.names[0]) if analysis.step is None else analysis
    if on_gpu:
        rows = trace.gpu.row[first_step.gpu_within]
    else:
        rows = trace.scopes.row[first_step.costs.is_operator & (first_step.costs.parent < 0)]
        rows = rows[first_step.within(trace.begin[rows])]
    rows = rows[np.argsort(trace.begin[rows], kind="stable")]
    begins, lengths = (trace.begin[rows] - steps.begin[0]) / SECOND, trace.duration[rows] / SECOND
    events = list(zip(begins.tolist(), lengths.tolist(), strict=True))
    return _by_numbered_key([(name,) for name in trace.names_of(rows)], events)


def _by_numbered_key(keys: Sequence[Key], values: Sequence[tuple[float, float]]) -> dict[Key, tuple[float, float]]:
    """Return the values by their keys, with a number that distinguishes equal keys."""
    counts: Counter[Key] = Counter()
    numbered = {}
    for key, value in zip(keys, values, strict=True):
        numbered[(*key, counts[key])] = value
        counts[key] += 1
    return numbered


def _both_have_gpus(before: Analysis, after: Analysis) -> bool:
    return len(before.trace.gpu) > 0 and len(after.trace.gpu) > 0
