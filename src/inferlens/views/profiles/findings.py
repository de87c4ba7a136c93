"""Findings of each case: a ranked list for people, all of them for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from inferlens.analysis.evidence import FASTER_WAY, NEGLIGIBLE, Finding, Subject
from inferlens.analysis.findings import findings, gain, importance
from inferlens.analysis.interference import mean_load, record_load
from inferlens.analysis.samples import group_by
from inferlens.record.profile import Profile
from inferlens.record.record import machine_name
from inferlens.record.store import LoadedProfiles
from inferlens.stats.samples import median
from inferlens.units import duration, percent, plural
from inferlens.views.profiles.cases import CASE_FIELDS, ProfiledCase, cases_of_level, distinguish, first_notes
from inferlens.views.rows import Row
from inferlens.views.table import Column, Document, Line, Table, plain

SCHEMA = "inferlens.findings/1"
MOST = 4  # findings on a screen
MIN_RIVALS = 2  # other backends: then another one is no new idea
COLUMNS = (Column("gain", "could win", "of call", keep=1), Column("finding", "finding", numeric=False, fold=True))
FIELDS = ("rule", "about", "subject", "sentence", "seconds", "whole", "share", "advice")


@dataclass(frozen=True)
class CaseFindings:
    """A case with its findings, or the reason for none."""

    case: ProfiledCase
    findings: tuple[Finding, ...] = ()
    reason: str = ""


def judge_cases(loaded: LoadedProfiles, rows: Sequence[Row] = ()) -> list[CaseFindings]:
    """Return the findings of every case and machine from the latest profile of each level.

    ``rows`` are of the ways that were measured, which are not advised again.
    """
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
    completed = [profile for profile in profiles if profile.status == "ok"]
    # The layers come first: their calls say what profiling cost, as in the table of layers.
    completed.sort(key=lambda profile: profile.level != "layer")
    if not completed:
        reason = case.profile.reason or f"It ended as '{case.profile.status}', and no reason is known."
        return CaseFindings(case, reason=f"{reason} {case.profile.hint}".strip())
    record = next((record for profile in completed if (record := loaded.records.get(profile.id))), None)
    return CaseFindings(case, tuple(findings(completed, record, _alternatives(case, rows))))


def _alternatives(case: ProfiledCase, rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the seconds of other backends with the same work and precision, if several or a faster one ran."""
    profile, wanted = case.profile, case.profile.case
    inputs, machine = ", ".join(map(str, profile.model.inputs)), machine_name(profile.environment)
    work = wanted.model, machine, inputs, wanted.precision, wanted.device, wanted.io, wanted.cold, wanted.rotate

    def same_work(row: Row) -> bool:
        modes = "cold" in row.call_mode, "rotating" in row.call_mode
        return work == (row.model, row.machine, row.inputs, row.precision, row.device, row.io, *modes)

    others = [row for row in rows if row.library != wanted.backend and same_work(row)]
    seconds = {row.name: row.median if row.ranked else None for row in others}
    if len({row.backend for row in others}) >= MIN_RIVALS:
        return seconds
    call = median(case.unprofiled) if case.unprofiled else 0.0
    return {name: value for name, value in seconds.items() if value and call > FASTER_WAY * value}


def findings_document(
    cases: Sequence[CaseFindings],
    *,
    top: int | None = None,
    whole: bool = False,
    most: int = MOST,
    brief: bool = False,
    measured: Sequence[Row] = (),
) -> Document:
    """Return the findings of each case; people get the few that matter most.

    Args:
        cases: the results of :func:`judge_cases`. ``top`` limits the findings of each case.
        whole: whether people see all findings.
        most: number of findings for people who ask for no number; a small terminal shows fewer.
        brief: whether headings and notes are left out.
        measured: rows of all ways. The cases that won come first.
    """
    fastest = {(row.model, row.label, row.machine) for row in measured if row.place == 1}
    cases = sorted(cases, key=lambda case: _place(case.case) not in fastest)
    leading = sum(_place(case.case) in fastest for case in cases)
    load = mean_load(record_load(case.case.record) for case in cases if case.case.record)
    shows_all = bool(whole or top)

    def blocks(most: int) -> list[Table | str]:
        tables = [case_table(case) for case in cases] if shows_all else _top_findings(cases, leading, most, brief)
        return [*tables, *filter(None, [load.sentence])]

    def case_table(case: CaseFindings) -> Table:
        head, (name,) = distinguish([case.case])
        return replace(findings_table(case.findings, top, case.reason), title=f"{head} · {name}")

    def case_data(case: CaseFindings) -> dict[str, Any]:
        about = {"status": case.case.profile.status, "reason": case.reason}
        return {**case.case.data, **about, "findings": case.findings[:top]}

    return Document(
        lambda: blocks(most),
        data=lambda: {"schema": SCHEMA, "cases": list(map(case_data, cases)), "machine_load": load},
        rows=lambda: _rows(cases, top),
        fields=(*CASE_FIELDS, "place", *FIELDS, "evidence"),
        title="Findings",
        tries=None if shows_all else lambda _: (blocks(count) for count in range(most, 0, -1)),
    )


def _place(case: ProfiledCase) -> tuple[str, str, str]:
    profile = case.profile
    return profile.case.model, profile.case.label, machine_name(profile.environment)


def _top_findings(cases: Sequence[CaseFindings], leading: int, most: int, brief: bool) -> Iterator[Table | str]:
    """Yield the main findings, each rule once, for the first case that has it."""
    if not cases:
        yield "There are no profiles to look at."
        return
    head, names = distinguish([case.case for case in cases])
    head = head if len(names) > 1 else f"{head} · {names[0]}"
    rules = _by_rule(cases, "time", leading)
    rows: list[Line] = []
    for number, entries in enumerate(rules[:most], 1):
        finding, place = entries[0]
        won = gain(finding, cases[place].findings)
        where = _where(entries, names, _gain_text(finding) if won else "")
        rows += _finding_lines(number, finding, won, where)
    failed = [f"{name}: {case.reason}" for case, name in zip(cases, names, strict=True) if case.reason]
    doubts = [
        f"{entries[0][0].sentence.removesuffix('.')}{_where(entries, names)}. {entries[0][0].hint}"
        for entries in _by_rule(cases, "trust", leading)
    ]
    notes = [] if brief else first_notes([*failed, *doubts])
    if not brief and (rest := sum(map(len, rules[most:]))):
        notes.append(f"{plural(rest, 'more finding')}: --all, or --format csv.")
    columns = [replace(column, title="", unit="") for column in COLUMNS] if brief else COLUMNS
    sentences = () if rows or brief else ("No rule has anything to say.",)  # brief documents show other tables beneath
    yield Table(head, "", columns, rows, notes=notes, sentences=sentences)


def _by_rule(cases: Sequence[CaseFindings], about: Subject, leading: int) -> list[list[tuple[Finding, int]]]:
    """Group the findings about ``time`` or ``trust`` of several cases by rule, each with its case's index.

    The first ``leading`` cases come first, then the largest effects; negligible effects come last.
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


def findings_table(findings: Sequence[Finding], top: int | None = None, reason: str = "") -> Table:
    """Return a table of one case's findings about time; ``reason`` explains an empty one."""
    rows = []
    about_time = [finding for finding in findings if finding.about == "time"]
    for number, finding in enumerate(about_time[:top], 1):
        won = gain(finding, findings)
        about = f"{_gain_text(finding)} could be won · {finding.code}" if won else finding.code
        rows += _finding_lines(number, finding, won, f" ({about})")
    doubts = [f"{finding.sentence} {finding.hint}" for finding in findings if finding.about == "trust"]
    silent = () if rows else (reason or "No rule has anything to say.",)
    return Table("", "", COLUMNS, rows, notes=doubts, sentences=silent)


def _finding_lines(number: int, finding: Finding, won: float | None, more: str) -> list[Line]:
    """Return the possible gain and the sentence with ``more`` in it, and what to try."""
    sentence = plain(f"{finding.sentence.removesuffix('.')}{more}.")
    hint = finding.hint if finding.hint.startswith("Try ") else f"Try: {finding.hint}"
    return [Line(str(number), (percent(won) if won else "", sentence)), Line("", ("", plain(hint)), style="dim")]


def _gain_text(finding: Finding) -> str:
    """Return ``at most 1.30 of the 11.8 ms``."""
    return f"at most {duration(finding.seconds)} of the {duration(finding.whole)}"


def _rows(cases: Sequence[CaseFindings], top: int | None) -> Iterator[dict[str, object]]:
    for case in cases:
        for place, finding in enumerate(case.findings[:top], 1):
            numbers = msgspec.json.encode(finding.numbers).decode()
            yield {**case.case.fields, "place": place, **msgspec.to_builtins(finding), "evidence": numbers}
