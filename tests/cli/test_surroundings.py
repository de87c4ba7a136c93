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
    lines = ("--help", "bench --help", "backends fake", "show . --view notes", "show . --bars")
    done = run_each(*lines, cwd=results, **PLAIN_LOCALE)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr.decode()
    assert done.stdout.isascii()
    assert (b"-----" in done.stdout, b"###" in done.stdout) == (True, True)
    assert not re.search(rb"\?\S", done.stdout)


def test_a_name_that_is_no_text_in_the_locale_is_a_sentence(tmp_path):
    done = run("bench", "fake:démo", "-b", "fake", "--dry-run", cwd=tmp_path, **PLAIN_LOCALE)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False), done.stderr.decode()
    assert b"LC_ALL=C.UTF-8" in done.stderr


def test_a_model_may_print_anything_in_every_locale(tmp_path):
    code = "import torch\ndef build():\n    print('é → ✓')\n    return torch.nn.Linear(4, 4), torch.zeros(1, 4)\n"
    (tmp_path / "net.py").write_text(code, "utf-8")
    done = run("bench", "net.py:build", "-b", "fake", cwd=tmp_path, **PLAIN_LOCALE, PYTHONIOENCODING="ascii")
    assert b"fake:steady cannot run a model of format 'module'" in done.stderr, done.stderr.decode()


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


def isolated(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=cwd, timeout=300, check=False)


def run_bare(bare: Path, *arguments: str, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = isolated(str(bare), "-m", "inferlens", *arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_there_is_no_framework_in_it(bare):
    names = ("torch", "onnx", "onnxruntime", "openvino", "vl_convert", "transformers")
    code = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    assert isolated(str(bare), "-c", code).stdout == "[]\n"
    assert all(command in run_bare(bare, "--help").stdout for command in ("bench", "show", "backends"))


def test_backends_says_what_is_missing_and_the_cure(bare):
    backends = json.loads(run_bare(bare, "backends", "--json").stdout)["backends"]
    assert backends["fake"]["supports"]
    for name in ("pytorch", "torchscript", "torch_compile", "onnxruntime", "openvino"):
        (absence,) = backends[name]["absent"]
        assert "not installed" in absence["reason"]
        assert absence["cure"].startswith("pip install -e '"), "what can be had: from this checkout"
    shown = run_bare(bare, "backends").stdout
    assert shown.splitlines()[-1].startswith("Next: pip install -e '"), "the one command that helps"
    assert "tensorrt]" not in shown, "not without a GPU"


def test_what_works_without_more_works_and_what_needs_more_says_what_to_install(bare, tmp_path):
    words = ("bench", "fake:demo", "--mode", "latency", "--quick", "--backend", "all")
    assert "fake:fast" in run_bare(bare, *words, cwd=tmp_path).stdout
    stored(tmp_path / "theirs", sample_records())  # of another machine
    shown = run_bare(bare, "show", "results/demo", "theirs", cwd=tmp_path).stdout
    assert ("demo" in shown, "pytorch" in shown) == (True, True)
    for line, cure in (("bench resnet18", "pip install -e '"), ("show results/demo --plot x.png", "[plots]'")):
        said = run_bare(bare, *line.split(), cwd=tmp_path, code=2).stderr
        assert (cure in " ".join(said.split()), "Traceback" in said) == (True, False)
