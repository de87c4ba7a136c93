"""Profiles: named cases in comparable groups, and what the tables of layers, kernels and floors share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from inferlens.analysis.findings import COST, FASTER
from inferlens.analysis.modules import ancestor, module_path
from inferlens.analysis.profile_table import (
    GpuAccount,
    KernelGrouping,
    KernelRow,
    KernelTable,
    LayerRow,
    LayerTable,
    ProfileRow,
    Reconciliation,
    RowT,
    RunTimes,
    kernel_table,
    kernels_alone,
    layer_table,
    profile_runs,
    profiling_cost,
    short_name,
    short_names,
    waits_for_host,
)
from inferlens.analysis.samples import latencies
from inferlens.analysis.work import precisions
from inferlens.errors import check_choice
from inferlens.record.layer_profile import Level, Profile, Tensor
from inferlens.record.record import Record, card_name, machine_name
from inferlens.record.store import LoadedProfiles, latest_profiles
from inferlens.spec.case import QUANTIZED, shown_together
from inferlens.spec.plan import plainness, unknown, words
from inferlens.units import ABSENT, half_width, kibibytes, listing, microseconds, milliseconds, percent, plural, ratio
from inferlens.views.table import Column, Document, Line, Table, count, cut_middle, lines_and_sums, plain, share, text


@dataclass(frozen=True)
class ProfiledCase:
    """A profile, the record of the same case without profiling, and a distinct name."""

    profile: Profile
    record: Record | None = None
    name: str = ""

    @property
    def unprofiled(self) -> Sequence[float]:
        """Return latency samples without profiling in seconds, if any."""
        return latencies(self.record).samples if self.record else ()

    @property
    def outputs_right(self) -> bool:
        return not (self.record and self.record.agreement and self.record.agreement.agrees is False)

    @property
    def device(self) -> str:
        """Return the name of the GPU or CPU."""
        environment = self.profile.environment
        gpu = environment.gpus[0].name if environment.gpus else "GPU"
        return environment.cpu or "CPU" if self.profile.case.device == "cpu" else gpu

    @property
    def inputs(self) -> str:
        """Return names and sizes of the inputs: ``x=1x3x224x224``."""
        specs = self.profile.model.inputs or self.profile.case.inputs
        return ", ".join(f"{spec.name}={'x'.join(map(str, spec.shape))}" for spec in specs)

    @property
    def headline(self) -> str:
        words = self.profile.case.model, self.inputs, self.device
        return " · ".join(plain(word)[:200] for word in words if word)

    @property
    def data(self) -> dict[str, Any]:
        """Return the identity of a case for JSON."""
        profile = self.profile
        return {
            "name": self.name, "case": profile.case, "digest": profile.case.digest,
            "profile": profile.id, "record": profile.record,
        }  # fmt: skip

    @property
    def fields(self) -> list[object]:
        """Return the first CSV fields: model, case, digest and profile."""
        return [self.profile.case.model, self.profile.case.label, self.profile.case.digest, self.profile.id]

    def matches(self, phrase: str) -> bool:
        """Return whether label, name or backend contain all words of ``phrase``."""
        case = self.profile.case
        return words(phrase) <= words(case.label) | words(self.name) | {case.backend}


def distinguish(cases: Sequence[ProfiledCase], *, backends: bool = True) -> tuple[str, list[str]]:
    """Return what all cases share in one line, and a distinct name per case, if wanted with the backend."""
    properties = {
        "model": [case.profile.case.model for case in cases],
        "inputs": [case.inputs for case in cases],
        "precision": [case.profile.case.precision for case in cases],
        "device": [case.device for case in cases],
    }
    shared = {key for key, words in properties.items() if len(set(words)) == 1}
    models = [model.partition(":")[2] or model for model in properties["model"]]
    if "model" not in shared and len(set(models)) == len(set(properties["model"])):
        properties["model"] = models  # without where they are from
    devices = {case.profile.case.device for case in cases}
    names = []
    for place, case in enumerate(cases):
        name = case.name if "precision" not in shared else case.name.replace(f" {case.profile.case.precision}", "", 1)
        words = {
            "model": properties["model"][place], "name": name if backends else "",
            "inputs": case.profile.case.sizes_label or case.inputs,
            "device": case.profile.case.device if len(devices) > 1 else case.device,
        }  # fmt: skip
        names.append(" · ".join(plain(word)[:80] for key, word in words.items() if word and key not in shared))
    counts = Counter(names)
    cards = [
        card_name(case.profile.environment) if counts[name] > 1 else "" for case, name in zip(cases, names, strict=True)
    ]
    names = [" · ".join(filter(None, both)) for both in zip(cards, names, strict=True)]
    return " · ".join(plain(words[0])[:200] for key, words in properties.items() if key in shared and words[0]), names


def group_profiles(loaded: LoadedProfiles, level: Level | None = None) -> list[list[ProfiledCase]]:
    """Return the latest profiles, named, in comparable groups: of every level, or one profile per case.

    A case without a profile of ``level`` keeps another one, which says what exists instead.
    """
    latest: dict[tuple[object, ...], Profile] = {}
    for profile in latest_profiles(loaded.profiles):
        key = profile.case.digest, machine_name(profile.environment), None if level else profile.level
        if key not in latest or profile.level == level:
            latest[key] = profile
    groups: dict[tuple[object, ...], list[ProfiledCase]] = {}
    for profile in latest.values():
        case, inputs, machine = (
            profile.case,
            profile.model.inputs or profile.case.inputs,
            machine_name(profile.environment),
        )
        group = case.model, case.batch, inputs, case.weights, case.seed, machine
        groups.setdefault(group, []).append(ProfiledCase(profile, loaded.records.get(profile.id)))
    return [name_cases(group) for group in groups.values()]


def cases_of_level(loaded: LoadedProfiles, level: Level | None) -> list[ProfiledCase]:
    return [case for group in group_profiles(loaded, level) for case in group]


def reference_first(group: Sequence[ProfiledCase], named: str | None) -> list[ProfiledCase]:
    """Put the reference first: the plainest of the cases that match ``reference``, or that ran."""
    eligible = [profiled_case for profiled_case in group if profiled_case.profile.status == "ok"] or list(group)
    checked = [
        profiled_case.record.agreement.reference
        for profiled_case in group
        if profiled_case.record and profiled_case.record.agreement
    ]
    usual = {reference.partition(" ")[0] for reference in checked}

    def place(profiled_case: ProfiledCase) -> tuple[object, ...]:
        case = profiled_case.profile.case
        return named not in (profiled_case.name, case.label), *plainness(case, case.device, usual)

    first = min(
        [profiled_case for profiled_case in group if named and profiled_case.matches(named)] or eligible, key=place
    )
    return [first, *(profiled_case for profiled_case in group if profiled_case is not first)]


def check_profile_reference(cases: Sequence[ProfiledCase], reference: str | None) -> None:
    """Raise InferlensError if ``reference`` matches no profile."""
    if reference and not any(case.matches(reference) for case in cases):
        raise unknown(reference, [case.profile.case.label for case in cases])


def name_cases(group: Sequence[ProfiledCase], *, with_level: bool = True) -> list[ProfiledCase]:
    """Name cases by what they do not share, and number equal names.

    ``with_level`` marks profiles of kernels in a mixed group.
    """
    one_device = len({profiled_case.profile.case.device for profiled_case in group}) == 1
    omitted = ["batch", *group[0].profile.case.sizes, *["device"] * one_device]
    with_level = with_level and len({profiled_case.profile.level for profiled_case in group}) > 1
    counts: dict[str, int] = {}
    cases = []
    for profiled_case, case in zip(
        group, shown_together([profiled_case.profile.case for profiled_case in group]), strict=True
    ):
        words = [*case.words(*omitted), *["kernels"] * (with_level and profiled_case.profile.level == "kernel")]
        name = plain(" ".join(words))
        number = counts[name] = counts.get(name, 0) + 1
        cases.append(
            ProfiledCase(profiled_case.profile, profiled_case.record, f"{name} ({number})" if number > 1 else name)
        )
    return cases


MAX_NOTES, LONGEST_NOTE = 2, 190  # beneath a table
CASE_FIELDS = ("model", "case", "digest", "profile")  # the first fields of every line of CSV
TIMES = ("typical", "share", "mean", "median", "median_low", "median_high", "p95")
LONGEST_NAME = 60
MAX_SUMMED = 5  # rows that a sentence adds up
THE_MODEL = "the model"
CALL, PROFILED_CALL = "call", "profiled call"  # names of the row of a whole call
MOST_MODULES = 3  # that are named
LONG_CALL = 0.1  # seconds of a call, for times of the GPU to be in milliseconds


def three_digits(seconds: float | None) -> str:
    """Return microseconds with three significant digits: ``14,700`` rather than ``14,683``."""
    return microseconds(seconds and float(f"{seconds:.3g}"))


TIME_WRITERS: dict[str, Callable[[float | None], str]] = {"ms": milliseconds, "µs": three_digits}
T = TypeVar("T")


@dataclass(frozen=True)
class ShownCase(Generic[T]):
    """A case with its table or a reason, and its ``ranked`` rows, of which ``top`` are shown."""

    case: ProfiledCase
    table: T | str
    ranked: Sequence[Any] = ()
    top: int | None = None
    in_order: bool = False

    @property
    def rows(self) -> Sequence[Any]:
        rows = self.ranked[: self.top]
        return sorted(rows, key=lambda row: row.place) if self.in_order else rows

    @property
    def rest(self) -> Sequence[Any]:
        """Return the hidden rows in order of execution."""
        return [] if self.top is None else sorted(self.ranked[self.top :], key=lambda row: row.place)


def case_document(
    noun: str,
    cases: Sequence[ShownCase[T]],
    top: int | None,
    *,
    blocks: Callable[[], Sequence[Table | str]],
    data: Callable[[ShownCase[T], T], dict[str, Any]],
    names: Sequence[str],
    lines: Callable[[ShownCase[T], T], Iterable[Sequence[object]]],
) -> Document:
    """Return the document of tables per case.

    ``data`` returns more JSON per case; ``names`` and ``lines`` are the CSV fields after those of the case.
    """

    def case_data(of: ShownCase[T]) -> dict[str, Any]:
        shown, reason = replace(of, top=top), of.table if isinstance(of.table, str) else ""
        about = {**of.case.data, "status": of.case.profile.status, "reason": reason, "rows": shown.rows}
        about |= {} if noun == "roofline" else {"warnings": of.case.profile.warnings}
        return about if isinstance(of.table, str) else {**about, **data(shown, of.table)}

    def fields() -> Iterable[Sequence[object]]:
        for of in cases:
            for line in () if isinstance(of.table, str) else lines(replace(of, top=top), of.table):
                yield [*of.case.fields, *line]

    return Document(
        blocks=blocks,
        data=lambda: {"schema": f"inferlens.{noun}/1", "cases": [case_data(case) for case in cases]},
        csv=lambda: ((*CASE_FIELDS, *names), fields()),
    )


def few_names(names: Sequence[str]) -> str:
    """Return ``a, b and 6 others``."""
    return listing(names if len(names) < 4 else [*names[:2], plural(len(names) - 2, "other")])


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first notes, cut to two lines, and the number of others."""
    more = len(notes) - MAX_NOTES
    return [
        *(cut_middle(note, LONGEST_NOTE) for note in notes[:MAX_NOTES]),
        *([f"({plural(more, 'more note')}: --format json)"] if more > 0 else []),
    ]


def rank_cases(
    tables: Iterable[tuple[ProfiledCase, T | str]], ranked: Callable[[T], Sequence[Any]], sort: str
) -> list[ShownCase[T]]:
    """Rank the rows of each case; ``order`` sorts them by execution."""
    return [
        ShownCase(case, table, () if isinstance(table, str) else ranked(table), in_order=sort == "order")
        for case, table in tables
    ]


def by_time(rows: Iterable[RowT]) -> list[RowT]:
    """Sort rows by time; those without one come last."""
    return sorted(rows, key=lambda row: -1.0 if row.times is None else row.times.typical, reverse=True)


def time_fields(times: RunTimes | None) -> list[object]:
    """Return the fields of :data:`TIMES` in seconds."""
    return [getattr(times, name, None) for name in TIMES]


def hide_constant(columns: Sequence[Column], rows: Sequence[Any], key: str) -> list[Column]:
    """Empty the column ``key`` if all rows have the same value."""
    same = len({getattr(row, key, "") for row in rows} - {""}) < 2
    return [replace(column, write=lambda _: "") if same and column.key == key else column for column in columns]


def display_name(name: str) -> str:
    """Return a name on one line, never empty."""
    return plain(name) or "(no name)"


def cut_name(name: str, length: int = LONGEST_NAME) -> str:
    return cut_middle(display_name(name), length)


def module_names(paths: Sequence[str]) -> str:
    """Return module paths with a common prefix once: ``layer1.0.conv1 + bn1``; of many, the number."""
    if not any(paths):
        return THE_MODEL if paths else ABSENT
    above = ancestor([module_path(path)[:-1] for path in paths])
    names = [display_name(".".join(module_path(path)[len(above) :])) if path else THE_MODEL for path in paths]
    if len(names) > MOST_MODULES:
        return f"{len(names):,} in {display_name('.'.join(above))}" if above else plural(len(names), "module")
    return " + ".join([display_name(".".join((*above, names[0]))), *names[1:]])


def tensor_shapes(tensors: Sequence[Tensor]) -> str:
    """Return known tensor dimensions: ``1x64x56x56``."""
    return ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors if tensor.shape) or ABSENT


def half_interval(times: RunTimes | None) -> str:
    """Return half of the median's interval in percent."""
    return half_width(times.median, times.median_low, times.median_high) if times and times.median > 0 else ABSENT


def unit_of(profiles: Iterable[Profile]) -> str:
    """Return ``µs`` if all times are the GPU's and calls are short, else ``ms``."""
    short = [
        profile.timed == "GPU" and min(profile.found.whole, default=0.0) < LONG_CALL
        for profile in profiles
        if profile.found
    ]
    return "µs" if short and all(short) else "ms"


def in_unit(columns: Sequence[Column], unit: str) -> list[Column]:
    """Return the columns with milliseconds converted to ``unit``."""
    return [
        replace(column, unit=unit, write=TIME_WRITERS[unit]) if column.unit == "ms" else column for column in columns
    ]


def includes_waiting(profile: Profile) -> bool:
    """Return whether layer times lie between GPU events and so include waiting for the host."""
    return profile.level == "layer" and profile.timed == "GPU" and not kernels_alone(profile)


def scaling_notes(profile: Profile, unprofiled: Sequence[float]) -> list[str]:
    """Return a note if profiling lengthened calls much."""
    runs = profile_runs(profile)
    cost = None if isinstance(runs, str) or kernels_alone(profile) else profiling_cost(runs, unprofiled).cost
    if cost is None or FASTER < cost < COST:
        return []
    return [f"Times are scaled from profiled calls that took {ratio(cost)} as long: small differences mean nothing."]


def time_source(cases: Sequence[ProfiledCase], parts: str) -> str:
    """Return the clock of the times and the call that they refer to."""
    clock = " or ".join(dict.fromkeys(str(case.profile.timed) for case in cases))
    text = f"{clock[:1].upper()}{clock[1:]} time of {parts}"
    text += ", gaps included" * any(includes_waiting(case.profile) for case in cases)
    if not all(case.unprofiled for case in cases):
        return f"{text} in a profiled call"
    kernels_only = all(kernels_alone(case.profile) for case in cases)
    return text if kernels_only else f"{text}, scaled to a call without profiling"


NAMED, LITTLE = 2, 0.005  # named layers; shares of the time below this are omitted


def precision_lines(cases: Sequence[ProfiledCase]) -> list[str]:
    """Return a line for each quantized case: ``onnxruntime:cpu int8: int8 71 % of the time ...``."""
    lines = [(case, line) for case in cases if (line := precision_line(case))]
    _, names = distinguish([case for case, _ in lines]) if lines else ("", [])
    return [f"{name}: {line}" if name else line for name, (_, line) in zip(names, lines, strict=True)]


def precision_line(case: ProfiledCase) -> str:
    """Return the shares of time and multiply-adds per precision; empty if unknown.

    Such as ``int8 71 % of the time, 98 % of multiply-adds; stayed in fp32: head 4 %; 12 conversions 9 %``.
    """
    profile, precision = case.profile, case.profile.case.precision
    runs = profile_runs(profile, None, case.unprofiled)
    result = None if isinstance(runs, str) or precision not in QUANTIZED else precisions(profile, runs)
    if result is None or isinstance(runs, str):
        return ""
    base = runs if profile.layers else runs.with_kernel_shares()
    parts = [f"{precision} {percent(result.time.get(precision, 0.0))} of the time"]
    parts[0] += f", {percent(result.work.get(precision, 0.0))} of multiply-adds" if result.work else ""
    shares = [base.share(base.layers[place]) or 0.0 for place in result.stayed]
    for name in dict.fromkeys(getattr(profile.parts[place], "precision", "") for place in result.stayed):
        stayed = [
            at for at, place in enumerate(result.stayed) if getattr(profile.parts[place], "precision", "") == name
        ]
        words = [f"{_part_name(case, result.stayed[at])} {percent(shares[at])}" for at in stayed[:NAMED]]
        if rest := stayed[NAMED:]:
            words.append(f"{plural(len(rest), 'other')} {percent(sum(shares[at] for at in rest))}")
        parts.append(f"stayed in {name}: {', '.join(words)}")
        result.time[name] = result.time.get(name, 0.0) - sum(shares[at] for at in stayed)
    others = {name: item for name, item in result.time.items() if name != precision and item >= LITTLE}
    parts += [f"{name or 'unknown'} {percent(item)}" for name, item in others.items()]
    if result.conversions:
        parts.append(f"{plural(len(result.conversions), 'conversion')} {percent(result.converting)}")
    return "; ".join(parts)


def _part_name(case: ProfiledCase, place: int) -> str:
    part = case.profile.parts[place]
    return module_names(part.modules) if part.modules else display_name(part.name)


# Tables of the layers or kernels of each case: times, shares, and how they add up.

TOP = 10  # rows that people get of one case if they ask for no other number; programs get all
LINES = 17  # of the rows of several cases together, so that all of it fits on a screen
NAME_HEADINGS = {"layer": "module", "kernel": "kernel"}
PART_SORTS = {"layer": ("time", "order"), "kernel": ("time", "order", "calls")}
_OVERLAP = 0.005  # of the busy time: less comes from the clock's rounding
_LEAST_TRACED = 0.9  # of the kernels' time: a note gives smaller shares
_SMALL = 0.05  # of the time, for the row that takes most to be named
_UNKNOWN = 0.005  # of the kernels' time: smaller shares are omitted
_TENSOR_CORES = {True: "yes", False: "no", None: "?"}

PartTable = LayerTable | KernelTable


def _sizes(sizes: Sequence[int]) -> str:
    """Return ``56x2`` for ``56x2x1``: sizes of one at the end are dropped."""
    text = "x".join(map(str, sizes))
    while text.endswith("x1"):
        text = text[:-2]
    return text or ABSENT


def _layers(row: KernelRow) -> str:
    """Return nothing where modules are the layers, because they have a column."""
    names = () if row.layers == row.modules else row.layers
    return plural(len(names), "layer") if len(names) > 1 else text("".join(names))


def _operators(names: Sequence[str]) -> str:
    return plural(len(names), "operator") if len(names) > 1 else text("".join(names))


NUMBERS = {
    "layer": (
        Column("times.typical", "time", "ms", milliseconds, keep=0, bars="drawn"),
        Column("times.p95", "p95", "ms", milliseconds, keep=5),
        Column("times.share", "share", write=share, keep=1, bars="beside"),
        Column("times.median", "median", "ms", milliseconds, keep=6, wide=True),
        Column("times", "±", "95 %", half_interval, keep=7, wide=True),
    ),
    "kernel": (
        Column("times.typical", "time", "µs", three_digits, keep=0, bars="drawn"),
        Column("of_busy", "share", "of GPU", share, keep=1, bars="beside"),
        Column("times.median", "median", "µs", three_digits, keep=10, wide=True),
        Column("times", "±", "95 %", half_interval, keep=11, wide=True),
        Column("times.p95", "p95", "µs", three_digits, keep=12, wide=True),
        Column("times.share", "share", "of run", share, keep=9, wide=True),
    ),
}
COLUMNS = {
    "layer": (
        *NUMBERS["layer"],
        Column("kind", "kind", keep=2, numeric=False, max_width=16),
        Column("precision", "precision", keep=2, numeric=False),
        Column("", "layer", write=lambda row: _backend_name(row), keep=9, numeric=False, wide=True),
        Column("place", "#", keep=10, wide=True),
        Column("calls", "calls", write=lambda calls: "" if calls == 1 else str(calls), keep=8, wide=True),
        Column("inputs", "input", write=tensor_shapes, keep=4, numeric=False, max_width=24),
        Column("outputs", "output", write=tensor_shapes, keep=3, numeric=False, max_width=24),
    ),
    "kernel": (
        *NUMBERS["kernel"],
        Column("calls", "calls", write=count, keep=2),
        Column("tensor_cores", "tensor cores", "", _TENSOR_CORES.__getitem__, 3, numeric=False),
        Column("occupancy", "occupancy", write=share, keep=6, wide=True),
        Column("achieved", "achieved", "estimate", share, keep=5, wide=True),
        Column("grid", "grid", write=_sizes, keep=7, max_width=18, wide=True),
        Column("block", "block", write=_sizes, keep=8, max_width=14, wide=True),
        Column("registers", "registers", keep=15, wide=True),
        Column("shared_memory", "shared", "KiB", kibibytes, keep=16, wide=True),
        Column("place", "#", keep=17, wide=True),
        Column("", "layer", write=_layers, keep=14, numeric=False, max_width=24, wide=True),
        Column("operators", "operator", write=_operators, keep=13, numeric=False, max_width=24, wide=True),
        Column("modules", "module", write=module_names, keep=4, numeric=False, max_width=26),
    ),
}
PART_FIELDS = {
    "layer": ("place", "name", "kind", "modules", "operators", "inputs", "outputs", "calls", "precision"),
    "kernel": (
        *("place", "name", "kind", "calls", "grid", "block", "shapes", "registers", "shared_memory"),
        *("occupancy", "achieved", "tensor_cores", "streams", "layers", "modules", "operators", "of_busy"),
    ),
}


def parts_document(
    level: Level,
    cases: Sequence[ProfiledCase],
    *,
    sort: str = "time",
    top: int | None = None,
    by: KernelGrouping = "name",
) -> Document:
    """Return the layers or kernels of each case, sorted as :data:`PART_SORTS`.

    In execution order, the ``top`` rows are those that take most. ``None`` fits people's screens; programs get all.
    """
    kind = by if level == "kernel" else "layer"
    tables = part_tables(level, cases, sort, by)
    return case_document(
        f"{level}s",
        tables,
        top,
        blocks=lambda: list(_blocks(tables, level, top) if top or len(tables) < 2 else _combined_table(tables, level)),
        data=lambda of, table: _data(of, table, kind),
        names=("row", *PART_FIELDS[level], *TIMES),
        lines=lambda of, table: _lines(of, table, level, kind),
    )


def _blocks(cases: Sequence[ShownCase[PartTable]], level: Level, top: int | None) -> Iterator[Table | str]:
    """Yield a table per case, its time source and its answer."""
    for case in cases:
        head, (name,) = distinguish([case.case])
        if isinstance(case.table, str):
            why = f"No {level}s: {case.table} {case.case.profile.hint}".strip()
            yield Table(f"{head} · {name}", "", (), (), sentences=[why])
            continue
        unit, account = _unit([case], level), case.table.reconciliation
        call = f"Call: {TIME_WRITERS[unit](account.unprofiled)} {unit} · " if account.unprofiled else ""
        about = time_source([case.case], f"{level}s")
        yield Table(f"{head} · {name}", "", (), (), about=f"{call}{about}")
        yield " ".join(answer(case.table, host=_waits_for_host(case, case.table)))
        yield from filter(None, [precision_line(case.case)])
        yield _table(replace(case, top=top or TOP), case.table, level, unit)


def _combined_table(cases: Sequence[ShownCase[PartTable]], level: Level) -> Iterator[Table | str]:
    """Yield one table of several cases with their largest rows, as many as fit on a screen."""
    head, names = distinguish([case.case for case in cases])
    why: dict[str, list[str]] = {}
    for case, name in zip(cases, names, strict=True):
        if isinstance(case.table, str):
            why.setdefault(f"{case.table} {case.case.profile.hint}".strip(), []).append(name)
    notes = [f"No {level}s of {few_names(item)}: {reason}" for reason, item in why.items()]
    if sum(map(len, why.values())) == len(cases):
        yield Table(head, "", (), (), sentences=first_notes(notes))
        return
    tables, unit = [case.table.reconciliation for case in cases if not isinstance(case.table, str)], _unit(cases, level)
    notes += ["Over 100 %: kernels ran side by side."] if any(map(_side_by_side, tables)) else []
    waiting = sum(not isinstance(case.table, str) and _waits_for_host(case, case.table) for case in cases)
    completed = len(cases) - sum(map(len, why.values()))
    host = f" · {waiting} of {plural(completed, 'call')} wait for the host" * bool(waiting)
    room = LINES - 2 * min(len(notes), MAX_NOTES + 1)
    per_case = max(1, min(TOP, room // len(cases) - 1))
    hidden, lines = sum(len(case.ranked) for case in cases), list[Line]()
    drawn_of: list[ProfiledCase] = []
    all_rows = [row for case in cases if not isinstance(case.table, str) for row in case.table.rows]
    for case, name in list(zip(cases, names, strict=True))[: room // (per_case + 1)]:
        if isinstance(case.table, str):
            continue
        drawn, count = (
            _table(replace(case, top=per_case), case.table, level, unit, all_rows),
            len(case.ranked[:per_case]),
        )
        before = case.table.reconciliation.unprofiled if level == "kernel" else None
        call = f" · call {TIME_WRITERS[unit](before)} {unit}" if before else ""
        lines.append(Line(f"{name}{call}", drawn.lines[-1].cells, style="bold", sums=True))
        lines += [replace(line, indent="  ", ends=False) for line in drawn.lines[:count]]
        drawn_of.append(case.case)
        hidden -= count
    if hidden:
        more = f"{hidden:,} more rows: --top {max(len(case.ranked) for case in cases)}, or --format csv"
        lines.append(Line(more, [""] * len(COLUMNS[level]), style="dim", sums=True))
    about = time_source(drawn_of, f"the {level}s that take most") + host
    columns = in_unit(COLUMNS[level], unit)
    yield Table(head, NAME_HEADINGS[level], columns, lines, about=about, notes=first_notes(notes))


def _waits_for_host(shown_case: ShownCase[PartTable], table: PartTable) -> bool:
    return waits_for_host(shown_case.case.profile, table.runs, shown_case.case.record)


def _unit(cases: Sequence[ShownCase[PartTable]], level: Level) -> str:
    return "µs" if level == "kernel" else unit_of(case.case.profile for case in cases)


def part_tables(
    level: Level, cases: Sequence[ProfiledCase], sort: str, by: KernelGrouping = "name"
) -> list[ShownCase[PartTable]]:
    """Return the ranked rows of each case."""
    check_choice(f"order of {level}s", sort, PART_SORTS[level])

    def make_table(case: ProfiledCase) -> PartTable | str:
        if level == "layer":
            return layer_table(case.profile, case.unprofiled)
        return kernel_table(case.profile, case.unprofiled, by)

    def ranked(table: PartTable) -> Sequence[ProfileRow]:
        return sorted(by_time(table.rows), key=lambda row: -row.calls if sort == "calls" else 0)

    return rank_cases(((case, make_table(case)) for case in cases), ranked, sort)


def row_name(row: ProfileRow) -> str:
    """Return a layer's modules, or the backend's name."""
    if isinstance(row, LayerRow):
        return module_names(row.modules) if row.modules else display_name(row.name)
    return display_name(short_name(row.name))


def _backend_name(row: LayerRow) -> str:
    """Return the backend's name where it differs from the module."""
    return text("" if row.modules in ((row.name,), ()) else row.name)


def row_names(rows: Sequence[ProfileRow]) -> list[str]:
    """Return distinct names; a module with children is called itself."""
    short = short_names(row.name for row in rows if isinstance(row, KernelRow))
    paths = [module_path(path) for row in rows for path in row.modules]
    above = {path[:length] for path in paths for length in range(len(path))}

    def name(row: ProfileRow) -> str:
        if row.name in short:
            return display_name(short[row.name])
        single = len(row.modules) == 1 and module_path(row.modules[0]) in above
        return f"{row_name(row)} itself" if single else row_name(row)

    return [name(row) for row in rows]


def _table(
    shown_case: ShownCase[PartTable], table: PartTable, level: Level, unit: str, profile_rows: Sequence[ProfileRow] = ()
) -> Table:
    """Return the table of one case; ``profile_rows`` are the rows of all cases in the same table."""
    profile, account = shown_case.case.profile, table.reconciliation
    columns = hide_constant(in_unit(COLUMNS[level], unit), profile_rows or table.rows, "precision")
    call = CALL if account.unprofiled else PROFILED_CALL
    numbers = {column.key for column in NUMBERS[level]}

    def line(name: str, times: RunTimes, style: str = "") -> Line:
        row = {"times": times, "of_busy": _busy_share(table, times)}
        cells = [column.text(row) if column.key in numbers else "" for column in columns]
        style = "bold" if name == call else style
        return Line(name, cells, style=style, sums=True)

    names = dict(zip((row.place for row in table.rows), row_names(table.rows), strict=True))
    lines = [Line.from_row(names[row.place], columns, row) for row in shown_case.rows]
    if shown_case.rest:
        more = f"{len(shown_case.rest):,} more: --top {len(table.rows)}"
        lines.append(line(more, table.sum_of(shown_case.rest), style="dim"))
    sum_name = "all kernels" + " (side by side)" * _side_by_side(account)
    sums = {sum_name: account.kernels} if isinstance(account, GpuAccount) else {
        "in no layer": account.outside, call: account.whole,
    }  # fmt: skip
    absent = [f"{part}: {why}" for part, why in profile.found.absent.items()] if profile.found else []
    return Table(
        "",
        NAME_HEADINGS[level],
        columns,
        lines_and_sums(lines, [line(name, times) for name, times in sums.items()]),
        notes=first_notes(
            [
                *_doubts(shown_case, table),
                *(f"{warning.message} {warning.advice}" for warning in profile.warnings),
                *absent,
            ]
        ),
    )


def _busy_share(table: PartTable, times: RunTimes) -> float | None:
    """Return a typical time over the time in which the GPU was busy."""
    account = table.reconciliation
    busy = account.busy.typical if isinstance(account, GpuAccount) else 0.0
    return times.typical / busy if busy > 0 else None


def answer(table: PartTable, *, host: bool = False) -> list[str]:
    """Return the largest row, how busy the GPU was, and whether layers overlap.

    ``host``: whether the call waits for the host.
    """
    account, first = table.reconciliation, by_time(table.rows)[:MAX_SUMMED]
    if not (first and first[0].times and first[0].times.typical > 0):
        return ["Nothing has a time."]
    whole = "of the GPU's time" if isinstance(account, GpuAccount) else "of the call"
    first_share, some = (
        _busy_share(table, times) or times.share or 0.0 for times in (first[0].times, table.sum_of(first))
    )
    busy = account.busy.median if isinstance(account, GpuAccount) else 0.0
    side = _side_by_side(account)
    further = f"; the first {MAX_SUMMED} take {percent(some)}" if len(table.rows) > MAX_SUMMED and not side else ""
    noun = "kernel" if isinstance(account, GpuAccount) else "layer"
    sentences = [f"{_leading(table, first[0])} has the largest share: {percent(first_share)} {whole}{further}."]
    if first_share < _SMALL:
        sentences = [f"No {noun} takes over {percent(_SMALL)} {whole}{further}."]
    if not isinstance(account, GpuAccount):
        sentences += ["Some layers ran at the same time."] * account.overlaps
        return sentences + ["The call waits for the host."] * host
    call = account.unprofiled or account.whole.median
    works = "The call waits for the host: the" if host else "The"
    works += f" GPU works {three_digits(busy)} of {three_digits(call)} µs"
    works += f" ({percent(busy / call)})" if call > 0 else ""
    works += ", in kernels side by side" if side else ""
    return [*sentences, f"{works}; {_tensor_cores(account)}."]


def _leading(table: PartTable, first: ProfileRow) -> str:
    """Return the name of the largest row; a kernel with few modules has theirs."""
    places = [row.place for row in table.rows]
    name = cut_name(row_names(table.rows)[places.index(first.place)])
    if not (isinstance(first, KernelRow) and first.modules):
        return name
    few_modules = len(first.modules) <= MOST_MODULES
    source = cut_name(module_names(first.modules))
    return f"The kernel of {source}" if few_modules else f"{name} ({plural(len(first.modules), 'module')})"


def _tensor_cores(account: GpuAccount) -> str:
    used, unknown = account.with_tensor_cores, 1 - account.with_tensor_cores - account.without_tensor_cores
    if not used and unknown > account.without_tensor_cores:
        return "tensor cores: unknown"
    return f"{percent(used)} of it uses tensor cores" + f", {percent(unknown)} unknown" * (unknown > _UNKNOWN)


def _side_by_side(account: Reconciliation | GpuAccount) -> bool:
    """Return whether kernels add up to more than the busy time."""
    return isinstance(account, GpuAccount) and -account.overlap.typical > _OVERLAP * account.busy.typical > 0


def _doubts(shown_case: ShownCase[PartTable], table: PartTable) -> list[str]:
    account = table.reconciliation
    if isinstance(account, GpuAccount):
        traced = f"Only {percent(account.attributed)} of the kernels' time is traced to modules."
        return [traced] if account.attributed < _LEAST_TRACED else []
    return scaling_notes(shown_case.case.profile, shown_case.case.unprofiled)


def sentences(shown_case: ShownCase[PartTable], table: PartTable) -> list[str]:
    return [
        *answer(table, host=_waits_for_host(shown_case, table)),
        *filter(None, [precision_line(shown_case.case)]),
        *_doubts(shown_case, table),
    ]


def _data(shown_case: ShownCase[PartTable], table: PartTable, kind: str) -> dict[str, Any]:
    profile, account = shown_case.case.profile, table.reconciliation
    absent = profile.found and profile.found.absent
    result = {"clock": profile.clock, "absent": absent, "sentences": sentences(shown_case, table)}
    if profile.kernels and isinstance(account, GpuAccount):
        return {**result, "by": kind, "gpu": profile.kernels.gpu, "account": account}
    return {**result, "timed": profile.timed, "reconciliation": account}


def _lines(shown_case: ShownCase[PartTable], table: PartTable, level: Level, kind: str) -> Iterator[list[object]]:
    """Yield a line per row and per remainder, so that a case adds up to its whole."""
    for row in shown_case.rows:
        fields = [_field(name, getattr(row, name)) for name in PART_FIELDS[level]]
        yield [kind, *fields, *time_fields(row.times)]
    account = table.reconciliation
    sums = {f"other {level}s": table.sum_of(shown_case.rest)} if shown_case.rest else {}
    if isinstance(account, GpuAccount):
        sums |= {"overlap": account.overlap, "idle": account.idle, "whole": account.whole}
    else:
        sums |= {"in no layer": account.outside, "whole": account.whole}
    for name, times in sums.items():
        yield [name, *[None] * len(PART_FIELDS[level]), *time_fields(times)]


def _field(name: str, value: Any) -> Any:
    if name in ("grid", "block"):
        return "x".join(map(str, value))
    if name in ("inputs", "outputs"):
        tensors: Sequence[Tensor] = value
        return ["x".join(map(str, tensor.shape)) for tensor in tensors]
    return value
