"""Findings of each case: a ranked list for people, all of them for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from inferlens.analysis.evidence import NEGLIGIBLE, Finding, Subject
from inferlens.analysis.findings import evidence_of, findings, gain, importance, missing_evidence
from inferlens.analysis.interference import mean_load, record_load
from inferlens.analysis.samples import group_by
from inferlens.record.profile import Profile
from inferlens.record.record import Record, machine_name
from inferlens.record.store import LoadedProfiles
from inferlens.spec.case import QUANTIZED, Case
from inferlens.stats.samples import median
from inferlens.units import duration, listing, percent, plural, ratio
from inferlens.views.profiles.cases import (
    CASE_FIELDS,
    ProfiledCase,
    cases_of_level,
    distinguish,
    few_names,
    first_notes,
)
from inferlens.views.renderers.terminal import wrap
from inferlens.views.rows import Row
from inferlens.views.table import Column, Document, Line, Table, plain

SCHEMA = "inferlens.findings/1"
MIN_RIVALS = 2  # other backends: then another one is no new idea
LINES, ROOM, WIDTH = 16, 84, 100  # lines of findings and notes, their characters, and columns of a screen
COLUMNS = (Column("", "could win", "of call", keep=1), Column("", "finding", numeric=False, fold=True))
FIELDS = ("rule", "about", "subject", "sentence", "seconds", "whole", "share", "advice")


@dataclass(frozen=True)
class CaseFindings:
    """A case with its findings, the parts that could not be checked, or the reason for neither."""

    case: ProfiledCase
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()
    reason: str = ""


def judge_cases(loaded: LoadedProfiles, rows: Sequence[Row] = ()) -> list[CaseFindings]:
    """Return the findings of every case and machine from the latest profile of each level."""
    levels: dict[tuple[str, str], dict[str, Profile]] = {}
    for profile in loaded.profiles:  # by their creation
        levels.setdefault(_key(profile), {})[profile.level] = profile
    cases: dict[tuple[str, str], ProfiledCase] = {}
    for case in cases_of_level(loaded, "layer"):
        cases.setdefault(_key(case.profile), case)
    return [_judge(case, list(levels[key].values()), loaded, rows) for key, case in cases.items()]


def _key(profile: Profile) -> tuple[str, str]:
    return profile.case.digest, machine_name(profile.environment)


def _judge(
    case: ProfiledCase, profiles: Sequence[Profile], loaded: LoadedProfiles, rows: Sequence[Row]
) -> CaseFindings:
    # What profiling cost is about layers, so by the calls that were timed with them, as in their table.
    completed = sorted(
        (profile for profile in profiles if profile.status == "ok"), key=lambda profile: profile.level != "layer"
    )
    if not completed:
        reason = case.profile.reason or f"It ended as '{case.profile.status}', and no reason is known."
        return CaseFindings(case, reason=f"{reason} {case.profile.hint}".strip())
    record = next((record for profile in completed if (record := loaded.records.get(profile.id))), None)
    result = findings(completed, record, _fp32_record(completed[0], loaded), _rivals(case, rows))
    return CaseFindings(case, tuple(result), tuple(missing_evidence(evidence_of(completed, record))))


def _rivals(case: ProfiledCase, rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the seconds of other backends in the same precision, if there are several."""
    same_work, own_case = _same_work(case, rows)[0], case.profile.case
    others = [row for row in same_work if (row.precision, row.device) == (own_case.precision, own_case.device)]
    others = [row for row in others if row.backend.partition(":")[0] != own_case.backend]
    ran = {row.name: row.median if row.ranked else None for row in others}
    return ran if len({row.backend for row in others}) >= MIN_RIVALS else {}


def _fp32_record(profile: Profile, loaded: LoadedProfiles) -> Record | None:
    """Return the latest fp32 record of a quantized case on the same machine."""
    if profile.case.precision not in QUANTIZED:
        return None

    def unquantized(case: Case) -> str:
        return msgspec.structs.replace(case, precision="fp32", calibration=None).digest

    same = unquantized(profile.case), machine_name(profile.environment)
    candidates = [
        record
        for record in loaded.records.values()
        if record.case.precision == "fp32" and (unquantized(record.case), machine_name(record.environment)) == same
    ]
    return max(candidates, key=lambda record: record.created, default=None)


def findings_document(
    cases: Sequence[CaseFindings],
    *,
    top: int | None = None,
    whole: bool = False,
    lines: int = LINES,
    brief: bool = False,
    measured: Sequence[Row] = (),
) -> Document:
    """Return the findings of each case; people get the few that matter most.

    Args:
        cases: the results of :func:`judge_cases`; ``top`` limits the findings of each, ``whole`` shows all to people.
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
            *(_case_tables(cases, top) if whole or top else _top_findings(cases, leading, lines, brief, measured)),
            *filter(None, [load.sentence]),
        ],
        data=lambda: {"schema": SCHEMA, "cases": [_object(case, top) for case in cases], "machine_load": load},
        rows=lambda: _rows(cases, top),
        fields=(*CASE_FIELDS, "place", *FIELDS, "evidence"),
        title="Findings",
    )


def _top_findings(
    cases: Sequence[CaseFindings], leading: int, lines: int, brief: bool, measured: Sequence[Row]
) -> Iterator[Table | str]:
    """Yield the main findings, each rule once, for the first case that has it."""
    if not cases:
        yield "There are no profiles to look at."
        return
    head, names = distinguish([case.case for case in cases])
    head = head if len(names) > 1 else f"{head} · {names[0]}"
    rules = _by_rule(cases, "time", leading)
    labels = {case.case.profile.case.label for case in cases}
    answer = _standing(cases[rules[0][0][1]].case, names[rules[0][0][1]], measured, labels) if rules else ""
    lines -= 3 + len(wrap(answer, WIDTH)) if answer and not brief else 0
    failed = [f"{name}: {case.reason}" for case, name in zip(cases, names, strict=True) if case.reason]
    doubts = _doubts(cases, names)
    doubtful = [f"{text.partition(':')[0]}: shares say where to look, not what can be won." for text in doubts[:1]]
    notes = doubtful if brief else first_notes([*failed, *doubts, *_unchecked_notes(cases, names)])
    lines -= sum(len(wrap(plain(note), WIDTH)) for note in notes) + len(wrap(head, WIDTH)) - 1
    rows: list[Line] = []
    shown = 0
    for number, entries in enumerate(rules, 1):
        first, place = entries[0]
        won = gain(first, cases[place].findings)
        where = _where(entries, names, _gain_text(first) if won else "")
        sentence = f"{first.sentence.removesuffix('.')}{where}."
        lines -= len(wrap(sentence, ROOM)) + len(wrap(_hint(first), ROOM))
        if lines < 0 and rows:
            break
        shown += len(entries)
        cells = percent(won) if won else "", plain(sentence)
        rows += [Line(str(number), cells), Line("", ("", plain(_hint(first))), style="dim")]
    if not brief and (rest := sum(map(len, rules)) - shown):
        notes.append(f"{plural(rest, 'more finding')}: --all, or --format csv.")
    columns = [replace(column, title="", unit="") for column in COLUMNS] if brief else COLUMNS
    sentences = () if rows or brief else ("No rule has anything to say.",)  # what is shown beneath has
    yield Table(head, "", columns, rows, notes=notes, sentences=sentences, answer=[answer] * bool(answer))


def _same_work(case: ProfiledCase, rows: Sequence[Row]) -> tuple[list[Row], Row | None, Row | None]:
    """Return the rows that do the same work, the case's own row, and the fastest one."""
    profile, own = case.profile, case.profile.case
    inputs, machine = ", ".join(map(str, profile.model.inputs)), machine_name(profile.environment)
    same = own.model, machine, inputs, own.io, own.cold, own.rotate
    matching = [
        row for row in rows
        if (row.model, row.machine, row.inputs, row.io, "cold" in row.call_mode, "rotating" in row.call_mode) == same
    ]  # fmt: skip
    own_row = next((row for row in matching if row.label == own.label), None)
    return matching, own_row, next((row for row in matching if row.place == 1), None)


def _leads(case: ProfiledCase, rows: Sequence[Row]) -> bool:
    """Return whether the case is the fastest row."""
    _, own_row, best = _same_work(case, rows)
    return own_row is not None and own_row is best


def _standing(case: ProfiledCase, name: str, rows: Sequence[Row], labels: Set[str]) -> str:
    """Compare the case of the first finding with the fastest. A slow case may not be worth work.

    ``labels`` are those of the profiled cases, which alone are counted.
    """
    same_work, own_row, best = _same_work(case, rows)
    took = median(case.unprofiled) if case.unprofiled else own_row and own_row.median
    if best is None or not took or not best.median or len(same_work) < 2:
        return ""
    if own_row is best:
        ways = sum(row.label in labels for row in same_work)
        return f"Finding 1 is of {name}{f', the fastest of {ways} ways' if ways > 1 else ''}: {duration(took)}."
    than = f"{plain(best.name)} is {ratio(took / best.median)} as fast there"
    return f"Finding 1 is of {name}: {than} ({duration(best.median)})."


def _by_rule(cases: Sequence[CaseFindings], about: Subject, leading: int = 0) -> list[list[tuple[Finding, int]]]:
    """Group the findings about ``time`` or ``trust`` of several cases by rule, each with its case's index.

    The first ``leading`` cases come first, then the largest effects; small effects come last.
    """

    def order(entry: tuple[Finding, int]) -> tuple[bool, bool, float]:
        return importance(entry[0]) <= NEGLIGIBLE, entry[1] >= leading, -importance(entry[0])

    pairs = ((finding, place) for place, case in enumerate(cases) for finding in case.findings)
    rules = group_by((pair for pair in pairs if pair[0].about == about), lambda pair: pair[0].code)
    return sorted((sorted(entries, key=order) for entries in rules.values()), key=lambda entries: order(entries[0]))


def _where(places: Sequence[tuple[Finding, int]], names: Sequence[str], more: str = "") -> str:
    """Return a bracket with ``more`` about the first case, and the number of other cases."""
    first = places[0][1]
    others = len({place for _, place in places} - {first})
    words = [" of ".join(filter(None, [more, names[first] if len(names) > 1 else ""]))]
    words += [f"{plural(others, 'other case')} too"] if others else []
    return f" ({'; '.join(filter(None, words))})" if any(words) else ""


def _doubts(cases: Sequence[CaseFindings], names: Sequence[str]) -> list[str]:
    rules = _by_rule(cases, "trust")
    firsts = [(entries[0][0], _where(entries, names)) for entries in rules]
    return [f"{first.sentence.removesuffix('.')}{where}. {first.hint}" for first, where in firsts]


def _unchecked_notes(cases: Sequence[CaseFindings], names: Sequence[str]) -> list[str]:
    cases_by_item: dict[str, list[str]] = {}
    for case, name in zip(cases, names, strict=True):
        for item in case.unchecked:
            cases_by_item.setdefault(item.partition(" (")[0], []).append(name)
    texts = []
    for part, case_names in cases_by_item.items():
        where = few_names(case_names) if len(case_names) < len(cases) else "any case"
        texts.append(f"{part} of {where}" if len(cases) > 1 else part)
    return [f"Not looked at: {listing(texts)}."] if texts else []


def _case_tables(cases: Sequence[CaseFindings], top: int | None) -> Iterator[Table | str]:
    for case in cases:
        head, (name,) = distinguish([case.case])
        table = findings_table(case.findings, top, case.reason)
        notes = [f"Not looked at (of {name}): {listing(case.unchecked)}."] if case.unchecked else []
        yield replace(table, title=f"{head} · {name}", notes=[*table.notes, *notes])


def findings_table(findings: Sequence[Finding], top: int | None = None, reason: str = "") -> Table:
    """Return a table of one case's findings about time; ``reason`` explains an empty one."""
    rows = []
    for number, finding in enumerate([finding for finding in findings if finding.about == "time"][:top], 1):
        won = gain(finding, findings)
        about = f"{_gain_text(finding)} could be won · {finding.code}" if won else finding.code
        sentence = f"{finding.sentence.removesuffix('.')} ({about})."
        rows += [Line(str(number), (percent(won) if won else "", plain(sentence)))]
        rows += [Line("", ("", plain(_hint(finding))), style="dim")]
    doubts = [f"{finding.sentence} {finding.hint}" for finding in findings if finding.about == "trust"]
    silent = () if rows else (reason or "No rule has anything to say.",)
    return Table("", "", COLUMNS, rows, notes=doubts, sentences=silent)


def _gain_text(finding: Finding) -> str:
    """Return ``at most 1.30 of the 11.8 ms``."""
    return f"at most {duration(finding.seconds)} of the {duration(finding.whole)}"


def _hint(finding: Finding) -> str:
    return finding.hint if finding.hint.startswith("Try ") else f"Try: {finding.hint}"


def _object(case: CaseFindings, top: int | None) -> dict[str, Any]:
    about = {"status": case.case.profile.status, "reason": case.reason, "not_looked_at": case.unchecked}
    return {**case.case.data, **about, "findings": case.findings[:top]}


def _rows(cases: Sequence[CaseFindings], top: int | None) -> Iterator[dict[str, object]]:
    for case in cases:
        for place, finding in enumerate(case.findings[:top], 1):
            numbers = msgspec.json.encode(finding.numbers).decode()
            yield {**case.case.fields, "place": place, **msgspec.to_builtins(finding), "evidence": numbers}
