"""Whether a kernel uses tensor cores, and an operator could, as far as names say.

The lists are those of torch-tb-profiler 0.4.3 (its ``tensor_core.py``, after PyProf's and PyTorch's autocast lists),
and what has been written since.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PLUGIN_KERNELS = (
    "h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "dgrad_1x1_stride_2x2", "first_layer_wgrad_kernel",
    "conv1x1", "conv2d_c1_k1", "direct_group", "xmma_implicit_gemm", "xmma_sparse_conv",
    "xmma_warp_specialized_implicit_gemm", "xmma_gemm", "xmma_sparse_gemm", "c1688",
)  # fmt: skip
# Kernels of Hopper and later, of CUTLASS, cuBLASLt and attention, by the instructions in their names.
_LATER_KERNELS = (
    "tensorop", "wgmma", "gmma", "nvjet", "flash_fwd", "flash_bwd", "fmha_cutlass", "tcgen05", "s16832", "s1684",
    "_imma_", "qmma",
)  # fmt: skip
# Arithmetic outside of tensor cores in kernels whose names else fit.
_NOT = ("_ffma_", "simt")
# The shape of a tensor-core instruction, or the warp group that issues it, in names of cuDNN, cuBLAS and PyTorch.
_USES = re.compile(r"tensor\d+x\d+x\d+|warpgroupsize|m16n8k|wmma", re.IGNORECASE)
# Arithmetic outside of tensor cores, or none at all: element by element, reductions, copies, pooling.
_DOES_NOT = re.compile(
    r"_ffma_|simt|sgemm|dgemm|gemv|winograd|fft|nchwToNhwc|nhwcToNchw|resampleFwd|bn_fw_inf|pooling"
    r"|^triton_poi_|elementwise_kernel|^(?:void )?at::native::(?!.*(?:gemm|attention|fmha|mma))",
    re.IGNORECASE,
)
# Generated for one model at a time, and named by what was fused: how they compute is not said.
_SAYS_NOTHING = re.compile(r"^(?:cudnn_generated_|triton_|__myl_|_gemm_mha|generated)")
# Operators that can use tensor cores, given a data type that they take.
ELIGIBLE = {
    "AddbmmBackward", "AddmmBackward", "AddmmBackward0", "AddmvBackward", "BmmBackward0",
    "ConvolutionBackward0", "CudnnConvolutionBackward", "CudnnConvolutionTransposeBackward", "MmBackward",
    "MmBackward0", "MvBackward", "aten::_convolution", "aten::_efficient_attention_forward",
    "aten::_flash_attention_forward", "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_flash_attention",
    "aten::_thnn_fused_gru_cell", "aten::_thnn_fused_lstm_cell", "aten::addbmm", "aten::addmm", "aten::addmm_",
    "aten::addmv", "aten::addr", "aten::baddbmm", "aten::bmm", "aten::chain_matmul", "aten::conv1d",
    "aten::conv2d", "aten::conv3d", "aten::conv_tbc", "aten::conv_transpose1d", "aten::conv_transpose2d",
    "aten::conv_transpose3d", "aten::convolution", "aten::convolution_backward", "aten::cudnn_convolution",
    "aten::cudnn_convolution_backward", "aten::cudnn_convolution_backward_input",
    "aten::cudnn_convolution_backward_weight", "aten::cudnn_convolution_transpose",
    "aten::cudnn_convolution_transpose_backward", "aten::cudnn_convolution_transpose_backward_input",
    "aten::cudnn_convolution_transpose_backward_weight", "aten::gru_cell", "aten::linalg_multi_dot",
    "aten::linear", "aten::lstm_cell", "aten::matmul", "aten::mm", "aten::mv", "aten::prelu",
    "aten::rnn_relu_cell", "aten::rnn_tanh_cell", "aten::scaled_dot_product_attention",
}  # fmt: skip


@lru_cache(maxsize=1024)  # it is asked more than once of every name, and names are few
def uses_tensor_cores(kernel: str) -> bool | None:
    """Whether a kernel of that name uses tensor cores; ``None`` where the name does not say."""
    lower = kernel.lower()
    listed = any(part in kernel for part in _PLUGIN_KERNELS) or any(part in lower for part in _LATER_KERNELS)
    if listed and not any(part in kernel for part in _NOT):
        return True
    if _DOES_NOT.search(kernel):
        return False
    return True if _USES.search(kernel) and not _SAYS_NOTHING.search(kernel) else None
