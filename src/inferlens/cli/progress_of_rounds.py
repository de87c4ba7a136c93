"""Shows two cases that are measured in turns: the bar of ``progress``, and after each round how it stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from inferlens.analysis.compare.ab_result import ABResult
from inferlens.cli.progress import Bar, ending
from inferlens.execution.expand import Planned
from inferlens.record.record import Record
from inferlens.spec.case import Case


class RoundsBar(Bar):
    """An observer that draws, and is told after each round."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.last: ABResult | None = None
        self._rounds = 0
        self._first = ""

    def planned(self, cases: Sequence[Planned]) -> None:
        """See :class:`inferlens.execution.protocol.Observer`."""
        super().planned(cases)
        self._rounds = len(cases) // 2
        self._first = cases[0].case.digest

    def began(self, case: Case) -> None:
        """See :class:`inferlens.execution.protocol.Observer`."""
        self._label = self._side(case)  # the command line says which is which, and the bar has one line
        self._draw(f"{self._label}: starting")

    def done(self, record: Record, folder: Path) -> None:
        """See :class:`inferlens.execution.protocol.Observer`."""
        if self._console.is_terminal:
            super().done(record, folder)
            return
        self._say(f"[round {record.repeat + 1}] {self._side(record.case)} {record.case.label}: {ending(record)}")

    def looked(self, duel: ABResult) -> None:
        """A round is over."""
        self.last = duel
        if not self._console.is_terminal and duel.ratio is not None:
            self._say(f"[round {duel.rounds}, of {self._rounds} at most] {duel.standing}")

    def _draw(self, what: str, share: float = 0.0) -> None:
        found = self.last.interval if self.last else None
        standing = f"B/A {self.last.ratio:.3f} ({found.low:.3f} to {found.high:.3f})" if self.last and found else ""
        super()._draw("; ".join(part for part in (standing, what) if part), share)

    def _side(self, case: Case) -> str:
        return "A" if case.digest == self._first else "B"

    def _say(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)
