"""A file that keeps the builder's timings of tactics, so that builds repeat: loaded, used, and merged back.

TensorRT for RTX compiles its kernels when an engine runs and times none here; its cache is the runtime's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inferlens.backends.tensorrt.network import Network
from inferlens.errors import InferlensError
from inferlens.record.files import write_whole


def check_timing_cache(file: str) -> None:
    """Refuses a file that could not be read or written, before any work is done; one that is not there yet is made.

    Raises:
        InferlensError: saying what is in the way.
    """
    if not file:
        return
    path = Path(file)
    at = path if path.exists() else next(folder for folder in path.absolute().parents if folder.exists())
    if at == path and not path.is_file():
        problem = "is a folder" if path.is_dir() else "is no file"
    elif at != path and not at.is_dir():
        problem = f"cannot be made: {at} is no folder"
    elif not os.access(at, os.R_OK | os.W_OK) or not os.access(path.absolute().parent if at == path else at, os.W_OK):
        problem = "cannot be read and written"
    else:
        return
    raise InferlensError(f"The timing_cache {file} {problem}.", expected="a file, there or to be made")


def use_timing_cache(network: Network, config: Any, path: Path) -> Any:
    """Gives ``config`` the timings in ``path`` (none, if there is no such file); what :func:`keep_timing_cache` takes.

    ``None`` for a flavour that times nothing when it builds.

    Raises:
        InferlensError: if the file holds no timings, or those of another GPU or version.
    """
    if network.flavour.jit:
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, False):  # False: of another GPU is an error
        raise InferlensError(
            f"{path} holds no timings of {network.flavour.title} on this GPU.", hint="another file as timing_cache"
        )
    return cache


def keep_timing_cache(config: Any, path: Path) -> None:
    """Writes the timings of a build to ``path``, with those another process put there meanwhile."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    if path.is_file():
        other = config.create_timing_cache(path.read_bytes())
        if other is not None:
            cache.combine(other, False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, bytes(cache.serialize()))
