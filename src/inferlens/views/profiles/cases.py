"""Cases that were profiled: their names and groups, and the documents, units and sentences that their tables share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from inferlens.analysis.findings import COST, FASTER
from inferlens.analysis.modules import ancestor, module_path
from inferlens.analysis.profile_table import RunTimes, kernels_alone, profile_runs, profiling_cost
from inferlens.analysis.samples import latencies
from inferlens.analysis.work import precisions
from inferlens.record.profile import Level, Profile, Tensor
from inferlens.record.record import Record, machine_name
from inferlens.record.store import LoadedProfiles, latest_profiles
from inferlens.spec.case import QUANTIZED, bare, case_names
from inferlens.spec.plan import label_words, reference_rank
from inferlens.units import ABSENT, listing, microseconds, milliseconds, percent, plural, ratio
from inferlens.views.table import Column, Document, Line, Table, cut_middle, plain, share

CASE_FIELDS = ("model", "case", "digest", "profile")  # the first fields of every line of CSV
MAX_NOTES, LONGEST_NOTE = 2, 190  # beneath a table
TIMES = ("typical", "share", "mean", "median", "median_low", "median_high", "p95")  # fields of a row in CSV
LONGEST_NAME = 60
MOST_CASES = 12  # in a table of the largest parts
MAX_SUMMED = 5  # rows that a sentence adds up
THE_MODEL = "the model"
CALL, PROFILED_CALL = "call", "profiled call"  # names of the row of a whole call
MOST_MODULES = 3  # modules in a name
LITTLE = 0.005  # of the time: smaller shares are omitted


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
        if self.profile.case.device == "cpu":
            return environment.cpu or "CPU"
        return environment.gpus[0].name if environment.gpus else "GPU"

    @property
    def inputs(self) -> str:
        """Return names and sizes of the inputs: ``x=1x3x224x224``."""
        specs = self.profile.model.inputs or self.profile.case.inputs
        return ", ".join(f"{spec.name}={'x'.join(map(str, spec.shape))}" for spec in specs)

    @property
    def headline(self) -> str:
        return _join_words(self.profile.case.model, self.inputs, self.device)

    @property
    def data(self) -> dict[str, Any]:
        """Return the identity of a case for JSON."""
        profile = self.profile
        return {
            "name": self.name, "case": profile.case, "digest": profile.case.digest,
            "profile": profile.id, "record": profile.record,
        }  # fmt: skip

    @property
    def fields(self) -> dict[str, Any]:
        """Return the values of :data:`CASE_FIELDS`."""
        case = self.profile.case
        return dict(zip(CASE_FIELDS, (case.model, case.label, case.digest, self.profile.id), strict=True))

    def matches(self, phrase: str) -> bool:
        """Return whether label, name or backend contain all words of ``phrase``."""
        case = self.profile.case
        return label_words(phrase) <= label_words(case.label) | label_words(self.name) | {case.backend}


def _join_words(*texts: str, longest: int = 200) -> str:
    return " · ".join(plain(text)[:longest] for text in texts if text)


def distinguish(cases: Sequence[ProfiledCase], *, backends: bool = True) -> tuple[str, list[str]]:
    """Return what all cases share in one line, and a distinct name per case, if wanted with the backend."""
    properties = {
        "model": [case.profile.case.model for case in cases],
        "inputs": [case.inputs for case in cases],
        "precision": [case.profile.case.precision for case in cases],
        "device": [case.device for case in cases],
    }
    shared = {key: values[0] for key, values in properties.items() if len(set(values)) == 1}
    names = []
    for profiled in cases:
        case, name = profiled.profile.case, profiled.name
        if "precision" in shared:
            name = name.replace(f" {case.precision}", "", 1)
        inputs, name = case.sizes_label or profiled.inputs, name * backends
        texts = {"model": case.model, "name": name, "inputs": inputs, "device": profiled.device}
        names.append(_join_words(*(text for key, text in texts.items() if key not in shared), longest=80))
    return _join_words(*shared.values()), names


def group_profiles(loaded: LoadedProfiles, level: Level | None = None) -> list[list[ProfiledCase]]:
    """Return the latest profiles, named, in comparable groups: of every level, or one profile per case.

    A case without a profile of ``level`` keeps one of another level, so that a message can name it.
    """
    latest: dict[tuple[object, ...], Profile] = {}
    for profile in latest_profiles(loaded.profiles):
        key = profile.case.digest, machine_name(profile.environment), None if level else profile.level
        if key not in latest or profile.level == level:
            latest[key] = profile
    groups: dict[tuple[object, ...], list[ProfiledCase]] = {}
    for profile in latest.values():
        case, inputs = profile.case, profile.model.inputs or profile.case.inputs
        group = case.model, case.batch, inputs, case.weights, case.seed, machine_name(profile.environment)
        groups.setdefault(group, []).append(ProfiledCase(profile, loaded.records.get(profile.id)))
    return [name_cases(group) for group in groups.values()]


def cases_of_level(loaded: LoadedProfiles, level: Level | None) -> list[ProfiledCase]:
    return [case for group in group_profiles(loaded, level) for case in group]


def reference_first(group: Sequence[ProfiledCase], reference: str | None) -> list[ProfiledCase]:
    """Put the reference first: the plainest of the cases that match ``reference``, or that ran."""
    eligible = [case for case in group if case.profile.status == "ok"] or list(group)
    checked = [case.record.agreement.reference for case in group if case.record and case.record.agreement]
    usual = {name.partition(" ")[0] for name in checked}

    def place(profiled: ProfiledCase) -> tuple[object, ...]:
        case = profiled.profile.case
        return reference_rank(case, profiled.name, case.device, usual, reference)

    first = min([case for case in group if reference and case.matches(reference)] or eligible, key=place)
    return [first, *(case for case in group if case is not first)]


def name_cases(group: Sequence[ProfiledCase]) -> list[ProfiledCase]:
    """Name cases by what they do not share, mark kernels beside layers, and number equal names."""
    with_level = len({case.profile.level for case in group}) > 1
    counts: Counter[str] = Counter()
    named = []
    for case, label in zip(group, case_names([case.profile.case for case in group]), strict=True):
        name = plain(label + " kernels" * (with_level and case.profile.level == "kernel"))
        counts[name] += 1
        named.append(replace(case, name=f"{name} ({counts[name]})" if counts[name] > 1 else name))
    return named


def three_digits(seconds: float | None) -> str:
    """Return microseconds with three significant digits: ``14,700`` rather than ``14,683``."""
    return microseconds(seconds and float(f"{seconds:.3g}"))


TIME_WRITERS: dict[str, Callable[[float | None], str]] = {"ms": milliseconds, "µs": three_digits}
T = TypeVar("T")


@dataclass(frozen=True)
class ShownCase(Generic[T]):
    """A case with its table or a reason, and its ``ranked`` rows; the first ``top`` are shown."""

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

    @property
    def why(self) -> str:
        """Return the reason for no table, and what helps."""
        return f"{self.table} {self.case.profile.hint}".strip()


def case_document(
    noun: str,
    cases: Sequence[ShownCase[T]],
    top: int | None,
    *,
    blocks: Callable[[], Iterable[Table | str]],
    data: Callable[[ShownCase[T], T], dict[str, Any]],
    rows: Callable[[ShownCase[T], T], Iterable[dict[str, Any]]],
    fields: Sequence[str],
) -> Document:
    """Return the document of tables per case.

    ``data`` returns more JSON per case; ``rows`` and ``fields`` are those of CSV, without those of the case.
    """
    shown = [replace(case, top=top) for case in cases]

    def case_data(case: ShownCase[T]) -> dict[str, Any]:
        profile = case.case.profile
        about = {**case.case.data, "status": profile.status, "reason": "", "rows": case.rows}
        about |= {} if noun == "roofline" else {"warnings": profile.warnings}
        return about | ({"reason": case.table} if isinstance(case.table, str) else data(case, case.table))

    def csv_rows() -> Iterator[dict[str, Any]]:
        for case in shown:
            if not isinstance(case.table, str):
                yield from (case.case.fields | row for row in rows(case, case.table))

    return Document(
        lambda: list(blocks()), lambda: {"schema": f"inferlens.{noun}/1", "cases": list(map(case_data, shown))},
        csv_rows, (*CASE_FIELDS, *fields),
    )  # fmt: skip


def rank_cases(
    tables: Iterable[tuple[ProfiledCase, T | str]], ranked: Callable[[T], Sequence[Any]], sort: str
) -> list[ShownCase[T]]:
    """Rank the rows of each case; ``order`` sorts them by execution."""
    return [
        ShownCase(case, table, () if isinstance(table, str) else ranked(table), in_order=sort == "order")
        for case, table in tables
    ]


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first notes, cut to two lines, and the number of others."""
    more = len(notes) - MAX_NOTES
    rest = [f"({plural(more, 'more note')}: --format json)"] if more > 0 else []
    return [*(cut_middle(note, LONGEST_NOTE) for note in notes[:MAX_NOTES]), *rest]


def time_fields(times: RunTimes | None) -> dict[str, Any]:
    """Return the fields of :data:`TIMES` in seconds."""
    return {name: getattr(times, name, None) for name in TIMES}


def display_name(name: str) -> str:
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


@dataclass(frozen=True)
class LargestPart:
    """The layer, kernel or module that takes most of a case, with its share; and the time of a call."""

    case: ProfiledCase
    name: str
    share: float | None
    call: float | None
    waits: bool  # whether the call waits for the host


def largest_parts(noun: str, parts: Sequence[LargestPart], notes: Sequence[str], more: str) -> Iterator[Table | str]:
    """Yield a table with the largest layer, kernel or module of each case; ``more`` is the option that shows all."""
    cases = [part.case for part in parts]
    head, names = distinguish(cases)
    unit = unit_of(cases)
    columns = (
        Column("call", "call", unit, write=TIME_WRITERS[unit]), Column("share", "largest", "share", write=share),
        Column("name", f"{noun} with it", write=str, numeric=False, max_width=40),
    )  # fmt: skip
    shown = list(zip(names, parts, strict=True))[:MOST_CASES]
    lines = [Line.from_row(cut_name(bare(name)), columns, part) for name, part in shown]
    if len(parts) > MOST_CASES:
        lines.append(Line(f"{len(parts) - MOST_CASES:,} more: --format csv", ("", "", ""), style="dim"))
    waiting = sum(part.waits for part in parts)
    host = f"{waiting} of {plural(len(parts), 'call')} wait for the host: faster {noun}s win nothing there."
    yield Table(head, "case", columns, lines, notes=[*[host] * bool(waiting), *first_notes(notes)])
    yield f"The {noun}s of each case: {more}"


def tensor_shapes(tensors: Sequence[Tensor]) -> str:
    """Return known tensor dimensions: ``1x64x56x56``."""
    return ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors if tensor.shape) or ABSENT


def unit_of(cases: Iterable[ProfiledCase]) -> str:
    """Return ``µs`` if all times are the GPU's, else ``ms``."""
    return "µs" if {case.profile.timed for case in cases if case.profile.timed_runs} == {"GPU"} else "ms"


def in_unit(columns: Sequence[Column], unit: str) -> list[Column]:
    """Return the columns with milliseconds converted to ``unit``."""
    writer = TIME_WRITERS[unit]
    return [replace(column, unit=unit, write=writer) if column.unit == "ms" else column for column in columns]


def scaling_notes(cases: Sequence[ProfiledCase], names: Sequence[str] = ()) -> list[str]:
    """Return a note on the cases whose calls took much longer with profiling."""
    scaled = []
    for case, name in zip(cases, names or [case.name for case in cases], strict=True):
        runs = profile_runs(case.profile)
        if not isinstance(runs, str) and not kernels_alone(case.profile):
            cost = profiling_cost(runs, case.unprofiled).cost
            scaled += [f"{name} ({ratio(cost)})"] if cost is not None and not FASTER < cost < COST else []
    note = f"Times of {listing(scaled)} are scaled from profiled calls: small differences mean nothing."
    return [note] if scaled else []


def time_source(cases: Sequence[ProfiledCase], parts: str) -> str:
    """Return the clock of the times and the call that they refer to."""
    profiles = [case.profile for case in cases]
    clock = " or ".join(dict.fromkeys(str(profile.timed) for profile in profiles))
    text = f"{clock[:1].upper()}{clock[1:]} time of {parts}"
    if not all(case.unprofiled for case in cases):
        return f"{text} in a profiled call"
    return text if all(map(kernels_alone, profiles)) else f"{text}, scaled to a call without profiling"


def precision_lines(cases: Sequence[ProfiledCase]) -> list[str]:
    """Return a line for each quantized case: ``onnxruntime:cpu int8: int8 71 % of the time ...``."""
    lines = [(case, line) for case in cases if (line := precision_line(case))]
    _, names = distinguish([case for case, _ in lines]) if lines else ("", [])
    return [f"{name}: {line}" if name else line for name, (_, line) in zip(names, lines, strict=True)]


def precision_line(case: ProfiledCase) -> str:
    """Return the shares of time and multiply-adds per precision; empty if unknown.

    Such as ``int8 71 % of the time, 98 % of multiply-adds; fp32 8 %; 12 conversions 9 %``.
    """
    profile, precision = case.profile, case.profile.case.precision
    runs = profile_runs(profile, None, case.unprofiled)
    result = None if isinstance(runs, str) or precision not in QUANTIZED else precisions(profile, runs)
    if result is None:
        return ""
    parts = [f"{precision} {percent(result.time.get(precision, 0.0))} of the time"]
    parts[0] += f", {percent(result.work.get(precision, 0.0))} of multiply-adds" if result.work else ""
    others = {name: part for name, part in result.time.items() if name != precision and part >= LITTLE}
    parts += [f"{name or 'unknown'} {percent(part)}" for name, part in others.items()]
    if result.conversions:
        parts.append(f"{plural(len(result.conversions), 'conversion')} {percent(result.converting)}")
    return "; ".join(parts)
