"""The answer of each comparison as a line: which is fastest, by how much, how sure that is.

Rows say how they stand (``Row.standing``), by the one rule of ``analysis.race``; here it is put into words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from inferlens.record.record import AGREEMENT
from inferlens.spec.case import short_name
from inferlens.units import drop, latency, listing, percent, rate, ratio, ratio_range, score
from inferlens.views.plain import plain
from inferlens.views.rows import OF_OUTPUTS, Row, at, by, varying, ways

_TF32 = "(TF32)"
ALONE = "THE ONLY WAY THAT RAN RIGHT"
LINE = 100  # characters of an answer among many
MOST_RIVALS = 3  # that are named; the table has them all


class AnswerLine(Struct, frozen=True, kw_only=True):
    """The answer of one comparison.

    Attributes:
        where: of what it is, where there are several: model, device, sizes.
        head: ``FASTEST``, ``LIKELY FASTEST`` while others may be faster, :data:`ALONE` if no other ran right, or
            ``NONE`` if nothing did; empty of a single way.
        who: the way that it is, with its time.
        than: by how much against the reference; ``sure``: the interval of that.
        rival: the ways that may be as fast, by how much against the next one, or how likely it is.
        least: what is said in place of that where there is no room.
        decide: the command that decides it; empty where it is decided. ``decides`` says what it decides.
    """

    where: str
    head: str
    who: str
    than: str = ""
    sure: str = ""
    rival: str = ""
    least: str = ""
    decide: str = ""
    decides: str = "it"

    @property
    def brief(self) -> str:
        """The answer in one line, without the next one."""
        head = "" if self.head in ("", "FASTEST") else f"{self.head.lower()} "
        said = [", ".join(filter(None, [f"{self.where}: {head}{self.who}", *form])) for form in self._forms[2:]]
        return next((item for item in said if len(item) <= LINE), said[-1])

    def within(self, width: int) -> str:
        """The answer without the command that decides it, on one line if there is a way to say it in so few letters."""
        said = [self._whole(form) for form in self._forms]
        return next((item for item in said if len(item) <= width), said[-1])

    @property
    def _forms(self) -> list[tuple[str, str]]:
        """By how much, from all of it to the least that must be said: the reference is always in it."""
        sure = f"{self.than} {self.sure}".strip()
        return [(sure, self.rival), (self.than, self.rival), (sure, self.least), (self.than, self.least)]

    def folded(self, width: int) -> list[str]:
        """:attr:`lines`, by how much on a line of its own where one line is too short."""
        first, *decide = self.lines
        said = replace(self, than="", sure="", rival="", decide="").lines[0]
        return [*([first] if len(first) <= width else [said, first[len(said) :].strip()]), *decide]

    def _whole(self, form: tuple[str, str]) -> str:
        parts = [f"{self.where}:" if self.where else "", self.head, self.who, ", ".join(filter(None, form))]
        return "  ".join(part for part in parts if part)

    def __str__(self) -> str:
        return "  ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The answer, and on a line of its own the command that decides it."""
        return [self._whole(self._forms[0]), *([f"To decide {self.decides}: {self.decide}"] if self.decide else [])]


# Words for what makes a number doubtful, by the codes of notes.
DOUBTS = {
    "unsteady": "unsteady",
    "two-modes": "unsteady",
    "disturbed": "disturbed",
    "few-samples": "few samples",
    "repeat-failed": "a process failed",
    **OF_OUTPUTS,
    "nonfinite-outputs": "outputs with NaN or inf",
}
FEW = DOUBTS["few-samples"]
# What an answer says of them, which has no column of outputs.
WHOLE = {"random": "outputs not compared: they are random", "keeps state": "the model keeps state"}
# Words for a number that the machine does not account for.
ANYWAY = ("repeat-failed", *OF_OUTPUTS, "nonfinite-outputs")


def doubts(row: Row) -> list[str]:
    """Return what makes the row's number doubtful, a word each, the way's own first.

    In rounds the machine's state is that of all ways, and a busy machine has a sentence of its own.
    """
    met = row.rounds and row.processes > 1
    codes = ANYWAY if met else (*ANYWAY, *DOUBTS)
    said = {note.code for note in row.notes} - {*["disturbed"] * row.machine_load.busy}
    return list(dict.fromkeys(DOUBTS[code] for code in codes if code in said))


def answers(rows: Sequence[Row], *, whole: bool = False, told: Callable[[Row], str] | None = None) -> list[AnswerLine]:
    """The answer of each comparison among rows; ``told`` is what is said of a row, by default its latency or its rate.

    ``whole``: whether each says of which model, device and precision it is, also where all are of one.
    """
    tables, found = by(rows, "table"), []
    varies = len({row.precision for row in rows}) > 1
    for table in tables:
        names = {row.id: plain(row.name) for row in table} if whole else ways(rows if varies else table)
        about = tables if whole or len(tables) > 1 else ()
        found += [_answer(item, names, _where(item, table, about), told or written) for item in by(table, "comparison")]
    return found


def _nothing(rows: Sequence[Row]) -> dict[str, str]:
    """Return why none is the fastest."""
    right = [row for row in rows if row.ok and row.agrees is not False]
    if right:
        measured = any(row.seconds_per_call is not None for row in right)
        return {"who": f"No way {'ran in each of its processes' if measured else 'has samples that can be used'}."}
    what = "No way ran with right outputs." if any(row.ok for row in rows) else "No way ran."
    return {"who": what, "than": next((plain(row.agreement_reason if row.ok else row.reason) for row in rows), "")}


def _answer(rows: Sequence[Row], names: dict[str, str], where: str, told: Callable[[Row], str]) -> AnswerLine:
    best = next((row for row in rows if row.place == 1), None)
    if best is None:
        return AnswerLine(where=where, head="NONE", **_nothing(rows))
    said = [WHOLE.get(word, word) for word in doubts(best)]
    said += ["outputs unchecked"] * (best.outputs == "unchecked")
    who = "  ".join([names[best.id], told(best), *([worth(best)] if best.metric else []), *said])
    than, sure = _than(best, rows, names)
    head = "" if len(rows) == 1 else "FASTEST" if sum(row.ranked for row in rows) > 1 else ALONE
    line = AnswerLine(where=where, head=head, who=who, than=than, sure=sure)
    named = {row.id: f"{names[row.id]} {told(row)}" + lost(row) for row in rows}
    if best.standing == "likeliest":
        rivals = [row for row in rows if row.standing == "open"]
        chance = f"{likely(best.chance)}{'' if best.rounds else ', measured once'}"
        few = f"{len(rivals)} others may be faster" if len(rivals) > 1 else "the next may be faster"
        everyone = f"{listing([named[row.id] for row in rivals])} may be faster" if len(rivals) <= MOST_RIVALS else few
        return replace(
            line, head="LIKELY FASTEST", rival=f"{chance}: {everyone}", least=chance,
            decide=plain(best.hint), decides="it" if len(rivals) == 1 else "between the first two",
        )  # fmt: skip
    equal = [row for row in rows if row.standing == "equal" and row.id != best.id]
    if equal:
        shown = [named[row.id] for row in equal[:MOST_RIVALS]]
        more = [f"{len(equal) - MOST_RIVALS} more"] * (len(equal) > MOST_RIVALS)
        rival = f"as fast: {', '.join([*shown, *more])}"
        return replace(line, rival=rival, least=f"as fast: {len(equal)} more" if len(equal) > 1 else rival)
    slower = [row for row in rows if row.standing == "slower" and row.behind is not None]
    following = min(slower, key=lambda row: row.behind or 0.0, default=None)
    if following and not following.is_reference:
        known = following.behind_low is not None
        interval = f" ({ratio_range(following.behind_low, following.behind_high)})" if known else ""
        return replace(line, rival=f"{ratio(following.behind)} {names[following.id]}{interval}")
    return line


def lost(row: Row) -> str:
    """Return what the outputs of a row lost, in words; empty if nothing is known to be lost."""
    return f" {row.outputs}" if row.outputs in OF_OUTPUTS.values() else ""


def _than(best: Row, rows: Sequence[Row], names: dict[str, str]) -> tuple[str, str]:
    """How much faster than the reference it is, and how sure that is."""
    if best.is_reference or best.speedup is None:
        return "", ""
    interval = ratio_range(best.speedup_low, best.speedup_high)
    name = next((name for id, name in names.items() if id == best.reference_id), best.reference)
    known = best.speedup_low is not None
    lowered = " in fp32, this in TF32" if _TF32 in best.name and _TF32 not in best.reference else ""
    base = next((row for row in rows if row.id == best.reference_id), best)
    marked = f" ({FEW})" if FEW in doubts(base) and FEW not in doubts(best) else ""
    return f"{ratio(best.speedup)} {name}{lowered}{marked}", f"({interval})" if known else ""


def accuracy(row: Row) -> str:
    """The accuracy by itself."""
    return score(row.accuracy, share=row.accuracy_share)


def worth(row: Row) -> str:
    """The accuracy, and how far it is below fp32, in a few words."""
    if row.drop is None or row.metric == AGREEMENT:
        with_what = " with fp32" if row.metric == AGREEMENT else ""
        return f"{row.metric} {accuracy(row)}{with_what}"
    lost = drop(row.drop).lstrip("-")
    than = "as fp32" if lost == "0.0 %" else f"{lost} {'below' if row.drop > 0 else 'above'} fp32"
    return f"{row.metric} {accuracy(row)}, {than}"


def likely(chance: float | None) -> str:
    """Return the probability of an open race in words, below the 95 % that would decide it; empty if not known."""
    return "" if chance is None else f"{percent(min(round(chance, 2), 0.94))} sure"


def _where(rows: Sequence[Row], table: Sequence[Row], tables: Sequence[Sequence[Row]]) -> str:
    """Of what an answer is, in a few words: its model, device and sizes, where they differ among ``tables``."""
    row = next((row for row in rows if row.ok), rows[0])
    words = [plain(short_name(row.model))] if tables else []
    if len({other.device_name for group in tables for other in group}) > 1:
        words.append(plain(row.device_name))
    words += filter(None, [at(row, varying(row for one in (table, *tables) for row in one))])
    if len({(row.io, row.call_mode) for row in table}) > 1:
        words.append(" ".join(filter(None, (row.call_mode, f"--io {row.io}"))))
    return ", ".join(words)


def written(row: Row) -> str:
    """The median latency, or the rate where no latency was measured; a call without a batch is one item."""
    if row.median is not None:
        return latency(row.median)
    return f"{rate(row.items_per_second or row.iterations_per_second)} items/s"
