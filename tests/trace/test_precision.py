"""What names of kernels and types of tensors say of the precision in which they are computed."""

import pytest

from inferlens.trace.kernels import first_precision, kernel_precision

# Of cuDNN, cuBLAS, CUTLASS, TensorRT and PyTorch.
KERNELS = {
    "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw": "int8",
    "sm90_xmma_fprop_implicit_gemm_i8f32_i8i32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroup": "int8",
    "turing_int8_i8816cudnn_int8_256x64_ldg16_relu_medium_nt_v1": "int8",
    "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x128_64x3_tn_align16>": "int8",
    "ampere_first_layer_filter3x3_imma_fwd": "int8", "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64": "fp8",
    "nvjet_sm90_qqtst_128x128_128x4_1x2_h_bz_coopA_TNT": "fp8", "nvjet_qqhsh_128x64": "fp8",
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNN": "bf16",
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>": "bf16",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "bf16",
    "nvjet_sm90_hsh_96x64_64x10_1x4_h_bz_TNN": "fp16", "volta_h884gemm_64x64_ldg8_nn": "fp16",
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn": "fp16",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<c10::Half>>": "fp16",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16": "tf32",
    "volta_sgemm_128x32_nt": "fp32", "void explicit_convolve_sgemm<float, int, 1024, 5, 5, 3, 3, 3, 0, false>": "fp32",
    "triton_poi_fused_add_0": "", "__myl_Fc_0x1234": "", "Memset (Device)": "",
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), KERNELS.items())
def test_a_kernel_is_named_after_what_it_multiplies(name, expected):
    assert kernel_precision(name) == expected


def test_indices_and_truth_values_are_computed_in_nothing():
    assert first_precision(["int64", "bool", "uint8", "float32"]) == "int8"
    assert first_precision(["", "int32"]) == ""
