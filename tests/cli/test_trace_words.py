"""The plain words of ``inferlens trace`` are read as the command itself reads them, or left to it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer

from inferlens.cli import trace_shown
from inferlens.cli.commands import app
from inferlens.cli.trace import trace
from inferlens.cli.trace_shown import parsed

COMMAND = typer.main.get_command(app).get_command(None, "trace")  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.json", "b.json", "kernels"):
        (tmp_path / name).write_text("[]")
    monkeypatch.chdir(tmp_path)


def _by_typer(words: list[str]) -> dict[str, Any]:
    with COMMAND.make_context("trace", list(words)) as context:
        return dict(context.params)


@pytest.mark.parametrize(
    "line",
    [
        "a.json",
        "-",
        ".",
        "a.json --view kernels",
        "--view kernels a.json",
        "a.json --view=overview,kernels --by=operator",
        "a.json --view kernels --view memory",
        "a.json --against b.json --view operators",
        "a.json --step 7 --top 3 --depth 2 --no-cache -f json",
        "a.json --format csv --by shapes,stack",
        "a.json --view=",
    ],
)
def test_plain_words_mean_what_the_command_says(line: str) -> None:
    words = line.split()
    read = parsed(words)
    assert read is not None
    defaults = {name: each.default for name, each in inspect.signature(trace_shown.show).parameters.items()}
    assert {**defaults, **read} == _by_typer(words)


@pytest.mark.parametrize(
    "line",
    ["", "--help", "a.json -h", "a.json b.json", "a.json --vie kernels", "a.json --view", "a.json --top 0",
     "a.json --top x", "a.json --depth 1.5", "a.json --no-cache=yes"],
)  # fmt: skip
def test_anything_else_is_left_to_the_command(line: str) -> None:
    assert parsed(line.split()) is None


def test_the_command_and_its_words_have_the_same_options() -> None:
    assert list(inspect.signature(trace).parameters) == list(inspect.signature(trace_shown.show).parameters)
