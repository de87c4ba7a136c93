"""Cases in the interpreters of other virtual environments: real ones, made here without a network.

Each has this environment's packages on its path, and before them what makes it another one: a library in another
version, which a small backend is slower with, or one that is broken.
"""

import json
import site
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

import inferlens
from inferlens import ABSteps, InferlensError
from inferlens.analysis.comparison import Difference
from inferlens.backends.base import Absence, Capabilities
from inferlens.execution import cases, child
from inferlens.execution.protocol import TaskResult
from inferlens.measure import environment
from inferlens.measure.environment import collect
from inferlens.record.store import load_records
from inferlens.spec.case import Case, environment_of, shown_together
from inferlens.spec.plan import Plan, ab_words, as_plan, words_of
from inferlens.views.comparison import ab_document
from tests import commands
from tests.cli.test_surroundings import PLAIN_LOCALE

SOURCE = str(Path(inferlens.__file__).parents[1])
BACKEND = """
from inferlens.backends.fake import Fake, FakeRunner

class Engine(Fake):
    name = "engine"
    summary = "as fast as its library"
    distributions = ("enginelib",)
    reference_for = {"fake": ("", {})}

    def prepare(self, model, case, preparation):
        import enginelib
        options = self.parse_options(case)
        options = type(options)(latency=enginelib.MILLISECONDS, error=enginelib.ERROR)
        return FakeRunner(options, case, preparation, model.inputs[0].shape[0])
"""
SCALED = """
import enginelib, torch

def build():
    print("é → ✓")
    return torch.nn.Linear(4, 1), torch.ones(1, 4)
"""


def installed(folder, name, version, entry_points=""):
    """What is left in a folder of packages when one is installed there."""
    meta = folder / f"{name}-{version}.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_points:
        (meta / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Makes a virtual environment, and gives its interpreter."""
    root = tmp_path_factory.mktemp("environments")
    plugin = root / "plugin"
    installed(plugin, "engine-plugin", "1.0", "[inferlens.backends]\nengine = engine_backend:Engine\n")
    (plugin / "engine_backend.py").write_text(BACKEND)

    def made(name, version="1.0", milliseconds=4.0, error=0.0, more=""):
        folder = root / name
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        (packages,) = folder.glob("lib/*/site-packages")
        installed(packages, "enginelib", version)
        (packages / "enginelib.py").write_text(f"MILLISECONDS, ERROR = {milliseconds}, {error}\n{more}")
        paths = [str(plugin), SOURCE, *site.getsitepackages(), *(path for path in sys.path if "site-packages" in path)]
        (packages / "all.pth").write_text("\n".join(dict.fromkeys(paths)))
        return str(folder / "bin" / "python")

    made.plugin = plugin
    return made


@pytest.fixture(scope="module")
def pythons(make):
    """Environments: two that are equal, one with a slower library, and one whose library is broken."""
    return {
        "old": make("old"), "same": make("same"), "new": make("new", "2.0", 5.0),
        "broken": make("broken", "3.0", more="raise ImportError('libengine.so.3 is missing')"),
    }  # fmt: skip


@pytest.fixture
def backend(make, without_torch, monkeypatch):
    """This environment has the small backend, too; nobody asks those that import a framework what they can do."""
    from inferlens.backends import BACKENDS

    monkeypatch.syspath_prepend(make.plugin)
    monkeypatch.delitem(BACKENDS.__dict__, "_points", raising=False)
    monkeypatch.setattr(cases, "backends_named", lambda _: ("engine", "fake"))
    yield
    BACKENDS.__dict__.pop("_points", None)


@pytest.fixture
def known(backend, monkeypatch):
    """The interpreters are good ones, and what the model is and what backends can do is asked in this process."""

    def launch(task, *given, **words):
        return (commands if task in ("models", "capabilities") else child).launch(task, *given, **words)

    monkeypatch.setattr(environment, "check", lambda *_: None)
    monkeypatch.setattr(cases, "child", SimpleNamespace(launch=launch, variables_for=child.variables_for))


# From one environment to the other


def test_an_upgrade_that_made_it_slower_is_found_and_named(pythons, tmp_path, backend):
    """Each side runs in its own environment and says which libraries it has; then the same as a step of several."""
    words = {"iterations": 20, "warmup": 1, "max_rounds": 3, "output": str(tmp_path)}
    found = inferlens.ab("fake:demo", "engine", python=[pythons["old"], pythons["new"]], **words)
    assert (found.verdict, found.exit_code, found.ratio) == ("SLOWER", 1, pytest.approx(1.25))
    assert found.environments_sentence == "What differs: enginelib 1.0 / 2.0."
    for record in load_records(tmp_path).records:
        assert record.environment.libraries["enginelib"] == ("2.0" if record.case.python == pythons["new"] else "1.0")
        assert record.agreement.agrees
    assert [costs.keys() for costs in found.costs] == [{"memory", "build", "error"}] * 2
    common, _, a, b = (" ".join(line.split()) for line in str(found).splitlines()[1:5])  # columns are as wide as needed
    assert common == "demo · engine:steady · fp32 · batch 1 · cpu"
    assert a.startswith("A python=old 4.00 ms memory ")
    assert b.startswith("B python=new 5.00 ms memory ")

    same = replace(found, b=replace(found.b, python=pythons["same"]), verdict="SAME", ratio=1.0, differences=())
    steps = ABSteps(steps=(same, replace(found, a=same.b)), level=0.95)
    assert steps.exit_code == 1
    assert steps.sentences == ["same to new is SLOWER: 0.800x as fast (0.732 to 0.874). " + found.environments_sentence]
    lines = str(steps).splitlines()
    rows = [line for line in lines if " ms " in line]
    assert [line.split()[0] for line in rows] == ["old", "same", "new"]
    assert [word for line in rows for word in line.split() if word in ("SAME", "SLOWER")] == ["SAME", "SLOWER"]
    assert max(map(len, lines)) <= 100
    assert ab_document(steps).data()["steps"][0]["verdict"] == "SAME"
    torch = Difference("torch", "2.9", "2.14", unlike=False, cases=1)
    back = replace(found, differences=(*found.differences, replace(torch, base="2.14", candidate="2.9")), a=same.b)
    (sentence,) = ABSteps(steps=(replace(same, differences=(torch,)), back), level=0.95).sentences
    assert sentence.endswith("What differs: enginelib 1.0 / 2.0; and torch, which made no difference in another step.")
    undecided = replace(found, verdict="UNDECIDED")
    assert ABSteps(steps=(same, undecided), level=0.95).exit_code == 3
    assert ABSteps(steps=(same,), level=0.95).sentences == ["No step changed the time by 2 % or more, 95 % sure."]


def test_outputs_are_compared_with_those_of_the_first_environment(make, pythons, tmp_path, known):
    pair = [make("other", "2.0", error=0.5), pythons["old"]]  # the first by no other order
    result = inferlens.ab("fake:demo", "engine", python=pair, iterations=5, warmup=1, output=str(tmp_path))
    assert result.verdict == "DID NOT RUN"
    assert result.reason.startswith("B, outputs wrong")


@pytest.mark.usefixtures("probed_here")
def test_a_model_may_need_a_library_that_only_its_environment_has_and_print_anything_in_every_locale(
    pythons, tmp_path, monkeypatch
):
    (tmp_path / "scaled.py").write_text(SCALED, "utf-8")
    for name, value in {**PLAIN_LOCALE, "PYTHONIOENCODING": "ascii"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(commands, "launch", child.launch)
    message = commands.refusal_of("bench", "scaled:build", "-b", "fake", "--python", pythons["old"], cwd=tmp_path)
    assert "fake:steady cannot run a model of format 'module'" in message, "it was loaded"


def test_an_environment_that_is_broken_or_lacks_something_is_a_row(pythons, tmp_path, known):
    words = {"iterations": 5, "warmup": 1, "quick": True, "output": str(tmp_path)}
    records = inferlens.bench("fake:demo", backend="engine", python=[pythons["old"], pythons["broken"]], **words)
    found = [(record.status, record.environment.libraries["enginelib"]) for record in records]
    assert found == [("ok", "1.0"), ("failed", "3.0")]
    assert "libengine.so.3 is missing" in records[1].reason
    assert "engine:steady python=old" in str(records)
    assert records[0].case.python == pythons["old"]


def test_a_hint_installs_into_the_environment_that_lacks_something(monkeypatch):
    lacking = Capabilities(formats=(), absent=(Absence("", "torch is not installed", "pip install torch"),))
    outcome = child.Outcome(TaskResult(value={"engine": lacking}))
    monkeypatch.setattr(child, "launch", lambda *_, **__: outcome)
    hints = [cases.probe(["engine"], python)["engine"].absent[0].hint for python in ("", "old/bin/python")]
    assert hints == ["pip install torch", "old/bin/python -m pip install torch"]


def test_no_package_of_this_environment_is_found_in_another(monkeypatch, tmp_path):
    """The folder of a program and what comes with its variables are: there the user's own modules lie."""
    library = [path for path in sys.path if path.endswith((".zip", "site-packages"))]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *library])
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    given = child.variables_for("old/bin/python")
    assert (given["PYTHONPATH"], given["PATH"].split(":")[0]) == (str(tmp_path), str(Path("old/bin").resolve()))
    assert "VIRTUAL_ENV" not in given
    assert "site-packages" in child.variables_for()["PYTHONPATH"]
    assert given["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # in which NVML counts


def test_an_interpreter_that_is_gone_is_a_reason(tmp_path):
    job = cases.NamesJob(names=("fake",), interpreter=str(tmp_path / "python"))
    outcome = child.launch("capabilities", job, dict, timeout=5)
    assert (outcome.result.status, "could not be started" in outcome.result.reason) == ("crashed", True)


# What is refused before anything runs


def script(path, answer):
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


def said(**answer):
    return environment.MARK + json.dumps(answer)


VERSION = inferlens.__version__


@pytest.mark.parametrize(("answer", "message"), [
    ("hello", "is not a Python interpreter"),
    (said(python=[3, 9, 18], error="No module named 'inferlens'", missing="inferlens"), "is Python 3.9.18"),
    (said(python=[3, 11, 7], error="No module named 'inferlens'", missing="inferlens"), "has no Inferlens"),
    (said(python=[3, 11, 7], version="0.0.9", error="no code", missing="inferlens.measure"), "another Inferlens 0.0.9"),
    (said(python=[3, 11, 7], version=VERSION, error="No module", missing="msgspec"), "lacks msgspec"),
    (said(python=[3, 11, 7], version=VERSION, code="of another"), f"has another Inferlens {VERSION}"),
])  # fmt: skip
def test_an_interpreter_that_cannot_do_it_is_refused_in_a_sentence(tmp_path, answer, message):
    path = script(tmp_path / "python", answer)
    with pytest.raises(InferlensError) as raised:
        environment.check(path, {})
    assert message in str(raised.value)
    assert f"{path} -m pip install" in str(raised.value) or "not a Python" in message or "is Python" in message


def test_of_an_interpreter_that_does_not_tell_the_machine_is_known_all_the_same(tmp_path):
    here, found = collect(), cases.environment_by(script(tmp_path / "python", "exit 1"))
    assert (found.cpu, found.memory, found.gpus) == (here.cpu, here.memory, here.gpus)
    assert (found.libraries, found.python) == ({}, "")


def test_bad_paths_end_a_command_before_anything_runs(pythons, tmp_path):
    folder = str(Path(pythons["old"]).parents[1])
    messages = {
        folder: "There is no interpreter", "nowhere/python": "There is no interpreter nowhere/python.",
        f"{pythons['old']},{__file__}": "is not a Python interpreter.",
    }  # fmt: skip
    for paths, message in messages.items():
        assert message in commands.refusal_of("bench", "fake:demo", "--python", paths, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_the_shell_would_have_completed_is_told_whole(monkeypatch, tmp_path):
    """As of the second in ``~/old/bin/python,~/new/bin/python``, and of a command that is on the path."""
    path = script(tmp_path / "python", "exit 1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for given in ("~/python", "python"):
        with pytest.raises(InferlensError, match=f"There is no interpreter {given}.*Try: {path}$"):
            environment.check(given, {})


# Words


def test_an_environment_has_a_short_name():
    assert environment_of("../old/bin/python") == "old"
    assert (environment_of("/home/a/shop/.venv/bin/python3.11"), environment_of("")) == ("shop/.venv", "")
    cases = [Case(model="m", backend="b", python=path) for path in ("x/env1/bin/python", "y/env1/bin/python", "")]
    assert [case.python for case in shown_together(cases)] == ["x/env1/bin/python", "y/env1/bin/python", ""]


def test_an_interpreter_is_a_word_of_cases_plans_and_folders():
    fast = Case(model="fake:demo", backend="fake", variant="fast")
    old, new = (replace(fast, python=f"{name}/bin/python") for name in ("old", "new"))
    assert words_of(old.label, ["fake"])["python"] == "old/bin/python"
    assert 'python = "old/bin/python"' in as_plan(old)
    assert (old.folder.startswith("fake-fast-fp32-b1-cpu-old-"), old.folder != new.folder) == (True, True)
    both = ab_words(old, new, inferlens.Budget(), "cpu")[:2]
    assert both == ["fake:fast python=old/bin/python", "fake:fast python=new/bin/python"]
    plan = Plan.from_words({"model": "fake:demo", "python": ["old/bin/python", Path("new/bin/python")]})
    assert plan.python == ("old/bin/python", "new/bin/python")
