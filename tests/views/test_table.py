"""Which columns of a table are shown, and where a document goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inferlens.cli import screen
from inferlens.errors import InferlensError
from inferlens.views.renderers import terminal
from inferlens.views.table import Column, Document, Line, Table, render

COLUMNS = (Column("calls", "calls"), Column("time.p99", "p99", "ms", wide=True), Column("", "what", numeric=False))
TABLE = Table("a model", "row", COLUMNS, [Line("one", ("1", "2.5", "x")), Line("two", ("3", "4.5", "y"))])
DOCUMENT = Document(lambda: [TABLE, "A sentence."], lambda: {"schema": "test"}, lambda: (["name"], [["one"]]))


@pytest.mark.parametrize(
    ("words", "heads"),
    [
        ({}, "| row | calls | what |"),
        ({"wide": True}, r"| row | calls | p99 (ms) | what |"),
        ({"columns": "what, P99 (ms)"}, "| row | what | p99 (ms) |"),
        ({"columns": "p9"}, "| row | p99 (ms) |"),
        ({"columns": "time.p99"}, "| row | p99 (ms) |"),
    ],
)
def test_columns_are_those_asked_for(words: dict[str, object], heads: str) -> None:
    drawn = render(DOCUMENT, "markdown", **words)  # type: ignore[arg-type]
    head = next(line for line in drawn.splitlines() if line.startswith("| row"))
    assert head == heads


def test_columns_that_were_asked_for_and_do_not_fit_stand_beneath() -> None:
    columns = [Column(f"c{place}", f"a title of {place}", most=20) for place in range(9)]
    table = Table("a model", "row", columns, [Line("one", [f"{place}.25" for place in range(9)])])
    document = Document(lambda: [table], dict)
    usual, whole = (render(document, width=60, wide=wide) for wide in (False, True))
    assert max(map(len, whole.splitlines())) <= 60
    assert [f"{place}.25" in usual for place in range(9)] != [True] * 9
    assert [whole.count(f"{place}.25") for place in range(9)] == [1] * 9
    assert whole.count("one") > 1, "each with its names"


def test_columns_that_are_asked_for_are_shown_where_a_screen_has_sentences_alone() -> None:
    assert "2.5" in render(replace(DOCUMENT, screen=lambda _: ["The answer."]), columns="p99")


def test_all_columns_can_be_listed() -> None:
    assert render(DOCUMENT, columns="help") == "Columns: calls, p99 (ms), what.\n"


def test_a_column_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(InferlensError, match="no column 'q9'") as told:
        render(DOCUMENT, columns="q9")
    assert "p99" in told.value.expected


def test_a_document_goes_into_a_file_whose_ending_says_how(tmp_path: Path) -> None:
    for ending, start in {
        ".md": "**a model**",
        ".json": "{",
        ".csv": "name",
        ".html": "<!DOCTYPE",
        ".txt": "a model",
    }.items():
        screen.document(DOCUMENT, output=tmp_path / f"out{ending}")
        assert (tmp_path / f"out{ending}").read_text().startswith(start)
    screen.document(DOCUMENT, "csv", output=tmp_path / "out.doc")  # a format that is named decides
    assert (tmp_path / "out.doc").read_text().startswith("name")
    with pytest.raises(InferlensError, match=r"no file ending '\.doc'"):
        screen.document(DOCUMENT, output=tmp_path / "out.doc")


def test_a_command_that_is_broken_into_lines_can_still_be_pasted():
    command = "inferlens ab resnet18 'torch_compile:default dynamic=true' onnxruntime:cpu --batch 1"
    assert terminal.wrap(f"To decide it: {command}", 80) == [
        "To decide it: inferlens ab resnet18 'torch_compile:default dynamic=true' \\",
        "onnxruntime:cpu --batch 1",
    ]
    said = "There is more than one of them that may be the fastest here"
    assert terminal.wrap(f"{said}: {command}", 62) == [
        f"{said}:",
        "inferlens ab resnet18 'torch_compile:default dynamic=true' \\",
        "onnxruntime:cpu --batch 1",
    ]
    assert terminal.wrap(f"To decide it: {command}", 200) == [f"To decide it: {command}"]
    said = "It varied (2 more: inferlens show results --view notes)."
    assert terminal.wrap(said, 30) == ["It varied (2 more: inferlens", "show results --view notes)."]
