"""The noun, a :class:`Finding`, and the :class:`Rule` that makes it.

A rule is a function with :func:`rule` above it in any module of ``inferlens.analysis.findings.rules``; nothing else has
to know of it. It looks at evidence of one sort, or of several, and yields what :func:`found` makes of a template and
numbers; ``docs/findings.md`` has an example.

In a template ``{layers:#layer}`` counts (``1 layer``, ``2 layers``), ``{layers:takes|take}`` chooses by the count, and
``:duration``, ``:percent``, ``:ratio``, ``:bytes`` and ``:two`` (digits) write numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal

from msgspec import field
from msgspec.structs import replace

from inferlens.record.display import Displayed, Struct
from inferlens.units import byte_count, duration, percent, plural, ratio, significant

if TYPE_CHECKING:
    from inferlens.analysis.findings.evidence import Pieces

About = Literal["time", "trust"]
Sort = Literal["record", "profile", "trace"]
Number = float | int | None
_RULES = "inferlens.analysis.findings.rules"
_WRITERS: dict[str, Callable[[Any], str]] = {
    "duration": duration, "percent": percent, "ratio": ratio, "bytes": byte_count,
    "two": lambda value: significant(value, 2),
}  # fmt: skip


class Finding(Struct, frozen=True, kw_only=True):
    """Something worth knowing about one case, with the numbers that it stands on.

    Attributes:
        code: of the rule that made it.
        about: ``time`` that may be won, or how far the profile can be ``trust``-ed.
        subject: what it is about: a module, a layer, some of them, or the run.
        numbers: all that it stands on, by name; seconds, shares from 0 to 1, and counts.
        seconds: that could be won at most; ``None`` where the evidence does not tell. Those of several findings are not
            to be added up: they may be about the same time. Of a trace: of a step, that it is about.
        whole: seconds of the call that ``seconds`` are part of: an unprofiled one where that is known.
        unprofiled: whether ``seconds`` were not stretched by profiling, as those of the GPU, nor scaled for it.
        share: of a call's time that it is about; ``None`` where the evidence does not tell.
    """

    code: str = field(default="", name="rule")
    about: About = "time"
    subject: str = ""
    sentence: str = ""
    numbers: dict[str, Number] = field(default_factory=dict, name="evidence")
    seconds: float | None = None
    whole: float | None = None
    unprofiled: bool = field(default=False, name="untouched")
    share: float | None = None
    hint: str = field(default="", name="advice")

    @property
    def won(self) -> float | None:
        """What could be won as a share of the run; ``None`` where the evidence does not tell."""
        return self.seconds / self.whole if self.seconds is not None and self.whole else None


class Findings(Displayed, list[Finding]):
    """Findings of one case, the most important first."""

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'finding')}{': ' * bool(self)}{', '.join(finding.code for finding in self)}>"


@dataclass(frozen=True)
class Rule:
    """One rule; :func:`rule` makes it."""

    code: str  # stays, and is documented; empty if its findings bring theirs
    of: tuple[Sort, ...]  # what it looks at
    hint: str  # what it says to try, unless a finding says something more fitting
    about: About
    judge: Callable[[Any], Iterable[Finding]]

    def __call__(self, seen: Any) -> Iterator[Finding]:
        """What the rule finds in the evidence."""
        for finding in self.judge(seen):
            yield replace(finding, code=finding.code or self.code, about=self.about, hint=finding.hint or self.hint)


def rule(
    code: str, *, of: Sort | tuple[Sort, ...], hint: str = "", about: About = "time"
) -> Callable[[Callable[[Any], Iterable[Finding]]], Rule]:
    """Makes a :class:`Rule` of the function beneath."""
    return lambda judge: Rule(code, (of,) if isinstance(of, str) else of, hint, about, judge)


@cache
def rules_of(sort: Sort) -> tuple[Rule, ...]:
    """All rules of that sort, as they stand in their modules, these by name."""
    names = sorted(module.name for module in iter_modules(import_module(_RULES).__path__))
    modules = [import_module(f"{_RULES}.{name}") for name in names]
    made = [var for module in modules for var in vars(module).values() if isinstance(var, Rule)]
    return tuple(rule for rule in made if sort in rule.of)


def found(
    template: str,
    numbers: Mapping[str, Number] | None = None,
    of: Pieces[Any] | None = None,
    *,
    subject: str = "",
    seconds: float | None = None,
    whole: float | None = None,
    share: float | None = None,
    hint: str = "",
    code: str = "",
    **words: object,
) -> Finding:
    """A finding whose sentence is ``template``, filled from its numbers, its fields and ``words``.

    ``of`` are the layers or kernels that it is about: they give the subject, the share, their number and seconds, and
    the words ``{much}`` (of the run), ``{kinds}`` and ``{where}``, unless others are given.
    """
    kept = {**(of.numbers if of else {}), **(numbers or {})}
    if of:
        subject, share, whole = subject or of.longest, of.share if share is None else share, whole or of.run
        words = {"much": of.much, "kinds": of.kinds, "where": of.where, **words}
    words = {"subject": subject, "share": share, "whole": whole, **kept, **words}
    return Finding(
        code=code, subject=subject, sentence=_FILLER.vformat(template, (), words), numbers=kept, seconds=seconds,
        whole=None if seconds is None else whole, share=share, hint=hint,
    )  # fmt: skip


class _Filler(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            one, several = format_spec.split("|")
            return one if value == 1 else several
        if format_spec.startswith("#"):
            return plural(value, format_spec[1:])
        if format_spec in _WRITERS:
            return _WRITERS[format_spec](value)
        return format(value, format_spec)


_FILLER = _Filler()
