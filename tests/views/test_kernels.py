"""Tables of kernels, and of modules from kernels: what they show, at every width, whatever stands in the names."""

from __future__ import annotations

import csv
import io
import json

import msgspec
import pytest
from rich.cells import cell_len

from inferlens.errors import InferlensError
from inferlens.record.profile_store import LoadedProfiles
from inferlens.record.record import Warning
from inferlens.views.profiled import FORMATS, kernels
from inferlens.views.profiled.cases import groups
from tests.analysis.profile.kernel_profiles import kernel, made, nasty, of_kernels, traced
from tests.analysis.profile.samples import NASTY, untouched
from tests.backends.profiling.kernel_samples import ENGINE, GRAPH


def loaded(*profiles, level=None) -> list:
    records = {each.id: untouched(each, 2e-3) for each in profiles}
    return groups(LoadedProfiles(profiles=list(profiles), records=records), level)


def drawn(*profiles, format="table", **options) -> str:
    return kernels.render([case for group in loaded(*profiles, level="kernel") for case in group], format, **options)


def row_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_what_a_row_says():
    text = drawn(traced(), width=300)
    row = row_of(text, "nchwToNhwcKernel<…>").split()
    assert row[:4] == ["nchwToNhwcKernel<…>", "7", "35", "113"]
    assert "26.3 %" in " ".join(row)
    assert "aten::cudnn_convolution" in row
    assert "19 in the model" in " ".join(row)
    conv1 = " ".join(row_of(text, "implicit_convolve_sgemm<…>").split())
    assert "392x2" in conv1
    assert "8x8 92 2.2 31.2 % 18.6 % no conv1" in conv1, "block, registers, shared memory, occupancies, tensor cores"
    assert "vectorized_elementwise_kernel<launch_clamp_scalar>" in text


def test_one_block_on_a_large_gpu_is_not_nothing():
    one = kernel("one", 1e-6, occupancy=1.0, achieved=128 / 2048 / 132)
    text = drawn(of_kernels("pytorch", made(one, kernel("none", 1e-6, occupancy=1.0, achieved=0.0))), width=300)
    assert "100 % <0.1 %" in " ".join(row_of(text, "one").split())
    assert "100 % 0 %" in " ".join(row_of(text, "none").split())


def test_how_it_adds_up_and_what_it_comes_to():
    text = drawn(traced(), width=300, top=3)
    for name in ("11 other kernels", "all kernels", "GPU busy", "GPU idle", "whole run"):
        assert row_of(text, name)
    assert "100 %" in row_of(text, "whole run")
    assert "takes most: 26.3 % of the GPU's busy time in 35 calls; the 5 that take most of 14 names" in text
    assert "The GPU was busy for 0.428 ms of 7.49 ms (medians)" in text
    assert "162 launches a run, one each 46.2 µs." in text
    assert "Kernels that use tensor cores have 30.7 % of all kernels' time, those that do not 69.3 %." in text
    assert "Traced to modules: 100 % of all kernels' time." in text
    assert "Profiling made a call" in text


def test_what_is_not_known_is_said():
    text = drawn(traced(GRAPH), traced(ENGINE), width=300)
    assert "torch_compile:reduce-overhead" in text
    assert "origins: which layers and modules kernels came from: inductor-graph does not tell." in text
    assert "?: the kernel's name does not tell whether it uses tensor cores." in text
    assert "of 96.5 % the names do not tell" in text
    assert "2 launches a run" in text


def test_kernels_side_by_side():
    both = made(kernel("a", 1e-3, stream=1), kernel("b", 1e-3, stream=2), busy=1.2e-3)
    assert "some ran side by side" in drawn(of_kernels("pytorch", both))


def test_orders():
    def places(**options):
        cases = json.loads(drawn(traced(), format="json", **options))["cases"]
        return [row["place"] for row in cases[0]["rows"]]

    assert places(sort="order", by="launch") == list(range(1, 163))
    assert places(sort="time")[0] == 7
    calls = [row["calls"] for row in json.loads(drawn(traced(), format="json", sort="calls"))["cases"][0]["rows"]]
    assert calls == sorted(calls, reverse=True)
    assert len(places(top=3)) == 3
    for wrong in ({"sort": "name"}, {"by": "module"}, {"format": "html"}):
        with pytest.raises(InferlensError):
            drawn(traced(), **wrong)


def test_csv_adds_up_and_has_full_names():
    rows = list(csv.DictReader(io.StringIO(drawn(traced(), format="csv", top=4))))
    assert {row["row"] for row in rows} == {"name", "other kernels", "overlap", "idle", "whole"}
    times = {row["row"]: float(row["typical"]) for row in rows if row["row"] != "name"}
    named = sum(float(row["typical"]) for row in rows if row["row"] == "name")
    whole = named + times["other kernels"] + times["overlap"] + times["idle"]
    assert whole == pytest.approx(times["whole"])
    assert "engines_precompiled" in rows[0]["name"]
    assert (rows[0]["grid"], rows[0]["tensor_cores"]) == ("1x16x512", "false")


def test_json_has_everything():
    (found,) = json.loads(drawn(traced(ENGINE), format="json"))["cases"]
    assert found["gpu"]["multiprocessors"] == 132
    assert found["account"]["launches"] == 25
    assert {row["tensor_cores"] for row in found["rows"]} == {None, False}
    assert found["sentences"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_any_name_at_any_width(format, width):
    text = drawn(nasty(), format=format, width=width)
    if format in ("csv", "json"):
        assert NASTY in (
            json.loads(text)["cases"][0]["rows"][0]["name"] if format == "json" else text.replace('""', '"')
        )
        return
    assert "\x1b" not in text
    assert "\u202e" not in text
    if format == "table":
        assert max(map(cell_len, text.splitlines())) <= max(width, 60)


def test_a_case_without_kernels_says_why():
    broken = of_kernels("pytorch", None, status="unsupported", reason="No GPU.", hint="--device cuda")
    assert "It has no kernels: No GPU. --device cuda" in drawn(broken)
    assert json.loads(drawn(broken, format="json"))["cases"][0]["reason"] == "No GPU."
    warned = msgspec.structs.replace(traced(), warnings=(Warning("slow", "It was slow.", "Try again."),))
    assert "It was slow. Try again." in drawn(warned)
