"""Several tunings as one screen: an answer and rows for each model and batch size, and where the winners lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferlens.units import duration, plural
from inferlens.views.answer import answers
from inferlens.views.plain import plain
from inferlens.views.raced import tuned as one
from inferlens.views.records import LINES, WIDTH
from inferlens.views.records import document as of_records
from inferlens.views.renderers import terminal
from inferlens.views.rows import rows
from inferlens.views.table import Document, Table, chosen

if TYPE_CHECKING:
    from inferlens.execution.tuning.tune import Tuned

SCHEMA = "inferlens.tunings/1"


def document(every: Sequence[Tuned]) -> Document:
    """What there is to show of tunings; of a single one all of it."""
    if len(every) == 1:
        return one.document(every[0])
    records = [record for tuned in every for record in tuned.finals]

    def screen() -> Sequence[Table | str]:
        for most in range(len(records), 0, -1):
            blocks = [*(of_records(records, top=most).screen or list)(), *sentences(every)]
            if terminal.height(chosen(blocks, None), WIDTH) <= LINES:
                return blocks
        return [*(each.brief for each in answers(rows(records), whole=True)), *sentences(every)]

    return Document(
        blocks=lambda: [*(each for each in of_records(records).blocks() if records), *sentences(every)],
        data=lambda: {"schema": SCHEMA, "tunings": [one.document(tuned).data() for tuned in every]},
        csv=of_records(records).csv,
        title=of_records(records).title,
        screen=screen,
    )


def sentences(every: Sequence[Tuned]) -> list[str]:
    """What was tried in all, and where each winner lies."""
    tried, size = (sum(getattr(tuned, name) for tuned in every) for name in ("tried", "size"))
    said = [f"{_name(tuned)}: nothing keeps all limits. {plain(tuned.missed[0])}" for tuned in every if tuned.missed]
    said += [f"{_name(tuned)}: nothing ran with right outputs." for tuned in every if not tuned.best]
    ended = "" if all(tuned.over for tuned in every) else ", until the time was over: more with --budget"
    took = duration(sum(tuned.seconds for tuned in every))
    said.append(f"Tried {tried:,} of {plural(size, 'candidate')} in {took}{ended}.")
    folders = [plain(tuned.folder) for tuned in every if tuned.folder]
    if folders:
        others = f" · The others: {', '.join(folders[1:])}" if folders[1:] else ""
        said.append(f"Use one: inferlens.load('{folders[0]}'){others}")
    return said


def _name(tuned: Tuned) -> str:
    """What it is of."""
    record = tuned.trials[0].records[0]
    return plain(f"{record.model.name}, batch {record.case.batch}" if record.case.batch else record.model.name)
