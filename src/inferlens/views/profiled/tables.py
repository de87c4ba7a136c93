"""What tables of layers, kernels and floors have in common: the rows to show, the rest of them, how they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from inferlens.views.profiled import markdown, terminal
from inferlens.views.profiled.cases import Profiled
from inferlens.views.profiled.grid import Grid

TOP = 20


class Rows(Protocol):
    """What has rows."""

    @property
    def rows(self) -> Sequence[Any]:
        """All of them."""


Table = TypeVar("Table", bound=Rows)
Row = TypeVar("Row")


@dataclass(frozen=True)
class Chosen(Generic[Table, Row]):
    """One case, its table or the sentence that says why it has none, and the rows to show, in their order."""

    case: Profiled
    table: Table | str
    rows: Sequence[Row] = ()

    @property
    def headline(self) -> str:
        """Model, device, inputs, and the case."""
        return f"{self.case.headline} · {self.case.name}"

    @property
    def rest(self) -> list[Row]:
        """The rows that are not shown."""
        shown = {id(row) for row in self.rows}
        return [] if isinstance(self.table, str) else [row for row in self.table.rows if id(row) not in shown]


def limit(top: int | None, format: str) -> int | None:
    """How many rows are shown: what was asked for, or else :data:`TOP` for people, and all for programs."""
    return TOP if top is None and format not in ("csv", "json") else top


def drawn(grids: Iterable[Grid], format: str, width: int, color: bool) -> str:
    """Tables for people: in Markdown, or for a terminal so wide."""
    return markdown.render([*grids]) if format == "markdown" else terminal.render([*grids], width, color)
