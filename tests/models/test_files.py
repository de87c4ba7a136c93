"""Model files say what they take; what does not fit them, and what is missing beside them, is one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from inferlens.errors import InferlensError, Unsupported
from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case, TensorSpec


def loaded(name: str, **fields: Any) -> Model:
    found = find(name)
    return load(Case(model=found.spec, backend="pytorch", **{"batch": found.batch, **fields}))


def graph(folder: Path, free: bool = False) -> Path:
    """A convolution with 4*3*3*3 + 4 parameters; batch and height are open if ``free``."""
    path = folder / "net.onnx"
    shapes = ({0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4, max=4096)},) if free else None
    torch.onnx.export(
        torch.nn.Conv2d(3, 4, 3).eval(), (torch.ones(2, 3, 8, 8),), path, dynamo=True, input_names=["x"],
        dynamic_shapes=shapes, verbose=False,
    )  # fmt: skip
    return path


def program(folder: Path) -> Path:
    torch.export.save(
        torch.export.export(torch.nn.Conv2d(3, 4, 3).eval(), (torch.ones(2, 3, 8, 8),)), folder / "net.pt2"
    )
    return folder / "net.pt2"


@pytest.mark.parametrize("make", [graph, program])
@pytest.mark.parametrize("wrong", ["2x3x9x9:float32", "2x3:float32", "2x3x8x8:int64"])
def test_what_a_file_fixes_cannot_be_asked_for_otherwise(tmp_path: Path, make: Any, wrong: str) -> None:
    path = str(make(tmp_path))
    name = loaded(path).inputs[0].name
    with pytest.raises(InferlensError, match="does not take") as raised:
        loaded(path, inputs=(TensorSpec.parse(f"{name}={wrong}"),), batch=None)
    assert f"{name}=2x3x8x8:float32" in str(raised.value)


def test_open_dimensions_are_asked_for_and_then_taken(tmp_path: Path) -> None:
    path = str(graph(tmp_path, free=True))
    assert find(path).batch == 1
    with pytest.raises(InferlensError, match="leaves open") as raised:
        loaded(path)
    assert "--input x=1x3x" in raised.value.hint
    model = loaded(path, inputs=(TensorSpec("x", (1, 3, 10, 8)),), batch=5)
    assert model.inputs == (TensorSpec("x", (5, 3, 10, 8)),)
    with pytest.raises(InferlensError, match="does not take"):
        loaded(path, inputs=(TensorSpec("x", (1, 4, 10, 8)),))


def small_graph(path: Path, **inputs: list[Any] | None) -> str:
    """The positive part of its first input, or of a weight; shapes by input name, ``None`` for one that is not told."""
    weight = onnx.numpy_helper.from_array(np.ones((2, 4), np.float32), "w")
    node = onnx.helper.make_node("Relu", [next(iter(inputs), "w")], ["y"])
    given, made = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in told.items()]
        for told in (inputs, {"y": None})
    )
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", given, made, [weight]),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.save(model, path)
    return str(path)


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4, 5), ()])
def test_a_graph_that_does_not_tell_a_shape_takes_any_that_is_given(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = small_graph(tmp_path / "net.onnx", x=None, more=["N", 8])
    with pytest.raises(InferlensError, match="The input 'x' has a shape that the model leaves open") as raised:
        loaded(path)
    assert "--input x=1x" in raised.value.hint
    model = loaded(path, inputs=(TensorSpec("x", shape),), batch=shape[0] if shape else None)
    assert [spec.shape for spec in model.inputs] == [shape, (shape[0] if shape else 1, 8)]
    with pytest.raises(InferlensError, match="does not take x=3:int64") as raised:
        loaded(path, inputs=(TensorSpec("x", (3,), "int64"),), batch=None)
    assert raised.value.expected == "x=SHAPE:float32"


def test_a_graph_with_a_scalar_takes_a_scalar_alone(tmp_path: Path) -> None:
    path = small_graph(tmp_path / "net.onnx", x=[])
    assert loaded(path).inputs == (TensorSpec("x", ()),)
    with pytest.raises(InferlensError, match="does not take") as raised:
        loaded(path, inputs=(TensorSpec("x", (2, 3)),), batch=None)
    assert raised.value.expected == "x=scalar:float32"


def test_the_input_to_try_has_the_graphs_own_name(tmp_path: Path) -> None:
    path = small_graph(tmp_path / "net.onnx", **{"x0 of x0": ["N", "M"]})
    for asked, words in (((), "leaves open"), ((TensorSpec("other", (1, 2)),), "has no input 'other'")):
        with pytest.raises(InferlensError, match=words) as raised:
            loaded(path, inputs=asked)
        assert raised.value.hint == "--input 'x0 of x0=1x128:float32'"


def test_a_graph_without_inputs_cannot_be_measured(tmp_path: Path) -> None:
    path = small_graph(tmp_path / "net.onnx")
    with pytest.raises(InferlensError, match="takes no inputs, so there is nothing to measure it with"):
        find(path)


@pytest.mark.parametrize("name", ["net.onnx", "net.pt", "net.engine"])
def test_a_folder_is_no_model_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InferlensError, match=rf"{name} is a folder\."):
        find(str(tmp_path / name))


def test_weights_beside_a_graph_count_and_are_looked_for(tmp_path: Path) -> None:
    path, beside = graph(tmp_path), tmp_path / "net.data"
    assert loaded(str(path)).parameters == 4 * 3 * 3 * 3 + 4
    onnx.save_model(
        onnx.load(path),
        path,
        save_as_external_data=True,
        size_threshold=0,
        location=beside.name,
        convert_attribute=False,
    )
    first = loaded(str(path))
    assert first.parameters == 4 * 3 * 3 * 3 + 4
    data = beside.read_bytes()
    beside.write_bytes(data[::-1])
    assert loaded(str(path)).weights_sha256 != first.weights_sha256
    beside.write_bytes(data[:20])
    with pytest.raises(InferlensError, match="is cut short"):
        loaded(str(path))
    beside.unlink()
    with pytest.raises(InferlensError, match="is missing"):
        loaded(str(path))


def test_a_graph_reads_nothing_outside_its_folder(tmp_path: Path) -> None:
    path = graph(tmp_path)
    model = onnx.load(path)
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location="../secret")
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InferlensError, match="wants weights from"):
        loaded(str(path))


def free_program(folder: Path) -> Path:
    """A convolution that takes 1 to 8 images of 8 lines or more."""
    sizes = {0: torch.export.Dim("batch", min=1, max=8), 2: torch.export.Dim("height", min=8)}
    made = torch.export.export(
        torch.nn.Conv2d(3, 4, 3).eval(), (torch.ones(4, 3, 16, 8),), dynamic_shapes=(sizes,), strict=False
    )
    torch.export.save(made, folder / "net.pt2")
    return folder / "net.pt2"


@pytest.mark.parametrize(
    ("asked", "batch", "hint"),
    [
        ("4x3x16x8", 9, "--batch 8, or a file stored for a wider range"),
        ("9x3x5x8", None, "--input input=8x3x8x8:float32, or a file stored for a wider range"),
        ("1..9x3x16x8", 8, "a file stored for a wider range"),
    ],
)
def test_sizes_outside_of_the_range_of_a_program_are_one_message(
    tmp_path: Path, asked: str, batch: int | None, hint: str
) -> None:
    path = str(free_program(tmp_path))
    with pytest.raises(Unsupported, match="is outside of the range that the file was stored for") as raised:
        loaded(path, inputs=(TensorSpec.parse(f"input={asked}"),), batch=batch)
    assert raised.value.expected == "input=1..8x3x8..Nx8"
    assert hint in raised.value.hint


@pytest.mark.parametrize("batch", [1, 8])
def test_the_ends_of_the_range_of_a_program_are_in_it(tmp_path: Path, batch: int) -> None:
    model = loaded(str(free_program(tmp_path)), inputs=(TensorSpec("input", (1, 3, 8, 8)),), batch=batch)
    assert model.module is not None
    assert model.module(torch.ones(model.inputs[0].shape)).shape == (batch, 4, 6, 6)


@pytest.mark.parametrize("weights", ["DEFAULT", "other.pth"])
def test_weights_are_not_put_where_there_are_some(tmp_path: Path, weights: str) -> None:
    for path in (graph(tmp_path), program(tmp_path)):
        with pytest.raises(InferlensError, match="brings its own weights"):
            loaded(str(path), weights=weights)


def test_weights_by_a_name_nobody_knows_are_refused() -> None:
    with pytest.raises(InferlensError, match="no weights by name"):
        loaded("inferlens:resnet34", weights="DEFAULT")


def test_a_live_module_cannot_be_asked_for_by_name() -> None:
    with pytest.raises(InferlensError, match=r"inferlens.bench\(module, example_inputs\)"):
        find("live:net")


def test_plain_torchscript_is_what_it_is_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "net.ts"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)), str(path))
    assert find(str(path)).format == "torchscript"
