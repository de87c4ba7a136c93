"""Work that could be part of the layer before it: pointwise layers by themselves, batch norms that are not folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.families import BATCH_NORM, DENSE, POINTWISE
from inferlens.analysis.findings.names import kinds, longest, where
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.analysis.findings.thresholds import BATCH_NORMS, CHAINS


@rule(
    "unfused-chains",
    of="profile",
    hint="Another backend, or another form of the same operators: this one has not fused them.",
)
def unfused_chains(seen: Evidence) -> Iterator[Finding]:
    """Time of the layers that would be gone if each were computed together with what is before it."""
    parts = _fusible(seen.parts)
    total, share = seen.together(parts)
    if parts and share >= CHAINS:
        yield found(
            "{layers:#layer} right after a convolution, a matrix product or each other {layers:is|are} executed by "
            "{layers:itself|themselves} ({kinds}) and {layers:takes|take} {run}{where}.",
            {"layers": len(parts), "seconds": total},
            subject=longest(parts), seconds=total, share=share, kinds=kinds(parts), where=where(parts),
            hint="Compile the model: backends that do fuse such layers." if seen.by_module else "",
        )  # fmt: skip


@rule("batch-norm-not-folded", of="profile")
def batch_norm_not_folded(seen: Evidence) -> Iterator[Finding]:
    """In inference a batch norm is a scale and a shift, which the weights of what is before it can hold."""
    parts = _foldable(seen.parts)
    total, share = seen.together(parts)
    if parts and share >= BATCH_NORMS:
        in_model = "PyTorch's fuse_conv_bn_eval"
        way = seen.hint("freeze").ask or seen.hint("graph_optimization", "all").ask
        if not way:
            way = f"{in_model}, or a backend that compiles the model"
            way = way if seen.by_module else f"{in_model}, before the model is compiled, or another backend"
        yield found(
            "{layers:#batch norm} right after a convolution or a matrix product {layers:is|are} not folded into "
            "{layers:its|their} weights, and {layers:takes|take} {run}{where}.",
            {"layers": len(parts), "seconds": total},
            subject=longest(parts), seconds=total, share=share, where=where(parts),
            hint=f"Fold them into the weights: {way}. Outputs differ by rounding alone.",
        )  # fmt: skip


def avoidable(parts: Sequence[Part]) -> frozenset[int]:
    """Places of the layers that these two rules are about."""
    return frozenset(each.row.place for each in (*_fusible(parts), *_foldable(parts)))


def _foldable(parts: Sequence[Part]) -> list[Part]:
    return [chain[0] for producer, chain in _chains(parts) if _folds(producer, chain, chain[0])]


def _fusible(parts: Sequence[Part]) -> list[Part]:
    """Layers of chains that need not be executed by themselves."""
    fusible: list[Part] = []
    for producer, chain in _chains(parts):
        rest = [each for each in chain if not _folds(producer, chain, each)]
        if producer is None and rest:
            rest.remove(max(rest, key=lambda each: each.seconds))
        fusible += rest
    return fusible


def _chains(parts: Sequence[Part]) -> Iterator[tuple[Part | None, list[Part]]]:
    """Every run of pointwise layers in the order of execution, with the convolution or matrix product before it.

    Layers without a time are looked through: nothing was executed there.
    """
    before: Part | None = None
    chain: list[Part] = []
    for part in parts:
        if part.family in POINTWISE:
            chain += [part] if part.seconds > 0 else []
        elif part.seconds > 0 or part.family in DENSE:
            if chain:
                yield before, chain
            before, chain = (part if part.family in DENSE else None), []
    if chain:
        yield before, chain


def _folds(producer: Part | None, chain: Sequence[Part], part: Part) -> bool:
    """Whether a layer of a chain is a batch norm that the weights of what is before it could hold."""
    return producer is not None and part is chain[0] and BATCH_NORM.search(part.layer.kind) is not None
