"""Names, files, factories and live modules become models; mistakes become one clear message."""

import copy
import pickle
from types import MethodType

import numpy as np
import pytest
import torch
from torch import nn

from inferlens.models import factories
from inferlens.models.inputs import by_position, draw, flatten, make_inputs
from inferlens.models.resolve import check, find, load, with_layers
from inferlens.spec.case import Case, TensorSpec
from inferlens.spec.plan import Plan
from tests.models.loading import Bomb, loaded
from tests.refusals import refusal


class Tiny(torch.nn.Module):
    """Two convolutions."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))

    def forward(self, image):
        return self.body(image)


def answer(model, seed=0):
    tensors = [torch.from_numpy(array) for array in make_inputs(model, seed).values()]
    with torch.inference_mode():
        return flatten(model.module(*tensors))


@pytest.mark.parametrize(("name", "source"), [
    ("resnet18", "torchvision:"), ("convnext_atto", "timm:"), ("bert-base-uncased", "transformers:"),
    ("resnet34", "torchvision:"), ("inferlens:resnet34", ""), ("fake:demo", ""),
])  # fmt: skip
def test_a_name_has_a_source(name, source):
    model_info = find(name)
    assert (model_info.spec, model_info.argument) == (source + name, name)


@pytest.mark.parametrize(("name", "words"), [
    ("resnet81", "did you mean"), ("torchvision:resnet19", "did you mean resnet1"),
    ("transformers:brt", "did you mean bert"), ("hub:resnet18", "hub:REPO:NAME"), ("missing.onnx", "does not exist"),
    ("transformers:acme/huge-llm", "no checkpoint of that name is on this machine"),
    ("hub:pytorch/vision:resnet18", "nothing is fetched from the network"),
    ("live:net", r"inferlens\.bench\(module, example_inputs\)"),
    ("no_such_package.module:factory", "neither a model of a known source nor an importable factory"),
    ("torchvision:resnet18 DEFAULT", "nothing is fetched from the network"),
    ("torchvision:resnet18 IMAGENET1K_V9", "'IMAGENET1K_V9'"), ("timm:resnet10t DEFAULT", "network"),
    ("transformers:bert main", "network"), ("inferlens:resnet34 DEFAULT", "no weights by name"),
])  # fmt: skip
def test_unknown_names_of_models_and_weights_and_those_of_the_network_are_one_message(name, words):
    name, _, weights = name.partition(" ")
    refusal(words, *((loaded, name) if weights else (find, name)), **({"weights": weights} if weights else {}))


def test_models_by_name_and_their_inputs():
    model = loaded("torchvision:squeezenet1_1", batch=2)
    assert model.inputs == (TensorSpec("x", (2, 3, 224, 224)),)
    assert (model.parameters, model.weights, model.module.training) == (1_235_496, "random, seed 0", False)
    assert answer(model)[0].shape == (2, 1000)
    text = loaded("transformers:electra", batch=2)
    arrays = make_inputs(text, 0)
    assert {name: array.shape for name, array in arrays.items()} == {"input_ids": (2, 128), "attention_mask": (2, 128)}
    assert (arrays["input_ids"].max() > 1000, (arrays["attention_mask"] == 1).all()) == (True, True)
    assert answer(text)[0].shape == (2, 128, 256)
    assert {"", "embeddings", "encoder.layer.0.attention.self"} <= {path for path, _ in text.module.named_modules()}


@pytest.mark.parametrize(("name", "convolutional"), [
    ("resnet18", True), ("vit_b_16", True), ("timm:mixer_b16_224", True), ("transformers:electra", False),
])  # fmt: skip
def test_convolutional_models_are_recognized_without_weights(name, convolutional):
    assert with_layers(check(find(name), Plan(model=(name,)))).convolutional is convolutional


def test_given_inputs_replace_those_of_the_model_and_all_have_the_batch():
    for item in ("input_ids=4x16:int64", "input_ids=1..8x16:int64"):
        model = loaded("transformers:electra", inputs=(TensorSpec.parse(item),), batch=4)
        assert [spec.shape[0] for spec in model.inputs] == [4, 4]
        assert (model.inputs[0].low, model.inputs[0].high) == (0, 30522)  # the range of tokens stays
    image, other = TensorSpec("x", (1, 3, 64, 64)), TensorSpec("image", (1, 3, 64, 64))
    model = loaded("torchvision:squeezenet1_1", inputs=(image,), batch=3)
    assert model.inputs == (TensorSpec("x", (3, 3, 64, 64)),)
    refusal("no input 'image'", loaded, "torchvision:squeezenet1_1", inputs=(other,))


FACTORIES = """
import torch

class Two(torch.nn.Module):
    def forward(self, ids, scale):
        return {"sum": ids.sum() * scale, "rest": [ids, None]}

def two(): return Two(), {"ids": torch.arange(6).reshape(2, 3), "scale": torch.ones(2, 1)}
def image(): return torch.nn.Conv2d(3, 4, 3)
def text(): return torch.nn.Linear(7, 2)
def wrong(): return 3
def net(pretrained=True):
    assert not pretrained
    return torch.nn.Conv2d(3, 4, 3)
"""


def test_a_factory_with_and_without_example_inputs(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    two = loaded("my_models:two")
    assert two.inputs == (TensorSpec("ids", (2, 3), "int64", 0, 6), TensorSpec("scale", (2, 1)))
    assert len(answer(two)) == 2
    assert make_inputs(loaded("my_models:two", batch=3), 0)["ids"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert loaded("my_models:image").inputs[0].shape == (1, 3, 224, 224)
    refused = {"text": "--input", "wrong": "returns a value of type int", "txt": r"did you mean text\?"}
    for name, words in refused.items():
        refusal(words, loaded, f"my_models:{name}")


def test_a_hub_folder(tmp_path):
    (tmp_path / "hubconf.py").write_text(FACTORIES)
    assert loaded(f"hub:{tmp_path}:net", batch=2).inputs[0].shape == (2, 3, 224, 224)
    refusal("no entry point 'nett'", loaded, f"hub:{tmp_path}:nett")


def test_torchscript_and_exported_programs_come_back_equal(tmp_path):
    torch.manual_seed(0)
    specs = (TensorSpec("image", (2, 3, 16, 16)),)
    module, image = Tiny().eval(), torch.from_numpy(draw(specs, 0)["image"])
    torch.jit.trace(module, image).save(str(tmp_path / "m.pt"))  # a script is made from this file as it is by then
    torch.export.save(torch.export.export(module, (image,)), tmp_path / "m.pt2")
    for name, format in (("m.pt", "torchscript"), ("m.pt2", "exported")):
        model = loaded(tmp_path / name, **({"inputs": specs} if name == "m.pt" else {}))
        assert (model.format, model.inputs) == (format, specs)
        assert torch.allclose(answer(model)[0], module(image), atol=1e-6)


@pytest.mark.parametrize("name", ["bomb.pt", "bomb.pth", "legacy.pt", "bomb.onnx", "module.pt"])
def test_no_file_runs_code_without_trust(tmp_path, name):
    mark, path = tmp_path / "mark", tmp_path / name
    torch.save(torch.nn.Conv2d(3, 2, 3) if name == "module.pt" else {"weights": Bomb(mark)}, path)
    if name == "legacy.pt":
        path.write_bytes(pickle.dumps(Bomb(mark)))
    error = refusal("", loaded, path)
    assert (mark.exists(), "\n" in str(error), "--trust" in error.hint) == (False, False, True)  # whatever its name is
    if name == "module.pt":
        assert isinstance(loaded(path, trust=True).module, torch.nn.Conv2d)


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2"])
@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04" + b"\0" * 50, bytes(range(256)) * 40, b"cut"])
def test_broken_and_foreign_files_are_one_message(tmp_path, suffix, data):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(data)
    if data == b"cut":
        torch.jit.trace(Tiny().eval(), torch.ones(1, 3, 8, 8)).save(str(path))
        path.write_bytes(path.read_bytes()[:-10])
    assert "again" in refusal("broken", loaded, path).hint


def test_weights_from_a_file_are_the_ones_used(tmp_path):
    import torchvision

    module = torchvision.models.squeezenet1_1(weights=None).eval()
    torch.save(module.state_dict(), tmp_path / "w.pth")
    model = loaded("torchvision:squeezenet1_1", weights=str(tmp_path / "w.pth"))
    image = torch.from_numpy(make_inputs(model, 0)["x"])
    assert torch.equal(answer(model)[0], module(image))
    assert model.weights == "file w.pth"
    refusal("do not fit the model", loaded, "torchvision:alexnet", weights=str(tmp_path / "w.pth"))
    refusal("--weights", loaded, tmp_path / "w.pth")


@pytest.mark.parametrize("by_name", [False, True])
def test_a_live_module_travels_with_its_example(tmp_path, by_name):
    module, image = Tiny().eval(), torch.randn(2, 3, 9, 9)
    model_info = factories.save(module, {"image": image} if by_name else image, tmp_path / "module")
    assert (model_info.spec, model_info.batch, model_info.format) == ("live:Tiny", 2, "module")
    model = load(Case(model=model_info.spec, backend="x", batch=None), live=tmp_path / "module")
    assert torch.allclose(answer(model)[0], module(image), atol=1e-6)


def test_a_live_script_stays_one_and_odd_arguments_are_refused(tmp_path):
    module, image = Tiny().eval(), torch.randn(2, 3, 9, 9)
    script = factories.save(torch.jit.script(module), (image,), tmp_path / "module")
    model = load(Case(model=script.spec, backend="x", batch=2), live=tmp_path / "module")
    assert script.format == model.format == "torchscript"
    refused = {"cannot be a int": (3, image), "needs example inputs": (module, None), "are a str": (module, "image"),
               "are a list": (module, [image, [1]])}  # fmt: skip
    for words, item in refused.items():
        refusal(words, factories.save, *item, tmp_path / "module")


def test_drawn_inputs_are_never_zeros_and_keep_their_range():
    specs = (
        TensorSpec("f", (4, 5)), TensorSpec("h", (4,), "bfloat16"), TensorSpec("i", (1000,), "int64", 3, 7),
        TensorSpec("b", (100,), "bool"), TensorSpec("u", (1000,), "uint8"), TensorSpec("s", (), "float64"),
    )  # fmt: skip
    arrays = draw(specs, 0)
    assert arrays["f"].dtype == arrays["h"].dtype == np.float32
    assert (np.abs(arrays["f"]).min() > 0, arrays["b"].any(), arrays["u"].max() > 200) == (True, True, True)
    assert (set(arrays["i"].tolist()), arrays["s"].shape) == ({3, 4, 5, 6}, ())
    assert [np.array_equal(draw(specs, seed)["f"], arrays["f"]) for seed in (0, 1)] == [True, False]


# Modules that want their arguments by name, called by position

NAMES = ("left", "right")
FEED = (torch.full((2, 3), 5.0), torch.ones(2, 3))


class Named:
    """Outputs with named fields, like those of Transformers."""

    def __init__(self, *tensors):
        self.tensors = tensors

    def to_tuple(self):
        return (*self.tensors, "no tensor")


class Subtract(nn.Module):
    """Takes its arguments by name alone."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.scale.weight)

    def forward(self, *, right, left):
        return Named(self.scale(left) - right)


def four(outputs):
    return isinstance(outputs, tuple) and torch.equal(outputs[0], torch.full((2, 3), 4.0))


def test_paths_and_the_module_stay_the_same():
    module = Subtract()
    made = by_position(module, NAMES)
    assert [path for path, _ in made.named_modules()] == ["", "scale"]
    assert list(made.state_dict()) == ["scale.weight"]
    assert made.scale is module.scale
    assert str(type(made)) == str(type(module)), "libraries look classes up by this"
    assert four(made(*FEED))
    assert isinstance(module(left=FEED[0], right=FEED[1]), Named)
    with pytest.raises(TypeError):
        module(*FEED)
    copied = copy.deepcopy(made)
    nn.init.zeros_(made.scale.weight)
    assert four(copied(*FEED))
    assert torch.equal(made(*FEED)[0], torch.full((2, 3), -1.0))


def test_tracers_and_compilers_take_it_under_the_same_paths():
    made = by_position(Subtract().eval(), NAMES)
    traced = torch.jit.trace(made, FEED)
    assert four(traced(*FEED))
    program = torch.export.export(made, FEED, strict=False)
    assert four(program.module()(*FEED))
    stacks = [node.meta.get("nn_module_stack") or {} for node in program.graph.nodes]
    assert {path for stack in stacks for path, _ in stack.values()} == {"", "scale"}
    assert four(torch.compile(made, backend="eager")(*FEED))


class Plain(nn.Module):
    def forward(self, left, right):
        return (left - right,)


def test_a_module_that_is_more_than_its_class_is_refused():
    patched = Subtract()
    patched.forward = MethodType(Subtract.forward, patched)
    for module in (patched, torch.fx.symbolic_trace(Plain())):
        refusal("a forward that was replaced", by_position, module, NAMES)
