"""Tables of kernels: what a row says, how it adds up, and what is not known."""

from __future__ import annotations

import json

from msgspec.structs import replace

from inferlens.views.profiled import kernels
from tests.analysis.profile.kernel_profiles import kernel, made, of_kernels, traced
from tests.backends.profiling.kernel_samples import ENGINE, GRAPH
from tests.views.profiled import data, drawn, lines, row


def test_what_a_row_says():
    text = drawn("kernels", traced(), width=300)
    moved = row(text, "nchwToNhwcKernel<…>")
    assert moved[:3] == ["7", "35", "113"]
    assert {"26.3", "aten::cudnn_convolution"} <= set(moved)
    assert "19 in the model" in " ".join(moved)
    conv1 = " ".join(row(text, "implicit_convolve_sgemm<…>"))
    assert "392x2" in conv1
    assert "8x8 92 2.2 31.2 % 18.6 % no conv1" in conv1, "block, registers, shared memory, occupancies, tensor cores"
    assert "vectorized_elementwise_kernel<launch_clamp_scalar>" in text


def test_one_block_on_a_large_gpu_is_not_nothing():
    one = kernel("one", 1e-6, occupancy=1.0, achieved=128 / 2048 / 132)
    text = drawn("kernels", of_kernels("pytorch", made(one, kernel("none", 1e-6, occupancy=1.0, achieved=0.0))))
    assert "100 % <0.1 %" in " ".join(row(text, "one"))
    assert "100 % 0 %" in " ".join(row(text, "none"))


def test_how_it_adds_up_and_what_it_comes_to():
    """The one place that holds what is said of kernels."""
    text = drawn("kernels", traced(), width=300, top=3, median=2e-3)
    for name in ("11 other kernels", "all kernels", "GPU busy", "GPU idle", "whole run"):
        assert row(text, name)
    assert "100" in row(text, "whole run")
    assert text.splitlines()[-5:] == [
        "nchwToNhwcKernel<…> takes most: 26.3 % of the GPU's busy time in 35 calls; the 5 that take most of 14 names "
        "take 72.9 %.",
        "The GPU was busy for 0.428 ms of 7.49 ms (medians) and idle for 7.06 ms (94.4 %); 162 launches a run, one "
        "each 46.2 µs.",
        "Kernels that use tensor cores have 30.7 % of all kernels' time, those that do not 69.3 %.",
        "Traced to modules: 100 % of all kernels' time.",
        "Profiling made a call 3.70x as long: 7.49 ms instead of 2.02 ms.",
    ]


def test_what_is_not_known_is_said():
    text = drawn("kernels", traced(GRAPH), traced(ENGINE), width=300)
    assert "origins: which layers and modules kernels came from: inductor-graph does not tell." in text
    assert "?: the kernel's name does not say whether it uses tensor cores." in text
    assert "of 96.5 % the names do not say" in text
    assert "2 launches a run" in text


def test_kernels_side_by_side():
    both = made(kernel("a", 1e-3, stream=1), kernel("b", 1e-3, stream=2), busy=1.2e-3)
    assert "ran side by side" in drawn("kernels", of_kernels("pytorch", both))


def test_orders():
    def rows(**options):
        return data("kernels", traced(), **options)["cases"][0]["rows"]

    assert [each["place"] for each in rows(sort="order", by="launch")] == list(range(1, 163))
    assert rows(sort="time")[0]["place"] == 7
    calls = [each["calls"] for each in rows(sort="calls")]
    assert calls == sorted(calls, reverse=True)
    assert len(rows(top=3)) == 3


def test_csv_has_full_names_and_what_is_in_no_kernel():
    rows = lines("kernels", traced(), top=4)
    assert {each["row"] for each in rows} == {"name", "other kernels", "overlap", "idle", "whole"}
    assert "engines_precompiled" in rows[0]["name"]
    assert (rows[0]["grid"], rows[0]["tensor_cores"]) == ("1x16x512", "false")
    assert set(kernels.OWN) < set(rows[0])


def test_json_has_everything():
    (found,) = data("kernels", traced(ENGINE))["cases"]
    assert found["gpu"]["multiprocessors"] == 132
    assert found["account"]["launches"] == 25
    assert {each["tensor_cores"] for each in found["rows"]} == {None, False}
    assert found["sentences"]


def test_a_case_without_kernels_says_why():
    broken = of_kernels("pytorch", None, status="unsupported", reason="No GPU.", hint="--device cuda")
    assert "It has no kernels: No GPU. --device cuda" in drawn("kernels", broken)
    assert data("kernels", broken)["cases"][0]["reason"] == "No GPU."
    assert json.loads(drawn("kernels", replace(broken, reason=""), format="json"))["cases"][0]["reason"]
