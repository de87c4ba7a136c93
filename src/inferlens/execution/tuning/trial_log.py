"""Rounds that are kept as soon as each is over, so that the same command goes on where an earlier one was stopped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
from msgspec.structs import replace

from inferlens.analysis.tuning import Trial
from inferlens.errors import InferlensError
from inferlens.execution.protocol import Observer
from inferlens.execution.scheduler import Scheduler
from inferlens.execution.survey import Named
from inferlens.models.resolve import files_of, runs_code
from inferlens.models.samples import is_code
from inferlens.models.sources import own_code
from inferlens.record.files import sha256
from inferlens.record.record import Environment, Record
from inferlens.record.store import load_records, made
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan

WORK = "work"  # in the folder of rounds, what their processes build


def place_of(scheduler: Scheduler, case: Case) -> Environment:
    """Machine and libraries, of which rounds of a case have to be; with the revision of code, where that is its own."""
    found = scheduler.environment_for(case)
    return found if case.checkout or runs_code(case.model) else replace(found, git_revision="")


def content_of(model: str, plan: Plan) -> list[str]:
    """Hashes of the files that a model's full name, and names of data, stand for: they may change under the names.

    Of code it is all Python in its folder; of a folder of data names, sizes and times.
    """
    code, data = [own_code.place(model)] if runs_code(model) else [], files_of(model)
    for name in filter(None, (plan.weights, plan.calibration, plan.accuracy)):
        if is_code(name):
            code.append(own_code.place(f"factory:{name}"))
        else:
            data.append(Path(name))
    return [*(sha256(*_python(place)) for place in code if place), *(_hash(place) for place in data if place.exists())]


def _python(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py") if place.is_dir() else place.parent.glob("*.py"))


def _hash(place: Path) -> str:
    if not place.is_dir():
        return sha256(place)
    stats = [(path, path.stat()) for path in sorted(place.rglob("*")) if path.is_file()]
    return sha256(*(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode() for path, stat in stats))


class TrialLog:
    """The file of the rounds of a tuning or a study; if the one there is about something else, its folder is renamed.

    ``about`` is what makes rounds comparable: the request, the machine, the libraries, what the model's files hold, and
    ``model`` where it is a live one. With another ``budget`` rounds go on, but for those of a tuning's finals, which
    are held anew.
    """

    def __init__(
        self, path: Path, about: Sequence[object], budget: float, model: Named | None, observer: Observer
    ) -> None:
        live = [sha256(Path(model.live))] if model and model.live else []
        first = msgspec.json.encode([*about, *live], order="deterministic")
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        if lines[0:1] != [first] and any(lines[1:]):
            aside = _renamed(path.parent)
            observer.remark(f"What another request has measured is in {aside} now.")
        made(path.parent)
        self.trials: list[Trial] = []
        with suppress(msgspec.MsgspecError):  # a round that cannot be read, and those after it, are measured again
            for line in lines[1:] if lines[:1] == [first] else ():
                self.trials.append(msgspec.json.decode(line, type=Trial))
        self.trials = [trial for trial in self.trials if not trial.final or trial.budget == budget]
        self._path, self._budget, self._observer = path, budget, observer
        fresh = path.with_suffix(".new")
        fresh.write_bytes(b"".join(line + b"\n" for line in (first, *map(msgspec.json.encode, self.trials))))
        fresh.replace(path)

    @property
    def seconds(self) -> float:
        """How long its rounds took."""
        return sum(trial.seconds for trial in self.trials)

    def add(self, trial: Trial) -> None:
        """Keeps a round."""
        trial = replace(trial, budget=self._budget)
        self.trials.append(trial)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(trial) + b"\n")
        self._observer.kept(self._path)


def _renamed(folder: Path) -> Path:
    """The folder of rounds under the next name that is free, without what a run that was stopped has left in it."""
    shutil.rmtree(folder / WORK, ignore_errors=True)
    aside = next(each for number in count(1) if not (each := folder.with_name(f"{folder.name}-{number}")).exists())
    return folder.rename(aside)


@dataclass
class TrialRounds:
    """Keeps the rounds of a race as trials; those ``before``, of an earlier run, are not repeated."""

    kept: TrialLog
    before: list[Trial]
    final: bool = False  # whether they are a tuning's finals

    def replay(self) -> Sequence[Record] | None:
        """Return the records of the next round of an earlier run; ``None`` if there is none left."""
        return self.before.pop(0).records if self.before else None

    @property
    def replays(self) -> bool:
        """Whether rounds of an earlier run are left."""
        return bool(self.before)

    def keep(self, records: Sequence[Record], seconds: float) -> None:
        """Keep a round."""
        self.kept.add(Trial(records=tuple(records), final=self.final, seconds=seconds))


def folders_of(path: Path) -> dict[str, Path]:
    """The folders of the records under a path, by their ids; none where there is no record."""
    with suppress(InferlensError):
        return load_records(path).folders
    return {}


def clear(work: Path, kept: TrialLog) -> None:
    """Removes what a run that was stopped has left, but for what finalists that were kept have built."""
    finals = {record.id for trial in kept.trials if trial.final for record in trial.records}
    wanted = {folder for name, folder in folders_of(work).items() if name in finals}
    for folder in set(work.glob("*")) - wanted:
        shutil.rmtree(folder, ignore_errors=True)
