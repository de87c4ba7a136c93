"""Plugins: layers that libraries add to TensorRT. They are loaded by path and listed by name."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from inferlens.backends.availability import first_lines
from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt import log
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.backends.tensorrt.options import words
from inferlens.errors import InferlensError, Unsupported

_OWN = Path()  # stands for TensorRT's own plugins
# How many plugins a library registered, by flavour and path: it does so once for the whole process.
_loaded: dict[tuple[str, Path], int] = {}


def plugin_files(libraries: str) -> tuple[Path, ...]:
    """The files of libraries of plugins, paths joined by ``+``; nothing is loaded.

    Raises:
        InferlensError: if one is not there, or is no file.
    """
    paths = tuple(Path(name).resolve() for name in words(libraries))
    for path in paths:
        if not path.is_file():
            problem = "is no file" if path.exists() else "does not exist"
            raise InferlensError(f"The plugin library {path} {problem}.", expected="a shared library, such as lib.so")
    return paths


def load_plugins(flavour: Flavour, libraries: str) -> list[Path]:
    """Loads libraries of plugins, paths joined by ``+``, and TensorRT's own plugins; each once for the process.

    Returns those that registered none.

    Raises:
        InferlensError: if a library does not exist or cannot be loaded.
    """
    _own(flavour)
    paths = plugin_files(libraries)
    for path in paths:
        if (flavour.key, path) not in _loaded:
            _loaded[flavour.key, path] = _load(flavour, path)
    return [path for path in paths if not _loaded[flavour.key, path]]


def use_plugins(flavour: Flavour, libraries: str, preparation: Preparation) -> None:
    """The same, with a warning of libraries that registered none."""
    for path in load_plugins(flavour, libraries):
        preparation.warn(
            "no-effect",
            f"The library {path} was loaded and registered no plugin with {flavour.title}.",
            f"Leave it out of the option plugins, or name a library that was built against {flavour.name}.",
        )


def registered_plugins(flavour: Flavour) -> list[str]:
    """Plugins that are registered, TensorRT's own among them, as ``name 1`` or ``namespace::name 1`` (the version)."""
    _own(flavour)
    registry = flavour.module.get_plugin_registry()
    for attribute in ("all_creators", "plugin_creator_list"):  # the second alone in older versions of TensorRT
        if hasattr(registry, attribute):
            return sorted({_title(creator) for creator in getattr(registry, attribute)})
    return []


def _own(flavour: Flavour) -> None:
    if (flavour.key, _OWN) not in _loaded:
        flavour.module.init_libnvinfer_plugins(log.log(flavour), "")
        _loaded[flavour.key, _OWN] = 1


def _load(flavour: Flavour, path: Path) -> int:
    """Loads a library; how many plugins it registered."""
    registry: Any = flavour.module.get_plugin_registry()
    before = len(registered_plugins(flavour))
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # says why it cannot be loaded, which the registry does not
    except OSError as error:
        raise Unsupported(
            f"The plugin library {path} cannot be loaded: {first_lines(error)}.",
            expected="a shared library for this machine, with all that it needs",
            hint=f"ldd {path} says what it lacks; or leave it out of the option plugins",
        ) from error
    if len(registered_plugins(flavour)) == before and hasattr(registry, "load_library"):
        registry.load_library(str(path))
    return len(registered_plugins(flavour)) - before


def _title(creator: Any) -> str:
    space = str(getattr(creator, "plugin_namespace", ""))
    return f"{space}::{creator.name} {creator.plugin_version}" if space else f"{creator.name} {creator.plugin_version}"
