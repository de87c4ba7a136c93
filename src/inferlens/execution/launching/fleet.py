"""A fleet: a plan on several machines for several objectives, as a file has it, part after part.

A part is the plan on one machine for one objective, an ordinary run of ``bench``. Parts that are done are noted in the
output folder until all are; the same file goes on with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import inferlens
from inferlens.errors import InferlensError, check_choice
from inferlens.record.files import make_folder, sha256, write_whole
from inferlens.spec.plan import WORDS, Plan, texts, toml_words

OBJECTIVES = ("latency", "throughput")
EXPECTED = "a table such as [machines.lab] with the words of a plan that hold there, as ray = '10.0.0.5:6379'"


@dataclass(frozen=True)
class FleetPart:
    """What is measured on one machine for one objective."""

    machine: str
    objective: str
    plan: Plan


class Fleet:
    """The parts of a file, and which of them are done.

    Raises InferlensError if the file cannot be read, or a word in it means nothing.
    """

    def __init__(self, file: Path) -> None:
        words = toml_words(file, "fleet")
        for name in words:
            check_choice("word of a fleet", name, ("machines", "objectives", *sorted(WORDS)))
        machines = words.pop("machines", None)
        if (
            not isinstance(machines, dict)
            or not machines
            or not all(isinstance(each, dict) for each in machines.values())
        ):
            raise InferlensError(f"The fleet {file} names no machines.", expected=EXPECTED)
        self.objectives = tuple(dict.fromkeys(texts(words.pop("objectives", ())))) or OBJECTIVES[:1]
        for each in self.objectives:
            check_choice("objective of a fleet", each, OBJECTIVES)
        self.output = Path(str(words.pop("output", "results")))
        self.parts = [
            FleetPart(name, objective, self._plan(name, {**words, **own}, objective))
            for objective in self.objectives
            for name, own in machines.items()
        ]
        data = msgspec.json.encode([inferlens.__version__, words, machines], order="sorted")
        self._file = self.output / f".fleet-{sha256(data)[:12]}.json"
        self.done: list[str] = msgspec.json.decode(self._file.read_bytes()) if self._file.exists() else []

    def _plan(self, machine: str, words: Mapping[str, Any], objective: str) -> Plan:
        if beside := next((name for name in ("mode", "output") if name in words), None):
            raise InferlensError(f"A fleet has no '{beside}' of a machine or plan.", hint="objectives, and one output")
        try:
            plan = Plan.from_words({**words, "mode": objective, "output": str(self.folder(objective))})
            return msgspec.structs.replace(plan, recommended=True)
        except InferlensError as error:
            what = f"For the machine '{machine}', {objective}: {error.what}"
            raise InferlensError(what, expected=error.expected, hint=error.hint) from error

    def folder(self, objective: str) -> Path:
        """Where the records of an objective lie."""
        return self.output / objective

    def left(self) -> list[FleetPart]:
        """The parts that are not done."""
        return [each for each in self.parts if f"{each.machine} {each.objective}" not in self.done]

    def finish(self, part: FleetPart) -> None:
        """Notes that a part is done; of the last one, that the same file begins anew."""
        self.done.append(f"{part.machine} {part.objective}")
        if self.left():
            write_whole(make_folder(self.output) / self._file.name, msgspec.json.encode(self.done))
        else:
            self._file.unlink(missing_ok=True)
