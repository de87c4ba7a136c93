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
from inferlens.backends.profiling.module_hooks import hooked
from inferlens.backends.profiling.traced_runs import KERNEL, OURS, one_run

SCOPE = f"{OURS}module "
OUTSIDE = "not known for {} of {} kernels, copies and fills, which no module launched."
UNMATCHED = (
    "not known: the call that tells where kernels came from launched {}, a run {}, not the same in the same order."
)


class MatchedKernels(Struct, frozen=True):
    """The kernels of a call that tells, by name and in order, with their origins; and what is not known of them."""

    kernels: list[tuple[str, Origin]]
    absent: dict[str, str] = {}


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


def origins_by_scope(launched: Sequence[Launched]) -> Origins:
    """Of each kernel the innermost module around its launch, which is its layer too.

    Args:
        launched: of one run that was traced with :func:`module_scopes`.
    """
    found = []
    for each in launched:
        paths = [unquote(name.removeprefix(SCOPE)) for name in each.around if name.startswith(SCOPE)]
        found.append(Origin(paths[-1], (paths[-1],)) if paths else Origin())
    outside = sum(not each.modules for each in found)
    return Origins(tuple(found), {"modules": OUTSIDE.format(outside, len(found))} if outside else {})


def eager_kernels(module: Any, call: Callable[..., Any], feed: Sequence[Any]) -> MatchedKernels:
    """The kernels of one eager call, with the modules around them; ``call`` calls ``module``."""
    run = one_run(Called(call), feed, on_gpu=True, scopes=module_scopes(module))
    launched = [event.launched for event in run.events if event.launched.kind == KERNEL]
    found = origins_by_scope(launched)
    return MatchedKernels([(each.name, origin) for each, origin in zip(launched, found.of, strict=True)], found.absent)


def origins_by_match(launched: Sequence[Launched], matched: MatchedKernels) -> Origins:
    """The origin of each kernel by the one that it matches, or why there is none; copies and fills have none.

    What has a name that the other call does not know is the run's alone, as what copies the inputs of a CUDA graph.
    """
    there = [name for name, _ in matched.kernels]
    known = set(there)
    places = [place for place, each in enumerate(launched) if each.kind == KERNEL and each.name in known]
    found = [Origin()] * len(launched)
    if [launched[place].name for place in places] != there or not (there or matched.absent):
        here = sum(each.kind == KERNEL for each in launched)
        return Origins(tuple(found), {"modules": UNMATCHED.format(len(there), here)})
    for place, (_, origin) in zip(places, matched.kernels, strict=True):
        found[place] = origin
    return Origins(tuple(found), matched.absent)
