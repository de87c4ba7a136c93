"""The answer of each comparison in words: which row is fastest, by how much, and how sure that is.

``Row.standing`` has the verdict of ``analysis.race``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from inferlens.record.record import AGREEMENT
from inferlens.spec.case import short_name
from inferlens.units import drop, latency, listing, percent, rate, ratio, ratio_range, score
from inferlens.views.rows import OUTPUT_WORDS, Row, group_rows, row_names, sizes_text, varying_sizes
from inferlens.views.table import plain

ONLY_WAY = "THE ONLY WAY THAT RAN RIGHT"
MOST_RIVALS = 2  # rivals in an answer; the table has all of them


class AnswerLine(msgspec.Struct, frozen=True, kw_only=True):
    """Represent the answer of one comparison.

    Attributes:
        where: model, device and sizes, if there are several comparisons.
        head: ``FASTEST``, ``LIKELY FASTEST`` while others may be faster, :data:`ONLY_WAY` if no other ran right,
            ``NONE`` if nothing did; empty for a single way.
        winner: the fastest way with its time.
        speedup: the speed-up over the reference, with its ``interval``.
        sure: how sure an open answer is.
        rival: the ways that may be as fast, or the factor to the next one.
        decide: the command that decides between the first two of an open comparison.
    """

    where: str
    head: str
    winner: str
    speedup: str = ""
    interval: str = ""
    sure: str = ""
    rival: str = ""
    decide: str = ""

    @property
    def brief(self) -> str:
        """Return the answer among many, without the next case."""
        head = "" if self.head in ("", "FASTEST") else f"{self.head.lower()} "
        return ", ".join(filter(None, [f"{self.where}: {head}{self.winner}", self.speedup, self.sure]))

    @property
    def main(self) -> str:
        """Return the answer without the next case."""
        return self._join(self.sure)

    @property
    def lines(self) -> list[str]:
        """Return the answer. The rivals of an open answer and the command that decides it have their own lines."""
        if self.decide:
            return [self.main, self.rival, f"To decide between the first two: {self.decide}"]
        return [self._join(self.sure, self.rival)]

    def _join(self, *more: str) -> str:
        factors = ", ".join(filter(None, [f"{self.speedup} {self.interval}".strip(), *more]))
        return "  ".join(filter(None, [self.where and f"{self.where}:", self.head, self.winner, factors]))

    def __str__(self) -> str:
        return "  ".join(self.lines)


# Words for doubtful numbers by note code.
DOUBTS = {
    "unsteady": "unsteady",
    "two-modes": "unsteady",
    "disturbed": "disturbed",
    "few-samples": "few samples",
    "repeat-failed": "a process failed",
    **OUTPUT_WORDS,
    "nonfinite-outputs": "outputs with NaN or inf",
}
FEW = DOUBTS["few-samples"]
CONTRADICTION = 3  # a call takes on average more than three times the median latency
# Words for answers, which have no column of outputs.
OUTPUT_REMARKS = {"random": "outputs not compared: they are random", "keeps state": "the model keeps state"}
# Doubts that do not come from the machine.
OWN_DOUBTS = ("repeat-failed", *OUTPUT_WORDS, "nonfinite-outputs")


def doubts(row: Row) -> list[str]:
    """Return words for what makes the number of a row doubtful; doubts about the way itself come first.

    In rounds all ways share the state of the machine, and a busy machine has a sentence of its own.
    """
    in_rounds = row.rounds and row.processes > 1
    codes = OWN_DOUBTS if in_rounds else (*OWN_DOUBTS, *DOUBTS)
    rate, latency = row.iterations_per_second, row.median
    contradicts = bool(rate and latency and CONTRADICTION * rate * latency < 1)
    noted = {note.code for note in row.notes} - {*["disturbed"] * row.machine_load.busy}
    return list(dict.fromkeys(["unsteady"] * contradicts + [DOUBTS[code] for code in codes if code in noted]))


def answers(
    rows: Sequence[Row], *, full_names: bool = False, figure: Callable[[Row], str] | None = None
) -> list[AnswerLine]:
    """Return the answer of each comparison.

    ``figure`` writes the number of a row, by default its latency or rate. ``full_names`` adds model, device and
    precision even where all rows share them.
    """
    tables, lines = group_rows(rows, "table"), []
    several_precisions = len({row.precision for row in rows}) > 1
    others = tables if full_names or len(tables) > 1 else ()
    for table in tables:
        names = row_names(rows if several_precisions else table)
        if full_names:
            names = {row.id: plain(row.name) for row in table}
        for comparison in group_rows(table, "comparison"):
            where = _where_text(comparison, table, others)
            lines.append(_race_answer(comparison, names, where, figure or latency_text))
    return lines


def _no_winner(rows: Sequence[Row]) -> str:
    """Return why none is the fastest."""
    if any(row.ok and row.agrees is not False for row in rows):
        return "No way has samples of all its processes."
    problem = "No way ran with right outputs." if any(row.ok for row in rows) else "No way ran."
    why = next((plain(row.agreement_reason if row.ok else row.reason) for row in rows), "")
    return f"{problem}  {why}".rstrip()


def _race_answer(rows: Sequence[Row], names: dict[str, str], where: str, figure: Callable[[Row], str]) -> AnswerLine:
    best = next((row for row in rows if row.place == 1), None)
    if best is None:
        return AnswerLine(where=where, head="NONE", winner=_no_winner(rows))
    remarks = [OUTPUT_REMARKS.get(word, word) for word in doubts(best)]
    remarks += ["outputs unchecked"] * (best.outputs == "unchecked")
    winner = "  ".join([names[best.id], figure(best), *([accuracy_text(best)] if best.metric else []), *remarks])
    head = "" if len(rows) == 1 else "FASTEST" if sum(row.ranked for row in rows) > 1 else ONLY_WAY
    line = AnswerLine(where=where, head=head, winner=winner)
    if best.speedup is not None and not best.is_reference:
        speedup = f"{ratio(best.speedup)} {names.get(best.reference_id, best.reference)}"
        line = replace(line, speedup=speedup, interval=_range_text(best.speedup_low, best.speedup_high))

    def rivals_text(rivals: Sequence[Row]) -> str:
        more = [f"{len(rivals) - MOST_RIVALS} more"] * (len(rivals) > MOST_RIVALS)
        return listing([*(f"{names[row.id]} {figure(row)}" for row in rivals[:MOST_RIVALS]), *more])

    if best.standing == "likeliest":
        sure = chance_text(best.chance) + ("" if best.rounds else ", measured once")
        rival = f"{rivals_text([row for row in rows if row.standing == 'open'])} may be faster"
        return replace(line, head="LIKELY FASTEST", sure=sure, rival=rival, decide=plain(best.hint))
    equal = [row for row in rows if row.standing == "equal" and row.id != best.id]
    if equal:
        return replace(line, rival=f"as fast: {rivals_text(equal)}")
    slower = [row for row in rows if row.standing == "slower" and row.behind is not None]
    following = min(slower, key=lambda row: row.behind or 0.0, default=None)
    if following and not following.is_reference:
        rival = f"{ratio(following.behind)} {names[following.id]}"
        return replace(line, rival=f"{rival} {_range_text(following.behind_low, following.behind_high)}".rstrip())
    return line


def _range_text(low: float | None, high: float | None) -> str:
    return "" if low is None else f"({ratio_range(low, high)})"


def accuracy_score(row: Row) -> str:
    return score(row.accuracy, share=row.accuracy_share)


def accuracy_text(row: Row) -> str:
    """Return the accuracy and its distance from fp32 in a few words."""
    if row.drop is None or row.metric == AGREEMENT:
        return f"{row.metric} {accuracy_score(row)}" + " with fp32" * (row.metric == AGREEMENT)
    distance = drop(row.drop).lstrip("-")
    than = "as fp32" if distance == "0.0 %" else f"{distance} {'below' if row.drop > 0 else 'above'} fp32"
    return f"{row.metric} {accuracy_score(row)}, {than}"


def chance_text(chance: float | None) -> str:
    """Return the probability of an open race in words, below the 95 % that would decide it; empty if not known."""
    return "" if chance is None else f"{percent(min(round(chance, 2), 0.94))} sure"


def _where_text(rows: Sequence[Row], table: Sequence[Row], tables: Sequence[Sequence[Row]]) -> str:
    """Return model, device and sizes of an answer, as far as they differ among ``tables``."""
    row = next((row for row in rows if row.ok), rows[0])
    words = [plain(short_name(row.model))] if tables else []
    if len({row.device_name for group in tables for row in group}) > 1:
        words.append(plain(row.device_name))
    sizes = varying_sizes(row for group in (table, *tables) for row in group)
    words += filter(None, [sizes_text(row, sizes)])
    if len({(row.io, row.call_mode) for row in table}) > 1:
        words.append(" ".join(filter(None, (row.call_mode, f"--io {row.io}"))))
    return ", ".join(words)


def latency_text(row: Row) -> str:
    """Return the median latency, or else the rate. A call without a batch is one item."""
    if row.median is not None:
        return latency(row.median)
    return f"{rate(row.items_per_second or row.iterations_per_second)} items/s"
