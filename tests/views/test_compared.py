"""Drawings of a comparison: every format of the same comparisons, hostile ones included."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as Xml

import msgspec
import pytest
from markdown_it import MarkdownIt

from inferlens.analysis.compare.cases import Compared, compare
from inferlens.record.record import Agreement, Environment, Warning
from inferlens.views.compared import FORMATS, command, groups, render, sentences
from tests.analysis.compare.sides import broken, ran
from tests.views.samples import CPU_MACHINE, case

NASTY = "\x1b[31m<b onload=x>a|b</b> [x](http://y) `c` ]]>\r\n::error::%0A &amp; \u202e\ufffe\x00"


def everything() -> Compared:
    """One case of every verdict, two models, libraries that differ."""
    other = msgspec.structs.replace(CPU_MACHINE, libraries={"torch": "2.10.0"})
    bert = case(model="transformers:bert", batch=8)
    base = [*ran(), *ran(case("openvino")), *ran(case("onnxruntime:cpu")), *ran(bert), *ran(case("torchscript:trace"))]
    base += [broken(case("torchscript:script"), "unsupported")]
    new = [*ran(seconds=11e-3), *ran(case("openvino"), 5e-3), *ran(bert), *ran(case("torchscript:trace"), noise=20)]
    new += [
        broken(case("onnxruntime:cpu"), reason="Signal 11, that is 100 % dead."),
        broken(case("torchscript:script")),
    ]
    changed = [msgspec.structs.replace(each, id=f"{each.id} new", run="new", environment=other) for each in new]
    return compare(base, changed)


def hostile() -> Compared:
    """Names, reasons, warnings and versions that mean something to terminals, Markdown, XML and GitHub."""
    of = msgspec.structs.replace(case(), model=NASTY, options={NASTY: NASTY}, weights=NASTY)
    dead = msgspec.structs.replace(of, backend=NASTY)
    where = Environment(cpu=NASTY, libraries={NASTY: NASTY})
    warned = (Warning("x", NASTY, NASTY),)
    base = [*ran(of, environment=where, warnings=warned), *ran(dead, environment=where), *ran(case())]
    new = ran(of, 11e-3, run="new", agreement=Agreement(reference=NASTY, reason=NASTY))
    return compare(base, [*new, broken(dead, reason=NASTY, run="new"), *ran(run="new")], unlike=True)


def empty() -> Compared:
    """Nothing ran on either side."""
    return compare([broken()], [broken(run="new")])


MADE = {"everything": everything(), "hostile": hostile(), "empty": empty()}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("compared", MADE.values(), ids=MADE)
def test_every_format_draws_the_same_again_and_steers_no_terminal(format, compared):
    drawn = render(compared, format)
    assert drawn.endswith("\n")
    assert drawn == render(compared, format)
    assert format == "json" or not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ufffe]", drawn)


def test_what_is_said():
    assert sentences(MADE["everything"]) == [
        "1 slower: torchvision:resnet18 pytorch fp32, +10.0 % (+9.6 to +10.4 %).",
        "1 faster: torchvision:resnet18 openvino fp32, -50.0 % (-50.2 to -49.8 %).",
        "1 the same within 2 %, 1 undecided and 1 on neither side.",
        "1 cannot be compared: torchvision:resnet18 onnxruntime:cpu fp32 (candidate: crashed).",
        "Changes are of the median latency; above 0 is slower. 5 processes on each side; all intervals hold with 95 % "
        "confidence.",
    ]


def test_the_worst_are_named_first_and_no_more_than_three():
    cases = [case(options={"n": n}) for n in range(5)]
    base, new = [], []
    for n, of in enumerate(cases):
        base += ran(of)
        new += ran(of, 0.011 + 0.001 * n, run="new")
    said = sentences(compare(base, new))[0]
    assert said.startswith("5 slower: pytorch fp32 n=4, +50.0 %")
    assert re.findall(r"n=(\d)", said) == ["4", "3", "2"]
    assert said.endswith("; and 2 more.")


def test_names_tell_cases_apart():
    ways = [case(), case(batch=8), case(options={"a": 1}), case(threads=2), case(seed=3), case(weights="w.pth")]
    names = [line.name for line in groups(compare(
        [each for of in ways for each in ran(of)], [each for of in ways for each in ran(of, run="new")]
    ))[0].lines]  # fmt: skip
    assert len(set(names)) == len(ways)
    assert names[1] == "pytorch fp32 batch 8"
    assert names[3] == "pytorch fp32 batch 1 2 threads"
    assert names[5].endswith("w.pth")
    (line,) = groups(compare(ran(), ran(run="new")))[0].lines
    assert line.name == "pytorch fp32"
    assert groups(compare(ran(), ran(run="new")))[0].headline == f"torchvision:resnet18 · {CPU_MACHINE.cpu} · batch 1"


@pytest.mark.parametrize("width", [60, 85, 160])
@pytest.mark.parametrize("compared", MADE.values(), ids=MADE)
def test_the_table_keeps_to_its_width(width, compared):
    drawn = render(compared, "table", width=width)
    assert max(map(len, drawn.splitlines())) <= width
    assert "…" not in drawn


@pytest.mark.parametrize("compared", MADE.values(), ids=MADE)
def test_markdown_tables_stay_tables(compared):
    drawn = render(compared, "markdown")
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(drawn)
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in [*tokens, *inline]}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline", "fence", "code_block"}
    assert "table_open" in kinds
    for block in drawn.split("\n\n"):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")}
        assert len(widths) <= 1


def unescaped(text: str) -> str:
    """As the runner reads it."""
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, char)
    return text


def commands(compared: Compared) -> list[tuple[str, str, str]]:
    """Kind, title and message of each line; every line is a command."""
    found = [re.fullmatch(r"::(\w+) title=([^:,]*)::(.*)", line) for line in render(compared, "github").splitlines()]
    assert all(found)
    return [(each[1], unescaped(each[2]), unescaped(each[3])) for each in found]


def test_annotations():
    found = commands(MADE["everything"])
    assert [kind for kind, _, _ in found] == ["notice", "error", "warning", "error"]
    assert found[0][2] == " ".join(sentences(MADE["everything"]))
    assert found[1][1:] == (
        "SLOWER: torchvision:resnet18 pytorch fp32",
        "Median latency: 10.00 to 11.00 ms, +10.0 % (+9.6 to +10.4 %).",
    )
    assert found[2][1].startswith("UNDECIDED")
    assert found[3] == (
        "error",
        "DID NOT RUN: torchvision:resnet18 onnxruntime:cpu fp32",
        "Candidate: crashed. Signal 11, that is 100 % dead.",
    )


def test_escaping():
    assert command("error", "a:b,c%d\n", "50 %: a,b\r\nc") == "::error title=a%3Ab%2Cc%25d%0A::50 %25: a,b%0D%0Ac"


# JUnit

ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "timestamp"},
    "properties": set(), "property": {"name", "value"}, "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"}, "error": {"message", "type"}, "skipped": {"message", "type"}, "system-out": set(),
}  # fmt: skip
CHILDREN = {
    "testsuites": ["testsuite"], "testsuite": ["properties", "testcase", "system-out"], "properties": ["property"],
    "testcase": ["failure", "error", "skipped", "system-out"],
}  # fmt: skip


@pytest.mark.parametrize("compared", MADE.values(), ids=MADE)
def test_junit_has_the_shape_that_its_readers_expect(compared):
    root = Xml.fromstring(render(compared, "junit").encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) <= ATTRIBUTES[element.tag]
        order = [CHILDREN[element.tag].index(child.tag) for child in element]
        assert order == sorted(order)
        if element.tag.startswith("testsuite"):
            assert int(element.attrib["tests"]) == len(list(element.iter("testcase")))
            for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
                assert int(element.attrib[name]) == len(list(element.iter(tag)))
        if element.tag == "testcase":
            assert element.attrib["name"]
            assert float(element.attrib.get("time", "0")) >= 0
    assert len(list(root.iter("testcase"))) == len(compared.cases)


def test_junit_outcomes():
    root = Xml.fromstring(render(MADE["everything"], "junit"))
    found = {
        case.attrib["name"]: [child.tag for child in case if child.tag != "system-out"]
        for case in root.iter("testcase")
        if case.attrib["classname"] == "torchvision:resnet18"
    }
    assert found == {
        "pytorch fp32": ["failure"],
        "openvino fp32": [],
        "onnxruntime:cpu fp32": ["error"],
        "torchscript:trace fp32": ["skipped"],
        "torchscript:script fp32": ["skipped"],
    }
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.attrib["message"] == "SLOWER: 10.00 to 11.00 ms, +10.0 % (+9.6 to +10.4 %)"


def test_json_has_all_of_it():
    compared = MADE["everything"]
    data = json.loads(render(compared, "json"))
    assert data["schema"] == "inferlens.comparison/1"
    assert data["exit_code"] == compared.exit_code == 1
    assert data["sentences"] == sentences(compared)
    fields = {field.name for field in msgspec.structs.fields(type(compared.cases[0]))}
    assert [set(each) for each in data["cases"]] == [fields | {"name", "digest"}] * len(compared.cases)
    assert data["cases"][0]["change"] == compared.cases[0].change
    assert data["cases"][0]["digest"] == compared.cases[0].case.digest
    assert data["differences"][0]["field"] == "torch"
    assert json.loads(render(MADE["hostile"], "json"))["cases"][0]["case"]["model"] == NASTY
