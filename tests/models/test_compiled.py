"""Compiled models: a file beside them describes them, and anything wrong with it is one message."""

import json
import re
import zipfile

import msgspec
import onnx
import pytest

from inferlens.errors import Unsupported
from inferlens.models.compiled import new_provenance, provenance_path, read_provenance, write_provenance
from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case, TensorSpec
from tests.models.loading import graph
from tests.refusals import refusal

X = TensorSpec.parse("x=1..16x3x8x8:opt=2")
CASE = Case(
    model="torchvision:resnet18", backend="tensorrt", variant="rtx", precision="fp16", batch=2, device="cuda",
    weights="w.pth", seed=7, inputs=(X,), options={"cuda_graph": True},
)  # fmt: skip
MODEL = Model(
    "torchvision:resnet18", "resnet18", "module", (X,), parameters=12, weights="file w.pth", weights_sha256="a" * 64,
    source="torchvision 1",
)  # fmt: skip


def compiled(folder, name="net.engine", case=CASE, model=MODEL):
    """A file that holds no engine, with a true provenance."""
    path = folder / name
    if path.suffix in (".ts", ".ep"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("net/archive_format", "pt2")
    else:
        path.write_bytes(b"an engine" * 100)
    machine = {"gpu": "NVIDIA H200", "compute_capability": "9.0", "version": "1.4", "targets": ("9.0",)}
    write_provenance(path, new_provenance(path, "TensorRT plan", model, case, **machine))
    return path


def test_a_provenance_is_read_as_it_was_written(tmp_path):
    provenance = read_provenance(compiled(tmp_path))
    assert (provenance.case, provenance.inputs, provenance.model.weights_sha256) == (CASE, (X,), "a" * 64)
    assert (provenance.gpu, provenance.targets) == ("NVIDIA H200", ("9.0",))
    assert json.loads((tmp_path / "net.engine.json").read_text())["schema"] == "inferlens.provenance/1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.engine", "net.engine.json"]


@pytest.mark.parametrize(("name", "format"), [
    ("net.engine", "engine"), ("net.plan", "engine"), ("net.ts", "torch_tensorrt"), ("net.ep", "torch_tensorrt"),
])  # fmt: skip
def test_a_compiled_file_is_opened_for_its_case(tmp_path, name, format):
    model_info = find(str(compiled(tmp_path, name)))
    assert (model_info.name, model_info.format, model_info.batch, model_info.precision) == ("net", format, 2, "fp16")
    assert (model_info.origin, model_info.origin_format) == (CASE, "module")
    case = Case(model=model_info.spec, backend="tensorrt", batch=4)
    if format != "engine":
        assert refusal("can run code when it is opened", load, case).hint.startswith("--trust")
    model = load(case, trust=True)
    assert (model.inputs[0].shape, model.inputs[0].profile) == ((4, 3, 8, 8), X.profile)
    assert (model.weights, model.weights_sha256, model.parameters) == ("file w.pth", "a" * 64, 12)

    def refused(words, **changes):
        return refusal(words, load, msgspec.structs.replace(case, **changes), trust=True)

    assert type(refused("outside of the range", batch=17)) is Unsupported
    error = refused("does not take", inputs=(TensorSpec.parse("x=2x3x8x9"),), batch=None)
    assert error.expected == "x=1..16x3x8x8:float32"
    refused("brings its own weights", weights="other.pth")


def test_an_engine_without_provenance_needs_inputs(tmp_path):
    (tmp_path / "net.engine").write_bytes(b"ftrt" + bytes(100))
    model_info = find(str(tmp_path / "net.engine"))
    assert (model_info.origin, model_info.batch, model_info.precision) == (None, None, "fp32")
    case = Case(model=model_info.spec, backend="tensorrt", batch=None)
    error = refusal("What to feed this model is not known", load, case)
    assert error.hint.startswith("--input x=1x3x224x224:float32, with the shapes")
    model = load(msgspec.structs.replace(case, inputs=(TensorSpec("x", (2, 3)),)))
    assert (model.inputs, len(model.weights_sha256)) == ((TensorSpec("x", (2, 3)),), 64)


def test_an_engine_from_an_onnx_file_has_its_precision(tmp_path):
    halves = graph([onnx.helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 4]}, kind=onnx.TensorProto.FLOAT16)
    onnx.save(halves, tmp_path / "net.onnx")
    case = msgspec.structs.replace(CASE, model=f"onnx:{tmp_path / 'net.onnx'}", weights=None, precision="int8")
    path = compiled(tmp_path, case=case, model=Model(case.model, "net", "onnx", (X,)))
    for precision in ("fp16", "int8"):
        assert (find(str(path)).precision, find(str(path)).origin.precision) == ("int8", precision)
        (tmp_path / "net.onnx").unlink(missing_ok=True)


WHOLE = "does not describe"
TAMPERED = {
    "truncated": (WHOLE, lambda text: text[:100]), "other JSON": (WHOLE, lambda text: '{"name": "vite"}'),
    "deep": (WHOLE, lambda text: text.replace('"options": {', '"options": {"a": ' + "[" * 200_000, 1)),
    "wrong type": (WHOLE, lambda text: text.replace('"batch": 2', '"batch": "two"')),
    "other schema": ("of schema 'a/9'", lambda text: text.replace("inferlens.provenance/1", "a/9")),
    "other hash": ("cut short, or replaced", lambda text: re.sub('"file_sha256": "....', '"file_sha256": "0000', text)),
    "ragged": (WHOLE, lambda text: re.sub(r'"least": \[\s*1,', '"least": [', text)),
    "empty shape": (WHOLE, lambda text: re.sub(r'"shape": \[\s*2,', '"shape": [0,', text)),
    "upside down": (WHOLE, lambda text: re.sub(r'"least": \[\s*1,', '"least": [17,', text)),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_a_provenance_that_was_tampered_with_is_one_message(tmp_path, name):
    path = compiled(tmp_path)
    words, tamper = TAMPERED[name]
    before = provenance_path(path).read_text()
    provenance_path(path).write_text(tamper(before))
    assert tamper(before) != before
    error = refusal(words, find, str(path))
    assert (error.hint, len(error.what) < 400) == ("build it again", True)


@pytest.mark.parametrize("data", [b"", b"an engine" * 99, b"an engineX" * 100])
def test_a_file_that_is_not_the_one_that_was_made_is_refused(tmp_path, data):
    path = compiled(tmp_path)
    path.write_bytes(data)
    refusal("cut short, or replaced", find, str(path))
    refusal("There is no source of models 'nowhere'", load, Case(model="nowhere:net", backend="pytorch"))
