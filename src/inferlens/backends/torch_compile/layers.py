"""The layers of Inductor: the kernels that it generated and the operators of libraries that its code calls.

The profiler sees each by name: a C++ kernel because it was compiled to be seen, a Triton kernel and an operator because
they always are. Which call of the code it was is told by its order among those of its name, in its graph. What Python
runs between graphs are operators without a module. Kernels that a GPU runs are of the layer that launched them.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from math import inf

from inferlens.backends.abilities import Origin
from inferlens.backends.profiling.layer_runs import Runs
from inferlens.backends.profiling.matched_kernels import Twin, twins_of
from inferlens.backends.profiling.operator_runs import (
    GPU_CLOCK,
    HOST_CLOCK,
    Call,
    Operator,
    Taken,
    numbered,
    one_run,
    outermost,
    taken,
)
from inferlens.backends.torch_compile.provenance import GRAPH, Compiler, Made
from inferlens.record.layer_profile import Layer, Layers

SEEN_AS = re.compile(r"graph_\d+_(?=cpp_)")  # what Inductor puts before the name of a C++ kernel
UNKNOWN = "not known for {} operators: Python runs them between the graphs, or Inductor does not say what they are of."
UNKNOWN_KERNELS = (
    "not known for {} of {} kernels, copies and fills: Python launches them between the graphs, or Inductor does not "
    "say what they are of."
)
UNTOLD = "this PyTorch does not say what Inductor's kernels were made from; PyTorch 2.9 and later do."
UNSEEN = "{} of {} calls in the compiled code were not seen: no operator of their names was called as often."
NO_GRAPHS = "runs without the CUDA graphs of its mode: a replay tells no operators. The kernels are the same."


def layers_of(runner: Runs, compiler: Compiler, feed: object, runs: int, *, on_gpu: bool, graphs: bool) -> Layers:
    """Times what the compiled code calls in ``runs`` calls of ``runner.infer(feed)``.

    Args:
        compiler: that compiled it.
        graphs: whether the code would run in CUDA graphs if it was not profiled.
    """
    expected = calls_of(compiler.graphs)
    clocked, times = taken(runner, feed, runs, lambda run: chosen(run, expected), on_gpu=on_gpu)
    found, unseen = layers(expected, times, runs)
    unknown = sum(not each.modules for each in found)
    absent = {}
    if unknown:
        absent["modules"] = UNKNOWN.format(unknown) if compiler.told else UNTOLD
    if unseen:
        absent["calls"] = UNSEEN.format(unseen, len(expected))
    if graphs:
        absent["cuda_graph"] = NO_GRAPHS
    return Layers(
        layers=found,
        whole=clocked.whole,
        timed="GPU" if on_gpu else "host",
        clock=GPU_CLOCK if on_gpu else HOST_CLOCK,
        absent=absent,
        begun=clocked.begun,
        started=clocked.started,
    )


def calls_of(graphs: list[list[Made]]) -> dict[Call, Made]:
    """What the code calls, by graph and name, and the place among those of that name."""
    named: Counter[str] = Counter()
    found = {}
    for number, made in enumerate(graphs):
        for each in made:
            name = f"{number}/{each.name}"
            found[name, named[name]] = each
            named[name] += 1
    return found


def plain(name: str) -> str:
    """The name of an operator or kernel as the code calls it."""
    return SEEN_AS.sub("", name).rpartition("::")[2]


def chosen(root: Operator, expected: dict[Call, Made]) -> list[tuple[Call, Operator]]:
    """What was called in a run: in each graph what its code calls, and whatever else Python called."""
    known = {name for name, _ in expected}
    found: list[tuple[Call, Operator]] = []
    others = []
    for part in outermost(root, lambda each: each.name.startswith(GRAPH) or "::" in each.name):
        if part.name.startswith(GRAPH):
            graph = part.name.removeprefix(GRAPH)
            inside = outermost(part, partial(is_call, graph, known))
            found += numbered(inside, lambda name, graph=graph: f"{graph}/{plain(name)}")  # type: ignore[misc]
        else:
            others.append(part)
    return found + numbered(others)


def is_call(graph: str, known: set[str], operator: Operator) -> bool:
    """Whether a graph's code called it, or may have."""
    return "::" in operator.name or f"{graph}/{plain(operator.name)}" in known


def layers(expected: dict[Call, Made], times: dict[Call, Taken], runs: int) -> tuple[tuple[Layer, ...], int]:
    """A layer for each call, in the order of execution, and how many calls of the code were not seen."""
    told, unseen = named(expected, times)
    return tuple(layer(*told[call], times[call], runs) for call in told), unseen


def named(expected: dict[Call, Made], times: dict[Call, Taken]) -> tuple[dict[Call, tuple[str, Made]], int]:
    """Of each call its layer's name and what it is, in the order of execution; how many calls were not seen."""
    count = Counter(name for name, _ in expected)
    seen = Counter(name for name, _ in times)
    alike = {name: {made.modules for (other, _), made in expected.items() if other == name} for name in count}
    several = len({name.partition("/")[0] for name in count}) > 1
    shown_before: Counter[str] = Counter()
    found = {}
    unseen = sum(count[name] for name in count if seen[name] != count[name])
    for call in sorted(times, key=lambda call: times[call].begins.get(0, inf)):
        name = call[0]
        sure = seen[name] == count[name] or len(alike.get(name, ())) == 1
        made = expected.get(call, expected.get((name, 0))) if sure else None
        shown = name if several and made else name.partition("/")[2] or name
        shown_before[shown] += 1
        turn = f" #{shown_before[shown]}" if shown_before[shown] > 1 else ""
        found[call] = shown + turn, made or Made(plain(name), plain(name), operators=(name,))
    return found, unseen


def twins(runner: Runs, compiler: Compiler, feed: object) -> tuple[list[Twin], dict[str, str]]:
    """What one call of the compiled code launches on a GPU, and what is not known of where it came from, and why.

    Args:
        runner: calls the code.
        compiler: that compiled it.
    """
    root, _ = one_run(runner, feed, on_gpu=True)
    return told(root, compiler.graphs, knows=compiler.told)


def told(root: Operator, graphs: list[list[Made]], *, knows: bool) -> tuple[list[Twin], dict[str, str]]:
    """What the operators of a run launched, as the layers that they are, and what is not known of it."""
    expected = calls_of(graphs)
    calls = [(call, operator) for call, operator in chosen(root, expected) if any(operator.launched())]
    times: dict[Call, Taken] = {}
    for call, operator in calls:
        times.setdefault(call, Taken()).add(0, operator, on_gpu=True)
    known, unseen = named(expected, times)
    origins = {call: Origin(name, made.modules) for call, (name, made) in known.items()}
    found = twins_of((operator, origins[call]) for call, operator in calls)
    unknown = sum(not twin.origin.modules for twin in found)
    absent = {}
    if unknown:
        absent["modules"] = UNKNOWN_KERNELS.format(unknown, len(found)) if knows else UNTOLD
    if unseen:
        absent["calls"] = UNSEEN.format(unseen, len(expected))
    return found, absent


def layer(name: str, made: Made, times: Taken, runs: int) -> Layer:
    """One call's layer."""
    return Layer(
        name=name,
        kind=made.kind,
        modules=made.modules,
        operators=made.operators,
        inputs=made.inputs,
        outputs=made.outputs,
        details={"kernels": list(times.kernels)} if times.kernels else {},
        **times.timing(runs),
    )
