"""A model that does not run in one piece: parts that fall back to another library, and breaks of a compiled graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.finding import Finding, rule
from inferlens.analysis.findings.hints import one_of
from inferlens.analysis.findings.words import few, kinds, longest, module, of_run, short, verb, where
from inferlens.record.partition import Break, Partition
from inferlens.units import listing, plural

_MOST_PLACES = 3
_ON_CPU = "CPUExecutionProvider"
_WORDS = {"unsupported": "not supported", "block too small": "block too small", "forced": "asked for"}
# What may keep operators in an engine, by why they are not.
_CURES = {
    "unsupported": "another form of the operators that TensorRT does not support",
    "block too small": "a smaller min_block_size",
    "forced": "fewer torch_executed_ops",
}
_SEE = "See each operator's reason with inferlens partition"


@rule(
    "fallback",
    needs="the record's facts (the partition of Torch-TensorRT); layers (the provider of ONNX Runtime's nodes)",
    speaks="any operator of the model runs in PyTorch instead of TensorRT, or any layer of a case on the GPU on the "
    "CPU",
    silent="where the whole model is one engine. Its time is told only of modules of which no operator is in an engine",
    advice=f"{_SEE}. By the reason: {one_of(list(_CURES.values()))}.",
)
def fallback(seen: Evidence) -> Iterator[Finding]:
    """What does not run where the case says."""
    partition = _partition(seen.facts.get("partition"))
    if partition and partition.breaks:
        yield _in_pytorch(seen, partition)
    parts = [each for each in seen.parts if each.layer.details.get("provider") == _ON_CPU]
    if seen.on_gpu and parts:
        total = sum(each.seconds for each in parts)
        count = len(parts)
        yield Finding(
            subject=longest(parts),
            sentence=f"{plural(count, 'layer')} {verb(count, 'runs', 'run')} on the CPU ({kinds(parts)}) and "
            f"{verb(count)} {of_run(total, seen.share(total))}, without the copies to and fro"
            f"{where(parts)}.",
            seconds=total,
            share=seen.share(total),
            evidence={"layers": count, "seconds": total},
            advice="Replace these operators in the model, or run it with a backend that has them on the GPU.",
        )


def _in_pytorch(seen: Evidence, partition: Partition) -> Finding:
    operators = sum(sum(each.operators.values()) for each in partition.breaks)
    of = "" if None in partition.engines else f" of {partition.operators:,}"  # some do not tell what is in an engine
    parts = _only_in_pytorch(seen, partition)
    total = sum(each.seconds for each in parts)
    taken = f" Layers of modules that are wholly in PyTorch take {of_run(total, seen.share(total))}." if parts else ""
    engines = plural(len(partition.engines), "engine") if partition.engines else "no engine at all"
    paths = [module(path) for each in partition.breaks for path in each.modules if path]
    said = f"{operators:,}{of} operators" if of else plural(operators, "operator")
    return Finding(
        subject=few(paths) or "the model",
        sentence=f"{said} {verb(operators, 'falls', 'fall')} back to PyTorch, in "
        f"{plural(len(partition.breaks), 'segment')} beside {engines}: {_places(partition)}.{taken}",
        share=seen.share(total) if parts else None,
        evidence={
            "operators": None if None in partition.engines else partition.operators,
            "in PyTorch": operators,
            "segments": len(partition.segments),
            "engines": len(partition.engines),
            "seconds": total if parts else None,
        },
        advice=_advice(partition),
    )


def _advice(partition: Partition) -> str:
    """What fits the reasons, where the front end told them."""
    why = {each for place in partition.breaks for each in place.why}
    tries = [said for reason, said in _CURES.items() if reason in why]
    if not tries:
        return f"{_SEE} --backend torch_tensorrt:dynamo, which tells them."
    return f"{_SEE}; {one_of(tries)} may keep them in the engine."


def _places(partition: Partition) -> str:
    """Where the graph leaves TensorRT, each kind of place once."""
    once = list(dict.fromkeys(map(_place, partition.breaks)))
    rest = len(once) - _MOST_PLACES
    return "; ".join([*once[:_MOST_PLACES], *([plural(rest, "other place")] if rest > 0 else [])])


def _place(of: Break) -> str:
    """``layer4 (aten.sort.default: not supported)``."""
    names = listing([short(name) for name in list(of.operators)[:2]]) + (" …" if len(of.operators) > 2 else "")
    why = listing([_WORDS[each] for each in of.why if each in _WORDS])
    said = f"{names}: {why}" if why else names
    paths = [module(path) for path in of.modules if path]
    return f"{few(paths, 2)} ({said})" if paths else said


def _only_in_pytorch(seen: Evidence, partition: Partition) -> list[Part]:
    """Layers that came from modules of which every operator runs in PyTorch."""
    paths: dict[str, set[str | None]] = {"PyTorch": set(), "TensorRT": set()}
    for segment in partition.segments:
        paths[segment.runs_in] |= {operator.module for operator in segment.operators}
    alone = paths["PyTorch"] - paths["TensorRT"]
    return [each for each in seen.parts if each.layer.modules and alone.issuperset(each.layer.modules)]


def _partition(told: Any) -> Partition | None:
    """The partition in a record's facts; none where they hold something else."""
    try:
        return msgspec.convert(told, Partition, strict=True)
    except msgspec.ValidationError:
        return None


@rule(
    "graph-breaks",
    needs="the record's facts (of torch_compile, or the partition of Torch-TensorRT)",
    speaks="the compiler broke the model's graph at least once",
    silent="where the model became one graph. What a break costs is not told: Python runs between graphs, and nothing "
    "is fused across a break",
    advice="Take what breaks it out of forward; the backend torch_compile names the line of the first break, with "
    "torch_compile.fullgraph=true.",
)
def graph_breaks(seen: Evidence) -> Iterator[Finding]:
    """Why the model was compiled in several pieces."""
    count, reasons = _breaks(seen.facts)
    if count < 1:
        return
    graphs = seen.facts.get("graphs")
    into = f" into {graphs:,} graphs" if isinstance(graphs, int) and graphs > 1 else ""
    why = f": {few([short(reason) for reason in reasons])}" if reasons else ""
    yield Finding(
        subject="the compiled graph",
        sentence=f"{plural(count, 'graph break')} {verb(count, 'splits', 'split')} the compiled model{into}{why}.",
        evidence={"breaks": count, "graphs": graphs if isinstance(graphs, int) else None},
    )


def _breaks(facts: dict[str, Any]) -> tuple[int, list[str]]:
    told = facts.get("graph_breaks")
    if isinstance(told, dict) and isinstance(told.get("count"), int):
        reasons = told.get("reasons")
        return told["count"], [str(each) for each in reasons] if isinstance(reasons, list) else []
    partition = _partition(facts.get("partition"))
    reasons = list(partition.graph_breaks) if partition else []
    return len(reasons), reasons
