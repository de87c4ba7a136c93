"""PyTorch's process-wide switches, set for a while and put back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_settings(*, threads: int | None, tf32: bool, cudnn_benchmark: bool = False) -> Iterator[None]:
    """Sets CPU threads (``None`` leaves them), TF32 in matrix products and cuDNN alike, and cuDNN's benchmark mode.

    PyTorch's own default is TF32 for convolutions and not for matrix products, so ``tf32=False`` is a change too.
    """
    import torch

    before = torch.get_num_threads(), _tf32(), torch.backends.cudnn.benchmark
    if threads is not None:
        torch.set_num_threads(threads)
    _set_tf32((tf32, tf32))
    torch.backends.cudnn.benchmark = cudnn_benchmark
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _set_tf32(before[1])
        torch.backends.cudnn.benchmark = before[2]


# These two attributes, not the `fp32_precision` ones that came beside them: after the new ones were set, reading the
# old ones raises, and PyTorch's own compiler reads the old ones. Set through the old ones, both kinds can be read.
def _tf32() -> tuple[bool, bool]:
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*TF32", category=UserWarning)
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def _set_tf32(on: tuple[bool, bool]) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*TF32", category=UserWarning)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = on
