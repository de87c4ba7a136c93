"""Bars in a terminal: as long as their numbers say, within the width, and clear without colours."""

from __future__ import annotations

import re

import pytest

from inferlens.errors import InferlensError
from inferlens.units import number
from inferlens.views.records import records_document
from inferlens.views.renderers import render
from inferlens.views.renderers.terminal import EIGHTHS, bar, with_bars
from inferlens.views.table import Column, Document, Line, Table
from tests.commands import inferlens
from tests.views.samples import case, cpu_records, failure, gpu_records, record

BAR = re.compile(f"[{EIGHTHS[1:]}]+")


def drawn(records, width=100, **options) -> list[str]:
    text = render(with_bars(records_document(records), width, **options), width=width)
    return [line for line in text.splitlines() if BAR.search(line)]


def length(line: str) -> float:
    """Of the bar, in characters."""
    return sum(EIGHTHS.index(part) / 8 for part in "".join(BAR.findall(line)))


def test_bars_are_an_eighth_of_a_character_fine():
    assert bar(0.5, 10) == "█████"
    assert bar(0.53, 10) == "█████▎"
    assert bar(1e-9, 10) == "▏"
    assert bar(0.0, 10) == ""
    assert [len(bar(part / 80, 10)) for part in (79, 80)] == [10, 10]


def test_bars_are_as_long_as_the_times_beside_them():
    times = {"pytorch": 20e-3, "openvino": 5e-3, "onnxruntime": 10e-3}
    lines = drawn([record(case(name), samples=(time,) * 50) for name, time in times.items()])
    lengths = {line.split()[line.split()[0].isdigit()]: length(line) for line in lines}
    assert lengths["onnxruntime"] == pytest.approx(lengths["pytorch"] / 2, abs=0.13)
    assert lengths["openvino"] == pytest.approx(lengths["pytorch"] / 4, abs=0.13)
    assert lengths["pytorch"] > 20
    assert any("5.00" in line and "4.00x" in line for line in lines)


def test_each_batch_size_has_its_own_scale_and_what_failed_no_bar():
    lines = render(with_bars(records_document(gpu_records(), top=9), 100)).splitlines()
    longest = max(map(length, lines))
    assert sum(length(line) == longest for line in lines) == len({record.case.batch for record in gpu_records()})
    assert drawn([record(), failure(case("openvino"))])[0].split()[:2] == ["1", "pytorch"]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_bars_keep_to_the_width(width):
    text = render(with_bars(records_document([*cpu_records(), *gpu_records((1,))]), width), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert BAR.search(text)


def test_named_columns_are_drawn_and_shown_instead():
    assert "136" in " ".join(drawn(cpu_records(), columns="items,error"))
    with pytest.raises(InferlensError, match="numbers to draw"):
        drawn(cpu_records(), columns="precision")


def test_what_others_add_up_to_is_no_bar():
    columns = (Column("", "time", "ms", bars="drawn"),)
    lines = [Line("a", ("1.00",)), Line("b", ("2.00",)), Line("whole run", ("300",), sums=True)]
    document = Document(lambda: [Table("", "layer", columns, lines), "A sentence."], data=dict)
    text = render(with_bars(document, 100))
    assert [length(line) for line in text.splitlines() if BAR.search(line)] == [24, 48]


def test_a_number_is_read_as_it_was_written():
    texts = {"1,446": 1446, "0.697": 0.697, "697 µs": 697e-6, "17.1 ms": 0.0171, "–": None, "reference": None, "": None}
    assert {text: number(text) for text in texts} == {text: pytest.approx(value) for text, value in texts.items()}


def test_show_draws_bars(tmp_path):
    inferlens("bench", "fake:demo", "--iterations", "20", "-b", "fake", cwd=tmp_path)
    done = inferlens("show", "results", "--bars", cwd=tmp_path)
    assert BAR.search(done.stdout)
