"""PyTorch's operators: the FLOPs of those that have any to speak of, and which only move or touch data.

FLOPs are those of matrix products, convolutions and attention, by the formulas of :mod:`torch.utils.flop_counter`: a
multiplication and an addition are two, a bias is none, a mask saves nothing. Elementwise operators, reductions and
normalisations have none: their time is that of their bytes.
"""

from __future__ import annotations

import math
from typing import Any

# Besides those that PyTorch tags as pointwise or as reductions, and those that make a tensor of nothing.
_LIGHT = """
_adaptive_avg_pool2d _adaptive_avg_pool3d _embedding_bag _embedding_bag_forward_only _fused_rms_norm _log_softmax
_native_batch_norm_legit _native_batch_norm_legit_no_training _safe_softmax _softmax _to_copy _unsafe_index
_upsample_bicubic2d_aa _upsample_bilinear2d_aa adaptive_max_pool2d arange argmax argmin avg_pool1d avg_pool2d avg_pool3d
bernoulli bucketize cat channel_shuffle col2im constant_pad_nd copy_ cummax cumprod cumsum diag_embed embedding
embedding_bag empty empty_like empty_permuted empty_strided expand_copy eye fill fill_ flip full full_like gather glu
im2col index index_add index_copy index_put index_put_ index_select lift_fresh_copy linalg_vector_norm linspace
log_softmax logcumsumexp masked_fill masked_scatter max_pool2d_with_indices max_pool3d_with_indices max_unpool2d mean
median native_batch_norm native_channel_shuffle native_dropout native_group_norm native_layer_norm new_empty new_full
new_ones new_zeros nonzero norm ones ones_like pixel_shuffle pixel_unshuffle rand rand_like randint randn randn_like
reflection_pad1d reflection_pad2d reflection_pad3d repeat replication_pad1d replication_pad2d replication_pad3d roll
scalar_tensor scatter scatter_add select_scatter slice_scatter softmax sort split_with_sizes_copy sum topk tril
tril_indices triu unfold_copy upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean zero_ zeros zeros_like
"""
LIGHT = frozenset(_LIGHT.split())
# They read of their first tensor no more than they write.
PICKING = frozenset(
    ("embedding", "gather", "index", "index_select", "_unsafe_index", "embedding_bag", "_embedding_bag")
)
# They write their first tensor and do not read it.
OVERWRITING = frozenset(("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_"))


def name_of(operator: Any) -> str:
    """Its name without the overload: ``aten.addmm``."""
    return str(operator._overloadpacket)


def flops(operator: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> float | None:
    """FLOPs of one call; ``None`` where there is no formula for an operator that may have many."""
    from torch.utils.flop_counter import flop_registry, sdpa_flop_count

    packet = operator._overloadpacket
    if packet in flop_registry:
        return float(flop_registry[packet](*arguments, **named, out_val=result))
    short = packet.__name__
    if short.startswith("_scaled_dot_product"):  # variants of a device that the registry does not name
        return float(sdpa_flop_count(*(tensor.shape for tensor in arguments[:3])))
    if short in ("mv", "dot", "vdot", "addmv"):
        matrix = arguments[1] if short == "addmv" else arguments[0]
        return float(2 * math.prod(matrix.shape))
    return 0.0 if is_light(operator) else None


def is_light(operator: Any) -> bool:
    """Whether an operator's bytes are its work."""
    import torch

    packet = operator._overloadpacket
    if {torch.Tag.pointwise, torch.Tag.reduction} & set(operator.tags) or operator.is_view:
        return True
    return str(operator.namespace) in ("aten", "prims") and str(packet.__name__) in LIGHT
