"""The closing sentences of a comparison: what is slower, what is faster, what did not run, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from inferlens.analysis.compare.cases import Compared, Verdict
from inferlens.units import listing, percent
from inferlens.views.compared.lines import Line, full_names

_MOST_NAMES = 3
Named = Sequence[tuple[str, Line]]


def sentences(compared: Compared) -> list[str]:
    """What is to be said of ``compared``, the most important first."""
    lines = full_names(compared)
    found = (
        _changed(lines, "SLOWER"),
        _changed(lines, "FASTER"),
        _rest(compared, lines),
        _stopped(lines),
        _unlike(compared),
        _how_sure(compared),
    )
    return [sentence for sentence in found if sentence]


def _of(lines: Named, verdict: Verdict) -> Named:
    return [(name, line) for name, line in lines if line.verdict == verdict]


def _changed(lines: Named, verdict: Verdict) -> str:
    """``1 of 12 compared cases is slower: NAME, +7.22 % (+6.10 to +8.30 %).``"""
    compared = sum(line.of.compared for _, line in lines)
    found = sorted(_of(lines, verdict), key=lambda pair: -abs(pair[1].of.change or 0.0))
    if not found:
        return f"None of {compared:,} compared cases is slower." if verdict == "SLOWER" and compared > 1 else ""
    told = [f"{name}, {line.change} ({line.interval})" for name, line in found[:_MOST_NAMES]]
    of = f" of {compared:,} compared cases" if verdict == "SLOWER" and compared > 1 else ""
    return f"{len(found):,}{of} {_are(len(found))} {verdict.lower()}: {'; '.join([*told, *_more(found)])}."


def _rest(compared: Compared, lines: Named) -> str:
    """How many are the same, undecided, or ran on neither side."""
    same, undecided = (len(_of(lines, verdict)) for verdict in ("SAME", "UNDECIDED"))
    neither = sum(line.of.on_neither for _, line in lines)
    parts = [f"{same:,} {_are(same)} the same within {percent(compared.threshold)}"] if same else []
    parts += [f"{undecided:,} {_are(undecided)} undecided"] if undecided else []
    parts += [f"{neither:,} ran on neither side"] if neither else []
    return f"{listing(parts)}." if parts else ""


def _stopped(lines: Named) -> str:
    """What has figures on one side alone."""
    found = [(name, line) for name, line in _of(lines, "DID NOT RUN") if not line.of.on_neither]
    if not found:
        return ""
    told = [f"{name} ({_where(line)})" for name, line in found[:_MOST_NAMES]]
    return f"{len(found):,} cannot be compared: {'; '.join([*told, *_more(found)])}."


def _where(line: Line) -> str:
    return f"base: {line.of.base.state}" if line.of.candidate.ok else f"candidate: {line.of.candidate.state}"


def _unlike(compared: Compared) -> str:
    fields = list(dict.fromkeys(difference.field for difference in compared.differences if difference.unlike))
    if not fields:
        return ""
    return f"The two sides differ in {listing(fields)}: the changes are not those of the software alone."


def _how_sure(compared: Compared) -> str:
    """What the changes are of, and what their intervals cover."""
    better = "above 0 is faster" if compared.metric == "throughput" else "above 0 is slower"
    start = f"Changes are of the median {compared.metric}; {better}."
    ran = [case for case in compared.cases if case.compared]
    if not ran:
        return "Nothing could be compared."
    counts = {side.processes for case in ran for side in (case.base, case.candidate)}
    if max(counts) == 1:
        return (
            f"{start} One process on each side: how much processes differ is not known, so only large changes are "
            "believed."
        )
    each = f"{max(counts):,} processes" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,} processes"
    together = "The interval holds" if compared.comparisons == 1 else "All intervals together hold"
    return f"{start} {each} on each side. {together} with {percent(compared.level)} confidence."


def _more(found: Sequence[object]) -> list[str]:
    return [f"and {len(found) - _MOST_NAMES:,} more"] if len(found) > _MOST_NAMES else []


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
