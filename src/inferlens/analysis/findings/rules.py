"""All rules there are, in the order of the documentation: a closed list, ``docs/findings.md``."""

from __future__ import annotations

from inferlens.analysis.findings import (
    convolutions,
    floors,
    fusion,
    inserted,
    occupancy,
    precision,
    splits,
    trust,
    waiting,
)
from inferlens.analysis.findings.finding import Rule

RULES: tuple[Rule, ...] = (
    floors.far_above_floor,
    floors.dominating,
    floors.bandwidth_bound,
    convolutions.first_convolution,
    inserted.reformats,
    inserted.host_copies,
    fusion.unfused_chains,
    fusion.batch_norm_not_folded,
    splits.fallback,
    splits.graph_breaks,
    precision.tensor_cores_unused,
    precision.tf32_off,
    precision.fp32_layers,
    waiting.host_bound,
    waiting.tiny_kernels,
    waiting.outside_layers,
    occupancy.few_blocks,
    occupancy.low_occupancy,
    trust.doubtful_profile,
    trust.not_attributed,
    trust.unstable,
    trust.overlap,
    trust.names_only,
)
