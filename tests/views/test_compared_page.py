"""The page of a comparison: that it says what the table says, draws the changes, and has the records of both sides."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path

import msgspec
import pytest

from inferlens.analysis.comparison import RecordComparison, compare
from inferlens.errors import InferlensError
from inferlens.record.record import Record, decode
from inferlens.views.compared import render
from inferlens.views.compared.page import MOST, report, spec
from inferlens.views.picture import THEMES, data_of
from inferlens.views.renderers import html, markdown
from tests.analysis.comparison_sides import broken, ran, saved
from tests.commands import inferlens

from .samples import CPU_MACHINE, case
from .test_compared import NASTY, many

OTHER = msgspec.structs.replace(CPU_MACHINE, libraries={"torch": "2.10.0"}, variables={"OMP_PROC_BIND": "close"})


def sides() -> tuple[list[Record], list[Record]]:
    """One case slower, one faster, one undecided, one that crashed."""
    ways = [case(name) for name in ("pytorch", "openvino", "onnxruntime:cpu", "torchscript:trace")]
    base = [record for way in ways for record in ran(way)]
    new = [*ran(ways[0], 11e-3), *ran(ways[1], 5e-3), *ran(ways[2], noise=20), broken(ways[3])]
    return base, [msgspec.structs.replace(item, id=f"{item.id} new", run="new", environment=OTHER) for item in new]


def drawn(compared: RecordComparison) -> list[dict[str, object]]:
    return [*max(data_of(spec(compared)(THEMES["light"])), key=len)]


def test_the_page_begins_with_the_answer_and_has_all_that_the_table_has() -> None:
    base, new = sides()
    compared = compare(base, new)
    page = html.render_report(report(compared, base, new, ("old", "new")))
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        "Answer", "Changes", "Samples", "What else differs", "How it was measured",
    ]  # fmt: skip
    assert "1 slower by 10 %, 1 faster by 50 %, 1 undecided, 1 did not run." in page[: page.index("Changes</h2>")]
    for figure in re.findall(r"\S+ ± \S+ %|DID NOT RUN[^(]*", render(compared)):
        assert " ".join(figure.split()) in page
    assert re.search(r"OMP_PROC_BIND</th><td[^>]*>not there</td><td[^>]*>close</td>", page)
    assert re.search(r'<p class="command">Why slower: inferlens profile', page)


def test_the_records_of_both_sides_are_inside() -> None:
    base, new = sides()
    page = html.render_report(report(compare(base, new), base, new, ("old", "new")))
    for name, records in (("base", base), ("candidate", new)):
        link = re.search(rf'download="{name}.jsonl.gz" href="data:application/gzip;base64,([^"]*)"', page)
        assert link
        lines = gzip.decompress(base64.b64decode(link[1])).splitlines()
        assert [decode(line).id for line in lines] == [record.id for record in records]
    assert 'download="compare.csv"' in page


def test_the_chart_has_each_change_with_its_interval_the_slowest_on_top() -> None:
    base, new = sides()
    compared = compare(base, new)
    values = drawn(compared)
    assert [value["verdict"] for value in values] == ["SLOWER", "UNDECIDED", "FASTER"]
    (slow,) = compared.with_verdict("SLOWER")
    assert slow.change_interval
    expected = 1 + slow.change_interval.low, 1 + (slow.change or 0), 1 + slow.change_interval.high
    assert (values[0]["low"], values[0]["ratio"], values[0]["high"]) == pytest.approx(expected)
    assert [value["decided"] for value in values] == [True, False, True]


def test_of_many_cases_those_that_changed_most_are_drawn() -> None:
    ratios = [item["ratio"] for item in drawn(many(MOST + 10))]
    assert len(ratios) == MOST
    assert ratios == sorted(ratios, reverse=True)


def test_hostile_names_are_inert() -> None:
    of = msgspec.structs.replace(case(), model=NASTY, options={NASTY: NASTY}, weights=NASTY)
    base, new = ran(of), ran(of, 11e-3, run="new", environment=OTHER)
    made = report(compare(base, new, unlike=True), base, new, (NASTY, NASTY))
    page = html.render_report(made)
    assert re.findall(r"<(script|img|b )", page) == ["script"]
    text, pictures = markdown.render_report(made, "pictures")
    assert {*re.findall(r"\(pictures/(.*?)\)", text)} == {*pictures}


def test_without_a_case_on_both_sides_there_is_a_page_and_no_chart() -> None:
    base, new = [broken()], [broken(run="new")]
    compared = compare(base, new)
    page = html.render_report(report(compared, base, new, ("old", "new")))
    assert "Nothing could be compared." in page
    assert "<figure>" not in page
    with pytest.raises(InferlensError, match="nothing to draw"):
        spec(compared)


def test_the_command_writes_pages_and_pictures_with_the_same_exit_code(tmp_path: Path) -> None:
    for name, records in zip(("base", "candidate"), sides(), strict=True):
        saved(tmp_path / name, records)
    for file in ("a.html", "a.md", "a.svg", "a.png"):
        done = inferlens("compare", "base", "candidate", "-o", file, cwd=tmp_path)
        assert (done.returncode, "Wrote" in done.stderr, "SLOWER" in done.stdout) == (1, True, True)
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "a-pictures" / "changes.svg").exists()
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
