"""Traces that ``inferlens profile --torch-profiler`` takes: each case as it is over, then a table of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from inferlens.execution.trace import Traced
    from inferlens.spec.plan import Plan


def refuse(words: Mapping[str, Any], how: str) -> None:
    """Refuses options that mean nothing ``with`` or ``without`` --torch-profiler.

    Raises:
        InferlensError: for the first that was given.
    """
    from inferlens.errors import InferlensError

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

    given = {name: value for name, value in wanted.items() if value is not None}
    folder = given.pop("tensorboard", None)
    every = []
    with Bar(screen.errors()) as bar:
        for made in run(plan, tracing_of(**given), folder, bar):
            every.append(made)
            bar.ended(made.model, made.case, _ending(made))
    console = screen.output()
    console.print(table(every, folder))
    for sentence in notes(every):
        console.print(sentence, markup=False, style="dim", soft_wrap=True)
    taken = [made for made in every if made.files]
    if not taken:
        raise typer.Exit(1)
    for line in commands(taken, folder):
        screen.note(line)


def table(every: Sequence[Traced], tensorboard: Path | None) -> Table:
    """A row for each case: what a step and an ordinary call took, and its trace."""
    from rich.markup import escape
    from rich.table import Table

    from inferlens.units import byte_count, milliseconds, ratio
    from inferlens.views.plain import plain

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("case")
    for title in ("step\nms", "untraced\nms", "cost\n", "events\n", "size\n"):
        drawn.add_column(title, justify="right")
    drawn.add_column("trace", overflow="fold")
    several = len({made.model for made in every}) > 1
    for made in every:
        label = f"{made.model} {made.case.label}" if several else made.case.label
        size = byte_count(sum(file.stat().st_size for file in made.files)) if made.files else ""
        events = f"{sum(each.events for each in made.shown):,}" if made.shown else ""
        times = (milliseconds(made.step), milliseconds(made.untraced), ratio(made.cost))
        folders = made.files if tensorboard is None else dict.fromkeys(file.parent for file in made.files)
        place = "\n".join(map(str, folders)) or made.status
        drawn.add_row(*(escape(plain(text)) for text in (label, *times, events, size)), escape(place))
    return drawn


def notes(every: Sequence[Traced]) -> list[str]:
    """What traces do not show, why there are none, and what else must be known of a case; a sentence each."""
    from inferlens.views.plain import plain

    found: dict[str, None] = {}
    for made in every:
        texts = [f"{each.message} {each.advice}" for each in made.warnings]
        texts += [note for each in made.shown for note in each.notes]
        if made.status != "ok":
            hint = f" Try: {made.hint}" if made.hint else ""
            log = f" What it printed: {made.log}" if made.log else ""
            texts.append(f"{made.reason or made.status}{hint}{log}")
        found |= dict.fromkeys(f"{made.case.label}: {text}" for text in texts)
    return [plain(text) for text in dict.fromkeys([*found, *(made.unseen for made in every)]) if text]


def commands(taken: Sequence[Traced], tensorboard: Path | None) -> list[str]:
    """What to type to look at the traces."""
    first, last = (_one(made, tensorboard) for made in (taken[0], taken[-1]))
    lines = [f"Look at them:  inferlens trace {first}"]
    if first != last:
        lines.append(f"Compare two:   inferlens trace {first} --against {last}")
    if tensorboard:
        lines.append(f"TensorBoard:   tensorboard --logdir {tensorboard}   (with torch-tb-profiler installed)")
    return [*lines, "Perfetto:      drop a file on https://ui.perfetto.dev"]


def _one(made: Traced, tensorboard: Path | None) -> str:
    """A case's first trace, as short as a shell takes it."""
    file = made.files[0]
    return f"{file.parent}/*.gz" if tensorboard and len(made.files) == 1 else str(file)


def _ending(made: Traced) -> str:
    from inferlens.units import duration

    return f"a step took {duration(made.step)}" if made.status == "ok" else f"{made.status}: {made.reason}"
