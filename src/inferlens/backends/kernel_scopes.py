"""Which module launched a kernel, in eager PyTorch: every module's call is a scope in the trace.

The innermost module around a kernel's launch is where it came from. An addition or ``F.relu`` in a block's forward is
the block's, as among the layers. The hooks are PyTorch's global ones, and are there during the traced runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from inferlens.backends.abilities import Launched, Origin, Origins
from inferlens.backends.module_hooks import NO_MODULES, hooked

SCOPE = "inferlens module "
OUTSIDE = "{} of {} kernels, copies and fills of a run were launched outside of every module."


@contextmanager
def module_scopes(module: Any) -> Iterator[None]:
    """Has every call of ``module`` and of the modules in it be a scope of the trace, named by the module's path.

    A module that has several paths goes by its first, as among the layers.
    """
    import torch

    paths = {id(part): path for path, part in module.named_modules()}
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


def _origin(launched: Launched) -> Origin:
    scopes = [name for name in launched.around if name.startswith(SCOPE)]
    if not scopes:
        return Origin()
    path = scopes[-1].removeprefix(SCOPE)
    return Origin(path, (path,))
