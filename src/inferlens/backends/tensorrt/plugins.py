"""Plugins: layers that libraries add to TensorRT. They are loaded by path and listed by name."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from inferlens.backends.availability import first_lines
from inferlens.backends.tensorrt.flavours import Flavour, log
from inferlens.backends.tensorrt.options import words
from inferlens.errors import InferlensError, Unsupported

# What was loaded, by flavour and path: once for the whole process. An empty path stands for TensorRT's own plugins.
_loaded: set[tuple[str, Path]] = set()


def plugin_files(libraries: str) -> tuple[Path, ...]:
    """The files of libraries of plugins, paths joined by ``+``; nothing is loaded."""
    paths = tuple(Path(name).resolve() for name in words(libraries))
    for path in paths:
        if not path.is_file():
            problem = "is no file" if path.exists() else "does not exist"
            raise InferlensError(f"The plugin library {path} {problem}.", expected="a shared library, such as lib.so")
    return paths


def load_plugins(flavour: Flavour, libraries: str) -> None:
    """Loads libraries of plugins, paths joined by ``+``, and TensorRT's own plugins; each once for the process."""
    for path in (Path(), *plugin_files(libraries)):
        if (flavour.key, path) not in _loaded:
            if path == Path():
                flavour.module.init_libnvinfer_plugins(log(flavour), "")
            else:
                _load(flavour, path)
            _loaded.add((flavour.key, path))


def registered_plugins(flavour: Flavour) -> list[str]:
    """Plugins that are registered, TensorRT's own among them, as ``name 1`` or ``namespace::name 1`` (the version)."""
    load_plugins(flavour, "")
    return sorted({_title(creator) for creator in flavour.module.get_plugin_registry().all_creators})


def _load(flavour: Flavour, path: Path) -> None:
    before = registered_plugins(flavour)
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # says why it cannot be loaded, which the registry does not
    except OSError as error:
        raise Unsupported(
            f"The plugin library {path} cannot be loaded: {first_lines(error)}.",
            expected="a shared library for this machine, with all that it needs",
            hint=f"ldd {path} says what it lacks; or leave it out of the option plugins",
        ) from error
    if registered_plugins(flavour) == before:  # it registers its plugins when it is asked to
        flavour.module.get_plugin_registry().load_library(str(path))


def _title(creator: Any) -> str:
    space = str(getattr(creator, "plugin_namespace", ""))
    return f"{space}::{creator.name} {creator.plugin_version}" if space else f"{creator.name} {creator.plugin_version}"
