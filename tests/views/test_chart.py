"""Charts of records: what they say, what is drawn, and which points the line joins."""

import html
import re
import xml.dom.minidom
from itertools import combinations

import pytest

from inferlens.cli.show import show
from inferlens.record.record import Agreement, Memory
from inferlens.views.chart import Chart, pareto_front, points_chart, swept_option
from inferlens.views.picture import THEMES
from inferlens.views.rows import rows
from tests.refusals import refusal
from tests.snapshots import compare_with_stored
from tests.views.samples import case, cpu_records, failure, record, series, stored


def texts(drawn: str) -> list[str]:
    """What a picture says, text by text."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", drawn, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split()) for text in found]


def texts_of_chart(records, **options) -> list[str]:
    return texts(Chart(**options).render(records))


def ways(count: int, **fields):
    """Cases that are told apart by an option, each slower than the one before."""
    return [
        record(case("openvino", options={"streams": number}), median=(10 + 3 * number) * 1e-3, rate=90.0, **fields)
        for number in range(count)
    ]


def test_the_title_is_the_answer_and_names_what_is_as_fast():
    samples = [series(0.01 * (1 + 1e-4 * turn), spread=0.01) for turn in range(5)]
    near = [record(case(name), samples=samples[turn], repeat=turn, repeats=5, id=f"{name}{turn}")
            for turn in range(5) for name in ("pytorch", "openvino")]  # fmt: skip
    assert "resnet18: FASTEST · pytorch · 10.0 ms · as fast: openvino 10.0 ms" in texts_of_chart(near)


def test_rates_alone_are_drawn():
    assert "throughput (items per second)" in texts_of_chart([record(median=None, rate=100.0)])


def test_of_many_ways_the_fastest_are_drawn_and_the_reference():
    records = [record(case(), median=5.0), *ways(40)]
    drawn = texts_of_chart(records)
    assert sum(text.startswith("openvino") for text in drawn) == 29
    assert "pytorch (reference)" in drawn
    assert any("the first 30 are drawn" in text for text in drawn)
    assert sum(text.startswith("openvino") for text in texts_of_chart(records, top=5)) == 4


@pytest.mark.parametrize("count", [5, 30])
def test_no_text_overlaps_another_or_leaves_the_picture(count):
    long = {"graph_optimization_level": "all", "inter_op_threads": "a_very_long_value_of_this_option"}
    records = [*ways(count), record(case("pytorch", options=long), median=0.4, rate=1234567.0)]
    found = Chart().render([*records, failure(case("torch_compile:reduce-overhead"), "out of memory")])
    wide, high = (float(group) for group in re.search(r'width="([\d.]+)" height="([\d.]+)"', found).groups())
    assert found.count("<text")
    boxes = boxes_in(found)
    outside = [text for left, top, right, bottom, text in boxes if min(left, top) < 0 or right > wide or bottom > high]
    assert outside == []
    assert overlapping(boxes) == []


def boxes_in(drawn: str):
    return list(boxes_of(xml.dom.minidom.parseString(drawn).documentElement))


def overlapping(boxes) -> list[tuple[str, str]]:
    """Return the texts that lie on one another."""
    return [(one[4], other[4]) for one, other in combinations(boxes, 2)
            if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]]  # fmt: skip


def boxes_of(node, across=0.0, down=0.0):
    """Where each text of a picture stands, as wide as its letters are on average."""
    for child in node.childNodes:
        if child.nodeType != child.ELEMENT_NODE:
            continue
        moved = re.match(r"translate\(([-\d.]+),\s*([-\d.]+)\)", child.getAttribute("transform"))
        x, y = (across + float(moved[1]), down + float(moved[2])) if moved else (across, down)
        if child.tagName != "text":
            yield from boxes_of(child, x, y)
            continue
        if child.getAttribute("opacity") == "0" or "rotate" in child.getAttribute("transform"):
            continue
        text = "".join(childNode.data for childNode in child.childNodes if childNode.nodeType == childNode.TEXT_NODE)
        size = float(child.getAttribute("font-size").removesuffix("px"))
        width = 0.45 * size * len(text)
        left = x - {"middle": width / 2, "end": width}.get(child.getAttribute("text-anchor"), 0.0)
        yield left, y - 0.7 * size, left + width, y + 0.1 * size, text


@pytest.fixture
def folder(tmp_path):
    return stored(tmp_path / "records", cpu_records()[:2])


@pytest.mark.parametrize(
    ("name", "start"), [("a.svg", b"<svg"), ("a.PNG", b"\x89PNG"), ("a.html", b"<!DOCTYPE html>"), ("a.pdf", b"%PDF")]
)
def test_the_suffix_decides_the_format(folder, tmp_path, name, start, capsys):
    show([folder], plot=tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    shown = capsys.readouterr()
    assert (shown.out, name in shown.err) == ("", True)


def test_a_failed_chart_leaves_the_old_file(folder, tmp_path):
    (tmp_path / "a.svg").write_text("old")
    refusal("No case fits", show, [folder], plot=tmp_path / "a.svg", reference="tensorrt")
    assert (tmp_path / "a.svg").read_text() == "old"


def with_error(error: float) -> Agreement:
    agrees = error <= 0.1
    why = "" if agrees else "far"
    return Agreement(reference="pytorch fp32", rel_l2=error, tolerance=0.1, agrees=agrees, reason=why)


def points():
    """Three ways that nothing beats in both, two that are beaten, one that is wrong and one that did not run."""
    points = [
        ("pytorch", "fp32", 20, 0.0), ("openvino", "fp32", 12, 6e-7), ("onnxruntime:cpu", "fp32", 14, 9e-7),
        ("openvino", "int8", 4, 0.03), ("onnxruntime:cpu", "int8", 6, 0.04), ("torch_compile:default", "int8", 3, 0.6),
    ]  # fmt: skip
    found = [record(case(name, precision=precision), median=time * 1e-3, agreement=with_error(error))
             for name, precision, time, error in points]  # fmt: skip
    return [*found, failure(case("torchscript:trace"), "crashed")]


def test_the_ways_that_matter_are_named_and_what_is_wrong_says_so():
    said = texts(Chart(against="error").render(points()))
    compare_with_stored("chart/error", "\n".join(said))


def test_where_more_is_better_the_line_rises():
    points = [{"x": x, "up": up, "filled": True} for x, up in ((1, 0.7), (2, 0.9), (3, 0.8), (4, 0.95))]
    assert [item["x"] for item in pareto_front(points, "up", less=True, up_less=False)] == [1, 2, 4]


def test_no_label_lies_on_another_one():
    streams = [case("openvino", options={"streams": number}) for number in range(12)]
    near = [record(of, median=10.1e-3, agreement=with_error(6e-7)) for of in streams]
    boxes = boxes_in(Chart(against="error").render([*points(), *near]))
    assert overlapping([box for box in boxes if "fp32" in box[-1] or "int8" in box[-1]]) == []


def test_memory_is_that_of_the_device_and_without_numbers_nothing_is_drawn():
    memory = Memory(host_peak=2**30, device_peak=100 * 2**20, device_basis="NVML")
    on_gpu = record(case(device="cuda"), median=1e-3, memory=memory)
    chart = points_chart(rows([on_gpu]), "memory", THEMES["dark"])
    assert '"memory": 100.0' in str(chart).replace("'", '"')
    refusal("no case has both a latency and its peak memory", Chart(against="memory").render, [record(memory=Memory())])


def test_the_line_joins_what_nothing_beats_in_both_and_nothing_wrong():
    chart = points_chart(rows(points()), "error", THEMES["light"])
    (panel,) = chart["vconcat"][0]["vconcat"]
    line = panel["layer"][0]["data"]["values"]
    assert [point["label"] for point in line] == [
        "openvino int8 (likely fastest)", "openvino fp32", "pytorch fp32 (reference)",
    ]  # fmt: skip


@pytest.mark.parametrize(("options", "other", "expected"), [
    ([0.25, 1.25, 0.5], {}, ["(default)", "0.25", "0.5", "1.25"]), (["disabled", "basic"], {}, None),
    ([0.5], {"python": "/other/python"}, []), ([0.5], {"weights": "a.pth"}, []), ([0.5], {"keep": "conv1"}, []),
])  # fmt: skip
def test_values_of_one_option_are_a_curve_and_other_differences_are_bars(options, other, expected):
    cases = [case(), *(case(options={"pace": value}) for value in options), *([case(**other)] if other else [])]
    shown = rows([record(of, median=0.01 + 0.001 * place) for place, of in enumerate(cases)])
    assert swept_option(shown) == ("pace" if not other else "")
    if expected:
        labels = texts_of_chart([record(of) for of in cases])
        assert [label for label in labels if label in expected] == expected
    assert not swept_option(rows([record(case()), failure(case(options={"pace": 1}))])), "a failed value has a word"
