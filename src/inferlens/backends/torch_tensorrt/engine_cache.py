"""The library's cache of engines on disk, in our folder, and counting what it had."""

from __future__ import annotations

from typing import Any

from inferlens.backends.base import Preparation
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.options import Options
from inferlens.backends.torch_tensorrt.settings import engine_folder

MOST = 5 * 2**30  # bytes; the library removes the oldest engines


def counting_cache(options: Options, library: Library, preparation: Preparation) -> Any:
    """A cache for ``custom_engine_cache`` with the attributes ``hits`` and ``misses``; ``None`` if none is wanted."""
    if not options.engine_cache or "cache_built_engines" not in library.settings:
        return None
    from torch_tensorrt.dynamo._engine_cache import DiskEngineCache

    class Counting(DiskEngineCache):  # type: ignore[misc]
        """Counts what is found where it is looked for before a build."""

        hits = 0
        misses = 0

        def save(self, *arguments: Any, **more: Any) -> None:
            """Keeps an engine that was not there."""
            self.misses += 1
            super().save(*arguments, **more)

        def load(self, *arguments: Any, **more: Any) -> Any:
            """The engine, if it is there."""
            blob = super().load(*arguments, **more)
            self.hits += blob is not None
            return blob

    folder = engine_folder(library, preparation)
    folder.mkdir(parents=True, exist_ok=True)
    return Counting(str(folder), MOST)
