"""A tuning as a screen: the table of the finalists' rounds, what the winner's settings do, and how to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferlens.units import duration, listing, plural, ratio, ratio_range
from inferlens.views.plain import plain
from inferlens.views.records import document as of_records
from inferlens.views.table import Document, Table

if TYPE_CHECKING:
    from inferlens.execution.tuning.tune import Tuned

SCHEMA = "inferlens.tuning/1"


def document(tuned: Tuned) -> Document:
    """What there is to show of a tuning."""
    finals = of_records(tuned.finals)

    def blocks() -> list[Table | str]:
        return [*(each for each in finals.blocks() if tuned.finals), *sentences(tuned)]

    return Document(
        blocks=blocks,
        data=lambda: {
            "schema": SCHEMA,
            "best": tuned.best,
            "answer": tuned.answer,
            "rows": finals.data()["rows"],
            "effects": tuned.effects,
            "tried": tuned.tried,
            "size": tuned.size,
            "over": tuned.over,
            "missed": tuned.missed,
            "folder": tuned.folder,
        },
        csv=finals.csv,
        title=finals.title,
    )


def sentences(tuned: Tuned) -> list[str]:
    """What was tried and found, and what to do with it."""
    said = [f"Nothing keeps all limits; this comes nearest. {each}" for each in tuned.missed[:1]]
    if tuned.effects:
        each = [
            f"{plain(effect.setting)} {ratio(effect.speedup)} ({ratio_range(effect.low, effect.high)})"
            for effect in sorted(tuned.effects, key=lambda effect: -effect.speedup)
        ]
        said.append(f"What its settings do: {', '.join(each)}.")
    ended = "and none of the rest promised more" if tuned.over else "until the time was over: more with --budget"
    tried = f"Tried {tuned.tried:,} of {plural(tuned.size, 'candidate')} in {duration(tuned.seconds)}, {ended}."
    refused = sorted({plain(each.case.backend_label) for each in tuned.refused})
    lacking = f" Not here: {listing(refused[:3])}{' and more' * (len(refused) > 3)}, see --dry-run." if refused else ""
    said.append(tried + lacking)
    if tuned.folder:
        folder = plain(tuned.folder)
        said.append(f"Use it: inferlens.load('{folder}') · Repeat it: inferlens bench {folder}/best.toml")
    return said
