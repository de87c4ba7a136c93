"""Tunings as documents and charts.

Only the finals are ranked. Rows of the search follow on a screen, and are marked as such. A table of all candidates
has their speed-up over the winner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from inferlens.analysis.interference import mean_load
from inferlens.analysis.measures import BOTTLENECKS, AccuracyScore, device_peak, host_peak, measure_value
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
from inferlens.errors import InferlensError
from inferlens.record.display import fields_by_key
from inferlens.spec.case import PRECISIONS, short_name
from inferlens.units import (
    ABSENT,
    bare_seconds,
    drop,
    duration,
    error_size,
    mebibytes,
    plural,
    ratio,
    ratio_range,
    score,
)
from inferlens.views.answer import answers, latency_text
from inferlens.views.chart import (
    CHART_WIDTH,
    ERROR,
    MEMORY,
    PanelAxis,
    accuracy_axis,
    answer_title,
    least_error,
    point_measures,
    scatter_panel,
)
from inferlens.views.picture import (
    Theme,
    check_picture,
    colours_of,
    draw_chart,
    stack_charts,
    vega_document,
)
from inferlens.views.records import COLUMNS, records_document, records_table, remark
from inferlens.views.rows import Row, group_rows, rows
from inferlens.views.table import Column, Document, Line, Screen, Table, cut_middle, plain

TUNING_SCHEMA = "inferlens.tuning/1"
TUNINGS_SCHEMA = "inferlens.tunings/1"
TUNING_HEIGHT, BETWEEN = 320, 70
_UNITS = {"s": ("ms", 1e3), "J": ("mJ", 1e3), "B": ("MiB", 2.0**-20)}  # units of axes, and factors
MAX_ROWS = 5  # on a screen
SPEED_OBJECTIVES = ("latency", "throughput")  # objectives by which tables of records are ordered anyway
LONGER = 1.0  # seconds of additional build time that are reported
MOST_NAMES = 3
# Columns that an objective or limit adds.
_OBJECTIVE_COLUMNS = {
    "latency.p95": ("p95",), "latency.p99": ("p99",), "energy": ("energy",), "error": ("error",),
    "accuracy-drop": ("drop",), "memory": ("host_peak", "device_peak"),
}  # fmt: skip
_CANDIDATE_COLUMNS = (
    Column("candidate.speedup", "vs the winner", write=ratio, keep=0),
    Column("candidate", "interval", "95 %", write=lambda candidate: _speedup_interval(candidate), keep=5),
    Column("accuracy", "accuracy", write=lambda rating: _score(rating), keep=2),
    Column("accuracy.drop", "drop", write=drop, keep=2),
    Column("error", "error", "rel. L2", write=error_size, keep=2),
    Column("memory", "memory", "MiB", write=mebibytes, keep=4),
    Column("build", "build", "s", write=bare_seconds, keep=3),
    Column("outcome", "what came of it", write=plain, keep=1, numeric=False, fold=True),
)


def tuning_document(tuned: TuningReport, reference: str | None = None, top: int | None = None) -> Document:
    """Return the document of a tuning; ``top`` limits the rows on a screen.

    Raises:
        InferlensError: if ``reference`` names no row of the finals.
    """
    finals, facts = finals_rows(tuned, reference), candidate_facts(tuned)
    candidates = [_candidate_data(tuned, fact) for fact in facts]

    def data() -> dict[str, Any]:
        fields = {key: value for key, value in fields_by_key(tuned).items() if key not in ("schema", "trials")}
        load = mean_load(row.machine_load for row in finals)
        results = {"tried": len(facts), "machine_load": load, "rows": finals, "candidates": candidates}
        return {"schema": TUNING_SCHEMA, **fields, **results}

    def tries(_: Screen) -> Iterator[list[Table | str]]:
        """Yield fewer and fewer rows, and at last only the table and the sentences about its use."""
        blocks: list[Table | str] = []
        for limit in [top] if top else range(MAX_ROWS, 1, -1):
            blocks = _tuning_blocks(tuned, finals, facts, limit)
            yield blocks
        yield [blocks[0], *blocks[-2:]]

    return Document(
        lambda: [*_tuning_blocks(tuned, finals, facts), candidates_table(facts)],
        data,
        lambda: candidates,
        title=f"{plain(tuned.trials[0].records[0].case.model)} tuned" if tuned.candidates else "Nothing was tried",
        tries=tries,
    )


def finals_rows(tuned: TuningReport, reference: str | None = None) -> list[Row]:
    """Return the rows of the finals by objective. Among equals the winner comes first.

    Memory includes the search, because finals export anew.
    """
    runs_by_case = tuned.runs_by_case
    runs = {record.id: runs_by_case[record.case.digest] for record in tuned.final_records}
    finals = [
        structs.replace(row, host_peak=host_peak(runs[row.id]), device_peak=device_peak(runs[row.id]))
        for row in rows(tuned.final_records, reference, tuned.aim)
    ]
    finals.sort(key=lambda row: row.standing != "equal" or not tuned.best or row.label != tuned.best.label)
    places = iter(sorted(row.place for row in finals if row.place))
    return [structs.replace(row, place=next(places)) if row.place else row for row in finals]


def candidates_table(facts: Sequence[CandidateFacts], name: str = "") -> Table:
    """Return a table of all candidates and their outcomes."""
    lines = [
        Line.from_row(plain(fact.case.way), _CANDIDATE_COLUMNS, fact, style="dim" * bool(fact.candidate.rejection))
        for fact in facts
    ]
    about = "The speed-up is against the winner, by all rounds of the search; what failed or was wrong was not timed."
    title = f"Everything that was tried{f': {name}' if name else ''}"
    return Table(title, "candidate", _CANDIDATE_COLUMNS, lines, about=about, fold=True)


def _candidate_data(tuned: TuningReport, facts: CandidateFacts) -> dict[str, Any]:
    candidate, case, accuracy = facts.candidate, facts.case, facts.accuracy
    return {
        "candidate": case.label, "backend": case.backend_label, "precision": case.precision,
        "settings": " ".join(map(_setting_text, candidate.settings)),
        "speedup": candidate.speedup, "low": candidate.low, "high": candidate.high,
        tuned.objective.name: facts.objective, "error": facts.error,
        "accuracy": accuracy.value if accuracy else None, "drop": accuracy.drop if accuracy else None,
        "memory": facts.memory, "build": facts.build, "final": candidate.final, "outcome": facts.outcome,
    }  # fmt: skip


def _tuning_blocks(
    tuned: TuningReport, finals: Sequence[Row], facts: Sequence[CandidateFacts], top: int | None = None
) -> list[Table | str]:
    """Return the finals' table, and what the search did."""
    if not finals:
        failures = [f"{plain(fact.case.way)}: {plain(fact.outcome)}" for fact in facts[:MOST_NAMES]]
        about = [search_sentence(tuned, facts), *tuning_sentences(tuned)]
        return ["Nothing ran with right outputs.", *failures, *about]
    return [_finals_table(tuned, finals, facts, top), *tuning_sentences(tuned)]


def _finals_table(
    tuned: TuningReport, all_finals: Sequence[Row], facts: Sequence[CandidateFacts], top: int | None = None
) -> Table:
    """Return the answer and the rows of the finals, with rows of the search until there are ``top``."""
    finals = group_rows(all_finals, "table")[0]
    table = records_table(finals, None, top, _tuning_columns(tuned))
    if lines := _search_lines(tuned, facts, finals, table.columns, (top or 0) - len(finals)):
        columns = [replace(column, wide=column.wide and column.key != "speedup") for column in table.columns]
        table = replace(table, columns=columns, lines=[*table.lines, *lines])
    first, *decide = tuning_answer(tuned, finals)
    answer = [first, search_sentence(tuned, facts), *decide, *_bench_sentences(tuned, facts, finals)]
    return replace(table, title=table.title.rpartition(" · ")[0], answer=answer)


def _search_lines(
    tuned: TuningReport, facts: Sequence[CandidateFacts], finals: Sequence[Row], columns: Sequence[Column], most: int
) -> list[Line]:
    """Return rows of the search without times, because the machine changes between rounds.

    Their speed-up is the winner's times their ratio to it.
    """
    factor = next((row.speedup or 1.0 for row in finals if tuned.best and row.label == tuned.best.label), 1.0)
    candidates = [fact.candidate for fact in facts if not (fact.candidate.rejection or fact.candidate.final)]
    speedups = [(candidate.record, factor * candidate.speedup) for candidate in candidates if candidate.speedup]
    records = {record.id: record for record in tuned.search_records}
    lines = []
    for record, speedup in ((records[name], speedup) for name, speedup in speedups[: max(most, 0)]):
        (row,) = rows([structs.replace(record, measurements=(), energy=None, cpu_energy=None)])
        row = structs.replace(row, is_reference=False, speedup=speedup, sure=False)
        name = row.way if len({final.precision for final in finals}) > 1 else plain(record.case.way)
        line = Line.from_row(name, columns, row, indent="   ", style="dim")
        lines.append(replace(line, cells=[*line.cells[:-1], "in the search"]))
    return lines


def _tuning_columns(tuned: TuningReport) -> list[Column]:
    """Return the columns of records with the objective, the limits and the build time."""
    names = [tuned.objective.name, *(limit.name for limit in tuned.constraints)]
    wanted = {"build", *(column for name in names for column in _OBJECTIVE_COLUMNS.get(name, ()))}
    columns = [replace(column, wide=False, keep=3) if column.key in wanted else column for column in COLUMNS[:-1]]
    barred = {record.case.label for record in tuned.final_records if record.case.digest in tuned.aim.excluded}

    def remark_text(row: Row) -> str:
        return remark(row, builds=False) or "breaks a limit" * (row.label in barred or bool(tuned.broken_constraints))

    return [*columns, replace(COLUMNS[-1], write_row=remark_text, keep=2)]


def tuning_answer(tuned: TuningReport, finals: Sequence[Row], *, full_names: bool = False) -> list[str]:
    """Return the best case by the objective; with ``full_names`` also the model and the precision."""
    fast, measure = tuned.objective.name in SPEED_OBJECTIVES, tuned.objective.measure
    cases = {record.id: record.case for record in tuned.final_records}

    def measure_text(row: Row) -> str:
        runs = tuple(record for record in tuned.final_records if record.case == cases[row.id])
        return f"{measure.title} {measure.show(measure_value(CaseRuns(runs), tuned.objective.name))}"

    lines = []
    for line in answers(finals, full_names=full_names, figure=latency_text if fast else measure_text):
        head = line.head if fast else line.head.replace("FASTEST", "BEST")
        rival = line.rival if fast else line.rival.replace("faster", "better")
        decide = "a longer --budget" if line.decide else ""
        where = _tuning_name(tuned) if full_names else line.where
        lines += structs.replace(line, where=where, decide=decide, head=head, rival=rival).lines
    return lines


def _bench_sentences(tuned: TuningReport, facts: Sequence[CandidateFacts], finals: Sequence[Row]) -> list[str]:
    """Compare the winner with the best default in the precision of the reference."""
    reference = next((row for row in finals if row.is_reference), None)
    defaults = [fact.case for fact in facts if fact.candidate.final and not fact.candidate.settings]
    usual = next((case for case in defaults if reference and case.precision == reference.precision), None)
    if usual is None or not tuned.best:
        return []
    if usual == tuned.best:
        sure = tuned.answer.kind != "likeliest" and not tuned.constraints
        return ["No setting that was tried is better than its defaults."] * sure
    row = next(row for row in finals_rows(tuned, usual.label) if row.label == tuned.best.label)
    if not row.speedup:
        return []
    interval = f" ({ratio_range(row.speedup_low, row.speedup_high)})" if row.speedup_low else ""
    return [f"Against {plain(usual.way)}, the best of inferlens bench: {ratio(row.speedup)}{interval}."]


def tuning_sentences(tuned: TuningReport) -> list[str]:
    """Return what the search did, and how to use the result."""
    broken = plain(" ".join(tuned.broken_constraints))
    sentences = [f"Nothing keeps all limits; this comes nearest. {broken}"] if broken else []
    if tuned.advice:
        sentences.append(f"Advice that paid: {'; '.join(map(_advice_text, tuned.advice))}.")
    effects = sorted(tuned.effects, key=lambda effect: -(effect.speedup or 0.0))
    sentences += _settings_sentence("What its settings do", [effect for effect in effects if effect.chosen])
    others = [effect for effect in effects if effect.speedup and not effect.chosen]
    sentences += _settings_sentence("What others would do", others[:MOST_NAMES])
    sentences += untried_sentences(tuned.skipped)
    if tuned.folder:
        folder = plain(tuned.folder)
        live = tuned.trials[0].records[0].case.model.startswith("live:")  # no command can name it
        use = f"inferlens.load('{folder}'), or inferlens export --best {folder} -o deploy"
        sentences += [f"Use it: {'tuning.load()' if live else use}"]
        weights = {record.model.weights_note for trial in tuned.trials for record in trial.records}
        sentences += sorted(filter(None, weights))
        sentences += [] if live else [f"Repeat it: inferlens bench {folder}/best.toml"]
    return sentences


def search_sentence(tuned: TuningReport, facts: Sequence[CandidateFacts]) -> str:
    """Return how many candidates were tried, and what ended the search."""
    ended = "none of the rest promised more" if tuned.complete else "a longer --budget tries more"
    finals = sum(fact.candidate.final for fact in facts)
    met = f"; {finals} met in {plural(tuned.answer.rounds, 'final round')}" if tuned.answer.rounds else ""
    counts = f"{len(facts):,} of {plural(tuned.size, 'candidate')}"
    out = sum(bool(fact.candidate.rejection) for fact in facts)
    lost = f"; {out:,} ruled out (-o tuned.html says why)" if out and tuned.best else ""
    return f"Tried {counts} in {duration(tuned.seconds)}{met}{lost}; {ended}."


def _settings_sentence(about: str, effects: Sequence[Effect]) -> list[str]:
    texts = []
    for effect in effects:
        factor = f"{ratio(effect.speedup)} ({ratio_range(effect.low, effect.high)})"
        times = "not known" if effect.speedup is None else factor
        build = f", build {effect.build:+,.0f} s" if effect.build and abs(effect.build) >= LONGER else ""
        texts.append(f"{plain(_setting_text(effect.setting))} {times}{build}")
    return [f"{about}: {'; '.join(texts)}."] if texts else []


def _advice_text(advice: Advice) -> str:
    parts = advice.settings.split(", ")
    settings = ", ".join(plain(_setting_text(part) if "=" in part else part) for part in parts)
    return f"{settings}, since {BOTTLENECKS[advice.against].format(plain(advice.way))} ({ratio(advice.speedup)})"


def _score(rating: AccuracyScore | None) -> str:
    return score(rating.value, share=rating.is_share) if rating else ABSENT


def _speedup_interval(candidate: Candidate) -> str:
    return ratio_range(candidate.low, candidate.high) if candidate.low != candidate.high else ""


def _setting_text(setting: str) -> str:
    name, _, chosen = setting.partition("=")
    return f"{name}={chosen.lower() if chosen in ('True', 'False') else chosen}"


def untried_sentences(untried: Sequence[SkippedCandidate], start: str = "Not tried") -> list[str]:
    """Return the backends and precisions that were not tried, one of each reason."""
    names_by_reason: dict[str, list[str]] = {}
    for skipped in untried:
        backend = skipped.name.partition(" ")[0]
        reason = skipped.reason.removeprefix(f"{backend} ").partition(": ")[0].rstrip(".")
        reason = "not installed: inferlens backends" if skipped.hint.startswith("pip ") else reason
        flag = skipped.hint or ("--precision" if skipped.name in PRECISIONS else "--backend")
        names_by_reason.setdefault(reason or flag, []).append(skipped.name)
    texts = [
        f"{plain(names[0])}{f' and {len(names) - 1} more' * (len(names) > 1)} ({plain(reason)})"
        for reason, names in names_by_reason.items()
    ]
    return [f"{start}: {'; '.join(texts)}."] if texts else []


def tunings_document(tunings: Sequence[TuningReport], reference: str | None = None, top: int | None = None) -> Document:
    """Return the document of one or several tunings. A screen shows only the answers of several."""
    if len(tunings) == 1:
        return tuning_document(tunings[0], reference, top)
    document = records_document([record for tuned in tunings for record in tuned.final_records], reference)

    def answers_only() -> list[Table | str]:
        lines = []
        for tuned in tunings:
            finals = finals_rows(tuned, reference)
            nothing = f"{_tuning_name(tuned)}: nothing ran with right outputs."
            lines.append(tuning_answer(tuned, finals, full_names=True)[0] if finals else nothing)
        return [*lines, *tunings_sentences(tunings)]

    def tables() -> Iterator[Table]:
        for tuned in tunings:
            shown, facts = finals_rows(tuned, reference), candidate_facts(tuned)
            yield from [replace(_finals_table(tuned, shown, facts), answer=())] if shown else []
            yield candidates_table(facts, _tuning_name(tuned))

    return Document(
        blocks=lambda: [*answers_only(), *tables()],
        data=lambda: {"schema": TUNINGS_SCHEMA, "tunings": [tuning_document(tuned).data() for tuned in tunings]},
        rows=document.rows,
        fields=document.fields,
        title=document.title,
        tries=lambda _: [answers_only()],
    )


def tunings_sentences(tunings: Sequence[TuningReport]) -> list[str]:
    """Return the size of all searches, and the commands that use the winners."""
    attempts, size = sum(len(tuned.candidates) for tuned in tunings), sum(tuned.size for tuned in tunings)
    sentences = [
        f"{_tuning_name(tuned)}: nothing keeps all limits. {plain(' '.join(tuned.broken_constraints))}"
        for tuned in tunings
        if tuned.broken_constraints
    ]
    ended = "" if all(tuned.complete for tuned in tunings) else ", until the time was over: more with --budget"
    took = duration(sum(tuned.seconds for tuned in tunings))
    sentences.append(f"Tried {attempts:,} of {plural(size, 'candidate')} in {took}{ended}.")
    skipped = dict.fromkeys(candidate for tuned in tunings for candidate in tuned.skipped)
    sentences += untried_sentences(list(skipped), "Not tried everywhere")
    folders = [plain(tuned.folder) for tuned in tunings if tuned.folder]
    if folders:
        others = f" · The others: {', '.join(folders[1:])}" if folders[1:] else ""
        sentences.append(f"Use one: inferlens.load('{folders[0]}'){others}")
        sentences.append(f"Export one: inferlens export --best {folders[0]} -o deploy")
    return sentences


def _tuning_name(tuned: TuningReport) -> str:
    record = tuned.trials[0].records[0]
    return plain(", ".join(filter(None, [record.model.name, record.case.sizes_label])))


def render_tuning(tuned: TuningReport, format: str, theme: str = "auto", reference: str | None = None) -> str | bytes:
    """Draw the chart as :func:`.draw_chart`; raise as :func:`tuning_chart`."""
    check_picture(format, "--output tuning.svg", theme)
    return draw_chart(tuning_chart(tuned, reference), format, _model_name(tuned), theme)


def tuning_chart(
    tuned: TuningReport, reference: str | None = None, colours: Mapping[str, str] | None = None
) -> Callable[[Theme], dict[str, Any]]:
    """Return the function that makes the Vega-Lite document for a theme; ``colours`` maps backend names.

    Raises:
        InferlensError: if nothing was timed, or ``reference`` names no row of the finals.
    """
    facts = candidate_facts(tuned)
    timed = [fact for fact in facts if fact.objective is not None]
    if not any(fact.error is not None or fact.memory for fact in timed):
        raise InferlensError("There is nothing to draw: nothing was timed.", hint="inferlens show, which says why")
    roles = _roles(tuned, facts, reference)
    shades = colours or colours_of(sorted({plain(fact.case.backend_label) for fact in timed}))
    return lambda theme: _tuning_spec(tuned, timed, facts, roles, theme, shades)


def _model_name(tuned: TuningReport) -> str:
    return plain(short_name(tuned.trials[0].records[0].case.model))


def _roles(tuned: TuningReport, facts: Sequence[CandidateFacts], reference: str | None) -> dict[str, str]:
    """Return the digest of the case in each role."""
    usual = next((fact.case.digest for fact in facts if fact.candidate.final and not fact.candidate.settings), "")
    base = next((row.label for row in finals_rows(tuned, reference) if row.is_reference), "")
    compared = next((fact.case.digest for fact in facts if fact.case.label == base), "")
    return {"winner": tuned.best.digest if tuned.best else "", "best defaults": usual, "reference": compared}


def _tuning_spec(
    tuned: TuningReport,
    timed: Sequence[CandidateFacts],
    facts: Sequence[CandidateFacts],
    roles: dict[str, str],
    theme: Theme,
    colours: Mapping[str, str],
) -> dict[str, Any]:
    values = _candidate_points(tuned, timed, roles)
    measure = tuned.objective.measure
    across = PanelAxis("x", f"{measure.title} ({_UNITS.get(measure.unit, (measure.unit,))[0]})", less=measure.less)
    rated = any(value["accuracy"] is not None for value in values)
    metrics = [(fact.metric, fact.accuracy.is_share) for fact in timed if fact.accuracy]
    memory = replace(MEMORY, title="peak memory, of processes that did not export (MiB)")
    up = [axis for axis in (accuracy_axis(metrics) if rated else ERROR, memory) if axis.key != tuned.objective.name]
    up = [axis for axis in up if any(value[axis.key] is not None for value in values)]
    width = (CHART_WIDTH - BETWEEN * (len(up) - 1)) / max(len(up), 1)
    tooltip = (
        ("name", "candidate"), ("said", measure.title), ("speedup", "vs the winner"), ("error_said", "error"),
        ("accuracy_said", "accuracy"), ("memory_said", "memory (MiB)"), ("came", "what came of it"),
    )  # fmt: skip
    panels = [scatter_panel(values, across, axis, theme, (width, TUNING_HEIGHT), tooltip, colours) for axis in up]
    finals = finals_rows(tuned)
    tried = f"{len(facts):,} of {plural(tuned.size, 'candidate')} tried"
    about = [finals[0].inputs_without(()), finals[0].device_name, tried, "dashed: nothing is better in both"]
    heading = answer_title(_model_name(tuned), tuning_answer(tuned, finals)[0], " · ".join(about), CHART_WIDTH)
    return vega_document(stack_charts(panels, across=True, spacing=BETWEEN, title=heading), theme)


def _candidate_points(
    tuned: TuningReport, timed: Sequence[CandidateFacts], roles: dict[str, str]
) -> list[dict[str, Any]]:
    measure = tuned.objective.measure
    scale = _UNITS.get(measure.unit, ("", 1.0))[1]
    least = least_error([fact.error for fact in timed])
    values = []
    for fact in timed:
        role = ", ".join(name for name in roles if roles[name] == fact.case.digest)
        rating: tuple[str, float | None, bool] = ("", None, False)
        if fact.accuracy:
            rating = fact.metric, fact.accuracy.value, fact.accuracy.is_share
        values.append({
            **point_measures(fact.error, least, *rating, fact.memory),
            "name": plain(fact.case.way), "x": (fact.objective or 0.0) * scale,
            "said": measure.show(fact.objective), "speedup": ratio(fact.candidate.speedup),
            "colour": plain(fact.case.backend_label), "precision": fact.case.precision,
            "role": role, "label": role, "wrong": False, "filled": not fact.candidate.rejection,
            "came": cut_middle(plain(fact.outcome), 80),
        })  # fmt: skip
    return values
