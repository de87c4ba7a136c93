"""Work that could be part of the layer before it: pointwise layers by themselves, batch norms that are not folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.families import BATCH_NORM, DENSE, POINTWISE
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.hints import one_of
from inferlens.analysis.findings.words import kinds, longest, of_run, verb, where
from inferlens.units import percent, plural

LEAST = 0.02
LEAST_CHAINS = 0.05
BY_MODULE = {
    "cpu": "Compile the model: torch_compile, onnxruntime and openvino fuse such layers.",
    "cuda": "Compile the model: torch_compile, onnxruntime and tensorrt fuse such layers.",
}
_FOLDING = {False: ("onnxruntime", "openvino"), True: ("onnxruntime", "tensorrt")}  # on a GPU or not


@rule(
    "unfused-chains",
    needs="layers",
    speaks="normalisations, activations and elementwise layers that follow a convolution, a matrix product or each "
    f"other take {percent(LEAST_CHAINS)} of a run together",
    silent="for batch norms that could be folded, which have a rule of their own; of a chain that follows no "
    "convolution or matrix product the longest layer has to stay. Layers count as a chain by the order of execution",
    advice="Another backend, or another form of the same operators: this one has not fused them.",
)
def unfused_chains(seen: Evidence) -> Iterator[Finding]:
    """Time of the layers that would be gone if each were computed together with what is before it."""
    fusible = _fusible(seen.parts)
    total = sum(each.seconds for each in fusible)
    if fusible and seen.share(total) >= LEAST_CHAINS:
        count = len(fusible)
        yield Finding(
            subject=longest(fusible),
            sentence=f"{plural(count, 'layer')} right after a convolution, a matrix product or each other "
            f"{verb(count, 'is', 'are')} executed by {verb(count, 'itself', 'themselves')} ({kinds(fusible)}) and "
            f"{verb(count)} {of_run(total, seen.share(total))}{where(fusible)}.",
            seconds=total,
            share=seen.share(total),
            evidence={"layers": count, "seconds": total},
            advice=BY_MODULE["cuda" if seen.on_gpu else "cpu"] if seen.by_module else "",
        )


@rule(
    "batch-norm-not-folded",
    needs="layers",
    speaks=f"batch norms right after a convolution or a matrix product take {percent(LEAST)} of a run together",
    silent="where a batch norm stands before its convolution, as in DenseNet: it cannot be folded through the "
    "activation between them",
    advice="Fold them into the weights, in the model (PyTorch's fuse_conv_bn_eval) or by what the backend has for it "
    "(torchscript.freeze=true), or compile the model. Outputs differ by rounding alone.",
)
def batch_norm_not_folded(seen: Evidence) -> Iterator[Finding]:
    """In inference a batch norm is a scale and a shift, which the weights of what is before it can hold."""
    found = _foldable(seen.parts)
    total = sum(each.seconds for each in found)
    if found and seen.share(total) >= LEAST:
        count = len(found)
        yield Finding(
            subject=longest(found),
            sentence=f"{plural(count, 'batch norm')} right after a convolution or a matrix product "
            f"{verb(count, 'is', 'are')} not folded into {verb(count, 'its', 'their')} weights, and {verb(count)} "
            f"{of_run(total, seen.share(total))}{where(found)}.",
            seconds=total,
            share=seen.share(total),
            evidence={"layers": count, "seconds": total},
            advice=f"Fold them into the weights: {_folding(seen)}. Outputs differ by rounding alone.",
        )


def _folding(seen: Evidence) -> str:
    """What folds: the backend itself if it can be asked to; for eager PyTorch others."""
    own = seen.hint("freeze").ask or seen.hint("graph_optimization", "all").ask
    if own:
        return own
    if seen.by_module:
        return one_of(["PyTorch's fuse_conv_bn_eval", "torchscript.freeze=true", *_FOLDING[seen.on_gpu]])
    return "PyTorch's fuse_conv_bn_eval, before the model is compiled, or another backend"


def avoidable(parts: Sequence[Part]) -> frozenset[int]:
    """Places of the layers that these two rules are about."""
    return frozenset(each.row.place for each in (*_fusible(parts), *_foldable(parts)))


def _foldable(parts: Sequence[Part]) -> list[Part]:
    return [chain[0] for producer, chain in chains(parts) if _folds(producer, chain, chain[0])]


def _fusible(parts: Sequence[Part]) -> list[Part]:
    """Layers of chains that need not be executed by themselves."""
    fusible: list[Part] = []
    for producer, chain in chains(parts):
        rest = [each for each in chain if not _folds(producer, chain, each)]
        if producer is None and rest:
            rest.remove(max(rest, key=lambda each: each.seconds))
        fusible += rest
    return fusible


def chains(parts: Sequence[Part]) -> Iterator[tuple[Part | None, list[Part]]]:
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
    is_first = part is chain[0]
    return producer is not None and is_first and BATCH_NORM.search(part.layer.kind) is not None
