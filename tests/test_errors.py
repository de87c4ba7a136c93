"""What to install: what can be had, from the checkout or for the installed package."""

from pathlib import Path

from inferlens import errors
from inferlens.errors import installing

CHECKOUT = Path(__file__).parents[1]


def test_from_a_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert installing("onnx") == f"pip install -e '{CHECKOUT}[onnx]'"
    monkeypatch.chdir(CHECKOUT)
    assert installing("onnx") == "pip install -e '.[onnx]'"


def test_of_an_installed_package(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "inferlens" / "errors.py"))
    assert installing("onnx") == "pip install 'inferlens[onnx]'"
