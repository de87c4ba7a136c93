"""Findings of each case: a ranked list for people, or all of each finding for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from inferlens.analysis.evidence import NEGLIGIBLE, Finding
from inferlens.analysis.findings import evidence_of, findings, gain, importance, missing_evidence
from inferlens.analysis.interference import mean_load, record_load
from inferlens.analysis.profile_table import profile_runs
from inferlens.analysis.work import precisions
from inferlens.record.layer_profile import Profile
from inferlens.record.record import Record, machine_name
from inferlens.record.store import LoadedProfiles
from inferlens.spec.case import QUANTIZED, Case
from inferlens.stats.samples import median
from inferlens.units import duration, listing, percent, plural, ratio
from inferlens.views.plain import plain
from inferlens.views.profiled import profile_tables
from inferlens.views.profiled.cases import ProfiledCase, of_level, told_apart
from inferlens.views.profiled.profile_tables import CASE, few, few_names, name_of
from inferlens.views.renderers.terminal import wrap
from inferlens.views.rows import Row
from inferlens.views.table import Column, Document, Line, Table

SCHEMA = "inferlens.findings/1"
SEVERAL = 2  # other backends: then another one is no new idea
LINES, ROOM, WIDTH = 16, 84, 100  # that findings and notes fill, characters of each, and of a screen
COLUMNS = (Column("", "could win", "of call", keep=1), Column("", "finding", numeric=False, fold=True))
# Names of a finding in CSV, as in JSON.
FIELDS = ("rule", "about", "subject", "sentence", "seconds", "whole", "share", "advice")


@dataclass(frozen=True)
class Judged:
    """One case, with its latest profile, what was found, what could not be looked at, or why nothing could."""

    case: ProfiledCase
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    reason: str = ""

    @property
    def of_time(self) -> tuple[Finding, ...]:
        """What concerns time."""
        return tuple(finding for finding in self.findings if finding.about == "time")

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """How far its profiles can be trusted."""
        return tuple(finding for finding in self.findings if finding.about == "trust")


def judged(loaded: LoadedProfiles, measured: Sequence[Row] = ()) -> list[Judged]:
    """The findings of every case on every machine: of the latest profile of each level."""
    levels: dict[tuple[str, str], dict[str, Profile]] = {}
    for profile in loaded.profiles:  # by their creation
        levels.setdefault(_key(profile), {})[profile.level] = profile
    cases: dict[tuple[str, str], ProfiledCase] = {}
    for case in of_level(loaded, "layer"):
        cases.setdefault(_key(case.profile), case)
    return [_judged(case, list(levels[key].values()), loaded, measured) for key, case in cases.items()]


def _key(profile: Profile) -> tuple[str, str]:
    return profile.case.digest, machine_name(profile.environment)


def _judged(case: ProfiledCase, profiles: Sequence[Profile], loaded: LoadedProfiles, measured: Sequence[Row]) -> Judged:
    # What profiling cost is about layers, so by the calls that were timed with them, as in their table.
    able = sorted(
        (profile for profile in profiles if profile.status == "ok"), key=lambda profile: profile.level != "layer"
    )
    if not able:
        reason = case.profile.reason or f"It ended as '{case.profile.status}', and no reason is known."
        return Judged(case, reason=f"{reason} {case.profile.hint}".strip())
    record = next((record for profile in able if (record := loaded.records.get(profile.id))), None)
    made = findings(able, record, _plain(able[0], loaded), _rivals(case, measured))
    return Judged(case, tuple(made), tuple(missing_evidence(evidence_of(able, record))))


def _rivals(case: ProfiledCase, measured: Sequence[Row]) -> dict[str, float | None]:
    """Seconds of what other backends do in the same precision, where there are several: most that could be tried."""
    mine, own = _ways(case, measured)[0], case.profile.case
    others = [row for row in mine if (row.precision, row.device) == (own.precision, own.device)]
    others = [row for row in others if row.backend.partition(":")[0] != own.backend]
    ran = {row.name: row.median if row.ranked else None for row in others}
    return ran if len({row.backend for row in others}) >= SEVERAL else {}


def _plain(profile: Profile, loaded: LoadedProfiles) -> Record | None:
    """Of a quantized case, the latest record of the same in fp32 on the same machine."""

    def unquantized(case: Case) -> str:
        return msgspec.structs.replace(case, precision="fp32", calibration=None).digest

    same = unquantized(profile.case), machine_name(profile.environment)
    found = [
        record
        for record in loaded.records.values()
        if (record.case.precision, profile.case.precision in QUANTIZED) == ("fp32", True)
        and (unquantized(record.case), machine_name(record.environment)) == same
    ]
    return max(found, key=lambda record: record.created, default=None)


def document(
    cases: Sequence[Judged],
    *,
    top: int | None = None,
    whole: bool = False,
    lines: int = LINES,
    brief: bool = False,
    measured: Sequence[Row] = (),
) -> Document:
    """The findings of each case; for people the few that matter most of all cases together.

    Args:
        cases: as :func:`judged` makes them; of each the ``top`` findings, or with ``whole`` all for people, too.
        lines: of findings for people, where they ask for no number.
        brief: without headings and notes.
        measured: rows of the ways that were measured: cases that are the fastest of them come first.
    """
    behind = [not _leads(case.case, measured) for case in cases]
    cases = [cases[place] for place in sorted(range(len(cases)), key=behind.__getitem__)]
    leading = behind.count(False)
    load = mean_load(record_load(case.case.record) for case in cases if case.case.record)
    return Document(
        lambda: [
            *(_each(cases, top) if whole or top else _most(cases, leading, lines, brief, measured)),
            *filter(None, [load.sentence]),
        ],
        data=lambda: {"schema": SCHEMA, "cases": [_object(case, top) for case in cases], "machine_load": load},
        csv=lambda: ((*CASE, "place", *FIELDS, "evidence"), _lines(cases, top)),
        title="Findings",
    )


def _most(
    cases: Sequence[Judged], leading: int, lines: int, brief: bool, measured: Sequence[Row]
) -> Iterator[Table | str]:
    """What matters most, each rule once: of the case that comes first, and how many others have it too."""
    if not cases:
        yield "There are no profiles to look at."
        return
    head, names = told_apart([case.case for case in cases])
    head = head if len(names) > 1 else f"{head} · {names[0]}"
    every = _by_rule([case.of_time for case in cases], leading)
    answer = _standing(cases[every[0][0][1]].case, names[every[0][0][1]], measured) if every else ""
    lines -= 3 + len(wrap(answer, WIDTH)) if answer and not brief else 0
    failed = [f"{name}: {of.reason}" for of, name in zip(cases, names, strict=True) if of.reason]
    notes = [] if brief else few([*failed, *_doubts(cases, names), *_unseen(cases, names)])
    lines -= sum(len(wrap(plain(note), WIDTH)) for note in notes) + len(wrap(head, WIDTH)) - 1
    rows: list[Line] = []
    shown = 0
    for number, several in enumerate(every, 1):
        first, place = several[0]
        won = gain(first, cases[place].findings)
        where = _where(several, names, _most_won(first) if won else "")
        sentence = f"{first.sentence.removesuffix('.')}{where}."
        lines -= len(wrap(sentence, ROOM)) + len(wrap(_hint(first), ROOM))
        if lines < 0 and rows:
            break
        shown += len(several)
        cells = percent(won) if won else "", plain(sentence)
        rows += [Line(str(number), cells), Line("", ("", plain(_hint(first))), style="dim")]
    if not brief and (rest := sum(map(len, every)) - shown):
        notes.append(f"{plural(rest, 'more finding')}: --all, or --format csv.")
    columns = [replace(column, title="", unit="") for column in COLUMNS] if brief else COLUMNS
    said = () if rows or brief else ("No rule has anything to say.",)  # what is shown beneath has
    yield Table(head, "", columns, rows, notes=notes, sentences=said, answer=[answer] * bool(answer))


def _ways(case: ProfiledCase, measured: Sequence[Row]) -> tuple[list[Row], Row | None, Row | None]:
    """The ways that do what the case does, of them its own and the fastest."""
    profile = case.profile
    inputs = ", ".join(map(str, profile.model.inputs))
    same = (
        profile.case.model,
        machine_name(profile.environment),
        inputs,
        profile.case.io,
        profile.case.cold,
        profile.case.rotate,
    )
    mine = [
        row for row in measured
        if (row.model, row.machine, row.inputs, row.io, "cold" in row.call_mode, "rotating" in row.call_mode) == same
    ]  # fmt: skip
    own = next((row for row in mine if row.label == profile.case.label), None)
    return mine, own, next((row for row in mine if row.place == 1), None)


def _leads(case: ProfiledCase, measured: Sequence[Row]) -> bool:
    """Whether it is the fastest way of all that were measured."""
    _, own, best = _ways(case, measured)
    return own is not None and own is best


def _standing(case: ProfiledCase, name: str, measured: Sequence[Row]) -> str:
    """How the way that the first finding is of stands to the fastest: one that loses may not be worth mending."""
    mine, own, best = _ways(case, measured)
    took = median(case.unprofiled) if case.unprofiled else own and own.median
    if best is None or not took or not best.median or len(mine) < 2:
        return ""
    if own is best:
        return f"Finding 1 is of {name}, the fastest of {plural(len(mine), 'way')}: {duration(took)}."
    than = f"{plain(best.name)} is {ratio(took / best.median)} as fast there"
    return f"Finding 1 is of {name}: {than} ({duration(best.median)})."


def _by_rule(found: Sequence[Sequence[Finding]], leading: int = 0) -> list[list[tuple[Finding, int]]]:
    """The findings of several cases, each with its case's place, rule by rule.

    Those of the first cases, as many as are ``leading``, come first, and then what matters most; what matters little
    comes last.
    """

    def order(each: tuple[Finding, int]) -> tuple[bool, bool, float]:
        return importance(each[0]) <= NEGLIGIBLE, each[1] >= leading, -importance(each[0])

    rules: dict[str, list[tuple[Finding, int]]] = {}
    for place, several in enumerate(found):
        for finding in several:
            rules.setdefault(finding.code, []).append((finding, place))
    return sorted((sorted(one, key=order) for one in rules.values()), key=lambda one: order(one[0]))


def _where(several: Sequence[tuple[Finding, int]], names: Sequence[str], more: str = "") -> str:
    """In brackets: ``more``, of the case of the first finding, and how many other cases have it."""
    first = several[0][1]
    others = len({place for _, place in several} - {first})
    words = [" of ".join(filter(None, [more, names[first] if len(names) > 1 else ""]))]
    words += [f"{plural(others, 'other case')} too"] if others else []
    return f" ({'; '.join(filter(None, words))})" if any(words) else ""


def _doubts(cases: Sequence[Judged], names: Sequence[str]) -> list[str]:
    """How far the profiles can be trusted, each doubt once."""
    every = _by_rule([case.doubts for case in cases])
    return [f"{one[0][0].sentence.removesuffix('.')}{_where(one, names)}. {one[0][0].hint}" for one in every]


def _unseen(cases: Sequence[Judged], names: Sequence[str]) -> list[str]:
    found: dict[str, list[str]] = {}
    for of, name in zip(cases, names, strict=True):
        for item in of.missing:
            found.setdefault(item.partition(" (")[0], []).append(name)
    every = [f"{what} of {few_names(item) if len(item) < len(cases) else 'any case'}" for what, item in found.items()]
    return [f"Not looked at: {listing(every if len(cases) > 1 else list(found))}."] if every else []


def _each(cases: Sequence[Judged], top: int | None) -> Iterator[Table | str]:
    for of in cases:
        head, (name,) = told_apart([of.case])
        table = table_of(of.findings, top, of.reason)
        notes = [f"Not looked at (of {name}): {listing(of.missing)}."] if of.missing else []
        yield replace(table, title=f"{head} · {name}", notes=[*table.notes, *notes])


def table_of(findings: Sequence[Finding], top: int | None = None, reason: str = "") -> Table:
    """All findings of one case, those about time as rows; ``reason``: why there are none."""
    rows = []
    for number, finding in enumerate([finding for finding in findings if finding.about == "time"][:top], 1):
        won = gain(finding, findings)
        about = f"{_most_won(finding)} could be won · {finding.code}" if won else finding.code
        said = f"{finding.sentence.removesuffix('.')} ({about})."
        rows += [Line(str(number), (percent(won) if won else "", plain(said)))]
        rows += [Line("", ("", plain(_hint(finding))), style="dim")]
    doubts = [f"{finding.sentence} {finding.hint}" for finding in findings if finding.about == "trust"]
    silent = () if rows else (reason or "No rule has anything to say.",)
    return Table("", "", COLUMNS, rows, notes=doubts, sentences=silent)


def _most_won(of: Finding) -> str:
    """What could be won of how much: ``at most 1.30 of the 11.8 ms``."""
    return f"at most {duration(of.seconds)} of the {duration(of.whole)}"


def _hint(of: Finding) -> str:
    return of.hint if of.hint.startswith("Try ") else f"Try: {of.hint}"


def _object(of: Judged, top: int | None) -> dict[str, Any]:
    return {
        **of.case.data,
        "status": of.case.profile.status,
        "reason": of.reason,
        "not_looked_at": of.missing,
        "findings": of.findings[:top],
    }


def _lines(cases: Sequence[Judged], top: int | None) -> Iterable[Sequence[object]]:
    for of in cases:
        for place, finding in enumerate(of.findings[:top], 1):
            fields = msgspec.to_builtins(finding)
            numbers = msgspec.json.encode(finding.numbers).decode()
            yield [*of.case.fields, place, *(fields[name] for name in FIELDS), numbers]


# Whether a quantized case is really computed in what it says: one line for each.

NAMED, LITTLE = 2, 0.005  # layers that are named; a share of the time that is not told


def precision_lines(cases: Sequence[ProfiledCase]) -> list[str]:
    """``onnxruntime:cpu int8: int8 71 % of the time ...``, of each case that is quantized and tells."""
    told = [(case, line) for case in cases if (line := precision_line(case))]
    _, names = told_apart([case for case, _ in told]) if told else ("", [])
    return [f"{name}: {line}" if name else line for name, (_, line) in zip(names, told, strict=True)]


def precision_line(case: ProfiledCase) -> str:
    """The shares of the time and of the multiply-adds in the case's precision, and what is in none; else empty.

    Such as ``int8 71 % of the time, 98 % of multiply-adds; stayed in fp32: head 4 %; 12 conversions 9 %``.
    """
    profile, asked = case.profile, case.profile.case.precision
    runs = profile_runs(profile, None, case.unprofiled)
    found = None if isinstance(runs, str) or asked not in QUANTIZED else precisions(profile, runs)
    if found is None or isinstance(runs, str):
        return ""
    base = runs if profile.layers else runs.with_kernel_shares()
    said = [f"{asked} {percent(found.time.get(asked, 0.0))} of the time"]
    said[0] += f", {percent(found.work.get(asked, 0.0))} of multiply-adds" if found.work else ""
    shares = [base.share(base.layers[place]) or 0.0 for place in found.stayed]
    for name in dict.fromkeys(getattr(profile.parts[place], "precision", "") for place in found.stayed):
        stayed = [at for at, place in enumerate(found.stayed) if getattr(profile.parts[place], "precision", "") == name]
        words = [f"{_name(case, found.stayed[at])} {percent(shares[at])}" for at in stayed[:NAMED]]
        if rest := stayed[NAMED:]:
            words.append(f"{plural(len(rest), 'other')} {percent(sum(shares[at] for at in rest))}")
        said.append(f"stayed in {name}: {', '.join(words)}")
        found.time[name] = found.time.get(name, 0.0) - sum(shares[at] for at in stayed)
    others = {name: item for name, item in found.time.items() if name != asked and item >= LITTLE}
    said += [f"{name or 'unknown'} {percent(item)}" for name, item in others.items()]
    if found.conversions:
        said.append(f"{plural(len(found.conversions), 'conversion')} {percent(found.converting)}")
    return "; ".join(said)


def _name(case: ProfiledCase, place: int) -> str:
    part = case.profile.parts[place]
    return profile_tables.modules(part.modules) if part.modules else name_of(part.name)
