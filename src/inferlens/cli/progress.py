"""Shows a plan under way on standard error: a bar on a terminal, a line per case elsewhere.

Nothing is drawn by a timer: a redraw happens when a case reports, a few times a second at most, so that the processor
belongs to what is being measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from inferlens import units
from inferlens.analysis.compare.ab_result import ABResult
from inferlens.analysis.interference.samples import finite, latencies
from inferlens.execution.expand import Planned
from inferlens.execution.protocol import Observer
from inferlens.record.record import PhaseName, Record
from inferlens.spec.case import Case
from inferlens.stats.quantiles import median
from inferlens.views.speedups import refuse_unknown

BEFORE_STEADY: dict[PhaseName, str] = {"load": "loading", "export": "exporting", "build": "building"}


class Bar(Observer):
    """An observer that draws, and keeps the records, so that those of an interrupted plan are not lost.

    A plan of which no case fits the ``reference`` that the table is to be relative to is refused.
    """

    def __init__(self, console: Console, reference: str | None = None) -> None:
        self.records: list[Record] = []
        self._console = console
        self._reference = reference
        self._cases = 0
        self._done = 0
        self._label = ""
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
        quiet = not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=quiet)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, cases: Sequence[Planned]) -> None:
        """See :class:`Observer`."""
        refuse_unknown([planned.case for planned in cases], self._reference)
        self._cases = len(cases)
        self._bar.update(self._task, total=self._cases)
        for found in {planned.found.spec: planned.found for planned in cases}.values():
            if found.asked not in ("", found.spec):
                self._say(f"{found.asked} is {found.spec}.")

    def doing(self, what: str) -> None:
        """See :class:`Observer`."""
        self._draw(what)

    def began(self, case: Case) -> None:
        """See :class:`Observer`."""
        self._label = case.label
        self._draw(f"{self._label}: starting")

    def phase(self, name: PhaseName) -> None:
        """See :class:`Observer`."""
        self._draw(f"{self._label}: {BEFORE_STEADY.get(name, name)}")

    def progress(self, share: float) -> None:
        """See :class:`Observer`."""
        self._draw(f"{self._label}: measuring", share)

    def done(self, record: Record, folder: Path) -> None:  # noqa: ARG002 - where it lies is said once, at the end
        """See :class:`Observer`."""
        self.records.append(record)
        self.ended(record.model.name, record.case, ending(record))

    def ended(self, model: str, case: Case, how: str) -> None:
        """A case is over; ``how`` is told in a few words."""
        self._done += 1
        if not self._console.is_terminal:
            self._say(f"[{self._done}/{self._cases}] {model} {case.label}: {how}")
        self._draw("")

    def _draw(self, what: str, share: float = 0.0) -> None:
        self._bar.update(self._task, description=escape(what), completed=self._done + share)
        if self._console.is_terminal:
            self._bar.refresh()

    def _say(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)


def ending(record: Record) -> str:
    """How a case ended, in a few words."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    latency, calls = latencies(record).samples, finite(record, "throughput")
    told = units.duration(median(latency)) if latency else f"{units.rate(median(calls))} calls/s" if calls else "done"
    wrong = record.agreement is not None and record.agreement.agrees is False
    return f"{told}{', but its outputs are wrong' if wrong else ''}"


class RoundsBar(Bar):
    """A bar that is told after each round how it stands."""

    last: ABResult | None = None

    def looked(self, so_far: ABResult) -> None:
        """A round is over."""
        self.last = so_far
        if so_far.ratio is not None:
            self._say(f"[round {so_far.rounds}, of {self._cases // 2} at most] {so_far.standing}")
