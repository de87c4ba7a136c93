"""Names, files, factories and live modules become models; mistakes become one clear message."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from inferlens.errors import InferlensError
from inferlens.models.inputs import draw, flatten, make_inputs
from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.models.sources import own_code
from inferlens.spec.case import Case, TensorSpec
from tests.models.loading import Bomb, loaded


class Tiny(torch.nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.body(image)


def answer(model: Model, seed: int = 0) -> list[torch.Tensor]:
    assert model.module is not None
    tensors = [torch.from_numpy(array) for array in make_inputs(model, seed).values()]
    with torch.inference_mode():
        return flatten(model.module(*tensors))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("resnet18", "torchvision:resnet18"),
        ("torchvision:alexnet", "torchvision:alexnet"),
        ("convnext_atto", "timm:convnext_atto"),
        ("bert", "transformers:bert"),
        ("bert-base-uncased", "transformers:bert-base-uncased"),
        ("resnet34", "torchvision:resnet34"),
        ("inferlens:resnet34", "inferlens:resnet34"),
        ("fake:demo", "fake:demo"),
    ],
)
def test_a_name_is_found_where_it_is_looked_up_first(name: str, spec: str) -> None:
    found = find(name)
    assert (found.spec, found.asked) == (spec, name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet81", "did you mean"),
        ("torchvision:resnet19", "did you mean resnet1"),
        ("transformers:brt", "did you mean bert"),
        ("transformers:acme/huge-llm", "no checkpoint of that name is on this machine"),
        ("inferlens:resnet43", "did you mean resnet34?"),
        ("hub:pytorch/vision:resnet18", "nothing is fetched from the network"),
        ("hub:resnet18", "hub:REPO:NAME"),
        ("live:net", "inferlens.bench(module, example_inputs)"),
        ("no_such_package.module:factory", "neither a model of a known source nor an importable factory"),
        ("missing.onnx", "does not exist"),
        ("missing.pt2", "does not exist"),
    ],
)
def test_a_name_that_means_nothing_is_one_message(name: str, words: str) -> None:
    with pytest.raises(InferlensError) as raised:
        find(name)
    assert words in str(raised.value)


def test_models_by_name_and_their_inputs() -> None:
    model = loaded("torchvision:squeezenet1_1", batch=2)
    assert model.inputs == (TensorSpec("x", (2, 3, 224, 224)),)
    assert (model.parameters, model.weights) == (1_235_496, "random, seed 0")
    assert answer(model)[0].shape == (2, 1000)
    assert not model.module.training  # type: ignore[union-attr]
    text = loaded("transformers:electra", batch=2)
    arrays = make_inputs(text, 0)
    assert {name: array.shape for name, array in arrays.items()} == {
        "input_ids": (2, 128), "attention_mask": (2, 128)
    }  # fmt: skip
    assert arrays["input_ids"].max() > 1000
    assert (arrays["attention_mask"] == 1).all()
    assert answer(text)[0].shape == (2, 128, 256)
    paths = {path for path, _ in text.module.named_modules()}  # type: ignore[union-attr]
    assert {"", "embeddings", "encoder.layer.0.attention.self"} <= paths


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    case = Case(model="timm:resnet10t", backend="x")
    first, again, other = (load(msgspec.structs.replace(case, seed=seed)).weights_sha256 for seed in (0, 0, 1))
    assert first == again != other


def test_inputs_asked_for_replace_the_models_own() -> None:
    model = loaded("torchvision:squeezenet1_1", inputs=(TensorSpec("x", (1, 3, 64, 64)),), batch=3)
    assert model.inputs == (TensorSpec("x", (3, 3, 64, 64)),)
    with pytest.raises(InferlensError, match="no input 'image'"):
        loaded("torchvision:squeezenet1_1", inputs=(TensorSpec("image", (1, 3, 64, 64)),))


@pytest.mark.parametrize(
    ("asked", "batch"), [("input_ids=4x16:int64", 4), ("attention_mask=1x128:int64", 4), ("input_ids=1..8x16:int64", 4)]
)
def test_inputs_not_asked_for_have_the_batch_too(asked: str, batch: int) -> None:
    model = loaded("transformers:electra", inputs=(TensorSpec.parse(asked),), batch=batch)
    assert [spec.shape[0] for spec in model.inputs] == [batch, batch]
    assert (model.inputs[0].low, model.inputs[0].high) == (0, 30522)  # the range of tokens stays


def test_a_factory_with_and_without_example_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "class Two(torch.nn.Module):\n"
        "    def forward(self, ids, scale):\n        return {'sum': ids.sum() * scale, 'rest': [ids, None]}\n"
        "def two():\n    return Two(), {'ids': torch.arange(6).reshape(2, 3), 'scale': torch.ones(2, 1)}\n"
        "def image():\n    return torch.nn.Conv2d(3, 4, 3)\n"
        "def text():\n    return torch.nn.Linear(7, 2)\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    two = loaded("my_models:two")
    assert two.inputs == (TensorSpec("ids", (2, 3), "int64", 0, 6), TensorSpec("scale", (2, 1)))
    assert len(answer(two)) == 2
    assert make_inputs(loaded("my_models:two", batch=3), 0)["ids"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert loaded("my_models:image").inputs[0].shape == (1, 3, 224, 224)
    for name, words in (
        ("text", "--input"),
        ("wrong", "gives a int"),
        ("txt", "did you mean text?"),
        ("zzz", "has no 'zzz'"),
    ):
        with pytest.raises(InferlensError) as raised:
            loaded(f"my_models:{name}")
        assert words in str(raised.value)


def test_a_hub_folder(tmp_path: Path) -> None:
    (tmp_path / "hubconf.py").write_text(
        "import torch\ndef net(pretrained=True):\n    assert not pretrained\n    return torch.nn.Conv2d(3, 4, 3)\n"
    )
    model = loaded(f"hub:{tmp_path}:net", batch=2)
    assert model.inputs[0].shape == (2, 3, 224, 224)
    with pytest.raises(InferlensError, match="has no 'nett'"):
        loaded(f"hub:{tmp_path}:nett")


def test_torchscript_and_exported_programs_come_back_equal(tmp_path: Path) -> None:
    module, image = Tiny().eval(), torch.from_numpy(draw((TensorSpec("image", (2, 3, 16, 16)),), 0)["image"])
    torch.jit.script(module).save(str(tmp_path / "m.pt"))
    torch.export.save(torch.export.export(module, (image,)), tmp_path / "m.pt2")
    specs = (TensorSpec("image", (2, 3, 16, 16)),)
    script, exported = loaded(tmp_path / "m.pt", inputs=specs), loaded(tmp_path / "m.pt2")
    assert (script.format, exported.format) == ("torchscript", "exported")
    for model in (script, exported):
        assert model.inputs == specs
        assert torch.allclose(answer(model)[0], module(image), atol=1e-6)


@pytest.mark.parametrize("name", ["bomb.pt", "bomb.pth", "legacy.pt", "bomb.onnx", "module.pt"])
def test_no_file_runs_code_without_trust(tmp_path: Path, name: str) -> None:
    mark, path = tmp_path / "mark", tmp_path / name
    if name.startswith("module"):
        torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), path)
    elif name.startswith("legacy"):
        path.write_bytes(pickle.dumps(Bomb(mark)))
    else:
        torch.save({"weights": Bomb(mark)}, path)
    with pytest.raises(InferlensError) as raised:
        loaded(path)
    assert not mark.exists()
    assert "\n" not in str(raised.value)
    assert ("--trust" in raised.value.hint) == path.suffix.startswith(".pt")


def test_a_pickled_module_opens_with_trust(tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3)), tmp_path / "m.pt")
    assert loaded(tmp_path / "m.pt", trust=True).inputs[0].shape == (1, 3, 224, 224)


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2"])
@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04" + b"\0" * 50, bytes(range(256)) * 40, b"cut"])
def test_broken_and_foreign_files_are_one_message(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(data)
    if data == b"cut":
        torch.jit.script(Tiny()).save(str(path))
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InferlensError) as raised:
        loaded(path)
    assert "broken" in str(raised.value)
    assert "again" in raised.value.hint


def test_weights_from_a_file_are_the_ones_used(tmp_path: Path) -> None:
    import torchvision

    module = torchvision.models.squeezenet1_1(weights=None).eval()
    torch.save(module.state_dict(), tmp_path / "w.pth")
    model = loaded("torchvision:squeezenet1_1", weights=str(tmp_path / "w.pth"))
    image = torch.from_numpy(make_inputs(model, 0)["x"])
    assert torch.equal(answer(model)[0], module(image))
    assert model.weights == "file w.pth"
    with pytest.raises(InferlensError, match="do not fit the model"):
        loaded("torchvision:alexnet", weights=str(tmp_path / "w.pth"))
    with pytest.raises(InferlensError, match="--weights"):
        loaded(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("name", "weights", "words"),
    [
        ("torchvision:resnet18", "DEFAULT", "nothing is fetched from the network"),
        ("torchvision:resnet18", "IMAGENET1K_V9", "has no weights 'IMAGENET1K_V9'"),
        ("timm:resnet10t", "DEFAULT", "network"),
        ("transformers:bert", "main", "network"),
    ],
)
def test_weights_that_would_need_the_network_are_one_message(name: str, weights: str, words: str) -> None:
    with pytest.raises(InferlensError, match=words):
        loaded(name, weights=weights)


def test_a_live_module_travels_with_its_example(tmp_path: Path) -> None:
    module, image = Tiny().eval(), torch.randn(2, 3, 9, 9)
    found = own_code.save(module, image, tmp_path / "module")
    assert (found.spec, found.batch, found.format) == ("live:Tiny", 2, "module")
    model = load(Case(model=found.spec, backend="x", batch=2), live=tmp_path / "module")
    assert torch.allclose(answer(model)[0], module(image), atol=1e-6)
    by_name = own_code.save(module, {"image": image}, tmp_path / "module")
    again = load(Case(model=by_name.spec, backend="x", batch=None), live=tmp_path / "module")
    assert torch.allclose(answer(again)[0], module(image), atol=1e-6)
    script = own_code.save(torch.jit.script(module), (image,), tmp_path / "module")
    assert script.format == "torchscript"
    assert load(Case(model=script.spec, backend="x", batch=2), live=tmp_path / "module").format == "torchscript"


@pytest.mark.parametrize(
    ("module", "example", "words"),
    [
        (3, torch.zeros(1), "cannot be a int"),
        (Tiny(), None, "needs example inputs"),
        (Tiny(), "image", "are a str"),
        (Tiny(), [torch.zeros(1), [1]], "are a list"),
    ],
)
def test_a_live_module_that_cannot_travel_is_one_message(tmp_path: Path, module: Any, example: Any, words: str) -> None:
    with pytest.raises(InferlensError, match=words):
        own_code.save(module, example, tmp_path / "module")


def test_drawn_inputs_are_never_zeros_and_keep_their_range() -> None:
    specs = (
        TensorSpec("f", (4, 5)), TensorSpec("h", (4,), "bfloat16"), TensorSpec("i", (1000,), "int64", 3, 7),
        TensorSpec("b", (100,), "bool"), TensorSpec("u", (1000,), "uint8"), TensorSpec("s", (), "float64"),
    )  # fmt: skip
    arrays = draw(specs, 0)
    assert arrays["f"].dtype == arrays["h"].dtype == np.float32
    assert np.abs(arrays["f"]).min() > 0
    assert set(arrays["i"].tolist()) == {3, 4, 5, 6}
    assert arrays["b"].any()
    assert arrays["u"].max() > 200
    assert arrays["s"].shape == ()
    assert np.array_equal(draw(specs, 0)["f"], arrays["f"])
    assert not np.array_equal(draw(specs, 1)["f"], arrays["f"])


def test_any_nesting_of_outputs_is_flattened() -> None:
    one = torch.ones(1)
    nested = {"a": [one, (one, None, {"b": 2.0})], "c": "text"}
    assert [float(tensor) for tensor in flatten(nested)] == [1, 1, 2]


def test_a_fake_model_needs_no_framework() -> None:
    script = (
        "import sys; from inferlens.models.resolve import find, load; from inferlens.spec.case import Case\n"
        "load(Case(model=find('fake:demo').spec, backend='fake')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
