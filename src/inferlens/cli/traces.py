"""Traces that ``inferlens profile --torch-profiler`` takes: each case as it is over, then a table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from inferlens.errors import InferlensError
from inferlens.units import ABSENT, byte_count, duration, milliseconds, ratio

if TYPE_CHECKING:
    from inferlens.execution.trace import Traced
    from inferlens.spec.plan import Plan
    from inferlens.views.table import Table


def refuse(words: Mapping[str, Any], how: str) -> None:
    """Refuses options that mean nothing ``with`` or ``without`` --torch-profiler.

    Raises:
        InferlensError: for the first that was given.
    """
    for name, value in words.items():
        if value is not None:
            hint = "--torch-profiler too" if how == "without" else "two commands"
            raise InferlensError(f"--{name.replace('_', '-')} means nothing {how} --torch-profiler.", hint=hint)


def take(plan: Plan, wanted: Mapping[str, Any]) -> None:
    """Takes traces of every case, and says where they are and how to look at them.

    Raises:
        Exit: with code 1 if none could be taken.
        InferlensError: if the words mean nothing.
    """
    from inferlens.cli import screen
    from inferlens.cli.progress import Bar
    from inferlens.execution.trace import run, tracing_of
    from inferlens.views.table import Document

    given = {name: value for name, value in wanted.items() if value is not None}
    folder = given.pop("tensorboard", None)
    every = []
    with Bar(screen.errors()) as bar:
        for made in run(plan, tracing_of(**given), folder, bar):
            every.append(made)
            ending = f"a step took {duration(made.step)}" if made.status == "ok" else f"{made.status}: {made.reason}"
            bar.ended(made.model, made.case, ending)
    screen.document(Document(lambda: [table(every, folder)], data=dict), "table")
    taken = [made for made in every if made.files]
    if not taken:
        raise typer.Exit(1)
    for line in commands(taken, folder):
        screen.note(line)


def table(every: Sequence[Traced], tensorboard: Path | None) -> Table:
    """A row for each case: what a step and an ordinary call took, and its trace; what must be known beneath."""
    from inferlens.views.plain import plain
    from inferlens.views.table import Column, Line, Table, count, text

    columns = (
        Column("step", "step", "ms", milliseconds, 0),
        Column("untraced", "untraced", "ms", milliseconds, 2),
        Column("cost", "cost", "", ratio, 3),
        Column("shown", "events", "", lambda shown: count(sum(each.events for each in shown)) if shown else ABSENT, 4),
        Column("", "size", "", lambda made: byte_count(_size(made)), 5),
        Column("", "trace", "", lambda made: text(_place(made, tensorboard)), 1, numeric=False, fold=True),
    )
    several = len({made.model for made in every}) > 1
    labels = [f"{made.model} {made.case.label}" if several else made.case.label for made in every]
    lines = [Line.of(plain(label), columns, made) for label, made in zip(labels, every, strict=True)]
    return Table("", "case", columns, lines, notes=notes(every))


def _size(made: Traced) -> int | None:
    return sum(file.stat().st_size for file in made.files) if made.files else None


def _place(made: Traced, tensorboard: Path | None) -> str:
    """The files, or the folders that TensorBoard takes; without any, the status."""
    places = made.files if tensorboard is None else dict.fromkeys(file.parent for file in made.files)
    return " ".join(map(str, places)) or made.status


def notes(every: Sequence[Traced]) -> list[str]:
    """What traces do not show, why there are none, and what else must be known of a case; a sentence each."""
    found: dict[str, None] = {}
    for made in every:
        texts = [f"{each.message} {each.advice}" for each in made.warnings]
        texts += [note for each in made.shown for note in each.notes]
        if made.status != "ok":
            hint = f" Try: {made.hint}" if made.hint else ""
            log = f" What it printed: {made.log}" if made.log else ""
            texts.append(f"{made.reason or made.status}{hint}{log}")
        found |= dict.fromkeys(f"{made.case.label}: {text}" for text in texts)
    return [note for note in dict.fromkeys([*found, *(made.unseen for made in every)]) if note]


def commands(taken: Sequence[Traced], tensorboard: Path | None) -> list[str]:
    """What to type to look at the traces."""
    first, last = (
        f"{made.files[0].parent}/*.gz" if tensorboard and len(made.files) == 1 else str(made.files[0])
        for made in (taken[0], taken[-1])
    )
    lines = [f"Look at them:  inferlens trace {first}"]
    if first != last:
        lines.append(f"Compare two:   inferlens trace {first} --against {last}")
    if tensorboard:
        lines.append(f"TensorBoard:   tensorboard --logdir {tensorboard}   (with torch-tb-profiler installed)")
    return [*lines, "Perfetto:      drop a file on https://ui.perfetto.dev"]
