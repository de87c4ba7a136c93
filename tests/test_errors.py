"""What to install: what can be had, from the checkout or for the installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferlens import errors
from inferlens.errors import installing

CHECKOUT = Path(__file__).parents[1]


def test_from_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert installing("onnx") == f"pip install -e '{CHECKOUT}[onnx]'"
    monkeypatch.chdir(CHECKOUT)
    assert installing("onnx") == "pip install -e '.[onnx]'"


def test_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "inferlens" / "errors.py"))
    assert installing("onnx") == "pip install 'inferlens[onnx]'"
