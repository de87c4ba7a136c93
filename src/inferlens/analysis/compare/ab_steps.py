"""Which of several changes did it: environments, in the order of the changes, each against the one before.

What changed between two neighbours whose times differ did it; what changed between two that are as fast as each other,
in whichever direction, did not.
"""

from __future__ import annotations

from typing import NamedTuple

from inferlens.analysis.compare.ab_result import ABResult
from inferlens.analysis.compare.environment_diff import Difference, sentence
from inferlens.analysis.interference.load import MachineLoad, mean_load
from inferlens.record.display import Struct
from inferlens.spec.case import shown_together
from inferlens.units import listing, percent

WORST_FIRST = (1, 4, 3, 0)


class Step(NamedTuple):
    """From one environment to the next: their names, what was found, and what is measured of the later one."""

    before: str
    after: str
    ab_result: ABResult
    figure: str


class ABSteps(Struct, frozen=True, kw_only=True):
    """How each environment compares with the one before; ``print`` shows it.

    Attributes:
        steps: B of each is A of the next.
        level: confidence that all verdicts together are right.
    """

    steps: tuple[ABResult, ...]
    level: float

    def __repr__(self) -> str:
        return f"<ABSteps: {self.sentences[0]}>"

    @property
    def exit_code(self) -> int:
        """1 if a step is slower; else 4 if one did not run; else 3 if one is undecided; else 0."""
        return next(code for code in WORST_FIRST if code in {step.exit_code for step in self.steps})

    @property
    def machine_load(self) -> MachineLoad:
        """What other programs used meanwhile."""
        return mean_load(step.machine_load for step in self.steps)

    @property
    def named(self) -> list[Step]:
        """The steps, with environments by names as short as tells them apart."""
        cases = shown_together([self.steps[0].a, *(step.b for step in self.steps)])
        names = [case.python or "this one" for case in cases]
        figures = [step.sides[2][1] for step in self.steps]
        return [Step(*item) for item in zip(names, names[1:], self.steps, figures, strict=False)]

    @property
    def sentences(self) -> list[str]:
        """The answer: the steps that changed the time, and what changed there; or that none did."""
        said = [
            f"{step.before} to {step.after} is {step.ab_result.verdict}: "
            f"{step.ab_result.standing.replace(' as A', '')}. " + self._cause(step.ab_result)
            for step in self.named
            if step.ab_result.verdict in ("FASTER", "SLOWER")
        ]
        for verdict in ("DID NOT RUN", "UNDECIDED"):
            steps = [f"{step.before} to {step.after}" for step in self.named if step.ab_result.verdict == verdict]
            said += [f"{verdict}: {listing(steps)}."] if steps else []
        threshold = percent(self.steps[0].rule.threshold)
        return said or [f"No step changed the time by {threshold} or more, {percent(self.level)} sure."]

    def _cause(self, ab_result: ABResult) -> str:
        """What differs in a step, and what of it did not do it, since the same change is in a step that is SAME."""
        harmless = {
            _change(difference) for step in self.steps if step.verdict == "SAME" for difference in step.differences
        }
        left = [difference for difference in ab_result.differences if _change(difference) not in harmless]
        cleared = [difference.field for difference in ab_result.differences if _change(difference) in harmless]
        if not (left and cleared):  # all of it together, where each by itself did nothing
            return ab_result.of_environments or "What differs there is not known."
        return f"What differs: {sentence(left)}; and {listing(cleared)}, which made no difference in another step."


def _change(of: Difference) -> tuple[str, frozenset[str]]:
    return of.field, frozenset((of.base, of.candidate))
