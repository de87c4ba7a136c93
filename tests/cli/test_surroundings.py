"""Commands where the surroundings are not the usual ones: encodings, files in the working directory, full disks."""

import errno
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from inferlens.cli.main import use_plain_characters
from tests.commands import output_of, refusal_of, started
from tests.views.samples import sample_records, stored

PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def python(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command, environment = [sys.executable, *words], {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, cwd=cwd, env=environment, check=False)


def run(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return python("-m", "inferlens", *words, cwd=cwd, **variables)


EACH = """
import sys
import tempfile
from inferlens.cli.main import main

for line in sys.argv[1:]:
    sys.argv = ["inferlens", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (line, end.code)
"""


def run_each(*lines: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Runs commands one after the other in one process, until one fails."""
    return python("-c", EACH, *lines, cwd=cwd, **variables)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("results"), sample_records())


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "latin-1"])
def test_what_is_printed_has_plain_characters_where_others_cannot_be(results, encoding):
    done = run("show", ".", "--bars", cwd=results, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert ("─" in shown) == (encoding == "gbk")
    assert "-----" in shown or encoding == "gbk"
    assert not re.search(r"\?(?! )", shown)  # only sentences end in one


def test_every_command_prints_in_a_plain_locale(results):
    lines = ("--help", "bench --help", "backends", "show . --view notes", "show . --bars")
    done = run_each(*lines, cwd=results, **PLAIN_LOCALE)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr.decode()
    assert done.stdout.isascii()


def test_files_are_utf8_in_every_locale(results, tmp_path):
    usual, plain = tmp_path / "usual", tmp_path / "plain"
    lines = [f"show {results} --output {name}" for name in ("t.html", "t.md", "t.csv", "t.json")]
    lines.append(f"report {results} --output r.html")
    for folder in (usual, plain):
        folder.mkdir()
    for line in lines:
        output_of(*line.split(), cwd=usual)
    done = run_each(*lines, cwd=plain, **PLAIN_LOCALE, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr.decode()
    one, other = ({path.name: path.read_text("utf-8") for path in folder.iterdir()} for folder in (usual, plain))
    assert (one, len(one), "·" in one["t.md"]) == (other, 5, True)


def test_a_name_that_is_no_text_in_the_locale_is_a_sentence(tmp_path):
    done = run("bench", "fake:démo", "-b", "fake", "--dry-run", cwd=tmp_path, **PLAIN_LOCALE)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False), done.stderr.decode()
    assert b"LC_ALL=C.UTF-8" in done.stderr


def test_a_model_may_print_anything_in_every_locale(tmp_path):
    code = "import torch\ndef build():\n    print('é → ✓')\n    return torch.nn.Linear(4, 4), torch.zeros(1, 4)\n"
    (tmp_path / "net.py").write_text(code, "utf-8")
    done = run(
        "bench", "net.py:build", "-b", "pytorch", "--dry-run", cwd=tmp_path, **PLAIN_LOCALE, PYTHONIOENCODING="ascii"
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.usefixtures("without_torch")
def test_files_called_like_libraries_are_left_alone_by_a_user_without_a_name_and_a_home(tmp_path):
    for name in ("random", "copy", "queue", "statistics", "logging", "numbers", "msgspec", "numpy", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    words = ("bench", "fake:demo", "-b", "fake", "--quick", "--iterations", "5")
    lost = "import os, pwd, runpy; os.environ.pop('USER', 0); pwd.getpwuid = lambda _: {}[0]"
    started_as = f"{lost}; runpy.run_module('inferlens', run_name='__main__')"
    done = python("-c", started_as, *words, cwd=tmp_path, HOME="/nowhere")
    assert done.returncode == 0, done.stderr.decode()


def test_a_folder_called_like_a_backend_is_left_alone(tmp_path):
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text("from onnxruntime.capi import onnxruntime_validation\n")
    done = started("bench", "resnet18", "-b", "onnxruntime:cpu", "--dry-run", cwd=tmp_path)
    assert (done.returncode, "1 case" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_temporary_folder_that_cannot_be_written_is_a_sentence(tmp_path, code, monkeypatch):
    def full(*_: object, **__: object) -> str:
        raise OSError(code, os.strerror(code), "/tmp")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    said = refusal_of("bench", "fake:demo", "-b", "fake", "--quick", "--iterations", "5", cwd=tmp_path)
    assert said.startswith(f"Error: /tmp: {os.strerror(code)}.")


def test_streams_that_cannot_be_changed_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(sys, "stdout", object())
    use_plain_characters()
