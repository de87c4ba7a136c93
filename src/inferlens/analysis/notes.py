"""Notes about the numbers of a case: each has a level, one sentence, and what to do.

Some facts only the measuring process can know: it writes them into the record as warnings. All others follow from how
the case ended and from rules about records, so that old records get them too. Every code has one level;
``docs/warnings.md`` lists them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal

from msgspec import Struct, field

from inferlens.analysis.evidence import Finding, enqueue_bound_finding, make_finding, rule
from inferlens.analysis.interference import interference_warnings, record_load
from inferlens.analysis.measures import bound_by, measured_drop, score_accuracy
from inferlens.analysis.samples import CaseRuns, Series, latencies, steady_samples
from inferlens.record.record import (
    EMPTY_KERNEL,
    IN_TURNS,
    KEEPS_STATE,
    NEIGHBOUR_EFFECT,
    NOT_FINITE,
    RANDOM,
    WRITES_INPUTS,
    Agreement,
    Record,
)
from inferlens.spec.case import Budget
from inferlens.stats.intervals import half_width, share_interval
from inferlens.stats.samples import median
from inferlens.stats.steady import LEAST_FOR_DIAGNOSTICS, diagnostics

Level = Literal["changes", "weakens", "know"]
LEVELS: Mapping[Level, str] = {"changes": "changes the answer", "weakens": "weakens it", "know": "good to know"}
# How the case ended; tables have a word for it.
OUTCOME_LEVELS: dict[str, Level] = {
    "did-not-run": "changes", "wrong-outputs": "changes", "state-lost": "changes", "unchecked": "weakens",
    "unsupported": "know",
}  # fmt: skip
LEVEL_BY_CODE: dict[str, Level] = {
    **OUTCOME_LEVELS,
    # The case differs from its description.
    "no-engines": "changes", "lower-precision": "changes", "at-chance": "changes",
    "no-effect": "weakens", "no-cuda-graph": "weakens", "provider-fallback": "weakens",
    "static-shape": "weakens", "one-in-flight": "weakens", "rotating-fits-cache": "weakens",
    "unknown-origin": "weakens", "partly-quantized": "weakens", "random-calibration": "weakens",
    "less-accurate": "weakens",
    # The behavior of the model, as two calls of the reference show it.
    "random-outputs": "weakens", "keeps-state": "weakens", "nonfinite-outputs": "weakens", "writes-inputs": "know",
    "inputs-not-renewed": "weakens",
    "timed-copies": "know", "python-outputs": "know",
    # Another measurement may give another number.
    "busy": "weakens", "disturbed": "weakens", "unsteady": "weakens", "few-samples": "weakens", "two-modes": "weakens",
    "not-finite": "weakens", "not-reached": "weakens", "uneven-throughput": "weakens", "slow-throughput": "weakens",
    "repeat-failed": "weakens", "cut-short": "weakens", "workers-disturb": "weakens",
    # The number is right, and this explains it.
    "host-bound": "know", "copy-bound": "know", "gpu-floor": "know", "power-cap": "know", "cpu-quota": "know",
    "graph-breaks": "know", "export-fallback": "know", "bad-exit": "know", "limited-threads": "know",
    "plain-way": "know", "weights-unwrapped": "know", "workers-apart": "know",
}  # fmt: skip
# Codes that need no note next to another one, which has the same cause and the same remedy.
_UNEVEN = ("uneven-throughput", "slow-throughput", "unsteady", "two-modes", "not-reached")
IMPLIED = {"busy": _UNEVEN, "disturbed": _UNEVEN, "slow-throughput": ("uneven-throughput",)}
# Codes about what one process alone has: the accuracy, and the time without other workers.
_ONE_PROCESS = {"less-accurate", "at-chance", "workers-disturb", "workers-apart"}

# Thresholds of the rules; docs/warnings.md explains them.
UNEVEN = 0.1  # half-width of the median of the throughput windows, as a share of it
SLOW_RATE = 0.8  # of the calls per second that one call after another gives
LESS_ACCURATE = 0.01  # below fp32, if the interval of the drop excludes zero
AT_CHANCE = 0.2  # top-1 in fp32 that is surely below this, and not surely above the share of the commonest label
PARTLY = 0.5  # of the multiply-adds in int8
GPU_FLOOR = 0.05  # of the GPU time that an empty kernel takes as well
WAIT = "--wait 10m waits for a quiet machine before it measures."
# Interleaved processes are unsteady because of the machine, and their median is of the fast turns.
UNSTEADY = ("drifting", "cycling", "never-steady")
# The code of the note, the hint and the sentence for codes of inferlens.stats.steady. The others need no note: p95 and
# p99 show outliers, and the dependence of samples matters less than how far processes differ, which is measured.
DIAGNOSTIC_NOTES = {
    "few-samples": (
        "few-samples",
        "More --iterations, --seconds or --max-time.",
        "There are {value:.0f} samples only.",
    ),
    "two-modes": ("two-modes", "Judge by p95 as well.", "There are two typical speeds, {value:.2f} times apart."),
} | dict.fromkeys(
    UNSTEADY, ("unsteady", "More --warmup, and a longer --max-time.", "Latencies were still changing at the end.")
)
# The behavior of the reference; the code of the note, the end of its sentence, and the hint.
BEHAVIOR_NOTES = (
    (WRITES_INPUTS, "writes-inputs", ": it was restored before each call, outside of the latency", ""),
    (KEEPS_STATE, "keeps-state", ". Two calls in a row were compared", "Ways that lose it are not ranked."),
    (RANDOM, "random-outputs", ": not compared", "model.eval(), or the noise as an input of the model."),
    (NOT_FINITE, "nonfinite-outputs", ": their places and the rest were compared", "Check that a mask causes them."),
)


class Note(Struct, frozen=True):
    """A note about a case."""

    code: str  # documented and stable
    level: Level  # whether it ``changes`` the answer, ``weakens`` it, or is good to ``know``
    message: str  # one sentence, of at most 20 words without the reason that a library gave
    hint: str = field(default="", name="advice")

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


def note(code: str, message: str, hint: str = "") -> Note:
    """Return a note at the level of its code; unknown codes, which are a backend's own, weaken the answer."""
    return Note(code, LEVEL_BY_CODE.get(code, "weakens"), message, hint)


def case_notes(runs: CaseRuns) -> tuple[Note, ...]:
    """Return all notes of one case's records, the most important first, without those that differ only in figures."""
    warnings = dict.fromkeys(warning for record in runs.records for warning in record.warnings)
    recorded = [note(warning.code, warning.message, warning.advice) for warning in warnings]
    distinct: dict[tuple[str, str], Note] = {}
    for case_note in (*_outcome_notes(runs), *recorded):
        distinct.setdefault((case_note.code, re.sub(r"\d[\d,.]*", "", case_note.message)), case_note)
    codes = {code for code, _ in distinct}
    notes = (*distinct.values(), *(case_note for case_note in _rule_notes(runs) if case_note.code not in codes))
    implied = {code for case_note in notes for code in IMPLIED.get(case_note.code, ())}
    return sort_notes(case_note for case_note in notes if case_note.code not in implied)


def sort_notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Sort by level, the most important first."""
    return tuple(sorted(notes, key=lambda note: list(LEVELS).index(note.level)))


def _outcome_notes(runs: CaseRuns) -> Iterator[Note]:
    record = runs.first
    if record.status != "ok":
        unsupported = record.status == "unsupported"
        log = [_log(record.case.label)] if record.output_tail or not unsupported else []
        hints = [record.hint, *(f"{'All of it: ' * bool(record.hint)}{command}" for command in log)]
        reason = _sentence(record.reason or "No reason is known")
        yield note("unsupported" if unsupported else "did-not-run", reason, " · ".join(filter(None, hints)))
        return
    agreement = runs.worst_agreement
    for behavior, code, end, hint in BEHAVIOR_NOTES:
        if agreement and behavior in agreement.behavior and (behavior != KEEPS_STATE or agreement.state == "kept"):
            yield note(code, _sentence(agreement.behavior[behavior] + end), hint)
    if not (agreement and RANDOM in agreement.behavior):  # random outputs are not compared
        yield from _agreement_notes(agreement)
    failed = [record for record in runs.records if record.status != "ok"]
    if failed:
        message = f"{len(failed)} of {len(runs.records)} processes failed: {failed[0].reason}"
        yield note("repeat-failed", _sentence(message), _log(record.case.label))
    short = runs.later or (runs.records if runs.cut_short else ())
    if short:
        run = "A later run" if runs.later else "The run"
        message = f"{run} was cut short before all of its processes were measured."
        yield note("cut-short", message, "The same command again, to its end.")


def _agreement_notes(agreement: Agreement | None) -> Iterator[Note]:
    if agreement is None or agreement.agrees is None:
        reason = agreement.reason if agreement and agreement.reason else "there was nothing to compare them with"
        message = _sentence(f"Outputs not checked: {reason}")
        yield note("unchecked", message, "Look at its outputs before you rely on it.")
    elif not agreement.agrees:
        reason = agreement.reason or "no reason is known"
        if agreement.state == "lost":
            hint = "Use a way that keeps the state, or make the state an input and an output."
            yield note("state-lost", _sentence(reason), hint)
        else:
            hint = "Do not use it; another precision may be right."
            yield note("wrong-outputs", _sentence(f"Wrong outputs: {reason}"), hint)


def _rule_notes(runs: CaseRuns) -> Iterator[Note]:
    """Yield the findings of the rules in at least half of the processes: one odd process does not speak for a case."""
    notes: dict[str, list[Note]] = {}
    for record in runs.ran:
        evidence = RecordEvidence(record)
        for finding in (finding for check in RECORD_RULES for finding in check(evidence)):
            notes.setdefault(finding.code, []).append(note(finding.code, finding.sentence, finding.hint))
    for code, group in notes.items():
        if code in _ONE_PROCESS or 2 * len(group) >= len(runs.ran):
            yield group[0]


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    first = text.partition(" ")[0]
    return f"{text[:1].upper() if first.isalpha() else text[:1]}{text[1:]}."


def _log(label: str) -> str:
    return f"inferlens show --log '{label}' RESULTS"


class RecordEvidence:
    """One record, with the series of its latencies."""

    def __init__(self, record: Record) -> None:
        self.record, self.facts = record, record.facts

    @cached_property
    def series(self) -> Series:
        return latencies(self.record)

    @cached_property
    def rates(self) -> list[float]:
        return list(steady_samples(self.record, "throughput").for_median)


@rule("")
def machine(evidence: RecordEvidence) -> Iterator[Finding]:
    """Report disturbances of the samples, as :mod:`inferlens.analysis.interference` words them."""
    record = evidence.record
    if cause := record_load(record).cause:
        yield make_finding("{message}", message=cause, hint=WAIT, code="busy")
    for marks in (record.marks, record.window_marks):
        for warning in interference_warnings(marks) if marks else ():
            yield make_finding("{message}", message=warning.message, hint=warning.advice, code=warning.code)


@rule("")
def other_workers(evidence: RecordEvidence) -> Iterator[Finding]:
    """Compare the time while other workers measured with the time without them."""
    effect = evidence.facts.get(NEIGHBOUR_EFFECT)
    factor, others = (effect.get("ratio"), effect.get("others")) if isinstance(effect, dict) else (None, None)
    if isinstance(factor, float) and isinstance(others, int):
        disturbed = abs(factor - 1) > evidence.record.budget.threshold
        yield make_finding(
            "It took {factor:ratio} as long beside {others:#other worker} as alone.",
            {"factor": factor, "others": others},
            hint="They disturb each other: measure important cases again on one GPU." if disturbed else "",
            code="workers-disturb" if disturbed else "workers-apart",
        )


@rule("not-finite", hint="See the log beside the record: the clock is not to be trusted.")
def not_finite(evidence: RecordEvidence) -> Iterator[Finding]:
    if count := evidence.series.not_finite:
        sentence = "{samples:#sample} {samples:is|are} negative or not finite, and left out."
        yield make_finding(sentence, {"samples": count})


@rule("")
def series(evidence: RecordEvidence) -> Iterator[Finding]:
    """Report doubts about the interval of the median, or about the median itself."""
    samples, for_median = evidence.series.samples, evidence.series.for_median
    enough = len(for_median) >= LEAST_FOR_DIAGNOSTICS
    for diagnostic in diagnostics(for_median if enough else samples) if samples else ():
        interleaved = IN_TURNS in evidence.facts and diagnostic.code in UNSTEADY
        if diagnostic.code in DIAGNOSTIC_NOTES and not interleaved:
            code, hint, template = DIAGNOSTIC_NOTES[diagnostic.code]
            yield make_finding(template, {"value": diagnostic.value}, hint=hint, code=code)


@rule("not-reached", hint="A longer --max-time, or a quieter machine.")
def not_reached(evidence: RecordEvidence) -> Iterator[Finding]:
    budget, samples = evidence.record.budget, evidence.series.samples
    if not samples or budget.iterations is not None or budget.seconds is not None:
        return
    width = half_width(samples)
    if Budget().half_width != budget.half_width < width < math.inf:
        sentence = "The median is known to {width:percent} only; {wanted:percent} was wanted."
        yield make_finding(sentence, {"width": width, "wanted": budget.half_width})


@rule("uneven-throughput", hint="Measure it again on a quieter machine.")
def uneven_throughput(evidence: RecordEvidence) -> Iterator[Finding]:
    """Report an uncertain median of the windows of throughput; of few windows, their distance from it."""
    rates = evidence.rates
    middle = median(rates) if rates else 0.0
    if middle > 0 and IN_TURNS not in evidence.facts:  # there throughput is of the same calls as latency
        width = half_width(rates)
        if math.isinf(width):  # too few for an interval
            width = max(max(rates) - middle, middle - min(rates)) / middle
        if width > UNEVEN:
            extent = ": it may be {width:percent} higher or lower" if width < 0.5 else " too much to be known"
            yield make_finding(f"Throughput varied{extent}.", {"width": width})


@rule("slow-throughput", hint="Measure again, with --mode throughput; until then trust the latency.")
def slow_throughput(evidence: RecordEvidence) -> Iterator[Finding]:
    """Report a throughput below one call after another, which only a disturbance or a wrong clock explains."""
    rates, latency = evidence.rates, evidence.series.for_median
    share = median(rates) * median(latency) if rates and latency else math.inf
    if share < SLOW_RATE:
        yield make_finding("Throughput is only {share:percent} of what one call after another gives.", share=share)


def small_quantized_share(record: Record) -> float | None:
    """Return the quantized share of the multiply-adds if it is less than half; else ``None``."""
    share = record.facts.get("quantized_share")
    return share if isinstance(share, int | float) and share < PARTLY else None


@rule("partly-quantized", hint="inferlens profile shows which layers stayed as they were.")
def partly_quantized(evidence: RecordEvidence) -> Iterator[Finding]:
    share = small_quantized_share(evidence.record)
    if share is not None:
        yield make_finding("Only {share:percent} of the multiply-adds are quantized.", share=share)


@rule("less-accurate", hint="More calibration data, other ranges, or --keep for the layers that lose it.")
def less_accurate(evidence: RecordEvidence) -> Iterator[Finding]:
    """Report an accuracy that is below fp32 by more than chance."""
    accuracy = evidence.record.accuracy
    score, drop = score_accuracy(accuracy), measured_drop(accuracy) or 0.0
    if accuracy and score and score.drop_interval and score.drop_interval.low > 0 and drop > LESS_ACCURATE:
        yield make_finding("{metric} is {drop:percent} below fp32.", metric=accuracy.metric, drop=drop)


@rule("at-chance", hint="Are weights random, or labels numbered otherwise?")
def at_chance(evidence: RecordEvidence) -> Iterator[Finding]:
    """Report an fp32 model that is no better than always answering the commonest label."""
    accuracy = evidence.record.accuracy
    if accuracy and accuracy.commonest and (hits := accuracy.reference_values):
        interval = share_interval(sum(hits), len(hits))
        if interval.low <= accuracy.commonest and interval.high < AT_CHANCE:
            yield make_finding("fp32's {metric} is chance.", metric=accuracy.metric)


@rule("random-calibration", hint="Give real data to --calibration.")
def random_calibration(evidence: RecordEvidence) -> Iterator[Finding]:
    facts = evidence.facts
    if evidence.record.case.calibration == "random" and facts.get("calibrated", "quantized_share" in facts):
        yield make_finding("Calibrated with noise, not with data.")


@rule("host-bound")
def host_bound(evidence: RecordEvidence) -> Iterator[Finding]:
    yield from enqueue_bound_finding(evidence.record)


@rule(
    "copy-bound",
    hint="Keep inputs and outputs on the GPU (--io device) where the application can, or make them smaller.",
)
def copy_bound(evidence: RecordEvidence) -> Iterator[Finding]:
    if bound_by(evidence.record) == "copies":
        yield make_finding("Bound by copies between host and GPU.")


@rule("gpu-floor", hint="Compare it with other GPU times alone; inferlens profile has the kernels' own.")
def gpu_floor(evidence: RecordEvidence) -> Iterator[Finding]:
    kernel = evidence.facts.get(EMPTY_KERNEL)
    gpu = steady_samples(evidence.record, "GPU time").for_median
    floor = kernel.get("gpu_seconds") if isinstance(kernel, dict) else None
    if isinstance(floor, float) and gpu and floor >= GPU_FLOOR * median(gpu) > 0:
        sentence = "Of {whole:duration} of GPU time {floor:duration} are launch and timing."
        yield make_finding(sentence, {"whole": median(gpu), "floor": floor})


@rule("weights-unwrapped")
def weights_unwrapped(evidence: RecordEvidence) -> Iterator[Finding]:
    """Report the part of a checkpoint that weights came from; :class:`ModelFacts` has it in parentheses."""
    weights = evidence.record.model.weights if evidence.record.model else ""
    if weights.endswith(")"):
        weights = weights.replace(" (", ", ").removesuffix(")")
        yield make_finding("Weights came from the {weights}.", weights=weights)


RECORD_RULES = (
    machine, other_workers, not_finite, series, not_reached, uneven_throughput, slow_throughput, partly_quantized,
    less_accurate, at_chance, random_calibration, copy_bound, gpu_floor, weights_unwrapped, host_bound,
)  # fmt: skip
