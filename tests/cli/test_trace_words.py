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
from inferlens.cli.trace_words import told

COMMAND = typer.main.get_command(app).commands["trace"]  # type: ignore[attr-defined]


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
    read = told(words)
    assert read is not None
    defaults = {name: each.default for name, each in inspect.signature(trace_shown.show).parameters.items()}
    assert {**defaults, **read} == _by_typer(words)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--help",
        "a.json -h",
        "a.json --help",
        "a.json b.json",
        "a.json --vie kernels",
        "a.json --view",
        "a.json --top 0",
        "a.json --top -3",
        "a.json --top many",
        "a.json --depth 1.5",
        "a.json --no-cache=yes",
        "a.json --against -",
        "- -",
        "a.json -fjson",
        "-- a.json",
        "nothing.json",
    ],
)
def test_anything_else_is_left_to_the_command(line: str) -> None:
    assert told(line.split()) is None


def test_the_command_has_no_option_that_its_words_lack() -> None:
    """What is not read directly would still be right, and slow."""
    named = {option for each in COMMAND.params for option in each.opts if option.startswith("-")}
    plain = {option for option in named - {"--help", "-h"} if told(["a.json", option, "1"]) or told(["a.json", option])}
    left = named - plain - {"--help", "-h"}
    assert left == {"--against"}  # the path "1" does not exist
    assert list(inspect.signature(trace).parameters) == list(inspect.signature(trace_shown.show).parameters)
