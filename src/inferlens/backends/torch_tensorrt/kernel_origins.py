"""Where kernels of a compiled module came from: layers of its engines, or parts of it that PyTorch runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from inferlens.backends.abilities import Launched, Origin, Origins
from inferlens.backends.tensorrt.layers import kernel_origins
from inferlens.record.layer_profile import Layer

SCOPE = "inferlens part "


@contextmanager
def part_scopes(children: Sequence[tuple[str, Any]]) -> Iterator[None]:
    """Has every call of these submodules be a scope of the trace, named by the submodule."""
    import torch

    open_: list[Any] = []

    def entering(name: str) -> None:
        open_.append(torch.profiler.record_function(SCOPE + name))
        open_[-1].__enter__()

    with ExitStack() as hooked:
        for name, child in children:
            hooked.callback(child.register_forward_pre_hook(lambda *_, name=name: entering(name)).remove)
            hooked.callback(child.register_forward_hook(lambda *_: open_.pop().__exit__(None, None, None)).remove)
        yield


def origins_in(
    launched: Sequence[Launched], layers: Sequence[Layer], parts: Sequence[Layer], absent: dict[str, str]
) -> Origins:
    """Where each kernel of one run came from.

    Args:
        layers: of the engines, in the order of execution.
        parts: what PyTorch runs between them, each known by its name in the scopes around a launch.
        absent: what is not known of the layers.
    """
    inside = {SCOPE + part.name: part for part in parts}
    of = [next((inside[name] for name in each.around if name in inside), None) for each in launched]
    elsewhere = [each for each, part in zip(launched, of, strict=True) if part is None]
    told = kernel_origins(elsewhere, layers, absent)
    rest = iter(told.of)
    found = [next(rest) if part is None else Origin(part.name, part.modules) for part in of]
    return Origins(tuple(found), told.absent)
