"""Which modules and layers the kernels of a run came from.

In eager PyTorch every module's call is made a scope of the trace, and the innermost module around a kernel's launch is
where it came from: an addition or ``F.relu`` in a block's forward is the block's, as among the layers. A replayed CUDA
graph, or compiled code, calls nothing that would tell. There the kernels are held against those of another call that
tells: where it launched kernels of the same names in the same order, they are the same; else nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from inferlens.backends.abilities import Launched, Origin, Origins
from inferlens.backends.profiling.module_hooks import NO_MODULES, hooked
from inferlens.backends.profiling.traced_runs import KERNEL, KINDS, OURS, one_run

SCOPE = f"{OURS}module "
OUTSIDE = "{} of {} kernels, copies and fills of a run were launched outside of every module."
UNMATCHED = (
    "not known: a run launched {} kernels, and the call that tells where they came from {}, not the same in the same "
    "order{}."
)
HINT = "--level layer tells the modules of layers."
FIRST = " (number {} is '{}' there, '{}' here)"


class MatchedKernel(Struct, frozen=True):
    """A kernel, copy or fill of the call that tells, which those of a run are held against."""

    name: str
    kind: str = KERNEL
    origin: Origin = Origin()


class Called:
    """A call as something that runs."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def infer(self, feed: Sequence[Any]) -> Any:
        """One call."""
        return self._call(*feed)

    def synchronize(self) -> None:
        """Waits for the GPU."""
        import torch

        torch.cuda.synchronize()


@contextmanager
def module_scopes(module: Any) -> Iterator[None]:
    """Has every call of ``module`` and of the modules in it be a scope of the trace, named by the module's path.

    A module that has several paths goes by its first, as among the layers. Paths are quoted as in addresses: the
    profiler changes quotes in names, and loses scopes with line breaks or letters beyond ASCII.
    """
    import torch

    paths = {id(part): quote(path) for path, part in module.named_modules()}
    open_: list[tuple[int, Any]] = []

    def entering(part: Any, _: Any) -> None:
        path = paths.get(id(part))
        if path is not None:
            scope = torch.profiler.record_function(SCOPE + path)
            scope.__enter__()
            open_.append((id(part), scope))

    def leaving(part: Any, *_: Any) -> None:
        # Also called where the forward failed; a module whose own entering failed has opened nothing.
        if open_ and open_[-1][0] == id(part):
            open_.pop()[1].__exit__(None, None, None)

    with hooked(entering, leaving):
        yield


def origins_by_scope(launched: Sequence[Launched], modules: int) -> Origins:
    """Of each kernel the innermost module around its launch, which is its layer too.

    Args:
        launched: of one run that was traced with :func:`module_scopes`.
        modules: how many the model has, itself included.
    """
    found = tuple(map(_origin, launched))
    outside = sum(not each.modules for each in found)
    if outside:
        return Origins(found, {"modules": OUTSIDE.format(outside, len(found))})
    only_itself = modules > 1 and {path for each in found for path in each.modules} == {""}
    return Origins(found, {"modules": NO_MODULES} if only_itself else {})


def _origin(launched: Launched) -> Origin:
    scopes = [name for name in launched.around if name.startswith(SCOPE)]
    if not scopes:
        return Origin()
    path = unquote(scopes[-1].removeprefix(SCOPE))
    return Origin(path, (path,))


def eager_kernels(module: Any, call: Callable[..., Any], feed: Sequence[Any]) -> list[Launched]:
    """The kernels of one eager call, each with the scopes of the modules around it; ``call`` calls ``module``."""
    run = one_run(Called(call), feed, on_gpu=True, scopes=module_scopes(module))
    return [event.launched for event in run.events if event.launched.kind == KERNEL]


def origins_by_eager_call(launched: Sequence[Launched], eager: Sequence[Launched], modules: int) -> Origins:
    """Of each kernel of a replayed graph the module of the same kernel in an eager call; copies and fills have none.

    Args:
        launched: of one replay, which launches all kernels at once, and calls no modules.
        eager: as :func:`eager_kernels` tells.
        modules: how many the model has, itself included.
    """
    known = origins_by_scope(eager, modules)
    matched = [MatchedKernel(each.name, each.kind, origin) for each, origin in zip(eager, known.of, strict=True)]
    return origins_by_match(launched, matched, known.absent)


def origins_by_match(
    launched: Sequence[Launched], matched: Sequence[MatchedKernel], absent: dict[str, str], hint: str = ""
) -> Origins:
    """The origin of each kernel by the one that it matches, or why there is none.

    Args:
        absent: what the other call does not tell, and why; alone where it tells nothing.
        hint: what tells more, where they are not the same.
    """
    found = match(launched, matched) if matched or not absent else (Origin(),) * len(launched)
    if found is not None:
        return Origins(found, absent)
    here = [each.name for each in launched if each.kind == KERNEL]
    there = [each.name for each in matched if each.kind == KERNEL]
    unlike = [each for each in enumerate(zip(there, here, strict=False), start=1) if each[1][0] != each[1][1]]
    first = FIRST.format(unlike[0][0], *unlike[0][1]) if unlike else ""
    why = UNMATCHED.format(len(here), len(there), first)
    return Origins((Origin(),) * len(launched), {"modules": f"{why} {hint}".rstrip()})


def match(launched: Sequence[Launched], matched: Sequence[MatchedKernel]) -> tuple[Origin, ...] | None:
    """The origin of each kernel; ``None`` where the two calls did not launch the same in the same order.

    What has a name that the other call does not know is the run's alone, as what copies the inputs of a CUDA graph, and
    of no origin. Copies and fills are held against each other too, unless only kernels are the same.
    """
    for kinds in (tuple(KINDS.values()), (KERNEL,)):
        there = [each for each in matched if each.kind in kinds]
        names = {each.name for each in there}
        places = [place for place, each in enumerate(launched) if each.kind in kinds and each.name in names]
        if places and [launched[place].name for place in places] == [each.name for each in there]:
            found = [Origin()] * len(launched)
            for place, each in zip(places, there, strict=True):
                found[place] = each.origin
            return tuple(found)
    return None
