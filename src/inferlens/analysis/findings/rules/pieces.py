"""A model that does not run in one piece: parts that fall back to another library, and breaks of a compiled graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from inferlens.analysis.findings.evidence import Evidence, Part
from inferlens.analysis.findings.hints import one_of
from inferlens.analysis.findings.names import few, kinds, longest, module, short, where
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.record.partition import Break, Partition
from inferlens.units import listing, plural

_MOST_PLACES = 3
_WORDS = {"unsupported": "not supported", "block too small": "block too small", "forced": "asked for"}
# What may keep operators in an engine, by why they are not.
_HINTS = {
    "unsupported": "another form of the operators that are not supported",
    "block too small": "a smaller min_block_size",
    "forced": "fewer torch_executed_ops",
}
_SEE = "See each operator's reason with inferlens partition"


@rule("fallback", of="profile")
def fallback(seen: Evidence) -> Iterator[Finding]:
    """What does not run where the case says."""
    partition = _partition(seen.facts.get("partition"))
    if partition and partition.breaks:
        yield _outside_of_engines(seen, partition)
    parts = [each for each in seen.parts if str(each.layer.details.get("provider", "")).startswith("CPU")]
    if seen.on_gpu and parts:
        total, share = seen.together(parts)
        yield found(
            "{layers:#layer} {layers:runs|run} on the CPU ({kinds}) and {layers:takes|take} {run}, without the copies "
            "to and fro{where}.",
            {"layers": len(parts), "seconds": total},
            subject=longest(parts), seconds=total, share=share, kinds=kinds(parts), where=where(parts),
            hint="Replace these operators in the model, or run it with a backend that has them on the GPU.",
        )  # fmt: skip


def _outside_of_engines(seen: Evidence, partition: Partition) -> Finding:
    breaks = partition.breaks
    known = None not in partition.engines  # some front ends do not tell what is in an engine
    parts = _outside_alone(seen, partition)
    total, share = seen.together(parts)
    taken = " Layers of modules that are wholly outside take {run}." if parts else ""
    engines = plural(len(partition.engines), "engine") if partition.engines else "no engine at all"
    of = "{in PyTorch:,} of {operators:,} operators" if known else "{in PyTorch:#operator}"
    once = list(dict.fromkeys(map(_place, breaks)))
    rest = len(once) - _MOST_PLACES
    why = {each for place in breaks for each in place.why}
    tries = [said for reason, said in _HINTS.items() if reason in why]
    paths = [module(path) for each in breaks for path in each.modules if path]
    return found(
        f"{of} {{in PyTorch:runs|run}} outside of engines, in {{outside:#segment}} with {{beside}}: {{places}}.{taken}",
        {
            "operators": partition.operators if known else None,
            "in PyTorch": sum(sum(each.operators.values()) for each in breaks),
            "segments": len(partition.segments),
            "engines": len(partition.engines),
            "seconds": total if parts else None,
        },
        subject=few(paths) or "the model", share=share if parts else None,
        hint=f"{_SEE}; {one_of(tries)} may keep them in the engine." if tries else f"{_SEE}.",
        outside=len(breaks), beside=engines,
        places="; ".join([*once[:_MOST_PLACES], *([plural(rest, "other place")] if rest > 0 else [])]),
    )  # fmt: skip


def _place(of: Break) -> str:
    """``layer4 (aten.sort.default: not supported)``."""
    names = listing([short(name) for name in list(of.operators)[:2]]) + (" …" if len(of.operators) > 2 else "")
    why = listing([_WORDS[each] for each in of.why if each in _WORDS])
    said = f"{names}: {why}" if why else names
    paths = [module(path) for path in of.modules if path]
    return f"{few(paths, 2)} ({said})" if paths else said


def _outside_alone(seen: Evidence, partition: Partition) -> list[Part]:
    """Layers that came from modules of which no operator is in an engine."""
    outside = {each.segment for each in partition.breaks}
    paths: dict[bool, set[str | None]] = {True: set(), False: set()}
    for number, segment in enumerate(partition.segments):
        paths[number in outside] |= {operator.module for operator in segment.operators}
    alone = paths[True] - paths[False]
    return [each for each in seen.parts if each.layer.modules and alone.issuperset(each.layer.modules)]


def _partition(kept: Any) -> Partition | None:
    """The partition in a record's facts; none where they hold something else."""
    try:
        return msgspec.convert(kept, Partition, strict=True)
    except msgspec.ValidationError:
        return None


@rule(
    "graph-breaks",
    of="profile",
    hint="Take what breaks it out of forward; the option fullgraph=true, where the backend has it, names the line of "
    "the first break.",
)
def graph_breaks(seen: Evidence) -> Iterator[Finding]:
    """Why the model was compiled in several pieces."""
    count, reasons = _breaks(seen.facts)
    graphs = seen.facts.get("graphs")
    if count > 0:
        into = " into {graphs:,} graphs" if isinstance(graphs, int) and graphs > 1 else ""
        yield found(
            f"{{breaks:#graph break}} {{breaks:splits|split}} the compiled model{into}{{why}}.",
            {"breaks": count, "graphs": graphs if isinstance(graphs, int) else None},
            subject="the compiled graph", why=f": {few([short(reason) for reason in reasons])}" if reasons else "",
        )  # fmt: skip


def _breaks(facts: dict[str, Any]) -> tuple[int, list[str]]:
    kept = facts.get("graph_breaks")
    if isinstance(kept, dict) and isinstance(kept.get("count"), int):
        reasons = kept.get("reasons")
        return kept["count"], [str(each) for each in reasons] if isinstance(reasons, list) else []
    partition = _partition(facts.get("partition"))
    reasons = list(partition.graph_breaks) if partition else []
    return len(reasons), reasons
