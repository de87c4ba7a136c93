"""The noun: a :class:`Finding`, and the :class:`Rule` that makes it. Both say in words when they speak and when not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from inferlens.analysis.findings.evidence import Evidence

About = Literal["time", "trust"]
Number = float | int | None


class Finding(Struct, frozen=True, kw_only=True):
    """Something worth knowing about one case, with the numbers that it stands on.

    Attributes:
        rule: name of the rule that made it.
        about: ``time`` that may be won, or how far the profile can be ``trust``-ed.
        subject: what it is about: a module, a layer, some of them, or the run.
        sentence: what was found, with the most important numbers.
        evidence: all numbers that it stands on, by name; seconds, shares from 0 to 1, and counts.
        seconds: that could be won at most; ``None`` where the evidence does not tell. Those of several findings are not
            to be added up: they may be about the same time.
        whole: seconds of the run that ``seconds`` are part of: the profiled one where they are of layers, an untouched
            one where they are of the GPU and that is known.
        untouched: whether ``whole`` is an untouched call, and no profiled run.
        share: of a call's time that it is about; ``None`` where the evidence does not tell.
        advice: what to try.
    """

    rule: str = ""
    about: About = "time"
    subject: str
    sentence: str
    evidence: dict[str, Number] = {}
    seconds: float | None = None
    whole: float | None = None
    untouched: bool = False
    share: float | None = None
    advice: str = ""

    @property
    def won(self) -> float | None:
        """What could be won as a share of the run; ``None`` where the evidence does not tell."""
        return self.seconds / self.whole if self.seconds is not None and self.whole else None


Judge = Callable[["Evidence"], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule of the closed list.

    Attributes:
        name: stays, and is documented.
        needs: what evidence it looks at; it is silent where there is none.
        speaks: when it speaks, threshold included.
        silent: when it does not apply although it might seem so.
        advice: what it says to try, unless a finding says something more fitting.
        about: see :class:`Finding`.
    """

    name: str
    needs: str
    speaks: str
    silent: str
    advice: str
    about: About
    judge: Judge

    def __call__(self, seen: Evidence) -> list[Finding]:
        """What the rule finds in the evidence."""
        return [self._of(each, seen) for each in self.judge(seen)]

    def _of(self, found: Finding, seen: Evidence) -> Finding:
        """What the function found, with what every finding has."""
        whole = None if found.seconds is None else found.whole or seen.profiled
        return replace(
            found,
            rule=self.name,
            about=self.about,
            whole=whole,
            untouched=whole is not None and whole == seen.latency,
            advice=found.advice or self.advice,
        )


def rule(
    name: str, *, needs: str, speaks: str, silent: str, advice: str, about: About = "time"
) -> Callable[[Judge], Rule]:
    """Makes a :class:`Rule` of the function beneath."""
    return lambda judge: Rule(name, needs, speaks, silent, advice, about, judge)
