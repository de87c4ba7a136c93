"""Which module launched a kernel, in eager PyTorch: every module's call is a scope in the trace.

The innermost module around a kernel's launch is where it came from. An addition or ``F.relu`` in a block's forward is
the block's, as among the layers. The hooks are PyTorch's global ones, and are there during the traced runs alone. A
CUDA graph's replay calls no modules: there the same kernels of one eager call tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, unquote

from inferlens.backends.abilities import KernelOrigins, Launched, Origin, Origins
from inferlens.backends.profiling.matched_kernels import KERNEL, Called, Twin, origins_by_twins
from inferlens.backends.profiling.module_hooks import NO_MODULES, hooked

SCOPE = "inferlens module "
OUTSIDE = "{} of {} kernels, copies and fills of a run were launched outside of every module."


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


def origins_of(launched: Sequence[Launched], modules: int) -> Origins:
    """Of each kernel the innermost module around its launch, which is its layer too.

    Args:
        launched: of one run that was traced with :func:`module_scopes`.
        modules: how many the model has, itself included.
    """
    found = tuple(_origin(each) for each in launched)
    absent = {}
    seen = {path for each in found for path in each.modules}
    outside = sum(not each.modules for each in found)
    if outside:
        absent["modules"] = OUTSIDE.format(outside, len(found))
    elif seen == {""} and modules > 1:
        absent["modules"] = NO_MODULES
    return Origins(found, absent)


def origins_by_twin(launched: Sequence[Launched], twin: Sequence[Launched], modules: int) -> Origins:
    """Of each kernel of a replayed graph the module of the same kernel in an eager call, its *twin*.

    A replay launches all kernels at once, and calls no modules. Copies and fills have no module.

    Args:
        launched: of one replay.
        twin: of one eager call that was traced with :func:`module_scopes`.
        modules: how many the model has, itself included.
    """
    called = [each for each in twin if each.kind == KERNEL]
    told = origins_of(called, modules)
    twins = [Twin(each.name, each.kind, origin) for each, origin in zip(called, told.of, strict=True)]
    return origins_by_twins(launched, twins, told.absent)


def twin_of(module: Any, call: Callable[..., Any], feed: Sequence[Any]) -> list[Launched]:
    """What one eager call launches, each with the scopes of the modules around it.

    Args:
        module: whose modules are told.
        call: calls it, with ``feed`` as its arguments.
    """
    from inferlens.backends.profiling.kernel_runs import traced

    with TemporaryDirectory(prefix="inferlens-") as folder:
        _, runs = traced(Called(call), _Scoped(module), feed, 1, Path(folder))
    return [event.launched for event in runs[0].events]


class _Scoped(KernelOrigins):
    """Has modules be scopes while something is traced."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def scopes(self) -> AbstractContextManager[None]:
        """Of every module."""
        return module_scopes(self._module)

    def origins(self, launched: Sequence[Launched]) -> Origins:
        """The innermost module around each launch."""
        return origins_of(launched, sum(1 for _ in self._module.modules()))


def _origin(launched: Launched) -> Origin:
    scopes = [name for name in launched.around if name.startswith(SCOPE)]
    if not scopes:
        return Origin()
    path = unquote(scopes[-1].removeprefix(SCOPE))
    return Origin(path, (path,))
