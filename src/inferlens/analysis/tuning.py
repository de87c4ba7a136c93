"""How a tuning ended: what it found, kept beside its rounds, and read again without measuring.

``trials.jsonl`` has the records, a line for each round; ``tuned.json`` beside it what follows from them and from what
could be tried there. Both are read strictly: a tuning of which a part is broken is refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from inferlens.analysis.measures import AccuracyScore, accuracy_of, measure_value, score_accuracy
from inferlens.analysis.race import FinalsAim, RaceAnswer, race
from inferlens.analysis.samples import CaseRuns
from inferlens.errors import InferlensError, check_choice
from inferlens.record.display import Struct
from inferlens.record.files import decoded, files_under, plain_or_packed, read_unpacked, write_whole
from inferlens.record.record import Record
from inferlens.record.store import BEST, RECORD, TRIALS, TUNING, of_a_tuning
from inferlens.spec.case import Case
from inferlens.spec.objective import MEASURES, Constraint, Objective

SCHEMA = "inferlens.tuned/1"
REPORT = "tuned.json"
WINNER = "winner"
AGAIN = "the same 'inferlens tune', which goes on where it was"
Factor = Annotated[float, Meta(gt=0, lt=1e12)]
Seconds = Annotated[float, Meta(gt=-1e9, lt=1e9)]


class Trial(Struct, frozen=True, kw_only=True):
    """A round: the records of its processes; those of finalists are ``final``, after so much ``budget``."""

    records: tuple[Record, ...]
    final: bool = False
    seconds: float = 0.0
    budget: float = 0.0


class Effect(Struct, frozen=True, kw_only=True):
    """What a setting does in the winner's family: how many times faster it is with it, from ``low`` to ``high``.

    ``None`` where rounds do not tell it. ``chosen`` are those that the winner has. The intervals of all settings hold
    at once with a probability of 95 %. ``build`` is how many seconds longer the build takes with it, where a candidate
    was built with and without it.
    """

    setting: str
    speedup: Factor | None = None
    low: Factor | None = None
    high: Factor | None = None
    build: Seconds | None = None
    chosen: bool = True


class Candidate(Struct, frozen=True, kw_only=True):
    """What was tried, and what the search knows of it.

    Attributes:
        settings: what tells it from its family, such as ``threads=2``.
        speedup: how many times as fast as the winner it is, from ``low`` to ``high``, by all rounds of the search;
            ``None`` where it was not timed.
        out: why it could not win: how it failed, what is wrong with its outputs, or which limit it breaks.
    """

    record: str
    settings: tuple[str, ...] = ()
    speedup: Factor | None = None
    low: Factor | None = None
    high: Factor | None = None
    out: str = ""
    final: bool = False


class Advice(Struct, frozen=True):
    """What of the winner paid: its ``settings`` helped ``against`` the bottleneck of another ``way``.

    ``speedup`` is how many times as fast as that one the winner is.
    """

    settings: str
    against: str
    way: str
    speedup: Factor


class SkippedCandidate(Struct, frozen=True, kw_only=True):
    """A backend or precision that was not tried: ``why``, and the words that would have it tried, if there are any.

    Without a reason it was left out because the request said so.
    """

    name: str
    why: str = ""
    hint: str = ""


class TuningReport(Struct, frozen=True, kw_only=True):
    """How a tuning ended."""

    schema: str = SCHEMA
    objective: Objective
    constraints: tuple[Constraint, ...] = ()
    trials: tuple[Trial, ...] = ()  # its rounds, which are kept in a file of their own
    answer: RaceAnswer  # which of the finalists is best; ``best``: its case, if anything ran right
    best: Case | None
    candidates: tuple[Candidate, ...]  # all that were measured, the best first
    effects: tuple[Effect, ...]
    size: Annotated[int, Meta(ge=0)]
    untried: tuple[SkippedCandidate, ...]
    over: bool  # whether the search ended by itself; else its time was over
    seconds: Annotated[float, Meta(ge=0, lt=1e9)]
    missed: tuple[str, ...] = ()  # the constraints that even the answer breaks, in words
    folder: str = ""  # where the winner lies, ready to be used; empty where it is not there
    advice: tuple[Advice, ...] = ()  # which advice of profiles paid

    @property
    def final_records(self) -> tuple[Record, ...]:
        """The records of the finalists' rounds, the answer's and no others'; as of one run, if there were several."""
        found = [record for trial in self.trials if trial.final for record in trial.records]
        return tuple(replace(record, run=found[0].run) for record in found)

    @property
    def aim(self) -> FinalsAim:
        """What the finals were about."""
        digests = {record.id: record.case.digest for trial in self.trials for record in trial.records}
        barred = (digests[candidate.record] for candidate in self.candidates if candidate.final and candidate.rejection)
        return FinalsAim(self.objective, frozenset(barred))

    @property
    def candidate_count(self) -> int:
        """How many candidates were measured."""
        return len(self.candidates)

    @property
    def fastest(self) -> tuple[Case, ...]:
        """The cases that the answer names: the winner, or all that are equally good."""
        named = {record.id: record.case for trial in self.trials for record in trial.records}
        return tuple(named[item] for item in self.answer.fastest)

    @property
    def runs_by_case(self) -> dict[str, CaseRuns]:
        """All that was measured of each case, by its digest."""
        return _group_by_case([*self.searched, *self.final_records])

    @property
    def searched(self) -> tuple[Record, ...]:
        """The records of the search."""
        return tuple(record for trial in self.trials if not trial.final for record in trial.records)


class CandidateFacts(Struct, frozen=True, kw_only=True):
    """What is known of a candidate, in the units of the measures.

    Attributes:
        objective: what is to be best: of the winner as it was in the finals, and of others by how they compare with it,
            finalists in the finals and the rest in the search. So nothing of it is what a machine did to other rounds.
        memory: the most of its processes that did not export, which takes more than any call does.
        build: the longest.
        accuracy: what its answers are score_accuracy, in ``metric``; ``None`` where that is not known.
        came: what came of it, in a few words, or why it could not win.
    """

    case: Case
    candidate: Candidate
    objective: float | None
    error: float | None
    memory: float | None
    build: float | None
    came: str
    metric: str = ""
    accuracy: AccuracyScore | None = None


def facts_of(tuning: TuningReport) -> list[CandidateFacts]:
    """What is known of each candidate, in their order, the winner first."""
    every, finals = tuning.runs_by_case, _group_by_case(tuning.final_records)
    digests = {record.id: digest for digest, runs in every.items() for record in runs.records}
    named = {digests[one]: one for one in (*tuning.answer.fastest, *tuning.answer.open)}
    winner = tuning.best.digest if tuning.best else ""
    meeting = race(finals, aim=tuning.aim)
    known = measure_value(finals[winner], tuning.objective.name) if winner in finals else None
    cost = tuning.objective.measure.cost
    found = []
    for candidate in tuning.candidates:
        digest, times = digests[candidate.record], 1 / candidate.speedup if candidate.speedup else None
        ahead = meeting.difference(winner, digest) if winner in meeting.entries and digest in meeting.entries else None
        times = 1.0 if digest == winner else ahead.ratio if ahead else times
        real = accuracy_of(every[digest])
        facts = CandidateFacts(
            case=every[digest].first.case,
            candidate=candidate,
            objective=cost(cost(known) * times) if known and times else None,
            error=measure_value(every[digest], "error"),
            memory=measure_value(every[digest], "memory"),
            build=measure_value(every[digest], "build"),
            outcome=WINNER if digest == winner else _outcome(candidate, tuning, named.get(digest, "")),
            metric=real.metric if real else "",
            accuracy=score_accuracy(real),
        )
        found.append(facts)
    return sorted(found, key=lambda candidate_facts: candidate_facts.outcome != WINNER)


def _outcome(candidate: Candidate, tuning: TuningReport, answer_id: str) -> str:
    """What came of a candidate that is not the winner; ``finalist`` is the id that the answer knows it by."""
    fast = tuning.objective.name.startswith(("latency", "throughput"))
    alike, worse = ("as fast", "slower") if fast else ("as good", "worse")
    if candidate.rejection:
        return candidate.rejection
    if candidate.final:
        where = (
            alike
            if answer_id in tuning.answer.fastest
            else "not told apart"
            if answer_id in tuning.answer.open
            else worse
        )
        return f"{where} in the finals"
    return worse if candidate.high is not None and candidate.high < 1 else f"about {alike}" if candidate.speedup else ""


def _group_by_case(records: Sequence[Record]) -> dict[str, CaseRuns]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.case.digest, []).append(record)
    return {digest: CaseRuns(tuple(item)) for digest, item in found.items()}


def save_tuning(tuning: TuningReport, folder: Path) -> None:
    """Writes how it ended beside its rounds."""
    data = msgspec.json.encode(replace(tuning, trials=(), folder=""))
    write_whole(folder / REPORT, msgspec.json.format(data, indent=1) + b"\n")


def find_tunings(paths: Sequence[Path]) -> list[Path]:
    """The folders of the tunings that paths mean: themselves, or those in folders in which there is nothing else."""
    found = []
    for path in paths:
        if path.name == REPORT and path.is_file():
            found.append(path.parent)
        elif plain_or_packed(path / TRIALS).is_file() or (path / REPORT).is_file():
            found.append(path)
        elif all(of_a_tuning(file, path) for file in files_under(path, RECORD)) and tunings_under(path):
            found += tunings_under(path)
        else:
            return []
    return found


def tunings_under(path: Path) -> list[Path]:
    """The folders of tunings in a folder, at any depth."""
    return [file.parent for file in files_under(path, TRIALS) if file.parent.name == TUNING]


def load_tuning(folder: Path) -> TuningReport:
    """Return how a tuning ended, with its rounds. Raises InferlensError if it is not over, or a file is broken."""
    try:
        data = (folder / REPORT).read_bytes()
        lines = read_unpacked(plain_or_packed(folder / TRIALS)).split(b"\n")
    except FileNotFoundError as error:
        raise InferlensError(f"The tuning in {folder} is not over.", hint=AGAIN) from error
    except OSError as error:
        raise InferlensError(f"The tuning in {folder} cannot be read: {error.strerror}.", hint=AGAIN) from error
    try:
        tuned = decoded(data, TuningReport, SCHEMA, "tuning")
        trials = tuple(msgspec.json.decode(line, type=Trial) for line in lines[1:] if line)
        for name in (tuned.objective.name, *(limit.name for limit in tuned.constraints)):
            check_choice("measure", name, MEASURES)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InferlensError(f"{folder / TRIALS} is broken: {error}.", hint=AGAIN) from error
    except InferlensError as error:
        raise InferlensError(f"{folder / REPORT} is broken. {error.sentence}", hint=AGAIN) from error
    best = Path(os.path.normpath(folder / ".." / BEST))
    tuned = replace(tuned, trials=trials, folder=str(best) if best.is_dir() else "")
    known = {record.id for trial in trials for record in trial.records}
    finals = [record.case for record in tuned.final_records]
    named = {candidate.record for candidate in tuned.candidates} | {*tuned.answer.fastest, *tuned.answer.open}
    if not named <= known or bool(tuned.best) != bool(tuned.answer.best) or (tuned.best and tuned.best not in finals):
        raise InferlensError(f"{folder / REPORT} is not about the rounds in {TRIALS} beside it.", hint=AGAIN)
    return tuned
