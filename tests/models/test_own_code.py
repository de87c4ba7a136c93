"""Code of the user's own: by module or by path, beside files that are called like libraries."""

import random
import sys
from pathlib import Path

import pytest
import torch

from inferlens.models import factories
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case, TensorSpec
from tests.models.loading import loaded
from tests.refusals import refusal

MODEL = "import torch\n{imports}\ndef build(): return {layer}, torch.zeros(1, {size})\n"
LAYERS = "import torch\ndef layer(): return torch.nn.Linear({size}, 3)\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The working directory, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules)
    monkeypatch.setattr(factories, "_folders", [])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, *, size=4, package=False):
    folder.mkdir(parents=True, exist_ok=True)
    if package:
        (folder / "__init__.py").touch()
    imports = f"from {'.' if package else ''}layers import layer"
    (folder / "model.py").write_text(MODEL.format(imports=imports, layer="layer()", size=size))
    (folder / "layers.py").write_text(LAYERS.format(size=size))
    return folder / "model.py"


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_factory_by_path_imports_its_neighbors(here, package, absolute):
    path = write(here / "sub" / "net", package=package)
    name = f"{path if absolute else path.relative_to(here)}:build"
    short = "model.build" if absolute else "sub.net.model.build"
    assert (find(name).spec, find(name).name) == (f"factory:{name}", short)
    assert loaded(name).inputs[0].shape == (1, 4)


def test_two_files_of_one_name_have_neighbors_of_their_own(here):
    sizes = {write(here / f"net{size}", size=size): size for size in (4, 8)}
    assert {path: loaded(f"{path}:build").inputs[0].shape[1] for path in sizes} == sizes


def test_a_factory_in_a_file_that_is_called_like_a_library(here):
    for name in ("random", "nntplib"):  # one of them is loaded already
        (here / f"{name}.py").write_text(MODEL.format(imports="", layer="torch.nn.Linear(5, 3)", size=5))
        assert loaded(f"{name}:build").inputs[0].shape == loaded(f"{name}.py:build").inputs[0].shape == (1, 5)
    assert sys.modules["random"] is random
    assert "nntplib" not in sys.modules


@pytest.mark.parametrize("place", ["", "checkout"])
def test_a_package_here_or_in_a_checkout_comes_before_an_installed_one(here, monkeypatch, place):
    write(here / "site" / "nets", size=7, package=True)
    write(here / place / "nets", size=6, package=True)
    monkeypatch.syspath_prepend(here / "site")
    if place:
        (here / place / "random.py").touch()
        monkeypatch.setenv("PYTHONPATH", "")
        factories.enter(here / place)
    assert loaded("nets.model:build").inputs[0].shape == (1, 6)
    if place:
        assert next(path for path in sys.path if (Path(path) / "random.py").exists()) in factories.library_paths()


def test_a_neighbor_that_a_library_hides_is_named(here):
    (here / "statistics.py").write_text("thing = 1\n")
    for code in ("import statistics\nthing = statistics.thing", "from statistics import thing"):
        (here / "net.py").write_text(code + "\ndef build(): return 1\n")
        sys.modules.pop("net", None)
        error = refusal(r"statistics\.py is hidden by .*statistics\.py", loaded, "net:build")
        assert error.hint == "rename statistics.py"


def test_an_import_that_fails_keeps_its_cause(here):
    failing = "def build():\n    raise ImportError('no extension') from OSError('libfoo.so.1 is missing')\n"
    (here / "net.py").write_text(failing)
    with pytest.raises(ImportError) as raised:
        loaded("net.py:build")
    assert str(raised.value.__cause__) == "libfoo.so.1 is missing"


def test_a_file_without_factories_is_not_said_to_have_some(here):
    (here / "net.py").write_text("size = 1\n")
    refusal(r"No factory in net\.py was named", loaded, "net.py")


@pytest.mark.parametrize(("name", "hint"), [
    ("mode.py:build", "model.py"), ("model.py", "model.py:build"), ("model.py:buil", "build"),
])  # fmt: skip
def test_a_path_that_names_no_factory_is_one_message(here, name, hint):
    write(here)
    assert hint in refusal("", loaded, name).hint


TWO_INPUTS = """
import torch

class Difference(torch.nn.Module):
    def forward(self, left, right, scale=None):
        return left - right if scale is None else (left - right) * scale

def build():
    return Difference()

def one():
    return torch.nn.ReLU()
"""


def load_pair(here, *inputs, factory="build"):
    (here / "pair.py").write_text(TWO_INPUTS, "utf-8")
    (specs,) = TensorSpec.parse_all([f"{name}=2:float32" for name in inputs])
    return load(Case(model=f"factory:pair.py:{factory}", backend="", inputs=specs))


@pytest.mark.parametrize(("inputs", "message"), [
    (("left", "rigth"), "There is no argument of forward 'rigth'"), (("left",), "forward also takes right"),
])  # fmt: skip
def test_inputs_are_arguments_of_forward(here, inputs, message):
    refusal(message, load_pair, here, *inputs)


def test_inputs_go_by_their_names_in_whatever_order_they_are_given(here):
    model = load_pair(here, "scale", "right", "left")
    values = {"scale": torch.full((2,), 10.0), "right": torch.ones(2), "left": torch.full((2,), 4.0)}
    assert model.module(*(values[spec.name] for spec in model.inputs)).tolist() == [30.0, 30.0]
    assert load_pair(here, "x", factory="one").inputs[0].name == "x"
