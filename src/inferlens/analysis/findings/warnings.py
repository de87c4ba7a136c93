"""What a reader of a number is warned of, each with what to do about it.

Some of it only the process that measured could know, and stands in the record. The rest are findings of rules of
records: ``inferlens bench --check`` prints it for records of any age. ``docs/warnings.md`` has every code.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferlens.analysis.findings.rule import rules_of
from inferlens.analysis.findings.rules.records import RecordEvidence
from inferlens.analysis.findings.rules.waiting import bound_by
from inferlens.analysis.interference.samples import CaseRuns
from inferlens.record.record import Warning

__all__ = ["AUTOCORRELATED", "OTHER_CARD", "bound_by", "warnings_of"]

# Of a case that was compared with another.
AUTOCORRELATED = Warning(
    "waves",
    "Against the reference it was faster and slower in waves: processes resemble those before them, and the interval "
    "of the speed-up is wider for that.",
    "inferlens ab, which measures the two in turns.",
)
OTHER_CARD = Warning(
    "other-card",
    "The reference was measured on another GPU of the same name: how far such GPUs and their hosts differ is in no "
    "interval.",
    "Measure both on one machine.",
)
_NOT_REACHED = "not-reached"
_AGAIN = "The same command again, to its end."


def warnings_of(runs: CaseRuns) -> tuple[Warning, ...]:
    """All warnings of one case's records; those of the process first.

    Each is there once: what follows from numbers, which differ from process to process, once for each code.
    """
    kept: dict[tuple[str, str], Warning] = {}
    for warning in (warning for record in runs.records for warning in record.warnings):
        kept.setdefault((warning.code, "" if warning.code == _NOT_REACHED else warning.message), warning)
    for warning in _worked_out(runs):
        kept.setdefault((warning.code, ""), warning)
    return tuple(kept.values())


def _worked_out(runs: CaseRuns) -> Iterator[Warning]:
    for record in runs.ran:
        for each in (each for rule in rules_of("record") for each in rule(RecordEvidence(record))):
            yield Warning(each.code, each.sentence, each.hint)
    failed = len(runs.records) - len(runs.ran)
    if runs.ran and failed:
        reason = next(record.reason for record in runs.records if record.status != "ok").rstrip(".")
        message = f"{failed} of {len(runs.records)} processes failed: {reason}."
        yield Warning("repeat-failed", message, "Its record says why; the median is of the others.")
    if runs.later:
        message = f"A later run was cut short, {len(runs.later)} of {runs.later[0].repeats} processes; this is the one "
        yield Warning("cut-short", f"{message}before it, which is complete.", _AGAIN)
    elif runs.cut_short:
        message = f"The run was cut short: {len(runs.records)} of {runs.records[0].repeats} processes were measured."
        yield Warning("cut-short", message, _AGAIN)
