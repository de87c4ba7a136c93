"""``inferlens show --view findings`` on good and bad folders."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from inferlens.execution import profile as profiling
from inferlens.record.profile import Ceilings
from inferlens.record.record import encode
from inferlens.record.store import load_profiles, save_profile
from inferlens.views.profiles.findings import findings_document, judge_cases
from inferlens.views.renderers import render
from tests import commands
from tests.analysis.profiles import ON_GPU, failed, launched, layered, saved
from tests.analysis.profiles import exact_kernel as kernel
from tests.analysis.profiles import exact_layer as layer
from tests.analysis.profiles import exact_record as unprofiled
from tests.commands import inferlens, output_of, refusal_of
from tests.snapshots import compare_with_stored
from tests.views.samples import CPU_MACHINE, case, record, stored


def shown(folder: Path, format: str = "markdown", width: int = 120, *, whole: bool = True) -> str:
    return render(findings_document(judge_cases(load_profiles([folder])), whole=whole), format, width=width)


def test_nothing_to_say_and_nothing_to_look_at(tmp_path):
    broken = replace(failed(case("openvino"), "It has no fp16."), hint="--precision fp32")
    said = shown(saved(tmp_path / "others", layered(layer("conv", 5.0)), broken, median=5e-3))
    words = ("No rule has anything to say.", "It has no fp16. --precision fp32")
    assert all(word in said for word in words)


def test_where_there_are_records_alone_their_notes_are_named(tmp_path):
    stored(tmp_path / "results", [record(case())])
    said = refusal_of("show", "results", "--view", "findings", cwd=tmp_path)
    assert "There is no profile in results." in said
    assert "Try: inferlens profile MODEL, or of records: inferlens show results --view notes" in said


def test_findings_of_the_fastest_way_come_first(tmp_path):
    """Whatever could be won of those that lose; of the fastest that has none, what the others have is told."""
    norm, moved = layer("bn", 2.0, "BatchNorm2d"), layer("permute", 0.4, "Transpose")
    slow = layered(layer("conv", 5.0), norm, of=case("pytorch"), environment=CPU_MACHINE)
    for name, layers in (("the fastest has some", [moved]), ("the fastest has none", [])):
        fast = layered(layer("conv", 3.0), *layers, of=case("openvino"), environment=CPU_MACHINE)
        saved(tmp_path / name / "slow", slow, median=7e-3)
        saved(tmp_path / name / "fast", fast, median=3.5e-3)
        text = [output_of("show", name, "--view", "findings", *more, cwd=tmp_path) for more in ((), ("--all",))]
        compare_with_stored(f"findings/{name}", "\n".join(text))


PARTS = [layer("conv", 5.0, "Conv2d"), layer("bn", 2.0, "BatchNorm2d"), layer("relu", 1.0, "ReLU"),
         layer("permute", 0.5, "Transpose")]  # fmt: skip
THREE = [layered(*PARTS, of=case(name)) for name in ("pytorch", "openvino", "torchscript:trace")]


@pytest.mark.parametrize(("name", "profiles", "median", "options"), [
    ("the most important once", THREE, 4e-3, {}),
    ("the most important, brief", THREE, 4e-3, {"brief": True, "most": 1}),
    ("each case", THREE, 4e-3, {"whole": True}), ("what could be won", [layered(*PARTS)], 8.5e-3, {}),
    ("nothing", [layered(layer("conv", 5.0))], 5e-3, {"brief": True}),
])  # fmt: skip
def test_screen(name, profiles, median, options, tmp_path):
    judged = judge_cases(load_profiles([saved(tmp_path / "results", *profiles, median=median)]))
    text = render(findings_document(judged, **options), width=100)
    compare_with_stored(f"findings/{name}", text)
    assert len(text.splitlines()) <= 24 or "whole" in options


def test_what_was_raced_is_not_advised_again(tmp_path):
    def said() -> str:
        shown = inferlens("show", "results", "--view", "findings", cwd=tmp_path).stdout
        return " ".join(shown.replace("\\\n", "").split())

    parts = [layer("conv", 3.0, "Conv2d"), layer("relu", 1.0, "ReLU")]
    folder = saved(tmp_path / "results", layered(*parts, environment=CPU_MACHINE), median=4e-3)
    for name, seconds in (("onnxruntime:cpu", 5e-3), ("openvino", 2e-3)):
        assert "A backend that fuses such layers: inferlens bench resnet18 --batch 1" in said(), "one is not all"
        (folder / name.partition(":")[0]).mkdir()
        made = record(case(name), samples=(seconds,) * 60, id=name)
        (folder / name.partition(":")[0] / "record.json").write_bytes(encode(made))
    assert "Take openvino fp32, which was measured" in said()
    assert "A backend that fuses" not in said()


def test_levels_of_a_case_are_one_case_and_the_cost_of_layers_is_by_their_own_record(tmp_path):
    """Levels that were profiled one after the other each have a record; the later one is of the kernels here."""
    layers, kernels = layered(layer("conv", 3.0), of=ON_GPU), launched(kernel("add", 2.0, 200))
    for profile, median in ((layers, 1.0), (kernels, 2.0)):
        (tmp_path / profile.level).mkdir()
        save_profile(tmp_path / profile.level, profile)
        record = replace(unprofiled(layers, median), id=profile.record)
        (tmp_path / profile.level / "record.json").write_bytes(encode(record))
    said = shown(tmp_path)
    assert "a profiled call takes 3.00 ms, 3.00x an unprofiled one" in said
    assert " of the 1.00 ms could be won" in said
    (one,) = judge_cases(load_profiles([tmp_path]))
    assert {"host-bound", "tiny-kernels"} <= {finding.code for finding in one.findings}


NET = """
from torch import nn

def net():
    return nn.Sequential(*(each for _ in range(4) for each in (nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16)))).eval()
"""


def test_models_that_were_really_profiled(tmp_path, monkeypatch):
    """Eager PyTorch runs its batch norms; ONNX Runtime has folded them, and is not said to have not."""
    pytest.importorskip("onnxruntime")
    commands.stay(monkeypatch)
    unknown = Ceilings(device="a CPU", bandwidth=0.0, rates={})  # to measure them takes its time
    monkeypatch.setattr(profiling, "ceilings_of", lambda *_: unknown)
    (tmp_path / "small_net.py").write_text(NET)
    words = ["--backend", "pytorch,onnxruntime", "--max-time", "0.1s", "--runs", "5", "--input", "x=1x16x64x64"]
    shown = output_of("profile", "small_net:net", *words, cwd=tmp_path)
    assert "Try: " in shown.partition("\nprofiled call")[0], "findings stand above the table"
    assert (len(shown.splitlines()) <= 24, max(map(len, shown.splitlines())) <= 100) == (True, True)
    cases = judge_cases(load_profiles([tmp_path / "results"]))
    unfolded = {of.case.name for of in cases if "unfused-chains" in {finding.code for finding in of.findings}}
    assert (unfolded, len(cases)) == ({"pytorch fp32"}, 2)
