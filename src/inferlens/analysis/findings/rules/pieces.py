"""A model that does not run in one piece: parts that fall back to another library, and breaks of a compiled graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inferlens.analysis.findings.evidence import Evidence, few, module, short
from inferlens.analysis.findings.rule import Finding, found, rule
from inferlens.record.partition import partition_in


@rule("fallback", of="profile")
def fallback(seen: Evidence) -> Iterator[Finding]:
    """What does not run where the case says."""
    partition = partition_in(seen.facts)
    if partition and partition.breaks:
        breaks = partition.breaks
        known = None not in partition.engines  # some front ends do not tell what is in an engine
        outside = {each.segment for each in breaks}
        paths: dict[bool, set[str | None]] = {True: set(), False: set()}
        for number, segment in enumerate(partition.segments):
            paths[number in outside] |= {operator.module for operator in segment.operators}
        alone = paths[True] - paths[False]  # modules of which no operator is in an engine
        some = seen.layers(e for e in seen.parts if e.layer.modules and alone.issuperset(e.layer.modules))
        subject = few(module(path) for each in breaks for path in each.modules if path) or "the model"
        yield found(
            "{in PyTorch:#operator} {in PyTorch:runs|run} outside of engines, in {subject}{taken}.",
            {
                "operators": partition.operators if known else None,
                "in PyTorch": sum(sum(each.operators.values()) for each in breaks),
                "segments": len(partition.segments),
                "engines": len(partition.engines),
                "seconds": some.seconds if some else None,
            },
            subject=subject, share=some.share if some else None, taken=f": at least {some.much}" if some else "",
            hint=f"See each operator's reason: {seen.command(what='partition')}",
        )  # fmt: skip
    on_cpu = [each for each in seen.parts if str(each.layer.details.get("provider", "")).startswith("CPU")]
    some = seen.layers(on_cpu)
    if seen.on_gpu and some:
        yield found(
            "{layers:#layer} {layers:runs|run} on the CPU ({kinds}) and {layers:takes|take} {much}, without the copies "
            "to and fro{where}.",
            {"layers": len(on_cpu)}, some, seconds=some.seconds,
            hint="Replace these operators in the model, or run it with a backend that has them on the GPU: "
            f"{seen.command(others=True)}",
        )  # fmt: skip


@rule("graph-breaks", of="profile", hint="Take what breaks it out of forward.")
def graph_breaks(seen: Evidence) -> Iterator[Finding]:
    """Why the model was compiled in several pieces."""
    count, reasons = _breaks(seen.facts)
    graphs = seen.facts.get("graphs")
    if count > 0:
        ask = seen.hint("fullgraph").ask
        yield found(
            "{breaks:#graph break} {breaks:splits|split} the compiled model{why}.",
            {"breaks": count, "graphs": graphs if isinstance(graphs, int) else None},
            subject="the compiled graph", why=f": {few(map(short, reasons))}" if reasons else "",
            hint=f"Take what breaks it out of forward, from the first on: {seen.command(ask)}" if ask else "",
        )  # fmt: skip


def _breaks(facts: dict[str, Any]) -> tuple[int, list[str]]:
    kept = facts.get("graph_breaks")
    if isinstance(kept, dict) and isinstance(kept.get("count"), int):
        reasons = kept.get("reasons")
        return kept["count"], [str(each) for each in reasons] if isinstance(reasons, list) else []
    partition = partition_in(facts)
    reasons = list(partition.graph_breaks) if partition else []
    return len(reasons), reasons
