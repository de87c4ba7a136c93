"""Plans that cannot run here are refused in one sentence, before TensorRT sees them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.backend import TensorRT
from inferlens.backends.tensorrt.engine import Built, built
from inferlens.backends.tensorrt.engine_check import check_plan
from inferlens.backends.tensorrt.flavours import Flavour
from inferlens.errors import InferlensError, Unsupported
from inferlens.models.engine_header import read_header
from inferlens.record.record import Gpu

H200 = Gpu(name="NVIDIA H200", compute_capability="9.0")
A100 = Gpu(name="NVIDIA A100-SXM4-80GB", compute_capability="8.0")


@pytest.fixture
def made(job: Any, preparation: Preparation) -> Built:
    return built(job(), preparation)


def test_a_whole_plan_passes(made: Built, rtx: Flavour) -> None:
    check_plan(made.path, made.provenance, rtx, None)
    check_plan(made.plan, None, rtx, None)


@pytest.mark.parametrize("size", [0, 3, 20, 63, 1000, -1])
def test_a_truncated_plan(size: int, made: Built, rtx: Flavour, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    path.write_bytes(made.plan[:size])
    with pytest.raises(Unsupported, match=r"is damaged|is no TensorRT engine|is empty") as raised:
        check_plan(path, None, rtx, None)
    assert str(path) in raised.value.what
    assert "build" in raised.value.hint


@pytest.mark.parametrize("content", [b"PK\x03\x04" + b"0" * 500, b"\x08\x0a\x12\x07pytorch" * 50])
def test_a_foreign_file(content: bytes, rtx: Flavour) -> None:
    with pytest.raises(Unsupported, match="is no TensorRT engine"):
        check_plan(content, None, rtx, None, name="model.engine")


def test_a_plan_of_the_other_flavour(made: Built, rtx: Flavour) -> None:
    """As the header of a plan of TensorRT 10.13 begins."""
    other = b"ftrt" + made.plan[4:24] + bytes((10, 13, 0, 35)) + made.plan[28:]
    with pytest.raises(Unsupported, match=r"was built by TensorRT 10\.13\.0\.35; TensorRT for RTX .* cannot") as raised:
        check_plan(other, None, rtx, None, name="model.engine")
    assert raised.value.hint == "--backend tensorrt:trt"


@pytest.mark.parametrize(("version", "fits"), [((1, 6, 1, 121), True), ((1, 5, 0, 9), False), ((2, 0, 0, 1), False)])
def test_a_plan_of_another_version(version: tuple[int, ...], fits: bool, made: Built, rtx: Flavour) -> None:
    here = tuple(int(part) for part in rtx.version.split("."))
    version = (*here[:3], version[3]) if fits else version
    other = made.plan[:24] + bytes(version) + made.plan[28:]
    if fits:
        check_plan(other, None, rtx, None)
        return
    with pytest.raises(Unsupported, match=r"was built by TensorRT for RTX \d\.\d\.0\.\d; .* cannot run it"):
        check_plan(other, None, rtx, None)


def test_a_plan_that_is_not_what_its_provenance_tells_of(
    made: Built, job: Any, rtx: Flavour, preparation: Preparation
) -> None:
    """Nothing but a hash tells; it is taken where the provenance is read."""
    made.path.write_bytes(made.plan[:-1] + b"\x07")
    check_plan(made.path, None, rtx, None)
    model = dataclasses.replace(job().model, format="engine", path=made.path)
    with pytest.raises(InferlensError, match=r"not the file that .* tells of"):
        TensorRT().prepare(model, job().case, preparation)


class Runtime:
    """A runtime that finds every plan invalid, for the causes it is told."""

    causes = 0

    def __init__(self, log: Any) -> None: ...

    def get_engine_validity(self, header: bytes) -> tuple[Any, int]:
        assert len(header) == 64
        return "invalid", self.causes


def test_the_runtime_has_the_last_word(made: Built, rtx: Flavour, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU it cannot tell, and is not asked."""
    with pytest.raises(Unsupported, match=r"cannot run here, on NVIDIA H200 with .*Error reading CUDA GPU properties"):
        check_plan(made.path, made.provenance, rtx, H200)
    monkeypatch.setattr(rtx.module, "Runtime", Runtime)
    monkeypatch.setattr(rtx.module.EngineValidity, "INVALID", "invalid")
    known = rtx.module.EngineInvalidityDiagnostics
    monkeypatch.setattr(Runtime, "causes", int(known.UNSUPPORTED_CC))
    check_plan(made.path, made.provenance, rtx, H200)
    monkeypatch.setattr(Runtime, "causes", int(known.UNSUPPORTED_CC) | int(known.OLD_CUDA_DRIVER))
    with pytest.raises(Unsupported, match=r"on NVIDIA H200 with .*: unsupported cc, old cuda driver"):
        check_plan(made.path, made.provenance, rtx, H200)


@pytest.mark.parametrize(
    ("level", "gpu", "fits"),
    [
        ("none", A100, True),
        ("none", Gpu(name="NVIDIA A100-PCIE-40GB", compute_capability="8.0"), False),
        ("same_compute_capability", Gpu(name="NVIDIA A100-PCIE-40GB", compute_capability="8.0"), True),
        ("same_compute_capability", H200, False),
        ("ampere_plus", H200, True),
        ("ampere_plus", Gpu(name="Tesla T4", compute_capability="7.5"), False),
    ],
)
def test_engines_of_tensorrt_belong_to_a_gpu(level: str, gpu: Gpu, fits: bool, made: Built) -> None:
    """TensorRT itself cannot be had here: a stand-in, of which only the name and version are asked."""
    trt = Flavour("trt", "tensorrt", "TensorRT", "10.13.0.35", module=type("Module", (), {"Runtime": object}))
    plan = b"ftrt" + made.plan[4:24] + bytes((10, 13, 0, 35)) + made.plan[28:]
    told = msgspec.structs.replace(
        made.provenance, flavour=trt.name, version=trt.version, gpu=A100.name, compute_capability="8.0",
        options={"hardware_compatible": level},
    )  # fmt: skip
    if fits:
        check_plan(plan, told, trt, gpu)
        return
    with pytest.raises(Unsupported, match=r"was built on NVIDIA A100-SXM4-80GB .* here is"):
        check_plan(plan, told, trt, gpu)


def test_the_gpu_in_a_description_makes_no_line_of_ours(made: Built) -> None:
    trt = Flavour("trt", "tensorrt", "TensorRT", "10.13.0.35", module=type("Module", (), {"Runtime": object}))
    plan = b"ftrt" + made.plan[4:24] + bytes((10, 13, 0, 35)) + made.plan[28:]
    told = msgspec.structs.replace(
        made.provenance, flavour=trt.name, version=trt.version, gpu="a GPU\nError: fake", compute_capability="8.0"
    )
    with pytest.raises(Unsupported, match=r"was built on a GPU Error: fake \(compute capability 8\.0\)") as raised:
        check_plan(plan, told, trt, A100)
    assert "\n" not in str(raised.value)


def test_version_compatible_engines_run_on_later_versions(made: Built) -> None:
    later = Flavour("trt", "tensorrt", "TensorRT", "10.14.1.48", module=None)
    earlier = Flavour("trt", "tensorrt", "TensorRT", "10.9.0.34", module=None)
    plan = b"ftrt" + made.plan[4:24] + bytes((10, 13, 0, 35)) + made.plan[28:]
    told = msgspec.structs.replace(made.provenance, version="10.13.0.35", options={"version_compatible": True})
    check_plan(plan, told, later, None)
    for flavour, provenance in ((earlier, told), (later, None)):
        with pytest.raises(Unsupported, match="cannot run it"):
            check_plan(plan, provenance, flavour, None)


def test_headers() -> None:
    assert read_header(b"") is None
    assert read_header(b"PK\x03\x04" * 16) is None
    old = read_header(b"ptrt" + bytes(60))
    assert old is not None
    assert (old.variant, old.version, old.size) == ("trt", "", None)
