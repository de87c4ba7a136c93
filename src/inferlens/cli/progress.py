"""The progress of a plan on standard error: a line for each finished case, and on a terminal a bar below them.

Nothing is drawn by a timer: a redraw happens when a case reports, a few times a second at most, so that the processor
belongs to what is being measured. A pipe gets whole lines of plain text.
"""

from __future__ import annotations

import math
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
from inferlens.record.record import IN_TURNS, PhaseName, Record
from inferlens.spec.case import AXES, Case, case_names, short_name
from inferlens.stats.samples import median
from inferlens.views.table import cut_end

BEFORE_STEADY: dict[PhaseName, str] = {"load": "loading", "export": "exporting", "build": "building"}


class Elapsed(ProgressColumn):
    """The time so far. The column of rich stops when all cases are done, before their rounds."""

    def render(self, task: Task) -> Text:
        return Text(str(timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")


class Bar(Observer):
    """An observer that draws, and keeps the records, so that those of an interrupted plan are not lost."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.records: list[Record] = []
        self._console = console
        self._clock = clock
        self._since = clock()
        self._cases: list[PlannedCase] = []
        self._left: Counter[str] = Counter()  # how often each case is yet to end, by its digest; less than 0 in rounds
        self._done = 0
        self._seconds: list[float] = []  # of each case that was measured by itself
        self._best: dict[object, tuple[float, int]] = {}  # the least latency and the number of cases of the same work
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
        alone = record.status == "ok" and IN_TURNS not in record.facts  # cases that take turns end at the same time
        self.ended(record.case, ending(record), alone=alone, best=self._is_best(record))

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

    def ended(self, case: Case, how: str, *, alone: bool = True, best: bool = False) -> None:
        """Print that a case ended, and ``how`` in a few words. Cases of later rounds have no lines."""
        self._left[case.digest] -= 1
        if self._left[case.digest] < 0:
            return
        self._done += 1
        now = self._clock()
        self._seconds += [now - self._since] * alone
        self._since = now
        remarks = "; ".join(filter(None, ["best so far" * best, self._time_left() * alone]))
        line = f"[{self._done}/{len(self._cases)}] {self._short(case)} {one_line(how)}"
        self._say(f"{line}  ({remarks})" if remarks else line)
        self._draw("")

    def round(self, number: int, contenders: Sequence[Case], standing: str, finals: int = 0) -> None:
        of = f" of {finals}" if number <= finals else ""
        case, works = contenders[0], {planned.case.work for planned in self._cases}
        named = f"{case.model.rpartition(':')[2]} {case.sizes_label}".rstrip()
        race = f"{named}, " if len(works) > 1 else ""
        self._say(f"{race}{'final ' if finals else ''}round {number}{of}: {standing}")

    def _time_left(self) -> str:
        """Return the time of the cases to come that can run. The first case does not count: it prepares the others."""
        refused = {planned.case.digest for planned in self._cases if planned.refusal}
        left = sum(count for digest, count in (+self._left).items() if digest not in refused)
        seconds = self._seconds[1:]
        return f"{units.about(left * mean(seconds))} for {units.plural(left, 'more case')}" if left and seconds else ""

    def _is_best(self, record: Record) -> bool:
        """Return whether the case is the fastest so far of at least two with the same work."""
        seconds = latencies(record).for_median
        if record.status != "ok" or not seconds or (record.agreement and record.agreement.agrees is False):
            return False
        least, count = self._best.get(record.case.work, (math.inf, 0))
        self._best[record.case.work] = (min(least, median(seconds)), count + 1)
        return count > 0 and median(seconds) < least

    def _short(self, case: Case) -> str:
        """Return the properties in which the case differs from others of the plan."""
        cases = [planned.case for planned in self._cases]
        model = [short_name(case.model)] if len({case.model for case in cases}) > 1 else []
        shared = [axis.name for axis in AXES if len({getattr(case, axis.name) for case in cases}) < 2]
        return " ".join([*model, case_names([case, *cases], *shared)[0]])

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

    last: ABResult | ABSteps | None = None

    def update(self, so_far: ABResult | ABSteps) -> None:
        """Show the standing after a round."""
        self.last = so_far
        now = so_far.steps[-1] if isinstance(so_far, ABSteps) else so_far
        if now.ratio is not None:
            self._say(f"round {now.rounds}: B is {now.ratio_text}")
