"""Which columns of a table are shown, and where a document goes."""

import re
from dataclasses import replace

import pytest

from inferlens.cli import screen
from inferlens.views.records import records_document
from inferlens.views.renderers import render, terminal
from inferlens.views.renderers.terminal import EIGHTHS, bar, with_bars
from inferlens.views.table import Column, Document, Line, Table
from tests.refusals import refusal
from tests.views.samples import case, cpu_records, failure, gpu_records, record

COLUMNS = (Column("calls", "calls"), Column("time.p99", "p99", "ms", wide=True), Column("what", "what", numeric=False))
TABLE = Table("a model", "row", COLUMNS, [Line("one", ("1", "2.5", "x")), Line("two", ("3", "4.5", "y"))])
DOCUMENT = Document(lambda: [TABLE, "A sentence."], lambda: {"schema": "test"}, lambda: [{"name": "one"}])


@pytest.mark.parametrize(("words", "heads"), [
    ({}, "| row | calls | what |"), ({"wide": True}, r"| row | calls | p99 (ms) | what |"),
    ({"columns": "what, P99 (ms)"}, "| row | what | p99 (ms) |"), ({"columns": "p9"}, "| row | p99 (ms) |"),
    ({"columns": "time.p99"}, "| row | p99 (ms) |"),
])  # fmt: skip
def test_columns_are_those_asked_for(words, heads):
    drawn = render(DOCUMENT, "markdown", **words)
    head = next(line for line in drawn.splitlines() if line.startswith("| row"))
    assert head == heads


def test_columns_that_were_asked_for_and_do_not_fit_stand_beneath():
    columns = [Column(f"c{place}", f"a title of {place}", max_width=20) for place in range(9)]
    table = Table("a model", "row", columns, [Line("one", [f"{place}.25" for place in range(9)])])
    document = Document(lambda: [table], dict)
    usual, whole = (render(document, width=60, wide=wide) for wide in (False, True))
    assert max(map(len, whole.splitlines())) <= 60
    assert [f"{place}.25" in usual for place in range(9)] != [True] * 9
    assert [whole.count(f"{place}.25") for place in range(9)] == [1] * 9
    assert whole.count("one") > 1, "each with its names"


def test_columns_that_are_asked_for_are_shown_where_a_screen_has_sentences_alone():
    assert "2.5" in render(replace(DOCUMENT, tries=lambda _: [["The answer."]]), columns="p99")


def test_all_columns_can_be_listed():
    assert render(DOCUMENT, columns="help") == "Columns: calls, p99 (ms), what.\n"


def test_a_column_that_is_not_there_is_told_with_those_that_are():
    assert "p99" in refusal("no column 'q9'", render, DOCUMENT, columns="q9").expected


def test_a_document_goes_into_a_file_whose_ending_says_how(tmp_path):
    endings = {".md": "**a model**", ".json": "{", ".csv": "name", ".html": "<!DOCTYPE", ".txt": "a model"}
    for ending, start in endings.items():
        screen.document(DOCUMENT, output=tmp_path / f"out{ending}")
        assert (tmp_path / f"out{ending}").read_text().startswith(start)
    screen.document(DOCUMENT, "csv", output=tmp_path / "out.doc")  # a format that is named decides
    assert (tmp_path / "out.doc").read_text().startswith("name")
    refusal(r"no file ending '\.doc'", screen.document, DOCUMENT, output=tmp_path / "out.doc")


def test_a_command_that_is_broken_into_lines_can_still_be_pasted():
    command = "inferlens ab resnet18 'torch_compile:default dynamic=true' onnxruntime:cpu --batch 1"
    assert terminal.wrap(f"To decide it: {command}", 80) == [
        "To decide it:", "inferlens ab resnet18 'torch_compile:default dynamic=true' onnxruntime:cpu \\", "--batch 1",
    ]  # fmt: skip
    assert terminal.wrap(f"To decide it: {command}", 200) == [f"To decide it: {command}"]
    said = "It varied (2 more: inferlens show results --view notes)."
    assert terminal.wrap(said, 30) == ["It varied (2 more: inferlens", "show results --view notes)."]


# Bars in a terminal: as long as their numbers say, within the width, and clear without colours.

BAR = re.compile(f"[{EIGHTHS[1:]}]+")


def drawn(records, width=100, **options) -> list[str]:
    text = render(with_bars(records_document(records), **options), width=width)
    return [line for line in text.splitlines() if BAR.search(line)]


def length(line: str) -> float:
    """Of the bar, in characters."""
    return sum(EIGHTHS.index(part) / 8 for part in "".join(BAR.findall(line)))


def test_bars_are_an_eighth_of_a_character_fine():
    assert [bar(share, 10) for share in (0.5, 0.53, 1e-9, 0.0)] == ["█████", "█████▎", "▏", ""]
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
    lines = render(with_bars(records_document(gpu_records(), top=9))).splitlines()
    longest = max(map(length, lines))
    assert sum(length(line) == longest for line in lines) == len({one.case.batch for one in gpu_records()})
    assert drawn([record(), failure(case("openvino"))])[0].split()[:2] == ["1", "pytorch"]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_bars_keep_to_the_width(width):
    text = render(with_bars(records_document([*cpu_records(), *gpu_records((1,))])), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert BAR.search(text)


def test_what_others_add_up_to_is_no_bar():
    columns = (Column("time", "time", "ms", bars=True),)
    lines = [Line("a", ("1.00",)), Line("b", ("2.00",)), Line("whole run", ("300",), sums=True)]
    document = Document(lambda: [Table("", "layer", columns, lines), "A sentence."], data=dict)
    text = render(with_bars(document))
    assert [length(line) for line in text.splitlines() if BAR.search(line)] == [12, 24]
