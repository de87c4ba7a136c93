"""``-o FILE``: each command writes what it shows to a file, in the format of its ending, whole or not at all."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import typer

import inferlens as package
from inferlens.cli.commands import COMMANDS, app
from inferlens.cli.screen import ENDINGS
from tests.commands import inferlens, output_of, refusal_of
from tests.views.samples import ran, saved

EXAMPLES = Path(package.__file__).parents[2] / "examples" / "h200"
PROFILES = f"{EXAMPLES}/profiles/resnet50/tensorrt-rtx-fp16-b1-cuda"
# What each shows of stored data, or with the fake backend. A partition needs PyTorch, and has a test of its own.
SHOWN = {
    "show": "show base", "compare": "compare base new", "show --view notes": "show base --view notes",
    "show --view findings": f"show {PROFILES} --view findings",
    "modules": f"modules {PROFILES}", "layers": f"layers {PROFILES}", "roofline": f"roofline {PROFILES}",
    "kernels": f"kernels {EXAMPLES}/kernels/bert/tensorrt-rtx-fp16-b1-cuda",
    "trace": f"trace {next(iter(sorted(EXAMPLES.glob('traces/**/*.json*'))))}", "backends": "backends",
    "bench": "bench fake:demo -b fake:steady,fake:fast --iterations 20 --warmup 1",
    "ab": "ab fake:demo fake:steady fake:fast --iterations 20 --warmup 1",
    "profile": "profile fake:demo -b fake:steady --runs 5 --max-time 1s",
}  # fmt: skip
PICTURES_AND_MODELS = {"graph", "report", "export", "quantize"}
AS_WELL = ("bench", "ab", "profile", "compare")  # these print too


@pytest.fixture
def here(tmp_path: Path) -> Path:
    saved(tmp_path / "base", ran())
    saved(tmp_path / "new", ran(run="new"))
    return tmp_path


def test_every_command_has_it():
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for name in COMMANDS:
        options = {word for each in group.get_command(context, name).params for word in each.opts}
        assert "-o" in options or name == "export", name
    names = {words.partition(" ")[0] for words in SHOWN}
    assert names | PICTURES_AND_MODELS | {"partition", "tune", "load"} == set(COMMANDS)
    assert len(COMMANDS) <= 18


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("ending", [".json", ".md"])
def test_the_file_has_what_is_shown(name, ending, here):
    words = shlex.split(SHOWN[name])
    done = inferlens(*words, "-o", f"file{ending}", cwd=here)
    assert (done.returncode, f"Wrote file{ending}." in done.stderr) == (0, True), done.stderr
    assert bool(done.stdout) == (name in AS_WELL)
    written = (here / f"file{ending}").read_text()
    assert json.loads(written) if ending == ".json" else written
    assert "\x1b" not in written


@pytest.mark.parametrize(("words", "file"), [("show --plot compare.svg", "compare.svg"), ("report", "report.html")])
def test_what_replaces_a_file_says_so(words, file, here):
    said = [inferlens(*words.split(), "base", cwd=here).stderr for _ in range(2)]
    assert [each.splitlines()[-1] for each in said] == [f"Wrote {file}.", f"Replaced {file}."]


@pytest.mark.parametrize("name", SHOWN)
def test_a_file_that_cannot_be_written_is_one_message_and_is_not_there(name, here):
    (here / "folder.md").mkdir()
    for file in ("file.xlsx", "folder.md", "nowhere/file.md"):
        refusal_of(*shlex.split(SHOWN[name]), "-o", file, cwd=here)
        assert not (here / "results").exists(), "refused before anything is measured"
    assert not (here / "file.xlsx").exists()


def test_endings_are_said_in_the_help():
    assert all(ending in output_of("show", "--help", cwd=Path()) for ending in ENDINGS)


@pytest.fixture
def chromium(tmp_path_factory, monkeypatch):
    """Put a script in the place of Chromium."""

    def install(script):
        path = tmp_path_factory.mktemp("browser") / "chromium"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return install


@pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not there")
@pytest.mark.parametrize("words", ["report base", SHOWN["show"], SHOWN["trace"]])
def test_a_pdf_is_the_page_on_paper(words, here, chromium):
    if words != "report base":
        chromium('for word; do case $word in --print-to-pdf=*) echo %PDF > "${word#*=}";; esac; done')
    done = inferlens(*shlex.split(words), "-o", "a.pdf", cwd=here)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "Wrote a.pdf." in done.stderr
    assert (here / "a.pdf").read_bytes().startswith(b"%PDF")
    assert {each.name for each in here.iterdir()} <= {"a.pdf", "base", "new", "results"}


def test_without_chromium_a_pdf_is_refused_before_anything_is_measured(here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    for words in ("show base", "report nothing", SHOWN["bench"]):
        refusal = refusal_of(*shlex.split(words), "-o", "a.pdf", cwd=here)
        assert ("Chromium" in refusal, "apt install" in refusal) == (True, True)


def test_a_browser_that_does_not_print_is_said(here, chromium):
    chromium("echo It has no memory. >&2")
    assert "printed no PDF: It has no memory." in refusal_of("show", "base", "-o", "a.pdf", cwd=here)
    assert not (here / "a.pdf").exists()
