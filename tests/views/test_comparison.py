"""Drawings of a comparison: every format of the same comparisons, hostile ones included."""

import base64
import gzip
import re
from xml.etree import ElementTree as Xml

import pytest
from msgspec.structs import replace

from inferlens.analysis.comparison import RecordComparison, compare
from inferlens.record.record import Agreement, Environment, Record, Warning, decode
from inferlens.spec.case import Case
from inferlens.views import comparison
from inferlens.views.picture import THEMES, chart_data
from inferlens.views.renderers import html, render_markdown_report
from tests.commands import inferlens
from tests.refusals import refusal
from tests.snapshots import screens_test
from tests.views.samples import CPU_MACHINE, broken, case, ran, saved

pytestmark = pytest.mark.usefixtures("charts", "one_size")
NASTY = "\x1b[31m<b onload=x>a|b</b> [x](http://y) `c` ]]>\r\n::error::%0A &amp; \u202e\ufffe\x00"


def everything() -> tuple[list[Record], list[Record]]:
    """One case of every verdict, two models, libraries that differ."""
    environment = replace(CPU_MACHINE, libraries={"torch": "2.10.0"})
    bert = case(model="transformers:bert", batch=8)
    base = [*ran(), *ran(case("openvino")), *ran(case("onnxruntime:cpu")), *ran(bert), *ran(case("torchscript:trace"))]
    base += [broken(case("torchscript:script"), "unsupported")]
    new = [*ran(seconds=11e-3), *ran(case("openvino"), 5e-3), *ran(bert), *ran(case("torchscript:trace"), noise=20)]
    dead = broken(case("onnxruntime:cpu"), reason="Signal 11, that is 100 % dead.")
    new += [dead, broken(case("torchscript:script"))]
    return base, [replace(item, id=f"{item.id} new", run="new", environment=environment) for item in new]


def hostile() -> RecordComparison:
    """Names, reasons, warnings and versions that mean something to terminals, Markdown, XML and GitHub."""
    of = replace(case(), model=NASTY, options={NASTY: NASTY}, weights=NASTY)
    dead = replace(of, backend=NASTY)
    where = Environment(cpu=NASTY, libraries={NASTY: NASTY})
    warned = (Warning("x", NASTY, NASTY),)
    base = [*ran(of, environment=where, warnings=warned), *ran(dead, environment=where), *ran(case())]
    new = ran(of, 11e-3, run="new", agreement=Agreement(reference=NASTY, reason=NASTY))
    return compare(base, [*new, broken(dead, reason=NASTY, run="new"), *ran(run="new")], unlike=True)


SIDES = everything()
EVERYTHING = compare(*SIDES)
MADE = {"everything": EVERYTHING, "hostile": hostile(), "empty": compare([broken()], [broken(run="new")])}


def user_code(of: Case) -> RecordComparison:
    """A case that is slower after a change of the folder's revision."""
    old, new = (replace(CPU_MACHINE, git_revision=name) for name in ("abc123", "def456+"))
    return compare(ran(of, environment=old), ran(of, seconds=11e-3, run="new", environment=new))


def many(count: int) -> RecordComparison:
    cases = [case(options={"n": n}) for n in range(count)]
    base = [record for of in cases for record in ran(of)]
    return compare(base, [record for n, of in enumerate(cases) for record in ran(of, 0.011 + 0.001 * n, run="new")])


MINE = case(model="factory:mine:net")
OTHER_WAY = case("openvino")
ONCE = ran(processes=1), ran(seconds=10.3e-3, processes=1, run="new")
UNSURE = ran(OTHER_WAY, noise=20), ran(OTHER_WAY, noise=20, run="new")
OLD = ran(seconds=2.0, run="old", created="2026-05-03T10:00:00Z")
LIBRARIES = replace(CPU_MACHINE, libraries={f"library-{n}": "1" * 99 for n in range(30)})
COMPARED = {
    "a checkout, where the profile has to be taken": lambda: user_code(replace(MINE, checkout="../new")),
    "measured once": lambda: compare(*ONCE),
    "one measured once": lambda: compare([*ONCE[0], *UNSURE[0]], [*ONCE[1], *UNSURE[1]]),
    "several runs": lambda: compare([*OLD, *ran()], ran(run="new")),
    "many libraries": lambda: compare(ran(), ran(run="new", environment=LIBRARIES)),
}
# Of everything: the answer first, the worst first, a word where there is no number, what to do next.
test_screen = screens_test("comparison", {
    "everything": lambda: "\n".join([comparison.render_comparison(EVERYTHING), *comparison.sentences(EVERYTHING)]),
    **{name: lambda made=made: comparison.render_comparison(made(), width=100) for name, made in COMPARED.items()},
    "the worst of twenty": lambda: comparison.render_comparison(many(20), width=100),
})  # fmt: skip


def test_names_tell_cases_apart():
    ways = [case(), case(batch=8), case(options={"a": 1}), case(threads=2), case(seed=3), case(weights="w.pth")]
    found = comparison.case_lines(
        compare(*([record for of in ways for record in ran(of, run=run)] for run in ("base", "new")))
    )
    names = [line.name for line in found]
    assert len(set(names)) == len(ways)
    assert [line.name for line in comparison.case_lines(compare(ran(), ran(run="new")))] == ["pytorch fp32"]


def test_annotations_of_github():
    lines = comparison.render_comparison(EVERYTHING, "github").splitlines()
    assert [line.split()[0] for line in lines] == ["::notice", "::error", "::warning", "::error"]
    escaped = "::error title=a%3Ab%2Cc%25d%0A::50 %25: a,b%0D%0Ac"
    assert comparison.github_command("error", "a:b,c%d\n", "50 %: a,b\r\nc") == escaped


@pytest.mark.parametrize("compared", MADE.values(), ids=MADE)
def test_junit_counts_what_is_in_it(compared):
    root = Xml.fromstring(comparison.render_comparison(compared, "junit").encode())
    assert len(list(root.iter("testcase"))) == len(compared.cases)
    for element in (root, *root.iter("testsuite")):
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.attrib[name]) == len(list(element.iter(tag)))


def test_junit_outcomes():
    root = Xml.fromstring(comparison.render_comparison(EVERYTHING, "junit"))
    cases = [case for case in root.iter("testcase") if case.attrib["classname"] == "torchvision:resnet18"]
    assert {case.attrib["name"].removesuffix(" fp32"): [child.tag for child in case] for case in cases} == {
        "pytorch": ["failure"], "openvino": ["system-out"], "onnxruntime:cpu": ["error"],
        "torchscript:trace": ["skipped"], "torchscript:script": ["skipped"],
    }  # fmt: skip
    assert root.find(".//failure").attrib["message"] == "SLOWER: 10.0 to 11.0 ms, +10.0 ± 0.4 %"


# The page of a comparison: that it says what the table says, draws the changes, and has the records of both sides.


def drawn(compared: RecordComparison) -> list[dict[str, object]]:
    return [*max(chart_data(comparison.comparison_chart(compared)(THEMES["light"])), key=len)]


def test_the_page_has_all_that_the_table_has_and_the_records_of_both_sides():
    page = html.render_report(comparison.comparison_report(EVERYTHING, *SIDES, ("old", "new")))
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        "Answer", "Changes", "Samples", "What else differs", "How it was measured",
    ]  # fmt: skip
    figures = re.findall(r"\S+ ± \S+ %|DID NOT RUN[^(]*", comparison.render_comparison(EVERYTHING))
    for words in ("1 slower by 10 %, 1 faster by 50 %, ", 'download="compare.csv"', *figures):
        assert " ".join(words.split()) in page
    assert re.search(r"torch</th><td[^>]*>not there</td><td[^>]*>2.10.0</td>", page)
    assert re.search(r'<p class="command">Why slower: inferlens profile', page)
    for name, records in zip(("base", "candidate"), SIDES, strict=True):
        (link,) = re.findall(rf'download="{name}.jsonl.gz" href="data:application/gzip;base64,([^"]*)"', page)
        lines = gzip.decompress(base64.b64decode(link)).splitlines()
        assert [decode(line).id for line in lines] == [record.id for record in records]


def test_the_chart_has_each_change_with_its_interval_the_slowest_on_top():
    values = drawn(EVERYTHING)
    assert [value["verdict"] for value in values] == ["SLOWER", "SAME", "UNDECIDED", "FASTER"]
    (slow,) = EVERYTHING.with_verdict("SLOWER")
    assert slow.change_interval
    expected = 1 + slow.change_interval.low, 1 + (slow.change or 0), 1 + slow.change_interval.high
    assert (values[0]["low"], values[0]["ratio"], values[0]["high"]) == pytest.approx(expected)
    assert [value["decided"] for value in values] == [True, True, False, True]


def test_of_many_cases_those_that_changed_most_are_drawn():
    ratios = [item["ratio"] for item in drawn(many(comparison.MAX_CASES + 10))]
    assert len(ratios) == comparison.MAX_CASES
    assert ratios == sorted(ratios, reverse=True)


def test_hostile_names_are_inert():
    of = replace(case(), model=NASTY, options={NASTY: NASTY}, weights=NASTY)
    base, new = ran(of), ran(of, 11e-3, run="new")
    made = comparison.comparison_report(compare(base, new, unlike=True), base, new, (NASTY, NASTY))
    assert re.findall(r"<(script|img|b )", html.render_report(made)) == ["script"]
    text, pictures = render_markdown_report(made, "pictures")
    assert {*re.findall(r"\(pictures/(.*?)\)", text)} == {*pictures}


def test_without_a_case_on_both_sides_there_is_a_page_and_no_chart():
    base, new = [broken()], [broken(run="new")]
    compared = compare(base, new)
    page = html.render_report(comparison.comparison_report(compared, base, new, ("old", "new")))
    assert ("Nothing could be compared." in page, "<figure>" in page) == (True, False)
    refusal("nothing to draw", comparison.comparison_chart, compared)


def test_the_command_writes_pages_and_pictures_with_the_same_exit_code(tmp_path):
    for name, records in zip(("base", "candidate"), SIDES, strict=True):
        saved(tmp_path / name, records)
    for file in ("a.html", "a.md", "a.svg", "a.png"):
        done = inferlens("compare", "base", "candidate", "-o", file, cwd=tmp_path)
        assert (done.returncode, "Wrote" in done.stderr, "SLOWER" in done.stdout) == (1, True, True)
    assert (tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "a-pictures" / "changes.svg").exists()
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
