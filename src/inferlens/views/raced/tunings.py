"""Several tunings as one screen: an answer and rows for each model and batch size, and where the winners lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed

from inferlens.analysis.tuned import Tuned, facts_of
from inferlens.units import duration, plural
from inferlens.views.answer import answers
from inferlens.views.plain import plain
from inferlens.views.raced import tuned as one
from inferlens.views.records import blocks_of, fitting
from inferlens.views.records import document as of_records
from inferlens.views.rows import rows
from inferlens.views.table import Document, Table

SCHEMA = "inferlens.tunings/1"


def document(every: Sequence[Tuned], reference: str | None = None, top: int | None = None) -> Document:
    """What there is to show of tunings; of a single one all of it, ``reference`` and ``top`` as there."""
    if len(every) == 1:
        return one.document(every[0], reference, top)
    records = [record for tuned in every for record in tuned.finals]
    finals, raced = of_records(records, reference), every[0].objective.name in one.RACED

    def told() -> Sequence[Table | str]:
        """The answer of each, where tables of records do not have it."""
        said = [(_name(tuned), one.answer_of(tuned, one.finals_of(tuned))) for tuned in every]
        decide = dict.fromkeys(line for _, lines in said for line in lines[1:])  # each to be pasted as it is
        return [*(f"{name}: {lines[0]}" for name, lines in said if lines), *decide, *sentences(every)]

    def blocks() -> Sequence[Table | str]:
        met = [*_by_budget(finals.blocks() if records else ()), *sentences(every)] if raced else told()
        return [*met, *(one.tried_table(facts_of(tuned), _name(tuned)) for tuned in every)]

    def screen() -> Sequence[Table | str]:
        if not raced:
            return told()
        shown = rows(records, reference)
        tries = (
            [*_by_budget(blocks_of(shown, None, most)), *sentences(every)] for most in range(top or len(records), 0, -1)
        )
        found = next(tries) if top else fitting(tries)
        return found or [*(each.brief for each in answers(shown, whole=True)), *sentences(every)]

    return Document(
        blocks=blocks,
        data=lambda: {"schema": SCHEMA, "tunings": [one.document(tuned).data() for tuned in every]},
        csv=finals.csv,
        title=finals.title,
        screen=screen,
    )


def _by_budget(blocks: Sequence[Table | str]) -> list[Table | str]:
    """Tables of records, with what decides a tuning in place of what decides a run of them."""

    def longer(line: str) -> str:
        return f"{line.partition(':')[0]}: a longer --budget" if line.startswith("To decide") else line

    return [each if isinstance(each, str) else changed(each, answer=list(map(longer, each.answer))) for each in blocks]


def sentences(every: Sequence[Tuned]) -> list[str]:
    """What was tried in all and what was not, where each winner lies, and what to do with it."""
    tried, size = (sum(getattr(tuned, name) for tuned in every) for name in ("tried", "size"))
    said = [
        f"{_name(tuned)}: nothing keeps all limits. {plain(' '.join(tuned.missed))}" for tuned in every if tuned.missed
    ]
    said += [f"{_name(tuned)}: nothing ran with right outputs." for tuned in every if not tuned.best]
    ended = "" if all(tuned.over for tuned in every) else ", until the time was over: more with --budget"
    took = duration(sum(tuned.seconds for tuned in every))
    said.append(f"Tried {tried:,} of {plural(size, 'candidate')} in {took}{ended}.")
    in_all = [each for each in every[0].untried if all(each in tuned.untried for tuned in every)]
    in_some = dict.fromkeys(each for tuned in every for each in tuned.untried if each not in in_all)
    said += [*one.left_out(in_all), *one.left_out(list(in_some), "Not tried in some")]
    folders = [plain(tuned.folder) for tuned in every if tuned.folder]
    if folders:
        others = f" · The others: {', '.join(folders[1:])}" if folders[1:] else ""
        said.append(f"Use one: inferlens.load('{folders[0]}'){others}")
        said.append(f"Export one: inferlens export --best {folders[0]} -o deploy")
    return said


def _name(tuned: Tuned) -> str:
    """What it is of."""
    record = tuned.trials[0].records[0]
    return plain(f"{record.model.name}, batch {record.case.batch}" if record.case.batch else record.model.name)
