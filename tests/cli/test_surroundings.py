"""Commands where the surroundings are not the usual ones: encodings, files in the working directory, full disks."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.commands import refusal_of
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


def test_every_command_prints_in_a_plain_locale(results):
    lines = ("--help", "bench --help", "backends", "show . --view notes", "show . --bars")
    done = run_each(*lines, cwd=results, **PLAIN_LOCALE)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr.decode()
    assert done.stdout.isascii()


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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_temporary_folder_that_cannot_be_written_is_a_sentence(tmp_path, code, monkeypatch):
    def full(*_: object, **__: object) -> str:
        raise OSError(code, os.strerror(code), "/tmp")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    said = refusal_of("bench", "fake:demo", "-b", "fake", "--quick", "--iterations", "5", cwd=tmp_path)
    assert said.startswith(f"Error: /tmp: {os.strerror(code)}.")
