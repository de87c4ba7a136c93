"""What a reader of a number has to know: notes, each with its level, one sentence and what to do about it.

Some of it only the process that measured could know, and stands in the record as a warning. The rest follows from how
the case ended and from rules of records, so that records of any age have it. A code has one level, here;
``docs/warnings.md`` has every code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct, field

from inferlens.analysis.findings.rule import rules_of
from inferlens.analysis.findings.rules.records import RecordEvidence
from inferlens.analysis.runs import CaseRuns
from inferlens.record.record import KEEPS_STATE, NOT_FINITE, RANDOM, WRITES_INPUTS, Agreement

Level = Literal["changes", "weakens", "know"]
LEVELS: Mapping[Level, str] = {"changes": "changes the answer", "weakens": "weakens it", "know": "good to know"}
# How the case ended: tables have a word for it.
OF_THE_END: dict[str, Level] = {
    "did-not-run": "changes", "wrong-outputs": "changes", "state-lost": "changes", "unchecked": "weakens",
    "unsupported": "know",
}  # fmt: skip
LEVEL_OF: dict[str, Level] = {
    **OF_THE_END,
    # It is not what it says it is.
    "no-engines": "changes", "lower-precision": "changes", "at-chance": "changes",
    "no-effect": "weakens", "no-cuda-graph": "weakens", "provider-fallback": "weakens", "moved-optimum": "weakens",
    "static-shape": "weakens", "one-in-flight": "weakens", "rotating-fits-cache": "weakens",
    "unknown-origin": "weakens", "partly-quantized": "weakens", "random-calibration": "weakens",
    "less-accurate": "weakens",
    # How the model behaves, as two calls of the reference show.
    "random-outputs": "weakens", "keeps-state": "weakens", "nonfinite-outputs": "weakens", "writes-inputs": "know",
    "inputs-not-renewed": "weakens",
    "timed-copies": "know", "python-outputs": "know",
    # The number may be another one.
    "busy": "weakens", "disturbed": "weakens", "unsteady": "weakens", "few-samples": "weakens", "two-modes": "weakens",
    "not-finite": "weakens", "not-reached": "weakens", "uneven-throughput": "weakens", "slow-throughput": "weakens",
    "repeat-failed": "weakens", "cut-short": "weakens",
    # The number is right, and this explains it.
    "host-bound": "know", "copy-bound": "know", "gpu-floor": "know", "power-cap": "know", "cpu-quota": "know",
    "graph-breaks": "know", "export-fallback": "know", "bad-exit": "know", "limited-threads": "know",
    "plain-way": "know", "weights-unwrapped": "know",
}  # fmt: skip
# What needs no note beside another: it has the same cause and the same cure.
_UNEVEN = ("uneven-throughput", "slow-throughput", "unsteady", "two-modes", "not-reached")
IMPLIES = {"busy": _UNEVEN, "disturbed": _UNEVEN, "slow-throughput": ("uneven-throughput",)}


class Note(Struct, frozen=True):
    """One thing to know of a case."""

    code: str  # stays, and is documented
    level: Level  # whether it ``changes`` the answer, ``weakens`` it, or is good to ``know``
    message: str  # one sentence, of at most 20 words where no library's reason is in it
    hint: str = field(default="", name="advice")

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


def note(code: str, message: str, hint: str = "") -> Note:
    """A note at the level of its code; a backend's own warnings, of which nothing is known here, weaken the answer."""
    return Note(code, LEVEL_OF.get(code, "weakens"), message, hint)


def notes_of(runs: CaseRuns) -> tuple[Note, ...]:
    """All notes of one case's records, the most important first; of those that differ in figures alone the first."""
    kept: dict[tuple[str, str], Note] = {}
    for note in (*_ended(runs), *_warned(runs)):
        kept.setdefault((note.code, re.sub(r"\d[\d,.]*", "", note.message)), note)
    said = {code for code, _ in kept}
    every = (*kept.values(), *(note for note in _worked_out(runs) if note.code not in said))
    implied = {code for note in every for code in IMPLIES.get(note.code, ())}
    return ordered(note for note in every if note.code not in implied)


def ordered(notes: Iterable[Note]) -> tuple[Note, ...]:
    """By level, the most important first."""
    return tuple(sorted(notes, key=lambda note: list(LEVELS).index(note.level)))


def worst_agreement(runs: CaseRuns) -> Agreement | None:
    """The agreement of the process whose outputs were the furthest off; one that is wrong beats all."""
    found = [record.agreement for record in runs.ran or runs.records[:1] if record.agreement]
    return max(found, key=lambda one: (one.agrees is False, one.agrees is None, one.rel_l2 or 0.0), default=None)


def _ended(runs: CaseRuns) -> Iterator[Note]:
    record = runs.first
    if record.status != "ok":
        why = _sentence(record.reason or "No reason is known")
        refused = record.status == "unsupported"
        whole = [_log(record.case.label)] if record.output_tail or not refused else []  # the whole text is there
        hints = [record.hint, *(f"{'All of it: ' * bool(record.hint)}{item}" for item in whole)]
        yield note("unsupported" if refused else "did-not-run", why, " · ".join(filter(None, hints)))
        return
    agreement = worst_agreement(runs)
    yield from _behavior(agreement) if agreement else ()
    if agreement and RANDOM in agreement.behavior:
        pass  # which is why they were not compared
    elif agreement is None or agreement.agrees is None:
        why = agreement.reason if agreement and agreement.reason else "there was nothing to compare them with"
        yield note("unchecked", _sentence(f"Outputs not checked: {why}"), "Look at its outputs before you rely on it.")
    elif not agreement.agrees:
        code, says = ("state-lost", "") if agreement.state == "lost" else ("wrong-outputs", "Wrong outputs: ")
        hint = (
            "Do not use it; another precision may be right."
            if says
            else "Use a way that keeps the state, or make the state an input and an output."
        )
        yield note(code, _sentence(f"{says}{agreement.reason or 'no reason is known'}"), hint)
    failed = [record for record in runs.records if record.status != "ok"]
    if failed:
        message = f"{len(failed)} of {len(runs.records)} processes failed: {failed[0].reason}"
        yield note("repeat-failed", _sentence(message), _log(record.case.label))
    short = runs.later or (runs.records if runs.cut_short else ())
    if short:
        which = "A later run" if runs.later else "The run"
        message = f"{which} was cut short: {len(short)} of {short[0].repeats} processes were measured."
        if not short[0].repeats:
            message = f"{which} was cut short before its cases had met in two rounds."
        yield note("cut-short", message, "The same command again, to its end.")


def _behavior(agreement: Agreement) -> Iterator[Note]:
    """Yield what the reference shows of the model."""
    behavior = agreement.behavior
    if why := behavior.get(WRITES_INPUTS):
        yield note("writes-inputs", _sentence(f"{why}: it was restored before each call, outside of the latency"))
    if (why := behavior.get(KEEPS_STATE)) and agreement.state == "kept":
        yield note(
            "keeps-state", _sentence(f"{why}. Two calls in a row were compared"), "Ways that lose it are not ranked."
        )
    if why := behavior.get(RANDOM):
        hint = "model.eval(), or the noise as an input of the model."
        yield note("random-outputs", _sentence(f"{why}: not compared"), hint)
    if why := behavior.get(NOT_FINITE):
        hint = "Check that a mask causes them."
        yield note("nonfinite-outputs", _sentence(f"{why}: their places and the rest were compared"), hint)


def _warned(runs: CaseRuns) -> Iterator[Note]:
    for warning in dict.fromkeys(warning for record in runs.records for warning in record.warnings):
        yield note(warning.code, warning.message, warning.advice)


def _worked_out(runs: CaseRuns) -> Iterator[Note]:
    """What follows from numbers, of half of the processes at least: one odd process does not speak for the case."""
    found: dict[str, list[Note]] = {}
    for record in runs.ran:
        for finding in (finding for rule in rules_of("record") for finding in rule(RecordEvidence(record))):
            found.setdefault(finding.code, []).append(note(finding.code, finding.sentence, finding.hint))
    once = {"less-accurate", "at-chance"}  # one process alone is evaluated
    yield from (notes[0] for code, notes in found.items() if code in once or 2 * len(notes) >= len(runs.ran))


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    first = text.partition(" ")[0]
    return f"{text[:1].upper() if first.isalpha() else text[:1]}{text[1:]}."


def _log(label: str) -> str:
    return f"inferlens show --log '{label}' RESULTS"
