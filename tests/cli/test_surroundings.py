"""Commands where the surroundings are not the usual ones: encodings, files in the working directory, full disks.

The core also runs alone, in a virtual environment that has only what the package itself depends on.
"""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from importlib import metadata
from pathlib import Path

import pytest

from tests.commands import output_of, refusal_of
from tests.views.samples import sample_records, stored

PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LINES = """
import sys
from inferlens.cli.main import main

for line in sys.argv[1:]:
    sys.argv = ["inferlens", *line.split()]
    try:
        main()
    except SystemExit as end:
        for stream in (sys.stdout, sys.stderr):
            stream.write(f"exit code {end.code or 0}\\n")
            stream.flush()
"""


def run(*lines: str, cwd: Path, python: Path | str = sys.executable, **variables: str) -> list[tuple[str, str, str]]:
    """Run commands one after the other in one process; return the exit code, output and messages of each."""
    command, environment = [str(python), "-c", LINES, *lines], {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, cwd=cwd, env=environment, timeout=300, check=True)
    outputs, errors = (re.split(r"exit code (\d+)\n", stream.decode()) for stream in (done.stdout, done.stderr))
    assert "Traceback" not in done.stderr.decode()
    return list(zip(outputs[1::2], outputs[::2], errors[::2], strict=False))


def test_every_command_prints_in_a_plain_locale(tmp_path):
    stored(tmp_path, sample_records())
    lines = ("--help", "bench --help", "backends fake", "show . --view notes", "show . --bars")
    *shown, refused = run(*lines, "bench fake:démo -b fake --dry-run", cwd=tmp_path, **PLAIN_LOCALE)
    assert [code for code, *_ in shown] == ["0"] * len(lines)
    text = "".join(output for _, output, _ in shown)
    assert (text.isascii(), "-----" in text, "###" in text) == (True, True, True)
    assert not re.search(r"\?\S", text)
    assert (refused[0], "LC_ALL=C.UTF-8" in refused[2]) == ("2", True), "a name that is no text in the locale"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_temporary_folder_that_cannot_be_written_is_a_sentence(tmp_path, code, monkeypatch):
    def full(*_: object, **__: object) -> str:
        raise OSError(code, os.strerror(code), "/tmp")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    said = refusal_of("bench", "fake:demo", "-b", "fake", "--quick", "--iterations", "5", cwd=tmp_path)
    assert said.startswith(f"Error: /tmp: {os.strerror(code)}.")


OURS = Path(__file__).parents[2] / "src"


def core_distributions() -> set[str]:
    """Names of the distributions the core needs, and what those need, extras left out."""
    found: set[str] = set()
    waiting = ["inferlens"]
    while waiting:
        name = waiting.pop()
        for requirement in metadata.requires(name) or []:
            needed, _, marker = requirement.partition(";")
            wanted = re.split(r"[^\w.-]", needed.strip(), maxsplit=1)[0].lower()
            if "extra" in marker or wanted in found:
                continue
            try:
                metadata.version(wanted)
            except metadata.PackageNotFoundError:  # not needed on this Python or system
                continue
            found.add(wanted)
            waiting.append(wanted)
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment into which the core's distributions are linked from this one: no network needed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in {*core_distributions(), "inferlens"}:
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(distribution.locate_file(top)))
            if not (site / top).exists() and source.exists():
                os.symlink(source, site / top)
    (site / "inferlens-source.pth").write_text(str(OURS))
    return folder / "bin" / "python"


@pytest.fixture
def alone(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fresh environment, where nothing of this one is on the path."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return bare


LOST = """
import os, pwd, runpy
os.environ.pop("USER", 0)
pwd.getpwuid = lambda _: {}[0]
runpy.run_module("inferlens", run_name="__main__")
"""


def test_one_command_measures_shows_and_keeps_without_frameworks_a_user_name_and_a_home(alone, tmp_path, monkeypatch):
    """Files that are called like libraries are left alone."""
    for name in ("random", "copy", "queue", "statistics", "logging", "numbers", "msgspec", "numpy", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setenv("HOME", "/nowhere")
    words = ("bench", "fake:demo", "--iterations", "200", "--backend", "all", "--mode", "latency", "--quick")
    done = subprocess.run(
        [alone, "-c", LOST, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "LIKELY FASTEST  fake:fast  2.00 ms" in done.stdout
    assert "[3/3] fake:noisy 4." in done.stderr
    assert "inferlens show results/demo --plot" in done.stdout
    folders = sorted(path.parent.name for path in tmp_path.glob("results/demo/*/record.json"))
    assert folders == ["fake-fast-fp32-b1-cpu", "fake-noisy-fp32-b1-cpu", "fake-steady-fp32-b1-cpu"]
    assert output_of("show", "results/demo", cwd=tmp_path) == done.stdout


def test_what_is_missing_is_told_with_the_cure(alone, tmp_path):
    names = ("torch", "onnx", "onnxruntime", "openvino", "vl_convert", "transformers")
    code = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    assert subprocess.run([alone, "-c", code], capture_output=True, check=True).stdout == b"[]\n"
    stored(tmp_path, sample_records())  # of another machine
    lines = ("--help", "show .", "backends --json", "backends", "bench resnet18", "show . --plot x.png")
    done = run(*lines, cwd=tmp_path, python=alone)
    assert [code for code, *_ in done] == ["0"] * 4 + ["2"] * 2, done
    (listed, shown, data, printed, *_), (*_, unmeasured, undrawn) = ([each[place] for each in done] for place in (1, 2))
    assert all(command in listed for command in ("bench", "show", "backends"))
    assert "pytorch" in shown
    backends = json.loads(data)["backends"]
    assert backends["fake"]["supports"]
    for name in ("pytorch", "torchscript", "torch_compile", "onnxruntime", "openvino"):
        (absence,) = backends[name]["absent"]
        assert "not installed" in absence["reason"]
        assert absence["cure"].startswith("pip install -e '"), "what can be had: from this checkout"
    assert printed.splitlines()[-1].startswith("Next: pip install -e '"), "the one command that helps"
    assert "tensorrt]" not in printed, "not without a GPU"
    assert ("pip install -e '" in unmeasured, "[plots]'" in " ".join(undrawn.split())) == (True, True)
