"""Latency against the error or the memory: which points are there, and which the line joins."""

from __future__ import annotations

import html
import re
import xml.dom.minidom

import pytest

from inferlens.errors import InferlensError
from inferlens.record.record import Agreement, Memory
from inferlens.views.picture import THEMES
from inferlens.views.raced.against import chart_of, render
from inferlens.views.raced.scatter import front
from inferlens.views.rows import rows
from tests.commands import inferlens

from .samples import case, failure, record
from .test_chart import boxes_of


def with_error(error: float, agrees: bool = True) -> Agreement:
    return Agreement(
        reference="pytorch fp32", rel_l2=error, tolerance=0.1, agrees=agrees, reason="" if agrees else "far"
    )


def ways():
    """Three ways that nothing beats in both, two that are beaten, one that is wrong and one that did not run."""
    points = [
        ("pytorch", "fp32", 20, 0.0), ("openvino", "fp32", 12, 6e-7), ("onnxruntime:cpu", "fp32", 14, 9e-7),
        ("openvino", "int8", 4, 0.03), ("onnxruntime:cpu", "int8", 6, 0.04),
    ]  # fmt: skip
    found = [
        record(case(name, precision=precision), median=time * 1e-3, agreement=with_error(error))
        for name, precision, time, error in points
    ]
    wrong = record(case("torch_compile:default", precision="int8"), median=3e-3, agreement=with_error(0.6, False))
    return [*found, wrong, failure(case("torchscript:trace"), "crashed")]


def texts(drawn: str) -> list[str]:
    found = re.findall(r"<text[^>]*>(.*?)</text>", drawn, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split()) for text in found]


def test_the_ways_that_matter_are_named_and_what_is_wrong_says_so():
    said = texts(render(ways(), "error", "svg"))
    for text in (
        "openvino int8 (likely fastest)", "pytorch fp32 (reference)", "openvino fp32",
        "error of the outputs (relative L2, log scale)",
        "torch_compile:default int8 (wrong)", "median latency (ms, log scale)",
    ):  # fmt: skip
        assert text in said
    explained = next(text for text in said if "dashed" in text)
    assert "crossed out: wrong" in explained
    assert "1 way without these numbers not drawn" in explained


def test_the_line_joins_what_nothing_beats_in_both_and_nothing_wrong():
    chart = chart_of(rows(ways()), "error", THEMES["light"])
    (panel,) = chart["vconcat"][0]["vconcat"]
    line = panel["layer"][0]["data"]["values"]
    assert [point["label"] for point in line] == [
        "openvino int8 (likely fastest)", "openvino fp32", "pytorch fp32 (reference)",
    ]  # fmt: skip


def test_where_more_is_better_the_line_rises():
    points = [{"x": x, "up": up, "filled": True} for x, up in ((1, 0.7), (2, 0.9), (3, 0.8), (4, 0.95))]
    assert [item["x"] for item in front(points, "up", less=True, also=False)] == [1, 2, 4]


def test_no_label_lies_on_another_one():
    streams = [case("openvino", options={"streams": number}) for number in range(12)]
    near = [record(of, median=10.1e-3, agreement=with_error(6e-7)) for of in streams]
    drawn = xml.dom.minidom.parseString(render([*ways(), *near], "error", "svg")).documentElement
    boxes = [box for box in boxes_of(drawn) if "fp32" in box[-1] or "int8" in box[-1]]
    for number, (left, top, right, bottom, text) in enumerate(boxes):
        for box in boxes[number + 1 :]:
            apart = right <= box[0] or box[2] <= left or bottom <= box[1] or box[3] <= top
            assert apart, (text, box[4])


def test_memory_is_that_of_the_device_and_without_numbers_nothing_is_drawn():
    memory = Memory(host_peak=2**30, device_peak=100 * 2**20, device_basis="NVML")
    on_gpu = record(case(device="cuda"), median=1e-3, memory=memory)
    chart = chart_of(rows([on_gpu]), "memory", THEMES["dark"])
    assert '"memory": 100.0' in str(chart).replace("'", '"')
    with pytest.raises(InferlensError, match="no case has both a latency and its peak memory"):
        render([record(memory=Memory())], "memory", "svg")


def test_the_command_draws_it(tmp_path):
    refused = inferlens("show", "nothing", "--plot", "x.svg", "--against", "beauty", cwd=tmp_path)
    assert refused.returncode == 2
