"""What a reader of a number is warned of: a closed list of codes, each with what to do about it.

Some of it only the process that measured could know, and stands in the record. The rest are findings of the rules in
``rules/records.py``: ``inferlens bench --check`` prints it for records of any age.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from inferlens.analysis.findings.rule import rules_of
from inferlens.analysis.findings.rules.records import OF_THE_MACHINE, OF_THE_SERIES, RecordEvidence, bound_by
from inferlens.analysis.interference.samples import CaseRuns
from inferlens.record.record import Record, Warning

__all__ = ["CODES", "OF_THE_RECORD", "autocorrelated", "bound_by", "has_figures", "on_other_card", "warnings_of"]

NOT_REACHED = "not-reached"
# What several records together tell.
_OF_RUNS = {
    "waves": (
        "Against the reference it was faster and slower in waves: processes resemble those before them, and the "
        "interval of the speed-up is wider for that.",
        "inferlens ab, which measures the two in turns.",
    ),
    "other-card": (
        "The reference was measured on another GPU of the same name: how far such GPUs and their hosts differ is in no "
        "interval.",
        "Measure both on one machine.",
    ),
    "repeat-failed": (
        "{failed} of {all} processes failed: {reason}.", "Its record says why; the median is of the others.",
    ),
    "cut-short": ("", "The same command again, to its end."),
}  # fmt: skip
_LATER = "A later run was cut short, {} of {} processes; this is the one before it, which is complete."
_CUT_SHORT = "The run was cut short: {} of {} processes were measured."
# What only the process could know that measured; the advice stands beside the place where it is said.
OF_THE_RECORD = (
    "bad-exit", "export-fallback", "graph-breaks", "lower-precision", "moved-optimum", "no-cuda-graph", "no-effect",
    "no-engines", NOT_REACHED, "one-in-flight", "provider-fallback", "rotating-fits-cache", "static-shape",
    "throughput-missing", "unknown-origin",
)  # fmt: skip
CODES = (
    *filter(None, (each.code for each in rules_of("record"))),
    *OF_THE_SERIES, *OF_THE_MACHINE, *_OF_RUNS, *OF_THE_RECORD,
)  # fmt: skip
# Cured by a longer series, of which the advice says by which word.
_OF_THE_LENGTH = ("few-samples", "few-independent-samples", "drifting", "never-steady")
_REPEATS = re.compile(r"; --repeats 5[^.]*|^--repeats 5, or ")


def warnings_of(runs: CaseRuns) -> tuple[Warning, ...]:
    """All warnings of one case's records, each once; those of the process first."""
    found = [warning for record in runs.records for warning in record.warnings]
    for record in runs.ran:
        found += _of_record(record)
    found += _of_the_run(runs)
    kept: dict[tuple[str, str], Warning] = {}
    for warning in found:  # figures differ from process to process: of those the first is told
        kept.setdefault((warning.code, "" if has_figures(warning) else warning.message), warning)
    return tuple(kept.values())


def has_figures(warning: Warning) -> bool:
    """Whether the message has figures in it, which differ from process to process and from case to case."""
    return warning.code == NOT_REACHED or warning.code in set(CODES) - {"host-bound", *OF_THE_RECORD}


def autocorrelated() -> Warning:
    """Of a case that was compared with another: see :attr:`inferlens.stats.compare.Comparison.autocorrelation`."""
    return Warning("waves", *_OF_RUNS["waves"])


def on_other_card() -> Warning:
    """Of a case that was compared with another, where the two ran on different GPUs of one name."""
    return Warning("other-card", *_OF_RUNS["other-card"])


def _of_record(record: Record) -> list[Warning]:
    findings = [each for rule in rules_of("record") for each in rule(RecordEvidence(record))]
    return [Warning(each.code, each.sentence, _fitting(record, each.code, each.hint)) for each in findings]


def _fitting(record: Record, code: str, hint: str) -> str:
    """The hint without what was asked for already, and with the word that makes this series longer."""
    if record.repeats > 1:
        hint = _REPEATS.sub("", hint)
        hint = hint[:1].upper() + hint[1:]
    if code not in _OF_THE_LENGTH or any(each.code == NOT_REACHED for each in record.warnings):
        return hint
    if record.budget.iterations is not None:
        return re.sub(r"([Aa]) longer --max-time", lambda at: f"{'M' if at[1] == 'A' else 'm'}ore --iterations", hint)
    return hint if record.budget.seconds is None else hint.replace("--max-time", "--seconds")


def _of_the_run(runs: CaseRuns) -> Iterator[Warning]:
    failed = len(runs.records) - len(runs.ran)
    if runs.ran and failed:
        reason = next(record.reason for record in runs.records if record.status != "ok").rstrip(".")
        message, hint = _OF_RUNS["repeat-failed"]
        yield Warning("repeat-failed", message.format(failed=failed, all=len(runs.records), reason=reason), hint)
    if runs.later:
        message = _LATER.format(len(runs.later), runs.later[0].repeats)
        yield Warning("cut-short", message, _OF_RUNS["cut-short"][1])
    elif runs.cut_short:
        message = _CUT_SHORT.format(len(runs.records), runs.records[0].repeats)
        yield Warning("cut-short", message, _OF_RUNS["cut-short"][1])
