"""``-o FILE``: each command writes what it shows to a file, in the format of its ending, whole or not at all."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import typer

import inferlens as package
from inferlens.cli.commands import COMMANDS, app
from inferlens.cli.screen import ENDINGS
from tests.analysis.compare.sides import ran, saved
from tests.commands import inferlens

EXAMPLES = Path(package.__file__).parents[2] / "examples" / "h200"
PROFILES = f"{EXAMPLES}/profiles/resnet50/tensorrt-rtx-fp16-b1-cuda"
# What each shows of stored data, or with the fake backend. A partition needs PyTorch, and has a test of its own.
SHOWN = {
    "show": "show base", "compare": "compare base new", "notes": "notes base", "findings": f"findings {PROFILES}",
    "modules": f"modules {PROFILES}", "layers": f"layers {PROFILES}", "roofline": f"roofline {PROFILES}",
    "kernels": f"kernels {EXAMPLES}/kernels/bert/tensorrt-rtx-fp16-b1-cuda", "backends": "backends fake",
    "trace": f"trace {next(iter(sorted(EXAMPLES.glob('traces/**/*.json*'))))} --no-cache", "doctor": "doctor",
    "bench": "bench fake:demo -b fake:steady,fake:fast --iterations 20 --warmup 1",
    "ab": "ab fake:demo fake:steady fake:fast --iterations 20 --warmup 1",
    "profile": "profile fake:demo -b fake:steady --runs 5 --max-time 1s",
}  # fmt: skip
PICTURES_AND_MODELS = {"plot", "graph", "report", "build", "export", "quantize"}
AS_WELL = ("bench", "ab", "profile", "compare")  # these print too


@pytest.fixture
def here(tmp_path: Path) -> Path:
    saved(tmp_path / "base", ran())
    saved(tmp_path / "new", ran(run="new"))
    return tmp_path


def test_every_command_has_it() -> None:
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name in COMMANDS:
        options = {word for each in group.get_command(context, name).params for word in each.opts}
        assert "-o" in options or name == "export", name
    assert {*SHOWN, *PICTURES_AND_MODELS, "partition", "tune"} == set(COMMANDS)


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("ending", [".json", ".md"])
def test_the_file_has_what_is_shown(name: str, ending: str, here: Path) -> None:
    words = shlex.split(SHOWN[name])
    done = inferlens(*words, "-o", f"file{ending}", cwd=here)
    assert done.returncode == 0, done.stderr
    assert f"Wrote file{ending}." in done.stderr
    assert bool(done.stdout) == (name in AS_WELL)
    written = (here / f"file{ending}").read_text()
    assert json.loads(written) if ending == ".json" else written
    assert "\x1b" not in written


@pytest.mark.parametrize("name", SHOWN)
def test_a_file_that_cannot_be_written_is_one_message_and_is_not_there(name: str, here: Path) -> None:
    (here / "folder.md").mkdir()
    for file in ("file.xlsx", "folder.md", "nowhere/file.md"):
        done = inferlens(*shlex.split(SHOWN[name]), "-o", file, cwd=here)
        assert done.returncode == 2
        assert not done.stdout
        assert "Traceback" not in done.stderr
        assert not (here / "results").exists(), "refused before anything is measured"
    assert not (here / "file.xlsx").exists()


def test_endings_are_said_in_the_help() -> None:
    assert all(ending in inferlens("show", "--help", cwd=Path()).stdout for ending in ENDINGS)
