"""Plugins: layers that libraries add to TensorRT. They are loaded by path and listed by name."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from inferlens.backends.availability import first_lines
from inferlens.backends.tensorrt import log
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.options import words
from inferlens.errors import InferlensError, Unsupported

_loaded: set[tuple[str, Path]] = set()  # a library registers its plugins once for the whole process


def load_plugins(flavour: Flavour, libraries: str) -> None:
    """Loads libraries of plugins, paths joined by ``+``, and TensorRT's own plugins; each once for the process.

    Raises:
        InferlensError: if a library does not exist or cannot be loaded.
    """
    _own(flavour)
    for name in words(libraries):
        path = Path(name).resolve()
        if (flavour.key, path) not in _loaded:
            _load(flavour, path)
            _loaded.add((flavour.key, path))


def registered_plugins(flavour: Flavour) -> list[str]:
    """Plugins that are registered, TensorRT's own among them, as ``name 1`` or ``namespace::name 1`` (the version)."""
    _own(flavour)
    registry = flavour.module.get_plugin_registry()
    for attribute in ("all_creators", "plugin_creator_list"):  # the second alone in older versions of TensorRT
        if hasattr(registry, attribute):
            return sorted({_title(creator) for creator in getattr(registry, attribute)})
    return []


def _own(flavour: Flavour) -> None:
    if (flavour.key, Path()) not in _loaded:
        flavour.module.init_libnvinfer_plugins(log.log(flavour), "")
        _loaded.add((flavour.key, Path()))


def _load(flavour: Flavour, path: Path) -> None:
    if not path.is_file():
        raise InferlensError(f"The plugin library {path} does not exist.", expected="a shared library, such as lib.so")
    registry: Any = flavour.module.get_plugin_registry()
    before = len(registered_plugins(flavour))
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # says why it cannot be loaded, which the registry does not
    except OSError as error:
        raise Unsupported(f"The plugin library {path} cannot be loaded: {first_lines(error)}.") from error
    if len(registered_plugins(flavour)) == before and hasattr(registry, "load_library"):
        registry.load_library(str(path))


def _title(creator: Any) -> str:
    space = str(getattr(creator, "plugin_namespace", ""))
    return f"{space}::{creator.name} {creator.plugin_version}" if space else f"{creator.name} {creator.plugin_version}"
