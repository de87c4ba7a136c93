"""Properties of kernels and operators by their names: tensor cores, precision and occupancy.

The lists come from torch-tb-profiler 0.4.3 (its ``tensor_core.py``, after PyProf's and PyTorch's autocast lists), with
later kernels and operators added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np

from inferlens.trace.model import DeviceProperties, Floats, Trace

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
# Generated for one model, and named by the fused operators. The name does not say how they compute.
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


@lru_cache(maxsize=1024)  # it is called more than once for every name, and names are few
def uses_tensor_cores(kernel: str) -> bool | None:
    """Return whether a kernel of that name uses tensor cores; ``None`` if the name does not say."""
    lower = kernel.lower()
    listed = any(part in kernel for part in _PLUGIN_KERNELS) or any(part in lower for part in _LATER_KERNELS)
    if listed and not any(part in kernel for part in _NOT):
        return True
    if _DOES_NOT.search(kernel):
        return False
    return True if _USES.search(kernel) and not _SAYS_NOTHING.search(kernel) else None


# Precisions by types and kernel names of cuDNN, cuBLAS, CUTLASS, TensorRT and PyTorch: ``int8``, ``fp8``, ``fp16`` ...
# The precision is that of the factors, which names have first: ``gemm_i8i8_i8i32_f32`` multiplies bytes.

# The first match in a text counts. Backends write "channel major FP16 format", or "f16".
_WORDS = (
    (r"bfloat16|bf16", "bf16"),
    (r"float8|fp8|f8", "fp8"),
    (r"float4|fp4|f4", "fp4"),
    (r"float16|fp16|half|f16", "fp16"),
    (r"tf32", "tf32"),
    (r"float64|fp64|double|f64", "fp64"),
    (r"float32|fp32|float|f32", "fp32"),
    (r"u?int8|[iu]8", "int8"),
    (r"u?int4|[iu]4", "int4"),
    (r"u?int(16|32|64)?|[iu](16|32|64)", "int"),
    (r"bool(ean)?", "bool"),
)
# In this order: kernels of bytes and FP8 write floats, and name those too.
_KERNELS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"e[45]m[23]|qgmma|qmma|fp8|nvjet(_sm\d+)?_qq", "fp8"),
        (
            r"i8816|i16832|imma|s8s8|s8u8|u8s8|(?<![a-z0-9])i8(i8|i32|f32)|igemm|int8|(?<![a-z0-9])[su]8(?![a-z0-9])|dp4a",
            "int8",
        ),
        (r"bf16|bfloat16|nvjet(_sm\d+)?_t|^cijk(_[a-z]{4}){2}_b_?b?s_", "bf16"),
        (r"tf32", "tf32"),
        (r"(?<![a-z0-9b])f16|fp16|half|hmma|hgemm|[hs]884|h1688|h16816|s1688gemm_fp16|nvjet(_sm\d+)?_h", "fp16"),
        (r"sgemm|f32f32|fp32|_ffma|scudnn|(?<![a-z])float(?![a-z0-9])", "fp32"),
    )
)
# Generated for one model at a time, and named by the fused operators.
_NO_PRECISION = re.compile(r"^(?:cudnn_generated_|triton_|generated)")


def precision_in(text: str) -> str:
    """Return the precision in a text, such as ``float16`` or ``Row major linear FP16 format``; empty without one."""
    words = re.findall(r"[a-z]+\d*", text[:300].lower())
    matches = (name for pattern, name in _WORDS if any(re.fullmatch(pattern, word) for word in words))
    return next(matches, "")


def first_precision(texts: Iterable[str]) -> str:
    """Return the precision of the first type that is not for indices or truth values; empty without any."""
    return next((name for name in map(precision_in, texts) if name not in ("", "int", "bool")), "")


@lru_cache(maxsize=1024)  # it is called more than once for every name, and names are few
def kernel_precision(kernel: str) -> str:
    """Return the precision that a kernel of that name computes in; empty if the name does not say."""
    lower = kernel[:2000].lower()
    if _NO_PRECISION.match(lower):
        return ""
    return next((name for pattern, name in _KERNELS if pattern.search(lower)), "")


# *Theoretical* occupancy is the share of a multiprocessor's threads that fit at a time. *Achieved* occupancy is
# estimated as in Kineto: a multiprocessor holds no more blocks than its even share of the grid. But Kineto writes 0 for
# kernels with more than 48 KiB of shared memory a block, as most tensor-core kernels of Hopper have.
#
# Source of the formula and of its constants: ``cuda_occupancy.h`` of the CUDA Toolkit 13.0
# (``cudaOccMaxActiveBlocksPerMultiprocessor``), and the CUDA C++ Programming Guide, technical specifications by compute
# capability.

if TYPE_CHECKING:
    from inferlens.record.profile import GpuLimits

    _Multiprocessors = GpuLimits | DeviceProperties

WARP = 32
REGISTER_UNIT = 256  # registers are given to warps in such units
# Multiprocessors by compute capability: the most blocks of one, 32 where it is not named here.
MOST_BLOCKS = {"7.5": 16, "8.0": 32, "8.9": 24, "10.1": 24, "11.0": 24}
MOST_BLOCKS_OF_MAJOR = {8: 16, 12: 24}
CAPABILITIES = range(7, 13)  # major numbers
SHARED_UNITS = {True: 128, False: 256}  # bytes, since 8.0 and before
RESERVED = 1024  # bytes of shared memory per block that the driver takes, since 8.0
_UNASKED = 48 * 1024  # bytes of shared memory that a block may have without asking


def theoretical(
    gpu: _Multiprocessors, block: Sequence[int], registers: int | None, shared_memory: int | None, most: float = inf
) -> float | None:
    """Return the share of a multiprocessor's threads in use, 0 to 1, with as many blocks as fit, or ``most``.

    ``None`` if that cannot be computed. ``registers`` are per thread, ``shared_memory`` is in bytes per block, static
    and dynamic.
    """
    digits = gpu.compute_capability.partition(".")[0]
    major = int(digits) if digits.isdecimal() else 0
    warps = -(-prod(block) // WARP) if block else 0
    if major not in CAPABILITIES or warps < 1 or not gpu.threads_per_multiprocessor:
        return None
    if registers is None or shared_memory is None:
        return None
    limits = [
        MOST_BLOCKS.get(gpu.compute_capability, MOST_BLOCKS_OF_MAJOR.get(major, 32)),
        gpu.threads_per_multiprocessor // WARP // warps,
    ]
    if registers:
        of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        limits.append(gpu.registers_per_multiprocessor // 4 // of_warp * 4 // warps)  # a multiprocessor has four parts
    unit = SHARED_UNITS[major >= 8]
    units = -(-(shared_memory + (RESERVED if major >= 8 else 0)) // unit)
    if units:
        limits.append(gpu.shared_memory_per_multiprocessor // (units * unit))
    if not min(limits):
        return None  # the kernel did run, so these limits are wrong
    return min(min(*limits, most) * prod(block) / gpu.threads_per_multiprocessor, 1.0)


def achieved(
    gpu: _Multiprocessors, grid: Sequence[int], block: Sequence[int], registers: int | None, shared_memory: int | None
) -> float | None:
    """Estimate the occupancy with no more blocks than a multiprocessor's even share of the grid."""
    if not grid or not gpu.multiprocessors:
        return None
    return theoretical(gpu, block, registers, shared_memory, prod(grid) / gpu.multiprocessors)


def occupancy_of(trace: Trace) -> Floats:
    """Return the estimated achieved occupancy of all GPU events in per cent; NaN if unknown.

    The profiler's value is used. If it has none, the value is computed from the launch and the GPU.
    """
    gpu = trace.gpu
    missing = np.flatnonzero((gpu.occupancy == 0) & (gpu.shared_memory > _UNASKED))
    if not len(missing):
        return gpu.occupancy
    columns = (gpu.device, gpu.registers, gpu.shared_memory, gpu.grid, gpu.block)
    launches, inverse = np.unique(np.column_stack([column[missing] for column in columns]), axis=0, return_inverse=True)
    devices = {device.id: device for device in trace.about.devices}
    estimates = np.full(len(launches), np.nan)
    for index, (device, registers, shared_memory, *threads) in enumerate(launches.tolist()):
        if device in devices and registers >= 0:
            share = achieved(devices[device], threads[:3], threads[3:], registers, shared_memory)
            estimates[index] = np.nan if share is None else 100 * share
    occupancy = gpu.occupancy.copy()
    occupancy[missing] = estimates[inverse.reshape(-1)]
    return occupancy
