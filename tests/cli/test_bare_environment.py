"""The core alone, without any framework: a virtual environment that has only what the package itself depends on."""

import json
import os
import re
import subprocess
import venv
from importlib import metadata
from pathlib import Path

import pytest

from tests.views.samples import sample_records, stored

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


def python(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=cwd, timeout=300, check=False)


def run(bare: Path, *arguments: str, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = python(str(bare), "-m", "inferlens", *arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_there_is_no_framework_in_it(bare):
    names = ("torch", "onnx", "onnxruntime", "openvino", "vl_convert", "transformers")
    code = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    assert python(str(bare), "-c", code).stdout == "[]\n"
    assert all(command in run(bare, "--help").stdout for command in ("bench", "show", "backends"))


def test_backends_says_what_is_missing_and_the_cure(bare):
    backends = json.loads(run(bare, "backends", "--json").stdout)["backends"]
    assert backends["fake"]["supports"]
    for name in ("pytorch", "torchscript", "torch_compile", "onnxruntime", "openvino"):
        (absence,) = backends[name]["absent"]
        assert "not installed" in absence["reason"]
        assert absence["cure"].startswith("pip install -e '"), "what can be had: from this checkout"
    shown = run(bare, "backends").stdout
    assert shown.splitlines()[-1].startswith("Next: pip install -e '"), "the one command that helps"
    assert "tensorrt]" not in shown, "not without a GPU"


def test_what_works_without_more_works_and_what_needs_more_says_what_to_install(bare, tmp_path):
    words = ("bench", "fake:demo", "--mode", "latency", "--quick", "--backend", "all")
    assert "fake:fast" in run(bare, *words, cwd=tmp_path).stdout
    stored(tmp_path / "theirs", sample_records())  # of another machine
    shown = run(bare, "show", "results/demo", "theirs", cwd=tmp_path).stdout
    assert ("demo" in shown, "pytorch" in shown) == (True, True)
    for line, cure in (("bench resnet18", "pip install -e '"), ("show results/demo --plot x.png", "[plots]'")):
        said = run(bare, *line.split(), cwd=tmp_path, code=2).stderr
        assert (cure in " ".join(said.split()), "Traceback" in said) == (True, False)
