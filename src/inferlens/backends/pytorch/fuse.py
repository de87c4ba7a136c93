"""Batch norm folded into the convolution before it, in a module that stays as it is otherwise.

Which convolution that is shows in one call of the model, not in a symbolic trace: many models cannot be traced, and
modules would lose their names. A convolution that is called twice, or whose output anything else reads, is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from inferlens.models.inputs import flatten
from inferlens.models.work.torch_module import hooked


def fuse(module: Any, feed: Sequence[Any]) -> int:
    """Folds batch norms of a module in evaluation mode, in place; what is left of each is an ``nn.Identity``.

    Weights are folded in the precision that they have, and ``feed`` is on their device.

    Returns how many were folded.
    """
    import torch
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_weights
    from torch.utils._python_dispatch import TorchDispatchMode

    # These very types: what inherits from them may do more in its forward, as timm's batch norms with an activation.
    kinds = {nn.BatchNorm1d: nn.Conv1d, nn.BatchNorm2d: nn.Conv2d, nn.BatchNorm3d: nn.Conv3d}
    parts = list(module.modules())
    norms = [part for part in parts if type(part) in kinds and not part.training and part.running_mean is not None]
    if not norms:
        return 0
    own = {part for part in parts if part._forward_pre_hooks or part._forward_hooks}
    calls: Counter[Any] = Counter()
    reads: Counter[Any] = Counter()  # of a convolution's output, by any operator
    before: dict[Any, Any] = {}

    class Reading(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
            read(arguments, named)
            return operator(*arguments, **(named or {}))

    def read(*values: Any) -> None:
        reads.update(each.made_by for each in torch.utils._pytree.tree_leaves(values) if hasattr(each, "made_by"))

    def entering(part: Any, arguments: Any) -> None:
        calls[part] += 1
        before[part] = getattr(arguments[0], "made_by", None) if arguments else None

    def leaving(part: Any, _arguments: Any, _named: Any, result: Any = None) -> None:
        if type(part) in kinds.values() and result is not None:
            result.made_by = part

    with torch.no_grad():
        with hooked(entering, leaving), Reading():
            outputs = module(*feed)
        read(list(flatten(outputs)))
        found = {
            norm: first
            for norm in norms
            if norm in before
            and type(first := before[norm]) is kinds[type(norm)]
            and calls[norm] == calls[first] == reads[first] == 1
            and not {norm, first} & own
        }
        for norm, first in found.items():
            first.weight, first.bias = fuse_conv_bn_weights(
                first.weight, first.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
    for part in parts:
        for name, child in list(part._modules.items()):
            if child in found:
                setattr(part, name, nn.Identity())
    return len(found)
