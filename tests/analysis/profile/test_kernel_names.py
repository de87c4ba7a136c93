"""What names of real kernels tell."""

from __future__ import annotations

import time

import pytest

from inferlens.analysis.profile_table import short_name, short_names
from inferlens.trace import tensor_cores

CUTLASS = "cutlass_tensorop_f16_s16816fprop_optimized_f16_64x64_64x5_nhwc_align8"
XMMA = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_warpgroupsize1x1x1_g1_execute"
RELU = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::launch_clamp_scalar("
    "at::TensorIteratorBase&, c10::Scalar)::{lambda()#1}::operator()() const::{lambda()#7}, std::array<char*, 2ul> >"
    "(int, std::array<char*, 2ul>)"
)


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        (f"void cutlass__5x_cudnn::Kernel<{CUTLASS}>({CUTLASS}::Params)", True),
        (XMMA, True),
        ("sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_f16f16_f16f32_f32_g1_tensor16x8x16_aligna2", True),
        ("nvjet_sm90_hsh_8x64_64x16_2x1_v_bz_bias_TNN", True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1", True),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", True),
        (RELU, False),
        ("void implicit_convolve_sgemm<__half, __half, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int)", False),
        ("ampere_sgemm_32x32_sliced1x4_nn", False),
        ("cudnn_generated_resampleFwd_cutlass_sm80_knob_34_16x32x1_8x32x1_1_kernel0_0", False),
        ("triton_poi_fused_add_relu_10", False),
        ("cudnn_generated_fort_native_sm90_convFwd_pointwise_knob_39_128x16x32_12_1_0", None),
        ("__myl_MulAddAddReluMean_0x91de73a98167c9009d7272de15e75ec0", None),
        ("triton_per_fused_mean_21", None),
        ("my_own_kernel", None),
        ("", None),
    ],
)
def test_tensor_cores(name: str, uses: bool | None) -> None:
    assert tensor_cores.uses_tensor_cores(name) is uses


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (RELU, "vectorized_elementwise_kernel<launch_clamp_scalar>"),
        (f"void cutlass__5x_cudnn::Kernel<{CUTLASS}>({CUTLASS}::Params)", CUTLASS),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<__half, float, true>(int)", "nchwToNhwcKernel<…>"),
        (
            "void at::native::batch_norm_transform_input_kernel<c10::Half, float>(int)",
            "batch_norm_transform_input_kernel<…>",
        ),
        ("__myl_MoveConc_0xc1455be378008feffc8e73982aa134dd", "__myl_MoveConc"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        (XMMA, XMMA),
        ("", ""),
        ("<<<", "<<<"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["void lib::f<int, 64>(int)", "void lib::f<int, 128>(int)"], ["f<…> #1", "f<…> #2"]),
        (["void a::f(int)", "void b::f(int)"], ["f #1", "f #2"]),
        (["gemm", "relu"], ["gemm", "relu"]),
    ],
)
def test_different_kernels_have_different_names(names: list[str], expected: list[str]) -> None:
    assert [short_names(names)[name] for name in names] == expected


def test_hostile_names_are_shortened_at_once_and_stay_apart() -> None:
    names = [
        "<" * 50_000, "a<" * 20_000, "::" * 20_000, "(anonymous namespace)::" * 5_000, "x" * 100_000, "_a" * 50_000,
        f"a<{'b,' * 50_000}>", f"a<{'b,' * 50_000}c>",
    ]  # fmt: skip
    begin = time.perf_counter()
    short = short_names(names)
    used = {tensor_cores.uses_tensor_cores(name) for name in names}
    assert time.perf_counter() - begin < 10, "a table of them comes at once, a quadratic rule would take minutes"
    assert all(short.values())
    assert len(set(short.values())) == len(names)
    assert used == {None}
