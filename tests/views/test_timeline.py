"""The picture of what ran when in one step of a trace."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from inferlens.trace.analysis import Analysis
from inferlens.trace.reader import read
from inferlens.views.trace_documents import TIMELINE_BINS, step_timeline
from tests.trace.samples import event, kernel, launch, step, text, training


def drawn(data: bytes) -> tuple[list[str], dict[str, tuple[float, float, float]]]:
    """The names of the lanes, and of each box where it begins, how wide it is, as shares, and how far down it is."""
    picture = step_timeline(Analysis(read(data)), "timeline-1")
    assert picture
    root = ET.fromstring(picture.svg(False))
    wide = float(root.attrib["width"])
    boxes = {}
    for item in root.iter("{http://www.w3.org/2000/svg}rect"):
        left, width, down = (float(item.attrib[name]) for name in ("x", "width", "y"))
        boxes[item.attrib["data-tip"].split(";")[0]] = (left / wide, width / wide, down)
    lanes = [item.text or "" for item in root.iter("{http://www.w3.org/2000/svg}text") if "font-weight" in item.attrib]
    return lanes, boxes


def test_host_threads_nest_and_streams_stand_beneath() -> None:
    lanes, boxes = drawn(training())
    assert [re.sub(r".* · ", "", lane) for lane in lanes] == ["thread 1", "stream 7", "stream 8"]
    assert re.match(r"step [01], \d+ µs · host", lanes[0])
    linear, mm, call, gemm = (boxes[name] for name in ("aten::linear", "aten::mm", "cudaLaunchKernel", "s16816gemm"))
    assert mm[1] / linear[1] == pytest.approx(1 / 3, rel=1e-3)
    assert gemm[1] == pytest.approx(mm[1], rel=1e-3)  # 100 µs each
    assert linear[2] < mm[2] < gemm[2]
    assert call[2] in (mm[2], mm[2] + (mm[2] - linear[2]))
    assert mm[0] - linear[0] == pytest.approx(linear[1] / 6, rel=1e-3)


def test_many_short_events_are_few_boxes_that_say_how_many_they_are() -> None:
    calls = [(launch(n, 2 * n, 1), kernel(n, 2 * n + 0.5, 1.5, "tiny")) for n in range(1, 10_000)]
    events = [event("aten::big", 1, 20_000), *(item for pair in calls for item in pair)]
    picture = step_timeline(Analysis(read(text(step(1, 0, 20_100), *events))), "timeline-1")
    assert picture
    boxes = re.findall(r'data-tip="(.*?);', picture.svg(False))
    assert len(boxes) <= 3 * TIMELINE_BINS
    told = [re.fullmatch(r"([\d,]+) events", box) for box in boxes]
    assert sum(int(item[1].replace(",", "")) if item else 1 for item in told) == 2 * len(calls) + 1


def test_events_without_length_and_those_that_began_before_the_step() -> None:
    early = [launch(1, 90, 5), kernel(1, 150, 100)]
    events = [step(1, 100, 100), event("aten::early", 80, 40), event("aten::a", 100, 0), event("aten::b", 101, 0)]
    picture = step_timeline(Analysis(read(text(*events, *early))), "timeline-1")
    assert picture
    tops = [float(item) for item in re.findall(r'<rect x="[^"]*" y="([^"]*)"', picture.svg(False))]
    assert min(tops) >= 26  # beneath the title
    assert "aten::early" in picture.svg(False)


def test_a_trace_in_which_nothing_happened_has_none() -> None:
    assert step_timeline(Analysis(read(text())), "timeline-1") is None
