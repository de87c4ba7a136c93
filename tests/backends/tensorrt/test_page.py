"""What ``docs/tensorrt.md`` says to do in Python is done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from inferlens.models.engine_header import read_header

PAGE = Path(__file__).parents[3] / "docs" / "tensorrt.md"


def test_the_steps_of_the_page(rtx: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.onnx.export(
        torch.nn.Conv2d(3, 8, 3).eval(), (torch.ones(2, 3, 64, 64),), "model.onnx", input_names=["x"], dynamo=True,
        verbose=False, dynamic_shapes=({0: "batch"},),
    )  # fmt: skip
    (steps,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(steps, str(PAGE), "exec"), {})
    header = read_header(Path("model.engine").read_bytes())
    assert header is not None
    assert header.version == rtx.version
