"""The progress of a plan on standard error: a line for each finished case, and on a terminal a bar below them.

Nothing is drawn by a timer: a redraw happens when a case reports, a few times a second at most, so that the processor
belongs to what is being measured. A pipe gets whole lines of plain text.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from inferlens import units
from inferlens.analysis.ab_result import ABResult, ABSteps
from inferlens.analysis.samples import latencies, steady_samples
from inferlens.errors import one_line, printable
from inferlens.execution.protocol import Observer, PlannedCase
from inferlens.execution.race import may_meet
from inferlens.record.record import IN_TURNS, PhaseName, Record
from inferlens.spec.case import AXES, Case, short_name, shown_together
from inferlens.stats.samples import median
from inferlens.views.table import cut_end

BEFORE_STEADY: dict[PhaseName, str] = {"load": "loading", "export": "exporting", "build": "building"}


class Elapsed(ProgressColumn):
    """The time so far. The column of rich stops when all cases are done, before their rounds."""

    def render(self, task: Task) -> Text:
        return Text(str(timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")


class Bar(Observer):
    """An observer that draws, and keeps the records, so that those of an interrupted plan are not lost.

    ``rounds`` says whether those of the planned cases that do the same work meet in rounds once each is over, and
    ``profiles`` whether each is profiled once it is over.
    """

    foresees = True  # whether the planned cases will all be measured, so that their time can be told

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        *,
        rounds: bool = False,
        profiles: bool = False,
    ) -> None:
        self.records: list[Record] = []
        self._console = console
        self._clock = clock
        self._rounds = rounds
        self._profiles = profiles
        self._since = clock()
        self._cases: list[PlannedCase] = []
        self._left: Counter[str] = Counter()  # how often each case is yet to end, by its digest; less than 0 in rounds
        self._done = 0
        self._seconds: dict[str, float] = {}  # that each case took, by its digest
        self._best: dict[object, tuple[float, int]] = {}  # of each comparison: the least latency, of how many
        self._label = ""
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), Elapsed())
        quiet = not console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=quiet)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, cases: Sequence[PlannedCase]) -> None:
        self._cases, self._since, self._done = list(cases), self._clock(), 0
        self._left = Counter(planned.case.digest for planned in cases)
        self._bar.update(self._task, total=len(cases))
        for model_info in {planned.model.spec: planned.model for planned in cases}.values():
            if model_info.argument not in ("", model_info.spec):
                self._say(f"{model_info.argument} is {model_info.spec}.")

    def doing(self, what: str) -> None:
        self._draw(what)

    def part(self, name: str) -> None:
        self._say(f"{name}:")

    def began(self, case: Case) -> None:
        self._label = self._short(case)
        self._draw(f"{self._label}: starting")

    def phase(self, name: PhaseName) -> None:
        self._draw(f"{self._label}: {BEFORE_STEADY.get(name, name)}")

    def progress(self, share: float) -> None:
        self._draw(f"{self._label}: measuring", share)

    def done(self, record: Record, folder: Path) -> None:  # noqa: ARG002 - where it lies is said once, at the end
        self.records.append(record)
        alone = record.status == "ok" and IN_TURNS not in record.facts  # what takes turns ends all at once
        self.ended(record.case, ending(record), ran=alone, best=self._is_best(record))

    def discarded(self, records: Sequence[Record]) -> None:
        gone = {record.id for record in records}
        self.records = [record for record in self.records if record.id not in gone]

    def reused(self, records: Sequence[Record], folders: Mapping[str, Path]) -> None:  # noqa: ARG002
        self.records += records
        for digest in {record.case.digest for record in records}:
            self._left[digest] -= 1
            self._done += 1

    def unused(self, records: Sequence[Record]) -> None:
        self.discarded(records)
        for digest in {record.case.digest for record in records}:
            self._left[digest] += 1
            self._done -= 1

    def remark(self, text: str) -> None:
        self._say(text)

    def ended(self, case: Case, how: str, *, ran: bool = True, best: bool = False) -> None:
        """Say that a case is over, and ``how`` in a few words. Cases of later rounds are not said one by one."""
        self._left[case.digest] -= 1
        if self._left[case.digest] < 0:
            return
        self._done += 1
        now = self._clock()
        if ran:
            self._seconds[case.digest] = now - self._since
        self._since = now
        meet = self._rounds and may_meet(self._cases)
        left = self._seconds_left(first_counts=not meet and not self._profiles)
        then = ", then rounds" * meet
        remarks = ["best so far"] * best + ([f"{units.about(left)} left{then}"] if left else [])
        place = f"[{self._done}/{len(self._cases)}]"
        self._say(f"{place} {self._short(case)} {one_line(how)}" + (f"  ({'; '.join(remarks)})" if remarks else ""))
        self._draw("")

    def round(self, number: int, contenders: Sequence[Case], standing: str, finals: int = 0) -> None:
        of = f" of {finals}" if number <= finals else ""
        case, works = contenders[0], {planned.case.work for planned in self._cases}
        named = f"{case.model.rpartition(':')[2]} {case.sizes_label}".rstrip()
        race = f"{named}, " if len(works) > 1 else ""
        self._say(f"{race}{'final ' if finals else ''}round {number}{of}: {standing}")

    def _seconds_left(self, *, first_counts: bool) -> float:
        """Return the seconds of the cases to come, from those that are over; 0 if they are not known.

        Without ``first_counts`` the first case tells nothing: others loaded and built meanwhile, or it is profiled yet.
        """
        seconds = self._seconds
        able = {planned.case.digest for planned in self._cases if not planned.refusal}
        coming = [digest for digest in (+self._left).elements() if digest in able]
        if not self.foresees or len(seconds) <= (not first_counts):
            return 0.0
        took = [*seconds.values()]
        typical = mean(took[1:] or took)  # the reference is computed in the first's time, and others load
        return sum(seconds.get(digest, typical) for digest in coming)

    def _is_best(self, record: Record) -> bool:
        """Return whether no other case of the same work was as fast so far, of two at least."""
        case, seconds = record.case, latencies(record).for_median
        if record.status != "ok" or not seconds or (record.agreement and record.agreement.agrees is False):
            return False
        least, count = self._best.get(case.work, (float("inf"), 0))
        latency = median(seconds)
        self._best[case.work] = (min(least, latency), count + 1)
        return count > 0 and latency < least

    def _short(self, case: Case) -> str:
        """Return the case by what differs from the others of the plan."""
        cases = [planned.case for planned in self._cases]
        words = [short_name(case.model)] if len({case.model for case in cases}) > 1 else []
        varied = [axis for axis in AXES if len({getattr(case, axis.name) for case in cases}) > 1]
        case = shown_together([case, *cases])[0]
        sizes = [
            f"{name} {size}" for name, size in case.sizes.items() if len({case.sizes.get(name) for case in cases}) > 1
        ]
        values = ", ".join([*(word for axis in varied for word in axis.words(case)), *sizes])
        return " ".join(filter(None, [*words, case.backend_label, values, case.options_label]))

    def _draw(self, what: str, share: float = 0.0) -> None:
        if self._console.is_terminal:
            done = min(self._done + share, len(self._cases) or 1)
            self._bar.update(self._task, description=escape(cut_end(what, self._console.width // 2)), completed=done)
            self._bar.refresh()

    def _say(self, text: str) -> None:
        self._console.print(escape(printable(text)), soft_wrap=True)


def ending(record: Record) -> str:
    """Return how a case ended, in a few words."""
    if record.status != "ok":
        return f"{record.status}: {record.reason}"
    latency, calls = latencies(record).for_median, steady_samples(record, "throughput").for_median
    speed = units.latency(median(latency)) if latency else f"{units.rate(median(calls))} calls/s" if calls else "done"
    agreement = record.agreement
    wrong = agreement is not None and agreement.agrees is False
    word = ", state lost" if agreement and agreement.state == "lost" else ", outputs wrong"
    return speed + word * wrong


class RoundsBar(Bar):
    """A bar with the standing after each round."""

    foresees = False
    last: ABResult | ABSteps | None = None

    def update(self, so_far: ABResult | ABSteps) -> None:
        """Show the standing after a round."""
        self.last = so_far
        now = so_far.steps[-1] if isinstance(so_far, ABSteps) else so_far
        if now.ratio is not None:
            self._say(f"round {now.rounds}: B is {now.ratio_text}")
