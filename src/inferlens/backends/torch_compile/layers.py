"""The layers of Inductor: the kernels that it generated and the operators of libraries that its code calls.

The profiler sees each by name: a C++ kernel because it was compiled to be seen, a Triton kernel and an operator because
they always are. Which call of the code it was is told by its order among those of its name, in its graph. What Python
runs between graphs are operators without a module. Kernels that a GPU runs are of the layer that launched them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import inf

from inferlens.backends.profiling.layer_runs import Taken
from inferlens.backends.profiling.operator_layers import Call, NamedLayer, OperatorNames, numbered, outermost
from inferlens.backends.profiling.traced_runs import TracedOperator
from inferlens.backends.torch_compile.provenance import GRAPH, CodeCall, Compiler

SEEN_AS = re.compile(r"graph_\d+_(?=cpp_)")  # what Inductor puts before the name of a C++ kernel
NO_ORIGINS = "Python runs them between the graphs, or Inductor does not say what they are of."
TOO_OLD = "this PyTorch does not say what Inductor's kernels were made from; PyTorch 2.10 and later do."
UNSEEN = "{} of {} calls in the compiled code were not seen: no operator of their names was called as often."
NO_GRAPHS = "runs without the CUDA graphs of its mode: a replay tells no operators. The kernels are the same."


class InductorNames(OperatorNames):
    """What the operators of compiled code are."""

    def __init__(self, compiler: Compiler, *, graphs: bool = False) -> None:
        """
        Args:
            compiler: that compiled it.
            graphs: whether the code would run in CUDA graphs if it was not profiled.
        """
        self.why_unknown = NO_ORIGINS if compiler.knows else TOO_OLD
        self._graphs = graphs
        self._expected = calls_of(compiler.graphs)
        self._count = Counter(name for name, _ in self._expected)
        self._unseen = 0

    def calls(self, root: TracedOperator) -> list[tuple[Call, TracedOperator]]:
        """In each graph what its code calls, by graph and name, and whatever else Python called."""
        found: list[tuple[Call, TracedOperator]] = []
        others = []
        for part in outermost(root, lambda each: each.name.startswith(GRAPH) or "::" in each.name):
            if part.name.startswith(GRAPH):
                found += self._inside(part, part.name.removeprefix(GRAPH))
            else:
                others.append(part)
        return found + numbered(others)

    def _inside(self, part: TracedOperator, graph: str) -> list[tuple[Call, TracedOperator]]:
        calls = outermost(part, lambda each: "::" in each.name or f"{graph}/{plain(each.name)}" in self._count)
        return numbered(calls, lambda name: f"{graph}/{plain(name)}")

    def named(self, taken: Mapping[Call, Taken]) -> dict[Call, NamedLayer]:
        """By the name of the call, with its graph where there are several, and a number where several are the same."""
        seen = Counter(name for name, _ in taken)
        alike = {
            name: {made.modules for (other, _), made in self._expected.items() if other == name} for name in self._count
        }
        several = len({name.partition("/")[0] for name in self._count}) > 1
        shown_before: Counter[str] = Counter()
        found = {}
        self._unseen = sum(count for name, count in self._count.items() if seen[name] != count)
        for call in sorted(taken, key=lambda call: taken[call].begins.get(0, inf)):
            name = call[0]
            sure = seen[name] == self._count[name] or len(alike.get(name, ())) == 1
            made = self._expected.get(call, self._expected.get((name, 0))) if sure else None
            shown = name if several and made else name.partition("/")[2] or name
            shown_before[shown] += 1
            turn = f" #{shown_before[shown]}" if shown_before[shown] > 1 else ""
            made = made or CodeCall(plain(name), plain(name), operators=(name,))
            found[call] = NamedLayer(shown + turn, made.kind, made.modules, made.operators, made.inputs, made.outputs)
        return found

    def absent(self) -> dict[str, str]:
        """Calls that were not seen, and CUDA graphs that were left out."""
        unseen = {"calls": UNSEEN.format(self._unseen, len(self._expected))} if self._unseen else {}
        return unseen | ({"cuda_graph": NO_GRAPHS} if self._graphs else {})


def calls_of(graphs: list[list[CodeCall]]) -> dict[Call, CodeCall]:
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
