"""Cases timed untouched, then profiled in a process of their own: what is kept, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inferlens
from inferlens.errors import InferlensError
from inferlens.execution import profile as profiling
from inferlens.execution import subprocess as processes
from inferlens.execution.protocol import Observer
from inferlens.record.layer_profile import Profile
from inferlens.record.profile_store import load_profiles
from inferlens.spec.plan import Plan
from tests import commands


def profiled(folder: Path, *, runs: int = 8, **words: Any) -> list[Profile]:
    words = {"model": "fake:demo", "backend": "fake", "mode": "latency", "warmup": 1, "iterations": 30, **words}
    made = profiling.run(Plan.from_words({**words, "output": str(folder)}), ("layer",), runs, Observer())
    return [profile for profile, _ in made]


@pytest.mark.usefixtures("one_process")
def test_a_profile_lies_beside_the_record_of_the_untouched_run(tmp_path: Path) -> None:
    (profile,) = profiled(tmp_path, backend="fake:steady", option="fake.latency=10")
    assert (profile.status, profile.level, profile.runs) == ("ok", "layer", 8)
    assert profile.layers is not None
    assert [layer.name for layer in profile.layers.layers] == ["stem", "body.0", "body.1+head"]
    assert all(len(layer.times) == 8 for layer in profile.layers.layers)
    assert profile.layers.whole == pytest.approx((0.01,) * 8)
    loaded = load_profiles([tmp_path])
    assert loaded.profiles == [profile]
    assert loaded.records[profile.id].id == profile.record
    assert len(loaded.records[profile.id].samples("latency")) == 30


def test_profiling_has_a_process_of_its_own(tmp_path: Path) -> None:
    (profile,) = profiled(tmp_path)
    assert profile.status == "ok"
    assert [phase.name for phase in profile.phases] == [
        "load", "build", "first inference", "warm-up", "steady state",
    ]  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_what_did_not_run_is_not_profiled_and_says_why(tmp_path: Path) -> None:
    (profile,) = profiled(tmp_path, option="fake.trouble=raise")
    assert (profile.status, profile.layers) == ("failed", None)
    assert "told to fail" in profile.reason
    assert load_profiles([tmp_path]).profiles == [profile]


@pytest.mark.usefixtures("one_process")
def test_a_crash_while_profiling_leaves_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(task: Any, *more: Any, **words: Any) -> Any:
        if task is profiling.profile_case:
            return commands.ended("crashed", "killed by SIGSEGV", ("bang",))
        return commands.launch(task, *more, **words)

    monkeypatch.setattr(processes, "launch", crashes)
    (profile,) = profiled(tmp_path)
    assert (profile.status, profile.reason, profile.output_tail) == ("crashed", "killed by SIGSEGV", ("bang",))
    assert load_profiles([tmp_path]).records[profile.id].status == "ok"


@pytest.mark.usefixtures("one_process")
def test_a_backend_that_does_not_tell_its_layers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "LayerProfiler", type("Nobody", (), {}))
    (profile,) = profiled(tmp_path, backend="fake:steady")
    assert (profile.status, profile.reason) == ("unsupported", "fake:steady does not tell its layers.")


@pytest.mark.usefixtures("one_process")
def test_from_python(tmp_path: Path) -> None:
    made = inferlens.profile("fake:demo", backend="fake", iterations=30, warmup=1, runs=4, output=str(tmp_path))
    assert [(each.status, each.runs) for each in made] == [("ok", 4)]
    assert inferlens.load_profiles([tmp_path]).profiles == made
    with pytest.raises(InferlensError, match="level"):
        inferlens.profile("fake:demo", level="atom")


def test_a_live_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    words = {"backend": "pytorch", "iterations": 5, "warmup": 1, "output": str(tmp_path)}
    (made,) = inferlens.profile(module, torch.randn(2, 8), runs=3, **words)
    assert (made.status, made.reason) == ("ok", "")
    assert made.layers
    assert {"0", "1"} <= {path for layer in made.layers.layers for path in layer.modules}
    with pytest.raises(InferlensError, match="go with a live module"):
        inferlens.profile("fake:demo", torch.randn(2, 8))


def test_several_processes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InferlensError, match="one process for each level"):
        profiled(tmp_path, repeats=3)


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(InferlensError, match=r"results/.cache cannot be written: .+"):
        inferlens.profile("fake:demo", output=str(tmp_path / "results"), iterations=5, warmup=1)


def test_levels_are_words_with_commas() -> None:
    assert profiling.levels_of("layer") == ("layer",)
    assert profiling.levels_of("kernel,layer") == ("kernel", "layer")
    assert profiling.levels_of(["module", "layer", "kernel"]) == ("layer", "kernel"), (
        "layers are what modules come from"
    )
    with pytest.raises(InferlensError, match="'kernels' is no level"):
        profiling.levels_of("kernels")


@pytest.mark.usefixtures("one_process")
def test_kernels_are_of_a_gpu(tmp_path: Path) -> None:
    """Each level has a profile of its own, and that the CPU has no kernels is known before anything is loaded."""
    made = inferlens.profile(
        "fake:demo", level="layer,kernel", backend="fake:steady", iterations=30, output=str(tmp_path)
    )
    assert [(each.level, each.status) for each in made] == [("layer", "ok"), ("kernel", "unsupported")]
    kernels = made[1]
    assert kernels.reason == "Kernels are what a GPU runs, and fake:steady runs on the cpu here."
    assert kernels.hint == "--level layer, or --device cuda"
    assert kernels.phases == ()
    (folder,) = {path.parent for path in tmp_path.rglob("profile-*.json")}
    assert sorted(path.name for path in folder.glob("profile-*.json")) == ["profile-kernel.json", "profile-layer.json"]
