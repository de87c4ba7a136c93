"""Which flavours there are, and whether they are what they are called."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from inferlens.backends.tensorrt.flavours import find, flavour, is_alias
from inferlens.backends.tensorrt.plugins import load_plugins, registered_plugins
from inferlens.errors import InferlensError, MissingLibrary


def test_tensorrt_for_rtx_is_what_it_says(rtx: Any) -> None:
    assert rtx.title == f"TensorRT for RTX {rtx.module.__version__}"
    assert rtx.strongly_typed_only
    assert rtx.jit
    assert {"8.0", "8.6", "8.9"} <= set(rtx.targets)


def test_a_flavour_that_is_not_here_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    found, absence = find("rtx")
    assert found is None
    assert absence is not None
    assert absence.variant == "rtx"
    with pytest.raises((MissingLibrary, InferlensError)) as raised:
        flavour("rtx")
    assert "tensorrt-rtx" in raised.value.hint
    with pytest.raises(InferlensError, match="no flavour 'lite'"):
        flavour("lite")


def test_rtx_under_the_name_of_tensorrt_is_not_tensorrt(rtx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch-TensorRT for RTX puts it there."""
    alias = ModuleType("tensorrt")
    alias.__file__ = rtx.module.__file__
    alias.__version__ = rtx.version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", alias)
    assert is_alias("tensorrt", alias)
    assert not is_alias("tensorrt_rtx", rtx.module)
    found, absence = find("trt")
    assert found is None or found.module is not alias
    assert (found is None) == (absence is not None)
    assert sys.modules["tensorrt"] is alias


def test_plugins_are_listed_and_loaded_by_path(rtx: Any, tmp_path: Any) -> None:
    assert all(name[-1].isdigit() for name in registered_plugins(rtx))  # each with its version
    load_plugins(rtx, "")
    with pytest.raises(InferlensError, match="does not exist"):
        load_plugins(rtx, str(tmp_path / "none.so"))
    with pytest.raises(InferlensError, match="is no file"):
        load_plugins(rtx, str(tmp_path))
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(InferlensError, match=r"cannot be loaded: .*text\.so") as raised:
        load_plugins(rtx, str(tmp_path / "text.so"))
    assert raised.value.hint.startswith(f"ldd {tmp_path}/text.so")
