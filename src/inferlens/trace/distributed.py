"""Several traces: two compared, the ranks of one job, and runs in log folders as TensorBoard wants them.

Traces in one folder are those of a job's ranks only if all of them say so. Rows of two traces are matched by name and
shape, then by order; what takes most first, and what is in one trace alone is kept. They may have different numbers of
steps, so times and calls are those of one step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from inferlens.errors import InferlensError
from inferlens.record.files import TRACES, file_kind
from inferlens.trace.analysis import Analysis, Intervals, Overview, communication
from inferlens.trace.model import SECOND, Columns, Trace
from inferlens.trace.tables import kernels, module_tree, operators

SUFFIXES = (".json", ".json.gz", ".json.zst")
_RANK = re.compile(r"rank[-_]?(\d+)", re.I)
_NUMBER = re.compile(r"(\d+)")
USE = ("utilization", "sm_efficiency", "occupancy", "tensor_share", "tensor_untold")
BOTH, NEW, REMOVED = "", "new", "gone"
_VIEWS: dict[str, tuple[Callable[[Analysis], Columns], tuple[str, ...]]] = {
    "operators": (lambda one: operators(one, "shapes"), ("name", "shapes")),
    "kernels": (kernels, ("name",)),
    "modules": (module_tree, ("path",)),
}


def traces_in(folder: Path) -> list[Path]:
    """Return the traces in a folder in natural order of names. Raises InferlensError if the folder cannot be read."""
    return sorted((path for path in _entries(folder) if path.name.endswith(SUFFIXES) and path.is_file()), key=_natural)


def traces_under(path: Path) -> list[Path]:
    """Return the traces in a folder at any depth, or the file itself, without files that do not begin as traces."""
    files = [path] if path.is_file() else sorted(path.rglob("*"), key=lambda item: _natural(item.relative_to(path)))
    traces = []
    for file in files:
        with suppress(OSError):
            if file.name.endswith(SUFFIXES) and file.is_file() and file_kind(file).kind in TRACES:
                traces.append(file)
    return traces


def runs_in(folder: Path) -> list[tuple[str, Path]]:
    """Return the names of runs and the traces in the log folders of a folder.

    Raises InferlensError if a folder cannot be read.
    """
    runs = []
    for log in sorted(filter(Path.is_dir, _entries(folder)), key=_natural):
        traces = traces_in(log)
        runs += [(log.name if len(traces) == 1 else f"{log.name}/{path.name}", path) for path in traces]
    return runs


def rank_and_size(name: str, trace: Trace) -> tuple[int | None, int | None]:
    """Return the rank that wrote a trace, which may be in its name only, and the number of ranks."""
    distributed, named = trace.about.distributed, _RANK.search(name)
    rank = int(named[1]) if distributed.rank is None and named else distributed.rank
    return rank, distributed.world_size


def why_no_job(ranks: Mapping[str, tuple[int | None, int | None]]) -> str:
    """Return the reason why traces, by their ranks and sizes, are not all ranks of one job; empty if they are."""
    for name, (rank, _) in ranks.items():
        if rank is None:
            return f"{name} has no rank"
    if len({rank for rank, _ in ranks.values()}) < len(ranks):
        return "several have the same rank"
    sizes = {size for _, size in ranks.values()} - {None}
    return "they are of jobs of different sizes" if len(sizes) > 1 else ""


def rank_of(name: str, analysis: Analysis) -> dict[str, Any]:
    """Return the summary of one rank, in seconds per step as means over its steps.

    ``computing`` is the time in which a kernel other than of communication ran, ``overlapped`` the share of
    communication during which one ran too, ``None`` without any; ``waiting`` that in which the GPU waited for the host.
    """
    trace, steps, overview = analysis.trace, analysis.counted, analysis.overview
    count = max(len(steps), 1) * SECOND
    kernels, on_gpu = analysis.parts["kernel"], communication(trace, analysis.launch_links)
    # What the host does for communication counts where nothing of it ran on a GPU.
    talks = Intervals.of_events(trace, trace.gpu.row[on_gpu]) if on_gpu.any() else analysis.parts["communication"]
    talking, both, computing = (
        float(np.sum(intervals.covered(steps.begin, steps.end)))
        for intervals in (talks, talks.intersection(kernels), kernels)
    )
    return {
        "name": name,
        "rank": rank_and_size(name, trace)[0],
        "utilization": overview.gpus[0].utilization if overview.gpus else None,
        "step_time": overview.step_time,
        "computing": computing / count,
        "communicating": talking / count,
        "overlapped": both / talking if talking else None,
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


def _natural(path: Path) -> list[Any]:
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NUMBER.split(str(path))]


def rows_compared(view: str, before: Analysis, after: Analysis) -> Columns:
    """Compare ``operators`` by name and shapes, ``kernels`` by name or ``modules`` by path; equal keys in their order.

    Returns:
        The keys, then for every row calls and seconds of one step before and after, the ``change``, the sum of the
        changes so far, and whether the row is ``new`` or ``gone``. The largest change comes first, in either direction.
        Seconds are of the GPU, of operators and modules by themselves, or of the host where a trace has no GPU events.
    """
    table, keys = _VIEWS[view]
    value = "total" if view == "kernels" else "device_self" if _gpus(before, after) else "host_self"
    first, second = (_rows(table(one), one.tables_of, keys, value) for one in (before, after))
    rows = []
    for key in dict.fromkeys([*first, *second]):
        (calls_a, a), (calls_b, b) = first.get(key, (0.0, 0.0)), second.get(key, (0.0, 0.0))
        state = BOTH if key in first and key in second else NEW if key in second else REMOVED
        rows.append((*key[:-1], calls_a, calls_b, a, b, b - a, state))
    rows.sort(key=lambda row: -abs(row[-2]))
    sums = np.cumsum([row[-2] for row in rows]).tolist()
    names = (*keys, "calls_before", "calls_after", "before", "after", "change", "accumulated", "state")
    return Columns.named(names, [(*row[:-1], so_far, row[-1]) for row, so_far in zip(rows, sums, strict=True)])


def parts_compared(before: Mapping[str, float], after: Mapping[str, float]) -> Columns:
    pairs = [(name, before.get(name, 0.0), after.get(name, 0.0)) for name in dict.fromkeys([*before, *after])]
    return Columns.named(("name", "before", "after", "change"), [(name, a, b, b - a) for name, a, b in pairs])


def execution(before: Analysis, after: Analysis) -> Columns:
    """Compare one step of two traces event by event, in the order of the first. The n-th events of a name are matched.

    Events are those of the GPU, or the outermost operators where one trace has no GPU events. What is new stands where
    it ran in the second.
    """
    gpu = _gpus(before, after)
    first, second = _sequence(before, gpu), _sequence(after, gpu)
    order = list(second)
    places = {key: place for place, key in enumerate(order)}
    rows: list[tuple[Any, ...]] = []
    reached = 0

    def new(until: int) -> list[tuple[Any, ...]]:
        some = [key for key in order[reached:until] if key not in first]
        return [(key[0], None, None, *second[key], None, NEW) for key in some]

    for key, (begin, length) in first.items():
        if key not in second:
            rows.append((key[0], begin, length, None, None, None, REMOVED))
            continue
        rows += new(places[key])
        reached = max(reached, places[key] + 1)
        begins, takes = second[key]
        rows.append((key[0], begin, length, begins, takes, takes - length, BOTH))
    names = ("name", "begin_before", "before", "begin_after", "after", "change", "state")
    return Columns.named(names, [*rows, *new(len(second))])


def _sequence(analysis: Analysis, gpu: bool) -> dict[tuple[Any, ...], tuple[float, float]]:
    """Return the begin and duration of the events of the first counted step, by name and number of the event."""
    trace, steps = analysis.trace, analysis.counted
    if not len(steps):
        return {}
    one = Analysis(trace, steps.names[0]) if analysis.step is None else analysis
    if gpu:
        rows = trace.gpu.row[one.gpu_within]
    else:
        rows = trace.scopes.row[one.costs.is_operator & (one.costs.parent < 0)]
        rows = rows[one.within(trace.begin[rows])]
    rows = rows[np.argsort(trace.begin[rows], kind="stable")]
    begins, lengths = (trace.begin[rows] - steps.begin[0]) / SECOND, trace.duration[rows] / SECOND
    keys = _numbered([(name,) for name in trace.names_of(rows)])
    return dict(zip(keys, zip(begins.tolist(), lengths.tolist(), strict=True), strict=True))


def _numbered(keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    numbered = []
    for key in keys:
        numbered.append((*key, counts[key]))
        counts[key] += 1
    return numbered


def _gpus(before: Analysis, after: Analysis) -> bool:
    return len(before.trace.gpu) > 0 and len(after.trace.gpu) > 0


def _rows(table: Columns, steps: int, keys: Sequence[str], value: str) -> dict[tuple[Any, ...], tuple[float, float]]:
    rows = list(table.rows())
    numbered = _numbered([tuple(row[name] for name in keys) for row in rows])
    times = [((row["calls"] or 0) / steps, (row[value] or 0.0) / steps) for row in rows]
    return dict(zip(numbered, times, strict=True))
