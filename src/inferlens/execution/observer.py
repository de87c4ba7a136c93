"""Who is told what happens while a plan runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from inferlens.execution.expand import Planned
from inferlens.record.record import PhaseName, Record
from inferlens.spec.case import Case


class Observer(Protocol):
    """Told what happens while a plan runs; shows it, or does nothing."""

    def planned(self, cases: Sequence[Planned]) -> None:
        """The cases are known and will run in this order."""

    def doing(self, what: str) -> None:
        """Something other than a case is under way, such as the reference."""

    def began(self, case: Case) -> None:
        """A case begins."""

    def phase(self, name: PhaseName) -> None:
        """The case entered a phase."""

    def progress(self, share: float) -> None:
        """The share of the case's steady state that is done."""

    def done(self, record: Record, folder: Path) -> None:
        """A case is over and its record is on disk."""


class Silent:
    """Shows nothing."""

    def planned(self, cases: Sequence[Planned]) -> None: ...  # noqa: D102
    def doing(self, what: str) -> None: ...  # noqa: D102
    def began(self, case: Case) -> None: ...  # noqa: D102
    def phase(self, name: PhaseName) -> None: ...  # noqa: D102
    def progress(self, share: float) -> None: ...  # noqa: D102
    def done(self, record: Record, folder: Path) -> None: ...  # noqa: D102
