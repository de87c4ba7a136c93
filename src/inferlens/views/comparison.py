"""Comparisons of two sets of records, and of A and B, as documents, charts, pages and reports for CI.

The answer comes first: how many cases are slower, and by how much at most. Then follow the cases, the worst first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from xml.etree import ElementTree as Xml

from inferlens.analysis.ab_result import ABResult, ABSteps
from inferlens.analysis.comparison import (
    CAPACITY,
    MISSING,
    RATES,
    CaseComparison,
    Difference,
    RecordComparison,
    Side,
    Verdict,
    case_count_label,
    differences_sentence,
    match_cases,
    side_notes,
)
from inferlens.analysis.samples import group_by
from inferlens.errors import InferlensError, MissingLibrary, check_choice
from inferlens.record.display import fields_by_key
from inferlens.record.record import Record
from inferlens.spec import plan
from inferlens.spec.case import Case, case_names
from inferlens.stats.intervals import ends
from inferlens.units import ABSENT, change, change_spread, listing, milliseconds, percent, plural, significant
from inferlens.views.chart import CHART_WIDTH, LETTER, TITLE_LETTER, samples_chart
from inferlens.views.picture import (
    GREY,
    PALETTE,
    Part,
    Theme,
    converter,
    field,
    marks,
    overlay,
    picture,
    title,
    vega_document,
)
from inferlens.views.renderers import render
from inferlens.views.renderers.terminal import wrap
from inferlens.views.report import MAX_PACKED, environments, pack_records
from inferlens.views.table import (
    FORMATS,
    Block,
    Column,
    Document,
    Download,
    Line,
    Report,
    Section,
    Table,
    cut_middle,
    more_rows_note,
    plain,
    profile_command,
)

COMPARISON_SCHEMA = "inferlens.comparison/1"
TOP = 10
_MOST_NAMES = 3
_MAX_VALUE = 44  # characters of a reason, and of a value in a list of what else differs
_STYLES = {"FASTER": "green", "SLOWER": "bold red", "UNDECIDED": "yellow", "DID NOT RUN": "bold magenta", "SAME": ""}
_WORST_FIRST: tuple[Verdict, ...] = ("SLOWER", "DID NOT RUN", "UNDECIDED", "FASTER", "SAME")
CI_FORMATS = ("github", "junit")
COMPARISON_FORMATS = (*FORMATS, *CI_FORMATS)
# Outcomes for GitHub and JUnit. Cases that ran on neither side do not make the candidate worse.
_KINDS: dict[Verdict, str] = {"SLOWER": "error", "DID NOT RUN": "error", "UNDECIDED": "warning"}
_OUTCOMES: dict[Verdict, str] = {"SLOWER": "failure", "DID NOT RUN": "error", "UNDECIDED": "skipped"}
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}
AB_SCHEMA, AB_STEPS_SCHEMA = "inferlens.ab/1", "inferlens.ab-steps/1"
MAX_CASES = 40  # cases that are drawn: those that changed most
STEP = 24  # pixels of a case
CHANGES_CAPTION = (
    "Bars reach as far as a change may be off; beyond the grey band it matters. Filled: decided; hollow: not yet."
)
_FAR = 3.0  # times the largest ratio: how far a bar is drawn at most
_COLOURS = {"SLOWER": PALETTE[4], "FASTER": PALETTE[2], "SAME": GREY, "UNDECIDED": PALETTE[1]}
_SHAPES = {"SLOWER": "triangle-right", "FASTER": "triangle-left", "SAME": "circle", "UNDECIDED": "diamond"}
MAX_SAMPLES = 4  # changed cases whose samples are drawn
_SPREAD = "{}: the stronger the colour, the more calls took that long; the line is the median."
_UNLIKE = "Not the same conditions, so changes are not the software's alone"


@dataclass(frozen=True)
class CaseLine:
    """One case as text. ``full`` is unique among the cases of all models, ``change`` is such as ``+10.0 ± 0.4 %``."""

    compared_case: CaseComparison
    model: str
    name: str
    full: str
    base: str
    candidate: str
    change: str
    remark: str
    notes: tuple[str, ...]


def render_comparison(compared: RecordComparison, format: str = "table", *, top: int | None = None, **how: Any) -> str:
    """Return the result of ``inferlens.compare`` as text; ``how`` goes to :func:`inferlens.views.renderers.render`.

    Raises:
        InferlensError: for an unknown format.
    """
    check_choice("format", format, COMPARISON_FORMATS)
    if format in CI_FORMATS:
        return github(compared) if format == "github" else junit(compared)
    return render(comparison_document(compared, top), format, **how)


def comparison_document(compared: RecordComparison, top: int | None = None) -> Document:
    """Return the answer, the ``top`` cases (by default ten, the worst first), and other differences."""

    def data() -> dict[str, object]:
        cases = [
            {"name": line.full, "digest": line.compared_case.case.digest, **fields_by_key(line.compared_case)}
            for line in case_lines(compared)
        ]
        about = {"exit_code": compared.exit_code, "sentences": sentences(compared)}
        load = compared.machine_load
        return {"schema": COMPARISON_SCHEMA, **about, "machine_load": load, **fields_by_key(compared), "cases": cases}

    return Document(
        lambda: [comparison_table(compared, top or TOP), *comparison_notes(compared), *next_steps(compared)],
        data, lambda: map(_comparison_row, case_lines(compared)), title="Comparison – Inferlens",
    )  # fmt: skip


def case_lines(compared: RecordComparison) -> list[CaseLine]:
    models = group_by(compared.cases, lambda case: case.case.model)
    return [
        _case_line(compared, compared_case, name, several=len(models) > 1)
        for cases in models.values()
        for compared_case, name in zip(cases, distinct_names([case.case for case in cases]), strict=True)
    ]


def _case_line(compared: RecordComparison, case: CaseComparison, name: str, *, several: bool) -> CaseLine:
    model = plain(case.case.model)
    reasons = [] if case.verdict in ("FASTER", "SAME", "SLOWER") else [case.reason]
    change_text = change(case.change)
    if case.change is not None and case.change_interval and case.replicated:
        change_text = change_spread(case.change, case.change_interval.low, case.change_interval.high)
    return CaseLine(
        compared_case=case,
        model=model,
        name=name,
        full=f"{model} {name}" if several else name,
        base=_median_text(case.base, compared.metric),
        candidate=_median_text(case.candidate, compared.metric),
        change=change_text,
        remark=plain(_case_remark(compared, case)),
        notes=tuple(map(plain, [*reasons, *side_notes(Base=case.base.notes, Candidate=case.candidate.notes)])),
    )


def _case_remark(compared: RecordComparison, case: CaseComparison) -> str:
    """Return why a case was not compared, or a doubt. The headline has what all cases share."""
    for name, side in (("candidate", case.candidate), ("base", case.base)):
        if not side.ok:
            reason = plain(side.reason).rstrip(".")
            return "" if side.state == MISSING else f"{name} {side.state}{f' ({reason})' if reason else ''}"
    words = [f"likely {case.likely_verdict(compared.threshold)}"] if case.verdict == "UNDECIDED" else []
    words += ["measured once"] * (case.measured_once and not compared.measured_once)
    return ", ".join([*words, *["outputs unchecked"] * case.outputs_unchecked])


def _verdict(case: CaseComparison) -> str:
    """Return the verdict, or which side lacks the case."""
    if case.ran_on_neither:
        return "ON NEITHER SIDE"
    if case.base.state == MISSING:
        return "ONLY IN CANDIDATE"
    return "ONLY IN BASE" if case.candidate.state == MISSING else case.verdict


def _median_text(side: Side, metric: str) -> str:
    if not side.ok or side.median is None:
        return ABSENT
    return significant(side.median) if metric in RATES else milliseconds(side.median)


def unit(metric: str) -> str:
    return "per s" if metric in RATES else "ms"


def distinct_names(cases: Sequence[Case], *, omitted: Sequence[str] = ()) -> list[str]:
    """Return distinct names of one model's cases, without the axes ``omitted``."""
    names = case_names(cases, *omitted)
    hidden = [(", ".join(map(str, case.inputs)), case.weights or "", f"seed {case.seed}") for case in cases]
    for words in zip(*hidden, strict=True):
        if len(set(words)) > 1:
            names = [f"{name} {word}".strip() for name, word in zip(names, words, strict=True)]
    return [plain(name) for name in names]


def comparison_table(compared: RecordComparison, top: int) -> Table:
    metric = unit(compared.metric)

    def verdict_text(line: CaseLine) -> str:
        return ": ".join(filter(None, [_verdict(line.compared_case), line.remark]))

    columns = (
        Column("base", "base", metric, keep=1),
        Column("candidate", "candidate", metric, keep=1),
        Column("change", "change", f"± at {percent(compared.level)}"),
        Column("verdict", "verdict", write_row=verdict_text, numeric=False, fold=True),
    )

    def order(line: CaseLine) -> tuple[bool, int, float]:
        case = line.compared_case
        return case.ran_on_neither, _WORST_FIRST.index(case.verdict), -abs(case.change or 0.0)

    lines = sorted(case_lines(compared), key=order)
    shown = [Line.from_row(line.full, columns, line, style=_STYLES[line.compared_case.verdict]) for line in lines[:top]]
    more = more_rows_note(len(lines) - len(shown), len(lines))
    return Table(
        comparison_answer(compared), "case", columns, shown, about=comparison_headline(compared), notes=more, fold=True
    )


def comparison_answer(compared: RecordComparison) -> str:
    """Return one sentence with the number of cases per verdict and the largest changes."""
    if not compared.comparisons:
        return "Nothing could be compared."
    words = {
        "SLOWER": "slower", "FASTER": "faster", "SAME": f"the same within {percent(compared.threshold)}",
        "UNDECIDED": "undecided", "DID NOT RUN": "did not run",
    }  # fmt: skip
    cases_by_verdict = group_by(compared.cases, _verdict)
    parts = []
    for verdict in (*words, "ONLY IN BASE", "ONLY IN CANDIDATE", "ON NEITHER SIDE"):
        if cases := cases_by_verdict.get(verdict):
            largest = percent(max(abs(case.change or 0.0) for case in cases))
            amount = f" by {'up to ' if len(cases) > 1 else ''}{largest}" if verdict in ("SLOWER", "FASTER") else ""
            parts.append(f"{len(cases):,} {words.get(verdict, verdict.lower())}{amount}")
    return f"{', '.join(parts)}."


def comparison_headline(compared: RecordComparison) -> str:
    """Return what all cases share, and the number of processes."""
    cases = [case.case for case in compared.cases]
    devices = [side.device for case in compared.cases for side in (case.base, case.candidate) if side.ok]
    models, batches, precisions = ({getattr(case, axis) for case in cases} for axis in ("model", "batch", "precision"))
    counts = [side.processes for case in compared.cases if case.comparable for side in (case.base, case.candidate)]
    words = [*models] if len(models) == 1 else [plural(len(models), "model")]
    words += [listing(list(dict.fromkeys(devices))), *(precisions if len(precisions) == 1 else [])]
    words += [f"batch {batch}" for batch in batches if len(batches) == 1 and batch is not None]
    sizes = cases[0].sizes.items() if cases else ()
    words += [f"{name} {size}" for name, size in sizes if all(case.sizes.get(name) == size for case in cases)]
    if counts:
        processes = plural(max(counts), "round" if compared.metric == CAPACITY else "process")
        fewest = "" if min(counts) == max(counts) else f"{min(counts):,} to "
        words.append(f"{compared.metric}, {fewest}{processes} on each side")
    return " · ".join(plain(word) for word in words if word)


def comparison_notes(compared: RecordComparison) -> list[str]:
    """Return at most three: how busy the machine was, what else differs, and which runs count."""
    texts = []
    for difference in compared.differences[:_MOST_NAMES]:
        values = (cut_middle(plain(value), _MAX_VALUE) for value in (difference.base, difference.candidate))
        count = case_count_label(difference, compared.common_cases)
        texts.append(f"{plain(difference.field)}{count} {' / '.join(values)}")
    unlike = any(difference.unlike for difference in compared.differences)
    start = _UNLIKE if unlike else "What else differs"
    left = len(compared.differences) - len(texts)
    more = f" ({left:,} more: --format json)" if left else ""
    notes = [*busy_notes(compared), *([f"{start}: {'; '.join(texts)}{more}."] if texts else [])]
    repeated = sum(max(case.base.runs, case.candidate.runs) > 1 for case in compared.cases)
    if repeated:
        notes.append(f"{plural(repeated, 'case')} measured several times: the newest run counts.")
    return notes


def busy_notes(compared: RecordComparison) -> list[str]:
    """Return how busy the machine was. Changes may come from a load on one side alone."""
    busy_sides = [name for name, load in compared.loads.items() if load.busy]
    if len(busy_sides) == 1:
        return [f"Of the {busy_sides[0]} alone: {compared.loads[busy_sides[0]].cause} Changes may come from that."]
    return [*filter(None, [compared.machine_load.sentence])]


def next_steps(compared: RecordComparison) -> list[str]:
    slower = max(compared.with_verdict("SLOWER"), key=lambda case: abs(case.change or 0.0), default=None)
    if slower:
        return [f"Why slower:  {profile_command(slower.case, gpu=slower.case.device != 'cpu')}"]
    if undecided := compared.with_verdict("UNDECIDED"):
        model = undecided[0].case.model
        words = ("load", [model, "--rerun"]) if compared.metric == CAPACITY else ("bench", [model, "--repeats", "5"])
        return [f"To decide, measure both sides again:  {plain(plan.command(*words))}"]
    return []


def _comparison_row(line: CaseLine) -> dict[str, object]:
    """Return a case in seconds or calls per second, changes as shares."""
    case = line.compared_case
    low, high = ends(case.change_interval)
    sides, keys = {"base": case.base, "candidate": case.candidate}, ("state", "median", "processes", "samples")
    return {
        "model": case.case.model, "case": line.name, "verdict": case.verdict, "reason": case.reason,
        "change": case.change, "change_low": low, "change_high": high, "ratio": case.ratio,
        **{f"{name}_{key}": getattr(side, key) for name, side in sides.items() for key in keys},
    }  # fmt: skip


def sentences(compared: RecordComparison) -> list[str]:
    """Return the main sentences for output without a table, the most important first."""
    slower = [f"{line.full}, {line.change}" for line in changed_lines(compared, "SLOWER")]
    failed = [
        f"{line.full} ({line.remark or _verdict(line.compared_case).lower()})"
        for line in changed_lines(compared, "DID NOT RUN")
        if not line.compared_case.ran_on_neither
    ]
    names = {"Slower": slower, "Not compared": failed}
    named = [f"{start}: {first_names(cases)}." for start, cases in names.items() if cases]
    return [comparison_answer(compared), *named, *comparison_notes(compared)]


def changed_lines(compared: RecordComparison, *verdicts: Verdict) -> list[CaseLine]:
    """Return the cases of some verdicts, the largest change first."""
    return sorted(
        (line for verdict in verdicts for line in case_lines(compared) if line.compared_case.verdict == verdict),
        key=lambda line: -abs(line.compared_case.change or 0.0),
    )


def first_names(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _MOST_NAMES:,} more"] if len(names) > _MOST_NAMES else []
    return "; ".join([*names[:_MOST_NAMES], *more])


def _change_text(line: CaseLine, metric: str) -> str:
    """Return ``9.42 to 10.1 ms, +7.22 ± 1.1 %``, or nothing if nothing was compared."""
    if line.compared_case.change is None:
        return ""
    return f"{line.base} to {line.candidate} {unit(metric)}, {line.change}"


def github(compared: RecordComparison) -> str:
    """Return GitHub Actions commands, which become annotations of the run.

    GitHub shows ten of a kind per step, so the largest slowdown comes first. Format:
    https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    commands = [github_command("notice", "inferlens compare", " ".join(sentences(compared)))]
    for difference in compared.differences:
        if difference.unlike:
            text = f"{plain(difference.field)}: {plain(difference.base)} and {plain(difference.candidate)}"
            commands.append(github_command("warning", "Not measured under the same conditions", text))
    for line in sorted(case_lines(compared), key=lambda line: -(line.compared_case.ratio or 0.0)):
        verdict = line.compared_case.verdict
        if verdict in _KINDS and not line.compared_case.ran_on_neither:
            change = _change_text(line, compared.metric)
            message = "\n".join([*([f"Median {compared.metric}: {change}."] if change else []), *line.notes])
            commands.append(github_command(_KINDS[verdict], f"{verdict}: {line.full}", message))
    return "\n".join(commands) + "\n"


def github_command(kind: str, title: str, message: str) -> str:
    """Return ``::KIND title=TITLE::MESSAGE`` with escaped parts."""
    named = _escape_command(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={named}::{_escape_command(message)}"


def _escape_command(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit(compared: RecordComparison) -> str:
    """Return a JUnit report with a suite per model and a test case per case."""
    root = Xml.Element("testsuites", name="inferlens compare")
    for model, group in itertools.groupby(case_lines(compared), key=lambda line: line.model):
        lines = list(group)
        suite = Xml.SubElement(root, "testsuite", name=model)
        cases = [line.compared_case for line in lines]
        if created := max(side.created for case in cases for side in (case.base, case.candidate)):
            suite.set("timestamp", plain(created)[:19])
        properties = Xml.SubElement(suite, "properties")
        values = {"metric": compared.metric, "threshold": f"{compared.threshold:g}", "level": f"{compared.level:g}"}
        for difference in compared.differences:
            name = f"differs: {difference.field}{case_count_label(difference, compared.common_cases)}"
            values[name] = f"{difference.base} / {difference.candidate}"
        for name, value in values.items():
            Xml.SubElement(properties, "property", name=plain(name), value=plain(value))
        for line in lines:
            _test_case(suite, line, compared.metric)
        _count(suite)
        Xml.SubElement(suite, "system-out").text = "\n".join(sentences(compared))
    _count(root)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _test_case(suite: Xml.Element, line: CaseLine, metric: str) -> None:
    element, case = Xml.SubElement(suite, "testcase", classname=line.model, name=line.name), line.compared_case
    if case.candidate.median is not None and metric != "throughput":
        element.set("time", f"{case.candidate.median:.9f}")
    kind = "skipped" if case.ran_on_neither else _OUTCOMES.get(case.verdict)
    message = f"{case.verdict}: {_change_text(line, metric) or next(iter(line.notes), '')}"
    if kind:
        outcome = Xml.SubElement(element, kind, message=message, type=case.verdict)
        outcome.text = "\n".join(line.notes) or case.reason
    else:
        Xml.SubElement(element, "system-out").text = "\n".join([message, *line.notes])


def _count(element: Xml.Element) -> None:
    """Set the number of test cases and of each outcome."""
    element.set("tests", str(len(list(element.iter("testcase")))))
    for name, tag in _COUNTS.items():
        element.set(name, str(len(list(element.iter(tag)))))


def ab_document(result: ABResult | ABSteps, next_step: str = "") -> Document:
    if isinstance(result, ABSteps):
        return _steps_document(result, next_step)

    def table() -> list[Table | str]:
        common, names, figures = result.sides
        lines = [Line(f"{side}  {name}", (figure,)) for side, name, figure in zip("AB", names, figures, strict=True)]
        sentences = [result.machine_load.sentence, result.accuracy_sentence, *result.remarks, next_step]
        columns = (Column("figure", "", max_width=60),)
        return [Table(result.sentence, "", columns, lines, about=common, sentences=[*filter(None, sentences)])]

    return Document(table, lambda: ab_data(result), lambda: _ab_rows(result), title=result.sentence)


def ab_data(ab_result: ABResult) -> dict[str, Any]:
    fields = {**fields_by_key(ab_result), "machine_load": ab_result.machine_load}
    return {"schema": AB_SCHEMA, "exit_code": ab_result.exit_code, "sentence": ab_result.sentence, **fields}


def _steps_document(ab_steps: ABSteps, next_step: str) -> Document:
    answer, *more = ab_steps.sentences

    def table() -> list[Table | str]:
        words = [Column(title, title, numeric=False, fold=True) for title in ("verdict", "what differs")]
        first, *_ = ab_steps.named_steps
        lines = [Line(first.before, (first.ab_result.sides[2][0], "", ""))]
        for step in ab_steps.named_steps:
            result = step.ab_result
            lines.append(Line(step.after, (step.figure, result.verdict, differences_sentence(result.differences))))
        columns = (Column("figure", first.ab_result.rule.metric, max_width=60), *words)
        sentences = filter(None, [ab_steps.machine_load.sentence, next_step])
        return [Table(answer, "environment", columns, lines, sentences=[*more, *sentences])]

    def data() -> dict[str, Any]:
        about = {"exit_code": ab_steps.exit_code, "sentences": ab_steps.sentences}
        return {"schema": AB_STEPS_SCHEMA, **about, "steps": list(map(ab_data, ab_steps.steps))}

    def rows() -> Iterator[dict[str, object]]:
        return ({"step": place, **row} for place, step in enumerate(ab_steps.steps, 1) for row in _ab_rows(step))

    return Document(table, data, rows, title=answer)


def _ab_rows(result: ABResult) -> Iterator[dict[str, object]]:
    """Yield both sides; B has the verdict and the ratio to A."""
    for letter, case, side in (("A", result.a, result.base), ("B", result.b, result.candidate)):
        low, high = ends(side.interval)
        verdict, ratio = (result.verdict, result.ratio) if letter == "B" else ("", None)
        yield {
            "side": letter, "model": case.model, "case": case.label, "state": side.state,
            result.rule.metric: side.median, "low": low, "high": high, "verdict": verdict, "ratio": ratio,
        }  # fmt: skip


# The page and its chart of changes. The axis is logarithmic in the ratio of candidate and base, so that double and half
# are equally far from no change. The band marks changes that do not matter.


def comparison_chart(compared: RecordComparison) -> Callable[[Theme], dict[str, Any]]:
    """Return the function that makes the Vega-Lite document for a theme.

    Raises InferlensError if no case ran on both sides.
    """
    lines = case_lines(compared)
    lines = [line for line in lines if line.compared_case.comparable and line.compared_case.change is not None]
    if not lines:
        raise InferlensError("There is nothing to draw: no case ran on both sides.", hint="the table, which says why")
    lines.sort(key=lambda line: -abs(math.log(_time_ratio(line))))
    drawn = sorted(lines[:MAX_CASES], key=lambda line: -_time_ratio(line))
    return partial(_changes_chart, compared, drawn, len(lines))


def _time_ratio(line: CaseLine) -> float:
    return max(1 + (line.compared_case.change or 0.0), 1e-9)


def _changes_chart(compared: RecordComparison, shown: Sequence[CaseLine], total: int, theme: Theme) -> dict[str, Any]:
    values = _change_values(shown)
    lowest = min(1 / (1 + 2 * compared.threshold), *(value["low"] for value in values))
    highest = max(1 + 2 * compared.threshold, *(value["high"] for value in values))
    margin = (highest / lowest) ** 0.04
    scale = {"type": "log", "domain": [lowest / margin, highest * margin], "nice": False}
    left, right = ("slower", "faster") if compared.metric in RATES else ("faster", "slower")
    direction = f"← {left} · change of the {compared.metric}, candidate against base · {right} →"
    label = "(datum.value > 1 ? '+' : '') + format(100 * (datum.value - 1), '~r') + ' %'"
    axis = {"tickCount": 8, "labelExpr": label, "labelOverlap": True}
    x = field("ratio:Q", scale=scale, title=direction, axis=axis)
    low_x, band_x, no_change_x = (field(f"{name}:Q", scale=scale) for name in ("low", "from", "at"))
    y = field("case:N", sort=[value["case"] for value in values], title=None)
    begin, end = max(1 / (1 + compared.threshold), lowest / margin), min(1 + compared.threshold, highest * margin)
    band = [{"from": begin, "to": end}]
    verdicts = [verdict for verdict in _COLOURS if any(value["verdict"] == verdict for value in values)]
    legend = {"title": None, "orient": "top"}
    colour, shape = (
        field("verdict:N", scale={"domain": verdicts, "range": [looks[verdict] for verdict in verdicts]}, legend=legend)
        for looks in (_COLOURS, _SHAPES)
    )
    tooltip = [field(f"{name}:N") for name in ("case", "verdict", "change", "base", "candidate")]
    point = {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tooltip}
    hollow: Part = {"filled": False, "size": 90, "opacity": 1, "fill": theme.background}
    layers = [
        marks("rect", {"x": band_x, "x2": {"field": "to"}}, values=band, color=theme.faint, opacity=0.14),
        marks("rule", {"x": no_change_x}, values=[{"at": 1}], strokeWidth=1, color=theme.faint),
        marks("rule", {"x": low_x, "x2": {"field": "high"}, "y": y, "color": colour}, strokeWidth=2),
        marks("point", point, where="datum.decided", filled=True, size=90, opacity=1),
        marks("point", point, where="!datum.decided", **hollow),
        marks("text", {"y": y, "text": field("change:N")}, align="left", x=CHART_WIDTH + 10),
    ]
    about = comparison_headline(compared)
    about += f" · the {len(shown)} of {plural(total, 'case')} that changed most" * (total > len(shown))
    answer = wrap(comparison_answer(compared), int(CHART_WIDTH / TITLE_LETTER))
    heading = title(answer, cut_middle(about, int(CHART_WIDTH / LETTER)), offset=14)
    return vega_document(overlay(layers, values, width=CHART_WIDTH, height={"step": STEP}, title=heading), theme)


def _change_values(shown: Sequence[CaseLine]) -> list[dict[str, Any]]:
    """Return the values per case. A bar beyond all points ends at the edge."""
    edge = max(max(_time_ratio(line), 1 / _time_ratio(line)) for line in shown) * _FAR
    values: list[dict[str, Any]] = []
    for line in shown:
        case, ratio = line.compared_case, _time_ratio(line)
        interval = case.change_interval if case.replicated else None
        values.append({
            "case": line.full, "verdict": case.verdict, "decided": case.verdict != "UNDECIDED", "ratio": ratio,
            "low": max(1 + interval.low, 1 / edge) if interval else ratio,
            "high": min(1 + interval.high, edge) if interval else ratio,
            "change": line.change, "base": line.base, "candidate": line.candidate,
        })  # fmt: skip
    return values


def comparison_report(
    compared: RecordComparison, base: Sequence[Record], candidate: Sequence[Record], names: Sequence[str]
) -> Report:
    """Return the page of a comparison; ``names`` are those of both sides, such as their folders."""
    charts, samples = list[Block](), list[Block]()
    try:
        converter()
        samples += _changed_pictures(compared, base, candidate)
        charts.append(picture("changes", CHANGES_CAPTION, comparison_chart(compared)))
    except MissingLibrary as error:
        charts.append(f"Without charts: {error}")
    except InferlensError:
        pass  # no case ran on both sides
    sides = []
    for side, name, records in zip(("base", "candidate"), names, (base, candidate), strict=True):
        blocks = [*environments(records), pack_records(records, side, MAX_PACKED // 2)]
        sides.append(Section(side, f"{side.capitalize()}: {plain(name)}", blocks))
    whole = replace(comparison_table(compared, len(compared.cases)), title="", about="")
    numbers = comparison_document(compared).csv().encode()
    download = Download("compare.csv", "every number of the comparison", "text/csv", numbers)

    sections = [
        Section("answer", "Answer", list(_answer_blocks(compared))),
        Section("changes", "Changes", [*charts, whole]),
        Section("samples", "Samples", samples),
        Section("differences", "What else differs", _difference_blocks(compared)),
        Section("how", "How it was measured", [*sides, download]),
    ]
    models = {case.case.model for case in compared.cases}
    model = f"{models.pop().rpartition(':')[2]}: " if len(models) == 1 else ""
    return Report(f"{model}{names[1]} against {names[0]}", [section for section in sections if section.blocks])


def _answer_blocks(compared: RecordComparison) -> Iterator[Block]:
    yield Table(comparison_headline(compared), answer=[comparison_answer(compared)])
    if compared.comparisons:
        small = percent(compared.threshold)
        yield f"All verdicts together are {percent(compared.level)} sure; changes below {small} count as none."
    if any(difference.unlike for difference in compared.differences):
        yield f"{_UNLIKE}."
    yield from next_steps(compared)


def _changed_pictures(
    compared: RecordComparison, base: Sequence[Record], candidate: Sequence[Record]
) -> Iterator[Block]:
    """Draw the latency samples of both sides for the cases that changed most."""
    if compared.metric != "latency":
        return
    runs = {id(case): match for case, match in zip(compared.cases, match_cases(base, candidate), strict=True)}
    for number, line in enumerate(changed_lines(compared, "SLOWER", "FASTER")[:MAX_SAMPLES], 1):
        sides = zip(("base", "candidate"), runs[id(line.compared_case)], strict=True)
        ways = [(name, side) for name, side in sides if side and side.processes]
        yield picture(f"samples-{number}", _SPREAD.format(line.full), partial(samples_chart, ways))


def _difference_blocks(compared: RecordComparison) -> list[Block]:
    def cases(difference: Difference) -> str:
        return case_count_label(difference, compared.common_cases).strip(" ()")

    columns = [Column(side, side, write=plain, numeric=False, fold=True) for side in ("base", "candidate")]
    columns.append(Column("cases", "cases", write_row=cases, numeric=False))
    lines = [
        Line.from_row(plain(difference.field), columns, difference, style="bold" * difference.unlike)
        for difference in compared.differences
    ]
    return [Table("", "what", columns, lines)] if lines else ["Nothing else that is known."]
