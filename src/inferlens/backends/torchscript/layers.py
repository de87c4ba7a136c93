"""The layers of TorchScript: the operators that its interpreter calls, and those it fused, traced back to modules.

An operator's time is the host's for the whole call, on a GPU that of the kernels it launched. In which module it was is
told by the graph that ran, or by the stack of the call; its tensors by one call that is looked at and not timed. What a
GPU ran in that call tells where kernels come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from inferlens.backends.abilities import Origin as Whence
from inferlens.backends.profiling.layer_runs import Runs
from inferlens.backends.profiling.matched_kernels import Twin, twins_of
from inferlens.backends.profiling.operator_runs import (
    GPU_CLOCK,
    HOST_CLOCK,
    Call,
    Operator,
    Taken,
    numbered,
    outermost,
    taken,
)
from inferlens.backends.torchscript.graph import INSERTED, MARK, Marks, Place, Step, matched, plain, steps_of
from inferlens.backends.torchscript.operator_trace import Seen, look
from inferlens.backends.torchscript.scopes import Modules
from inferlens.record.layer_profile import Layer, Layers

FUNCTION = 2  # at::RecordScope::TORCHSCRIPT_FUNCTION: a method, which calls operators
INTERNAL = "by TorchScript, to change the layout of memory"
UNKNOWN = "not known for {} operators: the graph that ran names no modules for them."
UNKNOWN_KERNELS = "not known for {} of {} kernels, copies and fills: the graph that ran names no modules for them."
FROZEN = "frozen before it was saved: no module is left in it. Freeze with the option of this backend instead."
UNTOLD = "not told of {} operators that run in oneDNN or were fused."


class Origin(Struct):
    """What is known of one call of an operator, beside its time.

    Attributes:
        alike: what calls have in common that are turns of one loop; ``None`` of what is called once.
    """

    kind: str
    modules: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    seen: Seen = Seen()
    alike: Any = None

    @property
    def inserted(self) -> bool:
        """Whether TorchScript put it there for itself."""
        return self.kind in INSERTED


class Looked(Struct):
    """One call that was looked at.

    Attributes:
        calls: what the interpreter called, in order.
        bare: whether no module is left in the graph.
    """

    calls: list[tuple[Call, Operator]]
    origins: dict[Call, Origin]
    bare: bool


def layers_of(
    runner: Runs, modules: Modules, marks: Marks, feed: Any, runs: int, *, on_gpu: bool, frozen: bool
) -> Layers:
    """Times the operators of a script module in ``runs`` calls of ``runner.infer(feed)``, after one that is looked at.

    Args:
        frozen: whether the module's calls were inlined by freezing.
    """
    looked = looked_at(runner, modules, marks, feed, on_gpu=on_gpu, frozen=frozen)
    clocked, times = taken(runner, feed, runs, lambda run: numbered(chosen(run)), on_gpu=on_gpu)
    found = layers(looked.origins, times, runs)
    return Layers(
        layers=found,
        whole=clocked.whole,
        timed="GPU" if on_gpu else "host",
        clock=GPU_CLOCK if on_gpu else HOST_CLOCK,
        absent=absences(found, bare=looked.bare),
        begun=clocked.begun,
        started=clocked.started,
    )


def twins(
    runner: Runs, modules: Modules, marks: Marks, feed: Any, *, frozen: bool
) -> tuple[list[Twin], dict[str, str]]:
    """What one call launches on a GPU, as the operators that they are, and what is not known of it, and why."""
    looked = looked_at(runner, modules, marks, feed, on_gpu=True, frozen=frozen)
    calls = [(call, operator) for call, operator in looked.calls if any(operator.launched())]
    known = named(looked.origins, [call for call, _ in calls])
    found = twins_of((operator, Whence(known[call][0], known[call][1].modules)) for call, operator in calls)
    untold = (operator for call, operator in calls if not (known[call][1].modules or known[call][1].inserted))
    unknown = sum(1 for operator in untold for _ in operator.launched())
    why = FROZEN if looked.bare else UNKNOWN_KERNELS.format(unknown, len(found))
    return found, {"modules": why} if unknown else {}


def looked_at(runner: Runs, modules: Modules, marks: Marks, feed: Any, *, on_gpu: bool, frozen: bool) -> Looked:
    """Where the operators of one call came from."""
    import torch

    root, seen = look(runner, feed, on_gpu=on_gpu, modules=not frozen and modules.can_be_told)
    steps = steps_of(torch.jit.last_executed_optimized_graph())
    calls = numbered(chosen(root))
    nodes = iter(matched([name for (name, _), _ in calls if not name.startswith(MARK)], steps))
    places = [place for step in steps for place in step.places]
    loops = any(step.name == "prim::Loop" for step in steps)
    bare = frozen and not any(place.told for place in (*places, *marks.places.values()))
    lost = frozenset(plain(place.kind) for place in places) if bare else marks.lost
    origins = {call: origin(operator, seen, nodes, modules, marks.places, lost, loops) for call, operator in calls}
    return Looked(calls, origins, bare)


def chosen(root: Operator) -> list[Operator]:
    """The operators of a run that the interpreter called itself."""
    return outermost(
        root,
        lambda each: each.scope != FUNCTION and ("::" in each.name or each.name.startswith((MARK, "fused_"))),
    )


def origin(
    operator: Operator,
    seen: dict[int, Seen],
    nodes: Iterator[Step | None],
    modules: Modules,
    marked: dict[str, Place],
    lost: frozenset[str],
    loops: bool,
) -> Origin:
    """Where one call of an operator came from.

    Args:
        nodes: those of all calls that are in no mark, in order.
        lost: kinds of which some nodes have lost their module.
        loops: whether the graph has loops.
    """
    place = marked.get(operator.name)
    if place is not None:
        path = path_of(place, modules, lost)
        inner = next((each.number for each in operator.inside if each.name == place.kind), 0)
        known = (place.operator or place.kind,)
        return Origin(place.kind, to(place.kind, path), known, seen.get(inner, Seen()), operator.name)
    step: Step | None = next(nodes)
    kind, shown = operator.name, seen.get(operator.number, Seen())
    places = step.places if step else ()
    paths = [path_of(each, modules, lost) for each in places]
    if shown.hierarchy and len(places) < 2 and not any(each.scope for each in places):
        paths = [modules.of_stack(shown.hierarchy)]
    operators = tuple(dict.fromkeys(each.kind for each in places)) or (kind,)
    found = Origin(kind, to(kind, *paths), operators, shown)
    return replace(found, alike=(kind, found.modules, shown.inputs)) if loops else found


def to(kind: str, *paths: str | None) -> tuple[str, ...]:
    """The modules of an operator: those that are known, each once; none for what TorchScript put there for itself."""
    return () if kind in INSERTED else tuple(dict.fromkeys(path for path in paths if path is not None))


def path_of(place: Place, modules: Modules, lost: frozenset[str]) -> str | None:
    """The module of a node: the model itself where none is named, unless that may have been lost."""
    path = place.path(modules)
    return "" if path is None and not place.told and plain(place.kind) not in lost else path


def layers(origins: dict[Call, Origin], times: dict[Call, Taken], runs: int) -> tuple[Layer, ...]:
    """A layer for each operator; those in a loop are one with all their turns."""
    known = named(origins, times)
    together: dict[str, tuple[Origin, Taken]] = {}
    for call, each in times.items():
        name, origin = known[call]
        if name in together:
            together[name][1].join(each)
        else:
            together[name] = origin, each
    return tuple(layer(name, *each, runs) for name, each in together.items())


def named(origins: dict[Call, Origin], calls: Iterable[Call]) -> dict[Call, tuple[str, Origin]]:
    """Of each call, in the order of execution, its layer's name and where it came from; turns of a loop are alike."""
    count: Counter[str] = Counter()
    alike: dict[Any, tuple[str, Origin]] = {}
    found = {}
    for call in calls:
        known = origins.get(call) or Origin(call[0], operators=(call[0],))
        key = known.alike or call
        if key not in alike:
            name = name_of(known)
            count[name] += 1
            alike[key] = (name if count[name] == 1 else f"{name} #{count[name]}"), known
        found[call] = alike[key]
    return found


def name_of(known: Origin) -> str:
    """The name of a layer: its module and its operator."""
    return "/".join(filter(None, (known.modules[0] if known.modules else "", short(known.kind))))


def short(kind: str) -> str:
    """A kind without its namespace, if it is one of PyTorch's own."""
    return kind.removeprefix("aten::").removeprefix("prim::")


def layer(name: str, known: Origin, times: Taken, runs: int) -> Layer:
    """One operator's layer."""
    details: dict[str, Any] = {"kernels": list(times.kernels)} if times.kernels else {}
    return Layer(
        name=name,
        kind=short(known.kind),
        modules=known.modules,
        operators=known.operators,
        inputs=known.seen.inputs,
        outputs=known.seen.outputs,
        details=details | ({"inserted": INTERNAL} if known.inserted else {}),
        **times.timing(runs),
    )


def absences(layers: tuple[Layer, ...], *, bare: bool) -> dict[str, str]:
    """What is not known of the layers, and why."""
    unknown = sum(not each.modules and "inserted" not in each.details for each in layers)
    untold = sum(not each.outputs for each in layers)
    absent = {"modules": FROZEN if bare else UNKNOWN.format(unknown)} if unknown else {}
    return absent | ({"tensors": UNTOLD.format(untold)} if untold else {})
