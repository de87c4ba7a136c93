"""Engines from files: which profile runs, what needs to be asked for, and what does nothing there."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inferlens.backends.base import Capabilities, Preparation, Support
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.builds import write_engine
from inferlens.backends.tensorrt.engine import built
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.from_file import PlanFile, engine_file
from inferlens.backends.tensorrt.options import Options
from inferlens.backends.tensorrt.runtime import Engine
from inferlens.errors import InferlensError, Unsupported
from inferlens.execution import worker
from inferlens.execution.expand import expand
from inferlens.execution.protocol import TaskJob
from inferlens.models import engine_header as plan_file
from inferlens.models import provenance
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case
from inferlens.spec.plan import Plan

PROFILES = "1x3x16x16/2x3x16x16/3x3x16x16;4x3x16x16"
Opened = Callable[..., PlanFile]


@pytest.fixture
def opened(rtx: Flavour, preparation: Preparation, tmp_path: Path) -> Opened:
    """An engine from a file, as a case with some options takes it, at a batch; as far as that goes without a GPU."""

    def made(path: Path, batch: int | None = None, trust: bool = False, **options: Any) -> PlanFile:
        found = find(str(path))
        case = Case(
            model=found.spec, backend="tensorrt", variant="rtx", device="cuda", batch=batch or found.batch,
            options=options,
        )  # fmt: skip
        preparation.trust = trust
        return engine_file(load(case), case, TensorRT.parse_options(case), rtx, preparation)

    return made


@pytest.fixture
def two(job: Any, preparation: Preparation, tmp_path: Path) -> Path:
    """An engine with two profiles, built to run the second."""
    path = tmp_path / "two.engine"
    write_engine(job(batch=4, profiles=PROFILES, profile=1), preparation, path)
    return path


def test_the_profile_that_it_was_built_to_run_runs(two: Path, opened: Opened) -> None:
    assert opened(two).options.profile == 1
    assert opened(two, batch=2, profile=0).options.profile == 0
    with pytest.raises(Unsupported, match="Profile 1 takes image from 4x3x16x16 to 4x3x16x16, not 2x3x16x16") as raised:
        opened(two, batch=2)
    assert raised.value.hint == "--option tensorrt.profile=0"
    with pytest.raises(Unsupported, match="There is no profile 2"):
        opened(two, profile=2)


def told(path: Path, **options: Any) -> None:
    """Has the JSON beside an engine tell of other options."""
    made = provenance.read(path)
    assert made is not None
    provenance.write(path, msgspec.structs.replace(made, options={**made.options, **options}))


def test_an_engine_that_holds_code_needs_trust(two: Path, opened: Opened) -> None:
    told(two, version_compatible=True)
    with pytest.raises(InferlensError, match="holds code of its own") as raised:
        opened(two)
    assert str(two) in raised.value.what
    assert raised.value.hint.startswith("--trust")
    assert opened(two, trust=True).hint(trusted=True) == ""


@pytest.mark.parametrize("trust", [True, False])
def test_trust_reaches_the_runner(trust: bool, two: Path, tmp_path: Path) -> None:
    case = Case(model=find(str(two)).spec, backend="tensorrt", variant="rtx", device="cuda", batch=4)
    job = TaskJob(task="build", case=case, folder=str(tmp_path), cache=str(tmp_path), trust=trust)
    runner: Any = TensorRT().prepare(load(case), case, worker._preparation(job, worker.Pipe(os.open(os.devnull, 1))))
    assert runner._host_code is trust


class Runtime:
    """A runtime that opens nothing, and keeps what it was allowed."""

    def __init__(self, _: Any) -> None:
        self.engine_host_code_allowed = False
        Runtime.last = self

    def deserialize_cuda_engine(self, _: bytes) -> None:
        return None

    last: Any = None


@pytest.mark.parametrize("trust", [True, False])
def test_host_code_is_allowed_where_it_was_asked_for(trust: bool) -> None:
    """TensorRT itself cannot be had here: a stand-in, for what it would be allowed."""
    body = {"Runtime": Runtime, "ILogger": type("Log", (), {}), "init_libnvinfer_plugins": lambda *_: True}
    trt = Flavour("trt", "stand_in", "TensorRT", "10.13.0.35", type("Module", (), body))
    with pytest.raises(Unsupported, match="cannot open the engine") as raised:
        Engine(b"", trt, host_code=trust, hint="" if trust else "--trust")
    assert Runtime.last.engine_host_code_allowed is trust
    assert raised.value.hint == ("" if trust else "--trust")


def test_of_a_file_that_nothing_tells_of_trust_is_what_may_help(two: Path, rtx: Flavour) -> None:
    file = PlanFile(two, None, rtx, Options())
    assert "--trust" in file.hint(trusted=False)
    assert file.hint(trusted=True) == ""


def test_plugins_are_loaded_only_if_they_are_named_again(two: Path, opened: Opened) -> None:
    told(two, plugins="/opt/lib/libmine.so")
    with pytest.raises(InferlensError, match=r"was built with plugins of /opt/lib/libmine\.so") as raised:
        opened(two)
    assert raised.value.hint == "--option tensorrt.plugins=/opt/lib/libmine.so"
    assert opened(two, plugins="").options.plugins == ""


def test_a_description_makes_no_line_of_ours(two: Path, opened: Opened) -> None:
    told(two, plugins="a.so\nError: fake")
    with pytest.raises(InferlensError, match=r"plugins of a\.so Error: fake, which") as raised:
        opened(two)
    assert "\n" not in str(raised.value)


def test_options_of_the_builder_do_nothing_for_it(two: Path, opened: Opened, preparation: Preparation) -> None:
    opened(two, tf32=False, cuda_graph=True, profile=1)  # as it was built, and options of a run
    assert preparation.warnings == []
    opened(two, tf32=True)
    (warning,) = preparation.warnings
    assert (warning.code, warning.message) == ("no-effect", f"tf32 does nothing: {two} is built already.")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: whole[:5000], r"is damaged: it has 5000 of \d+ bytes"),
        (lambda _: b"", "is empty"),
        (lambda _: b"GIF89a" * 99, r"is no TensorRT engine \(594 bytes\)"),
        (lambda whole: whole[:24] + bytes((0, 9, 0, 1)) + whole[28:], r"was built by TensorRT for RTX 0\.9\.0\.1"),
    ],
    ids=["truncated", "empty", "foreign", "other version"],
)
def test_what_is_wrong_with_a_file_is_said_when_it_is_found(
    damage: Callable[[bytes], bytes], message: str, two: Path
) -> None:
    """So before anybody asks for a GPU."""
    provenance.beside(two).unlink()
    assert find(str(two)).origin is None
    two.write_bytes(damage(two.read_bytes()))
    with pytest.raises(Unsupported, match=message) as raised:
        find(str(two)).check(trusted=False)
    assert str(two) in raised.value.what
    assert "inferlens build" in raised.value.hint


def test_beside_other_models_such_a_file_is_a_row(two: Path) -> None:
    two.write_bytes(two.read_bytes()[:24] + bytes((0, 9, 0, 1)) + two.read_bytes()[28:])
    provenance.beside(two).unlink()
    found = [find(str(two)), find("inferlens:resnet34")]
    able = {"tensorrt": Capabilities(formats=("module", "engine"), supports=(Support("rtx", "cuda", ("fp32",)),))}
    plan = Plan.from_words({"model": [each.spec for each in found], "backend": "tensorrt", "device": "cuda"})
    engine, module = expand(plan, found, able)
    assert engine.refusal is not None
    assert "0.9.0.1" in engine.refusal.what
    assert module.refusal is None


@pytest.mark.parametrize("version", ["\u00b2.6.1", "9" * 5000])
def test_a_hostile_version_is_one_sentence(two: Path, version: str) -> None:
    made = provenance.read(two)
    assert made is not None
    provenance.write(two, msgspec.structs.replace(made, version=version))
    with pytest.raises(Unsupported, match="was built by TensorRT for RTX"):
        find(str(two)).check(trusted=False)


def test_an_engine_of_another_version_with_its_description(two: Path) -> None:
    made = provenance.read(two)
    assert made is not None
    provenance.write(two, msgspec.structs.replace(made, version="0.9.0.1"))
    with pytest.raises(Unsupported, match=r"was built by TensorRT for RTX 0\.9\.0\.1"):
        find(str(two)).check(trusted=False)


def test_the_installed_version_is_that_of_the_library(rtx: Flavour) -> None:
    assert plan_file.installed("rtx") == (rtx.name, rtx.version)


def test_a_library_without_plugins_is_told_also_if_the_engine_was_cached(
    job: Any, preparation: Preparation, tmp_path: Path
) -> None:
    name = ctypes.util.find_library("m")
    path = next((each for each in Path("/").glob(f"*lib*/*/{name}")), None) or next(Path("/usr").glob(f"lib*/*/{name}"))
    for _ in range(2):
        preparation.warnings.clear()
        write_engine(job(plugins=str(path)), preparation, tmp_path / "a.engine")
        (warning,) = preparation.warnings
        assert warning.code == "no-effect"
        assert "registered no plugin" in warning.message


def test_a_library_of_plugins_that_is_not_there_is_told_though_the_engine_is_cached(
    job: Any, preparation: Preparation, tmp_path: Path
) -> None:
    built(job(), preparation)
    for name in ("none.so", "."):
        with pytest.raises(InferlensError, match=r"The plugin library .* (does not exist|is no file)"):
            built(job(plugins=str(tmp_path / name)), preparation)
        case = msgspec.structs.replace(job().case, options={"plugins": str(tmp_path / name)})
        with pytest.raises(InferlensError, match="The plugin library"):
            TensorRT().prepare(job().model, case, preparation)


# Kernels of TensorRT for RTX are kept where an engine runs, which takes a GPU; a stand-in tells what is done with them.


class Kernels:
    """A cache of kernels that takes what begins with ``good``."""

    def deserialize(self, content: bytes) -> bool:
        return content.startswith(b"good")

    def serialize(self) -> bytes:
        return b"good and more"


@pytest.mark.parametrize(("content", "kept"), [(b"good", True), (b"", True), (b"a photograph", False)])
def test_a_file_of_kernels_that_is_none_is_passed_over_and_stays(content: bytes, kept: bool, tmp_path: Path) -> None:
    path = tmp_path / "kernels"
    path.write_bytes(content)
    engine: Any = object.__new__(Engine)
    config = SimpleNamespace(create_runtime_cache=Kernels, set_runtime_cache=lambda _: None)
    engine.opened = SimpleNamespace(create_runtime_config=lambda: config)
    engine.passed_over, engine._cache = False, path
    engine._use_cache(path)
    engine.keep_kernels()
    assert engine.passed_over is not kept
    assert path.read_bytes() == (b"good and more" if kept else content)
