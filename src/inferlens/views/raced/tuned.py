"""A tuning as a screen and as a page: the finals' table, what the winner's settings do, what was tried and what not.

The ranking is the finals' alone. Others stand beneath, by how the search saw them beside the winner, and say so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Any

from msgspec.structs import replace

from inferlens.analysis.interference import mean_load
from inferlens.analysis.measures import BOTTLENECKS, device_peak, host_peak, measure_value
from inferlens.analysis.samples import CaseRuns
from inferlens.analysis.tuning import (
    Advice,
    Candidate,
    CandidateFacts,
    Effect,
    SkippedCandidate,
    TuningReport,
    candidate_facts,
)
from inferlens.record.display import fields_by_key
from inferlens.record.record import Record
from inferlens.spec.case import PRECISIONS
from inferlens.units import (
    ABSENT,
    bare_seconds,
    drop,
    duration,
    error_size,
    listing,
    mebibytes,
    plural,
    ratio,
    ratio_range,
    score,
)
from inferlens.views.answer import answers, written
from inferlens.views.plain import plain
from inferlens.views.records import COLUMNS, WIDTH, blocks_of, remark, table_of
from inferlens.views.records import document as of_records
from inferlens.views.renderers.terminal import fitting
from inferlens.views.rows import Row, by, rows
from inferlens.views.table import Column, Document, Line, Screen, Table

SCHEMA = "inferlens.tuning/1"
SHOWN = 5  # rows, where as many ran
SEARCHED = "in the search"
RACED = ("latency", "throughput")  # objectives by which tables of records are ordered anyway
LONGER = 1.0  # seconds by which a build is longer, from which on it is said
MOST_NAMES = 3
# The columns that show what is to be best, or is limited, where they are not shown anyway.
_MEASURED = {
    "latency.p95": ("p95",), "latency.p99": ("p99",), "energy": ("energy",), "error": ("error",),
    "accuracy-drop": ("drop",), "memory": ("host_peak", "device_peak"),
}  # fmt: skip
_WORTH = (
    Column("accuracy", "accuracy", "", lambda item: score(item.value, share=item.share) if item else ABSENT, 2),
    Column("accuracy", "drop", "", lambda item: drop(item.drop) if item else ABSENT, 2),
)
_TRIED = (
    Column("", "vs the winner", "", lambda one: ratio(one.candidate.speedup), 0),
    Column("", "interval", "95 %", lambda one: _interval(one.candidate), 5),
    Column("error", "error", "rel. L2", error_size, 2),
    Column("memory", "memory", "MiB", mebibytes, 4),
    Column("build", "build", "s", bare_seconds, 3),
    Column("outcome", "what came of it", "", plain, 1, numeric=False, fold=True),
)


def document(tuned: TuningReport, reference: str | None = None, top: int | None = None) -> Document:
    """What there is to show of a tuning; ``top``: rows on a screen; ``None``: five, if as many ran.

    Raises:
        InferlensError: if ``reference`` names no row of the finals.
    """
    shown, facts = finals_of(tuned, reference), candidate_facts(tuned)
    title = f"{plain(tuned.trials[0].records[0].case.model)} tuned" if tuned.candidates else "Nothing was tried"

    def data() -> dict[str, Any]:
        kept = {key: value for key, value in fields_by_key(tuned).items() if key not in ("schema", "trials")}
        return {
            "schema": SCHEMA,
            **kept,
            "tried": len(facts),
            "machine_load": mean_load(row.machine_load for row in shown),
            "rows": shown,
            "candidates": [_as_data(tuned, one) for one in facts],
        }

    def csv() -> tuple[Sequence[str], list[Sequence[object]]]:
        lines = [_as_data(tuned, one) for one in facts]
        return list(lines[0]) if lines else [], [list(line.values()) for line in lines]

    return Document(
        blocks=lambda: [*_blocks(tuned, shown, facts), tried_table(facts)],
        data=data,
        csv=csv,
        title=title,
        screen=lambda screen: _screen(tuned, shown, facts, top, screen),
    )


def finals_of(tuned: TuningReport, reference: str | None = None) -> list[Row]:
    """The rows of the finals, by what is to be best, of equally good ones first that which is kept as the winner.

    Memory is also of the search, as finals export anew.
    """
    every = tuned.runs_by_case
    runs = {record.id: every[record.case.digest] for record in tuned.final_records}
    found = [
        replace(row, host_peak=host_peak(runs[row.id]), device_peak=device_peak(runs[row.id]))
        for row in rows(tuned.final_records, reference, tuned.aim)
    ]
    found.sort(key=lambda row: row.standing != "equal" or not tuned.best or row.label != tuned.best.label)
    places = iter(sorted(row.place for row in found if row.place))
    return [replace(row, place=next(places)) if row.place else row for row in found]


def tried_table(facts: Sequence[CandidateFacts], of: str = "") -> Table:
    """Everything that was tried, and what came of it; ``of`` says of which tuning."""
    columns = (*_TRIED[:2], *_WORTH * any(one.accuracy for one in facts), *_TRIED[2:])
    lines = [
        Line.of(
            plain(one.case.way), columns, one, style="bold" if not place else "dim" if one.candidate.rejection else ""
        )
        for place, one in enumerate(facts)
    ]
    about = "The speed-up is against the winner, by all rounds of the search; what failed or was wrong was not timed."
    title = f"Everything that was tried{f': {of}' if of else ''}"
    return Table(title, "candidate", columns, lines, about=about, fold=True)


def _as_data(tuned: TuningReport, one: CandidateFacts) -> dict[str, Any]:
    """A candidate for programs."""
    candidate, case = one.candidate, one.case
    return {
        "candidate": case.label,
        "backend": case.backend_label,
        "precision": case.precision,
        "settings": " ".join(map(_spelled, candidate.settings)),
        "speedup": candidate.speedup,
        "low": candidate.low,
        "high": candidate.high,
        tuned.objective.name: one.objective,
        "error": one.error,
        "accuracy": one.accuracy.value if one.accuracy else None,
        "drop": one.accuracy.drop if one.accuracy else None,
        "memory": one.memory,
        "build": one.build,
        "final": candidate.final,
        "outcome": one.outcome,
    }


def _screen(
    tuned: TuningReport, shown: Sequence[Row], facts: Sequence[CandidateFacts], top: int | None, screen: Screen
) -> list[Table | str]:
    """As much as fits on a screen: with shorter names, or fewer rows, those of the search first."""

    def blocks(most: int, fold: bool = True) -> list[Table | str]:
        found = _blocks(tuned, shown, facts, most)
        return [item if isinstance(item, str) else changed(item, fold=fold) for item in found]

    fewer = itertools.product(range(max(SHOWN, len(shown)), 0, -1), (True, False))
    return blocks(top) if top else fitting(itertools.starmap(blocks, fewer), screen) or blocks(1, fold=False)


def _blocks(
    tuned: TuningReport, shown: Sequence[Row], facts: Sequence[CandidateFacts], most: int = SHOWN
) -> list[Table | str]:
    """The finals' table, those of the search that fill it up, and what there is to say."""
    if not shown:
        failures = [f"{plain(one.case.way)}: {plain(one.outcome)}" for one in facts[:MOST_NAMES]]
        return ["Nothing ran with right outputs.", *failures, *sentences(tuned, facts)]
    finals = by(shown, "table")[0]
    table = table_of(finals, None, most, _columns(tuned))
    table = changed(table, title=table.title.rpartition(" · ")[0])
    more = most - len(finals) if most > len(finals) else 0
    winner = next((row for row in shown if tuned.best and row.label == tuned.best.label), None)
    others = [one for one in facts if not (one.candidate.rejection or one.candidate.final) and one.candidate.speedup]
    records = {record.id: record for record in tuned.search_records}
    fills = [
        _filling(records[one.candidate.record], one.candidate, winner, table, finals)
        for one in others[:more] if winner
    ]  # fmt: skip
    answer = [*answer_of(tuned, finals), *_against_bench(tuned, facts, finals)]
    if len(facts) < tuned.size:
        answer.insert(1, f"Of {plural(tuned.size, 'candidate')}, {len(facts):,} were tried.")
    columns = [
        changed(column, wide=False) if fills and column.title.startswith("vs ") else column for column in table.columns
    ]
    return [changed(table, columns=columns, lines=[*table.lines, *fills], answer=answer), *sentences(tuned, facts)]


def _columns(tuned: TuningReport) -> list[Column]:
    """Those of records, with what is to be best or is limited, and builds in a column rather than in words."""
    names = [tuned.objective.name, *(limit.name for limit in tuned.constraints)]
    wanted = {column for name in names for column in _MEASURED.get(name, ())}
    columns = []
    for column in COLUMNS[:-1]:
        if column.title == "build":
            columns.append(changed(column, wide=False, keep=4))
        elif column.key == "p95" or {column.key, column.title} & wanted:
            columns.append(
                changed(column, wide=column.key not in wanted and column.title not in wanted, keep=min(column.keep, 3))
            )
        else:
            columns.append(column)
    barred = {record.case.label for record in tuned.final_records if record.case.digest in tuned.aim.excluded}

    def said(row: Row) -> str:
        return remark(row, builds=False) or "breaks a limit" * (row.label in barred or bool(tuned.broken_constraints))

    return [*columns, changed(COLUMNS[-1], write=said, keep=2)]


def _filling(record: Record, candidate: Candidate, winner: Row, table: Table, finals: Sequence[Row]) -> Line:
    """A row of the search: without times, for the machine differs from round to round.

    Its speed-up is the winner's times how it stood to that one; how far it may be off is both intervals together, for
    they come from different processes.
    """
    (row,) = rows([replace(record, measurements=(), energy=None, cpu_energy=None)])
    times, low, high = candidate.speedup or 1.0, candidate.low or 1.0, candidate.high or 1.0
    spreads = [math.log(high / low) / 2]
    if winner.speedup_low and winner.speedup_high:
        spreads.append(math.log(winner.speedup_high / winner.speedup_low) / 2)
    speedup, spread = (winner.speedup or 1.0) * times, math.exp(math.hypot(*spreads))
    row = replace(
        row, is_reference=False, speedup=speedup, speedup_low=speedup / spread, speedup_high=speedup * spread, sure=True
    )
    name = row.way if len({final.precision for final in finals}) > 1 else plain(record.case.way)
    line = Line.of(name, table.columns, row, indent="   ", style="dim")
    return changed(line, cells=[*line.cells[:-1], SEARCHED])


def answer_of(tuned: TuningReport, finals: Sequence[Row]) -> list[str]:
    """Which is best, with what is to be best of it."""
    fast = tuned.objective.name in RACED
    runs = {
        record.id: [one for one in tuned.final_records if one.case == record.case] for record in tuned.final_records
    }

    def told(row: Row) -> str:
        measure = tuned.objective.measure
        return f"{measure.title} {measure.show(measure_value(CaseRuns(tuple(runs[row.id])), tuned.objective.name))}"

    found = []
    for line in answers(finals, told=written if fast else told):
        head = line.head if fast else line.head.replace("FASTEST", "BEST")
        rivals = len(tuned.answer.open)
        rival = line.rival if fast else line.rival.replace("faster", "better")
        decide = line.decide if fast and rivals <= 1 else "a longer --budget" if line.decide else ""
        found += replace(line, decide=decide, decides="it", head=head, rival=rival).lines
    return found


def _against_bench(tuned: TuningReport, facts: Sequence[CandidateFacts], finals: Sequence[Row]) -> list[str]:
    """The winner against what ``inferlens bench`` would have found, where the answer does not say it."""
    if not facts or not tuned.best:
        return []
    reference = next((row for row in finals if row.is_reference), None)
    usual = next((one.case for one in facts if reference and _is_usual(one, reference.precision)), None)
    if usual in (None, tuned.best):
        known = tuned.answer.kind == "fastest" and not tuned.constraints and not facts[0].candidate.settings
        known &= any(one.candidate.settings for one in facts)
        return ["No setting that was tried is better than its defaults."] * known
    nearest = min((row for row in finals if row.behind), key=lambda row: row.behind or 0.0, default=None)
    told = [row.label for row in finals if row in (reference, nearest) or row.standing == "equal"]
    if usual is None or (tuned.answer.kind == "fastest" and usual.label in told):
        return []
    row = next(row for row in finals_of(tuned, usual.label) if row.label == tuned.best.label)
    if not row.speedup:
        return []
    interval = f" ({ratio_range(row.speedup_low, row.speedup_high)})" if row.speedup_low else ""
    return [f"Against {plain(usual.way)}, the best of inferlens bench: {ratio(row.speedup)}{interval}."]


def _is_usual(one: CandidateFacts, precision: str) -> bool:
    """Whether it is a way with its defaults, in this precision, that was in the finals."""
    return one.candidate.final and not one.candidate.settings and one.case.precision == precision


def sentences(tuned: TuningReport, facts: Sequence[CandidateFacts]) -> list[str]:
    """What was tried and found, and what to do with it."""
    broken = plain(" ".join(tuned.broken_constraints))
    said = [f"Nothing keeps all limits; this comes nearest. {broken}"] if broken else []
    if tuned.advice:
        said.append(f"Advice that paid: {'; '.join(map(_advice, tuned.advice))}.")
    effects = sorted(tuned.effects, key=lambda effect: -(effect.speedup or 0.0))
    said += _of_settings("What its settings do", [effect for effect in effects if effect.chosen])
    others = [effect for effect in effects if effect.speedup and not effect.chosen]
    said += _of_settings("What others would do", [effect for effect in others if _differs(effect)])
    if same := [plain(_spelled(effect.setting)) for effect in others if not _differs(effect)]:
        said.append(f"Others of which no effect was seen: {_some(same, MOST_NAMES)}.")
    ended = "none of the rest promised more" if tuned.complete else "a longer --budget tries more"
    finals = sum(one.candidate.final for one in facts)
    met = f"; {finals} met in {plural(tuned.answer.rounds, 'final round')}" if tuned.answer.rounds else ""
    counts = f"{len(facts):,} of {plural(tuned.size, 'candidate')}"
    out = sum(bool(one.candidate.rejection) for one in facts)
    lost = f"; {out:,} ruled out (-o tuned.html says why)" if out and tuned.best else ""
    said.append(f"Tried {counts} in {duration(tuned.seconds)}{met}{lost}; {ended}.")
    said += left_out(tuned.skipped)
    if tuned.folder:
        folder = plain(tuned.folder)
        live = tuned.trials[0].records[0].case.model.startswith("live:")  # which no command can name
        use = f"inferlens.load('{folder}'), or inferlens export --best {folder} -o deploy"
        said += [f"Use it: {'tuning.load()' if live else use}"]
        said += sorted(filter(None, {record.model.weights_note for one in tuned.trials for record in one.records}))
        said += [] if live else [f"Repeat it: inferlens bench {folder}/best.toml"]
    return said


def _of_settings(about: str, effects: Sequence[Effect]) -> list[str]:
    """What each of some settings does."""
    each = [
        f"{plain(_spelled(effect.setting))} {_does(effect)}"
        + (f", build {effect.build:+,.0f} s" if effect.build and abs(effect.build) >= LONGER else "")
        for effect in effects
    ]
    return [f"{about}: {'; '.join(each)}."] if each else []


def _advice(advice: Advice) -> str:
    """What helped, and against what."""
    settings = ", ".join(plain(_spelled(part)) if "=" in part else plain(part) for part in advice.settings.split(", "))
    return f"{settings}, since {BOTTLENECKS[advice.against].format(plain(advice.way))} ({ratio(advice.speedup)})"


def _differs(effect: Effect) -> bool:
    """Whether it is known to do something."""
    return effect.low is not None and effect.high is not None and not effect.low <= 1 <= effect.high


def _does(effect: Effect) -> str:
    """What a setting does."""
    if effect.speedup is None:
        return "not known"
    return f"{ratio(effect.speedup)} ({ratio_range(effect.low, effect.high)})"


def _interval(candidate: Candidate) -> str:
    return ratio_range(candidate.low, candidate.high) if candidate.low != candidate.high else ""


def _spelled(setting: str) -> str:
    """A setting as it is asked for."""
    name, _, chosen = setting.partition("=")
    return f"{name}={chosen.lower() if chosen in ('True', 'False') else chosen}"


def left_out(untried: Sequence[SkippedCandidate], said: str = "Not tried") -> list[str]:
    """Which backends and precisions were not tried, why in few words, and what would have them tried."""
    reasons: dict[str, list[str]] = {}
    for item in untried:
        flag = item.hint if item.hint.startswith(("--device", "--only")) else ""
        flag = "inferlens doctor" if item.hint.startswith("pip ") else flag
        why = item.reason.removeprefix(f"{item.name.partition(' ')[0]} ").partition(": ")[0].rstrip(".")
        asked = "--precision" if item.name in PRECISIONS else "--backend"
        reasons.setdefault(flag or why or asked, []).append(item.name)
    line = ""
    for most in range(MOST_NAMES, 0, -1):
        line = f"{said}: {'; '.join(f'{_some(names, most)} ({plain(why)})' for why, names in reasons.items())}."
        if len(line) <= WIDTH:
            break
    return [line] if reasons else []


def _some(names: Sequence[str], most: int) -> str:
    """The first few names."""
    first = [plain(name) for name in names[:most]]
    rest = len(names) - len(first)
    return listing([*first, f"{rest} more"] if rest else first)


# Several tunings as one screen: an answer and rows for each model and batch size, and where the winners lie.

TUNINGS_SCHEMA = "inferlens.tunings/1"


def tunings_document(every: Sequence[TuningReport], reference: str | None = None, top: int | None = None) -> Document:
    """What there is to show of tunings; of a single one all of it, ``reference`` and ``top`` as there."""
    if len(every) == 1:
        return document(every[0], reference, top)
    records = [record for tuned in every for record in tuned.final_records]
    finals, raced = of_records(records, reference), every[0].objective.name in RACED

    def told() -> Sequence[Table | str]:
        """The answer of each, where tables of records do not have it."""
        said = [(_name(tuned), answer_of(tuned, finals_of(tuned))) for tuned in every]
        decide = dict.fromkeys(line for _, lines in said for line in lines[1:])  # each to be pasted as it is
        return [*(f"{name}: {lines[0]}" for name, lines in said if lines), *decide, *tunings_sentences(every)]

    def blocks() -> Sequence[Table | str]:
        met = [*_by_budget(finals.blocks() if records else ()), *tunings_sentences(every)] if raced else told()
        return [*met, *(tried_table(candidate_facts(tuned), _name(tuned)) for tuned in every)]

    def fitted(screen: Screen) -> Sequence[Table | str]:
        if not raced:
            return told()
        shown = rows(records, reference)
        tries = (
            [*_by_budget(blocks_of(shown, None, most)), *tunings_sentences(every)]
            for most in range(top or len(records), 0, -1)
        )
        found = next(tries) if top else fitting(tries, screen)
        return found or [*(answer.brief for answer in answers(shown, whole=True)), *tunings_sentences(every)]

    return Document(
        blocks=blocks,
        data=lambda: {"schema": TUNINGS_SCHEMA, "tunings": [document(tuned).data() for tuned in every]},
        csv=finals.csv,
        title=finals.title,
        screen=fitted,
    )


def _by_budget(blocks: Sequence[Table | str]) -> list[Table | str]:
    """Tables of records, with what decides a tuning in place of what decides a run of them."""

    def longer(line: str) -> str:
        return f"{line.partition(':')[0]}: a longer --budget" if line.startswith("To decide") else line

    return [
        block if isinstance(block, str) else changed(block, answer=list(map(longer, block.answer))) for block in blocks
    ]


def tunings_sentences(every: Sequence[TuningReport]) -> list[str]:
    """What was tried in all and what was not, where each winner lies, and what to do with it."""
    tried, size = (sum(getattr(tuned, name) for tuned in every) for name in ("candidate_count", "size"))
    said = [
        f"{_name(tuned)}: nothing keeps all limits. {plain(' '.join(tuned.broken_constraints))}"
        for tuned in every
        if tuned.broken_constraints
    ]
    said += [f"{_name(tuned)}: nothing ran with right outputs." for tuned in every if not tuned.best]
    ended = "" if all(tuned.complete for tuned in every) else ", until the time was over: more with --budget"
    took = duration(sum(tuned.seconds for tuned in every))
    said.append(f"Tried {tried:,} of {plural(size, 'candidate')} in {took}{ended}.")
    in_all = [untried for untried in every[0].skipped if all(untried in tuned.skipped for tuned in every)]
    in_some = dict.fromkeys(untried for tuned in every for untried in tuned.skipped if untried not in in_all)
    said += [*left_out(in_all), *left_out(list(in_some), "Not tried in some")]
    folders = [plain(tuned.folder) for tuned in every if tuned.folder]
    if folders:
        others = f" · The others: {', '.join(folders[1:])}" if folders[1:] else ""
        said.append(f"Use one: inferlens.load('{folders[0]}'){others}")
        said.append(f"Export one: inferlens export --best {folders[0]} -o deploy")
    return said


def _name(tuned: TuningReport) -> str:
    """What it is of."""
    record = tuned.trials[0].records[0]
    return plain(", ".join(filter(None, [record.model.name, record.case.sizes_label])))
