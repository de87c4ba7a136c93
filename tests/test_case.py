"""Cases: labels, folders, inputs."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlens.case import Case, TensorSpec, with_batch
from inferlens.store import safe_name

CASE = Case(model="torchvision:resnet18", backend="onnxruntime", variant="cpu")


def test_the_usual_case_has_a_readable_folder() -> None:
    assert CASE.folder == "onnxruntime-cpu-fp32-b1-cpu"
    assert msgspec.structs.replace(CASE, batch=8, threads=2).folder == "onnxruntime-cpu-fp32-b8-cpu-t2"


@pytest.mark.parametrize(
    "change",
    [
        {"variant": "cuda"}, {"precision": "fp16"}, {"batch": 2}, {"batch": None}, {"device": "cuda"}, {"threads": 1},
        {"options": {"a": 1}}, {"options": {"a": 2}}, {"inputs": (TensorSpec("x", (1, 3)),)}, {"weights": "x.pth"},
        {"seed": 1},
    ],
)  # fmt: skip
def test_whatever_differs_gives_another_folder(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(CASE, **change).folder != CASE.folder


@given(st.dictionaries(st.text(max_size=8), st.one_of(st.text(max_size=20), st.integers(), st.booleans()), max_size=3))
def test_a_folder_is_one_safe_name_whatever_the_options(options: dict[str, str | int]) -> None:
    folder = msgspec.structs.replace(CASE, options=options).folder
    assert "/" not in folder
    assert "\x00" not in folder
    assert len(folder) < 140


@given(st.text())
def test_a_models_folder_is_one_safe_name(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert safe not in (".", "..")
    assert "/" not in safe


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x=1x3x224x224:float32", TensorSpec("x", (1, 3, 224, 224))),
        ("x=1x3x224x224", TensorSpec("x", (1, 3, 224, 224))),
        ("ids=2x16:int64:0..30522", TensorSpec("ids", (2, 16), "int64", 0, 30522)),
        ("t=scalar:float16", TensorSpec("t", (), "float16")),
        ("t=-1:int64", None),
    ],
)
def test_inputs_are_written_as_name_shape_type(text: str, spec: TensorSpec | None) -> None:
    if spec is None:
        with pytest.raises(Exception, match="does not describe"):
            TensorSpec.parse(text)
        return
    assert TensorSpec.parse(text) == spec
    assert TensorSpec.parse(str(spec)) == spec


def test_a_batch_goes_into_every_input_that_shares_it() -> None:
    specs = (TensorSpec("ids", (1, 16)), TensorSpec("mask", (1, 16)), TensorSpec("table", (5, 2)), TensorSpec("t", ()))
    assert [spec.shape for spec in with_batch(specs, 4)] == [(4, 16), (4, 16), (5, 2), ()]
    assert with_batch(specs, None) == specs
