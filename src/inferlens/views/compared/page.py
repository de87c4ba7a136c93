"""A comparison as a page: what changed and how sure that is, each case, and what differs between the two sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from inferlens.analysis.compare.cases import Compared, Verdict, matches
from inferlens.analysis.compare.environment_diff import about
from inferlens.errors import InferlensError, MissingLibrary
from inferlens.record.record import Record
from inferlens.units import percent
from inferlens.views.compared import answer, changed, changes, document, first, headline, next_steps, table_of
from inferlens.views.picture import converter, picture
from inferlens.views.plain import plain
from inferlens.views.renderers.csv import written
from inferlens.views.report import measured
from inferlens.views.report.blocks import Block, Download, Report, Section
from inferlens.views.report.how import MOST_PACKED, environments, packed
from inferlens.views.table import Column, Line, Table

MOST_SAMPLES = 4  # changed cases of which the samples are drawn
_SPREAD = "{}: the stronger the colour, the more calls took that long; the line is the median."
_UNLIKE = "Not the same conditions, so changes are not the software's alone."
_DIFFERENT = (Column("", "base", numeric=False, fold=True), Column("", "candidate", numeric=False, fold=True),
              Column("", "cases", numeric=False))  # fmt: skip


def report(compared: Compared, base: Sequence[Record], candidate: Sequence[Record], names: Sequence[str]) -> Report:
    """The page of ``compared``; ``names`` are those of both sides, such as their folders."""
    try:
        converter()
        able: list[Block] = []
    except MissingLibrary as error:
        able = [f"Without charts: {error}"]
    sides = list(zip(("base", "candidate"), names, (base, candidate), strict=True))
    whole = replace(table_of(compared, len(compared.cases)), title="", about="")
    sections = [
        Section("answer", "Answer", list(_answer(compared))),
        Section("changes", "Changes", [*(able or _chart(compared)), whole]),
        Section("samples", "Samples", [] if able else list(_samples(compared, base, candidate))),
        Section("differences", "What else differs", _differences(compared)),
        Section("how", "How it was measured", [_side(*each) for each in sides] + [_figures(compared)]),
    ]
    models = {each.case.model for each in compared.cases}
    model = f"{models.pop().rpartition(':')[2]}: " if len(models) == 1 else ""
    return Report(f"{model}{names[1]} against {names[0]}", [each for each in sections if each.blocks])


def _answer(compared: Compared) -> Iterator[Block]:
    yield Table(headline(compared), "", (), (), answer=[answer(compared)])
    verdicts: tuple[Verdict, ...] = ("SLOWER", "FASTER")
    for verdict in verdicts:
        if found := [f"{line.full}, {line.change}" for line in changed(compared, verdict)]:
            yield f"{verdict.capitalize()}: {first(found)}."
    if compared.comparisons:
        small = percent(compared.threshold)
        yield f"All verdicts together are {percent(compared.level)} sure; changes below {small} count as none."
    if any(one.unlike for one in compared.differences):
        yield _UNLIKE
    yield from next_steps(compared)


def _chart(compared: Compared) -> list[Block]:
    try:
        return [picture("changes", changes.HOW, changes.spec(compared))]
    except InferlensError:
        return []  # no case ran on both sides


def _samples(compared: Compared, base: Sequence[Record], candidate: Sequence[Record]) -> Iterator[Block]:
    """Both sides of the cases that changed most, where latency is what is compared."""
    if compared.metric != "latency":
        return
    runs = {id(of): match for of, match in zip(compared.cases, matches(base, candidate), strict=True)}
    for number, line in enumerate(changed(compared, "SLOWER", "FASTER")[:MOST_SAMPLES], 1):
        sides = zip(("base", "candidate"), runs[id(line.of)], strict=True)
        ways = [(name, side) for name, side in sides if side and side.processes]
        yield picture(f"samples-{number}", _SPREAD.format(line.full), partial(measured.spread, ways))


def _differences(compared: Compared) -> list[Block]:
    found = [
        Line(plain(one.field), [plain(one.base), plain(one.candidate), about(one, compared.on_both).strip(" ()")],
             style="bold" if one.unlike else "")
        for one in compared.differences
    ]  # fmt: skip
    return [Table("", "what", _DIFFERENT, found)] if found else ["Nothing else that is known."]


def _side(side: str, name: str, records: Sequence[Record]) -> Section:
    blocks = [*environments(records), packed(records, side, MOST_PACKED // 2)]
    return Section(side, f"{side.capitalize()}: {plain(name)}", blocks)


def _figures(compared: Compared) -> Download:
    names, values = document(compared).csv()  # type: ignore[misc] # which it has
    return Download("compare.csv", "every number of the comparison", "text/csv", written(names, values).encode())
