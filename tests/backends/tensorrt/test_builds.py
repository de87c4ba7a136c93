"""Repeated builds, and what they say of how far they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.builds import tactics, write_engine
from inferlens.models import provenance


def test_builds_without_a_gpu_are_compared_by_content(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    report = write_engine(job(), preparation, path, builds=3)
    assert len(report.builds) == 3
    assert all(build.layers is None and build.seconds > 0 for build in report.builds)
    assert len({build.sha256 for build in report.builds}) == 1
    assert report.findings[0].startswith("3 builds are the same, byte for byte; they took ")
    assert "share no timings" in report.findings[1]
    told = provenance.read(path)
    assert told is not None
    assert told.file_sha256 == report.sha256
    assert not (preparation.cache / "tensorrt").exists()


def test_layers_that_differ_are_named(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    chosen = iter(("sm80_a", "sm80_b", "sm80_a"))
    times = iter((0.0010, 0.0011, 0.0010))

    def examine(plan: bytes) -> tuple[list[dict[str, Any]], float]:
        assert plan[:4] == b"vtrt"
        layers = [{"Name": "conv", "TacticName": next(chosen)}, {"Name": "relu", "LayerType": "PointWise"}]
        return layers, next(times)

    report = write_engine(job(), preparation, tmp_path / "model.engine", builds=3, examine=examine)
    (difference,) = report.differences
    assert difference.name == "conv"
    assert difference.tactics == ("sm80_a", "sm80_b", "sm80_a")
    assert "1 of 2 layers differ." in report.findings
    assert "GPU time: 1.00 ms to 1.10 ms, 10 % apart." in report.findings
    assert report.builds[0].layers == 2


def test_a_layer_without_a_tactic_has_its_type() -> None:
    layers = [{"Name": "a", "TacticName": "t"}, {"Name": "b", "TacticValue": "0x1"}, {"LayerType": "NoOp"}]
    assert tactics(layers) == {"a": "t", "b": "0x1", "layer 2": "NoOp"}
