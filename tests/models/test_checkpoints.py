"""Weights in the forms in which training leaves them, and exported programs that take more than tensors."""

import argparse
import json

import pytest
import torch
from torch import nn

from inferlens.models.inputs import make_inputs
from inferlens.models.resolve import find
from inferlens.models.weights import fingerprint, load_weights
from tests.models.loading import loaded, small
from tests.refusals import refusal


def with_prefix(prefix, state):
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize(("name", "form", "words"), [
    ("plain.bin", lambda state: state, ""),
    ("tutorial.pth", lambda state: {"model_state_dict": state, "optimizer_state_dict": {"state": {0: state}}},
     "key 'model_state_dict'"),
    ("net.pth", lambda state: {"net": state, "acc": 90.1}, "key 'net'"),
    ("model.pt", lambda state: {"model": state, "epoch": 3}, "key 'model'"),
    ("parallel.pth", lambda state: with_prefix("module.", state), "without the prefix 'module.'"),
    ("compiled.pth", lambda state: with_prefix("_orig_mod.", state), ""),
    ("both.pth", lambda state: with_prefix("module._orig_mod.", state), "without the prefix 'module.'"),
    ("part.pth", lambda state: {name.replace("0.", "0._orig_mod."): one for name, one in state.items()}, ""),
    ("lightning.ckpt", lambda state: {"state_dict": {**with_prefix("model.", state), "loss.weight": torch.ones(2)}},
     "key 'state_dict', without the prefix 'model.'"),
    ("unusual.pt", lambda state: {"step": 1, "backbone": state}, "key 'backbone'"),
])  # fmt: skip
def test_the_usual_checkpoints_are_unwrapped(tmp_path, name, form, words):
    saved, module = small(), small()
    torch.save(form(dict(saved.state_dict())), tmp_path / name)
    assert fingerprint(module) != fingerprint(saved)
    assert load_weights(module, tmp_path / name) == words
    assert fingerprint(module) == fingerprint(saved)


class Tied(nn.Module):
    """An embedding and a head that share their weights."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("name", ["embedding.weight", "head.weight"])
def test_weights_shared_by_two_layers_may_be_in_a_file_once(tmp_path, name):
    tensors = pytest.importorskip("safetensors.torch")
    saved, module = Tied(), Tied()
    tensors.save_file({name: saved.head.weight.detach()}, tmp_path / "net.safetensors")
    load_weights(module, tmp_path / "net.safetensors")
    assert fingerprint(module) == fingerprint(saved)
    assert module.head.weight is module.embedding.weight


def test_an_index_of_weights_loads_the_files_that_it_names(tmp_path):
    tensors = pytest.importorskip("safetensors.torch")
    module, state, index = small(), small().state_dict(), tmp_path / "model.safetensors.index.json"
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(state)}
    for file in {*places.values()}:
        tensors.save_file({name: state[name] for name in places if places[name] == file}, tmp_path / file)
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}), "utf-8")
    load_weights(module, index)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    (tmp_path / "model-1.safetensors").unlink()
    refusal(r"names the weights in model-1\.safetensors, which is missing", load_weights, module, index)


def test_a_checkpoint_that_is_in_doubt_is_one_message(tmp_path):
    path, state = tmp_path / "a.pth", small().state_dict()
    torch.save({"generator": state, "discriminator": state}, path)
    refusal("Several keys have some: generator, discriminator", load_weights, small(), path)
    torch.save({"model": state, "args": argparse.Namespace(lr=0.1)}, path)
    assert refusal(r"argparse\.Namespace, which can run code", load_weights, small(), path).hint.startswith("--trust")
    assert load_weights(small(), path, trust=True) == "key 'model'"


def test_a_module_in_a_checkpoint_is_run_if_its_author_is_trusted(tmp_path):
    path, module = tmp_path / "yolo.pt", small().half()
    torch.save({"model": module, "ema": None}, path)
    refusal("can run code", loaded, path)
    assert loaded(path, trust=True, batch=1).weights == "in yolo.pt ('model')"
    assert load_weights(small(), path, trust=True) == "key 'model'"
    refusal("is a checkpoint with a pickled module", load_weights, small(), path)


def test_weights_given_as_a_model_say_how_they_are_used(tmp_path):
    path = tmp_path / "net.pt"
    torch.save(small().state_dict(), path)
    error = refusal("is a file of weights without a model", find, str(path))
    assert error.hint == f"inferlens bench MODEL --weights {path}"


class Mask(nn.Module):
    def forward(self, x, mask=None, scale=None):
        return x if scale is None else x * scale


class Lists(nn.Module):
    def forward(self, xs, more):
        return {"sum": xs[0] + xs[1], "scaled": more["a"] * more["b"]}


class Named(nn.Module):
    def forward(self, *, x):
        return x + 1


X, Y = torch.randn(4, 8), torch.randn(4, 8)


@pytest.mark.parametrize(("module", "arguments", "named", "inputs"), [
    (Mask(), (X, None, torch.rand(4, 1)), {}, ["x", "scale"]),
    (Lists(), ([X, Y], {"a": X + 1, "b": 2}), {}, ["xs_0", "xs_1", "more_a"]), (Named(), (), {"x": X}, ["x"]),
], ids=["none", "nested", "keyword"])  # fmt: skip
def test_an_exported_program_takes_tensors_and_keeps_constants(tmp_path, module, arguments, named, inputs):
    torch.export.save(torch.export.export(module, arguments, named), tmp_path / "net.pt2")
    model = loaded(tmp_path / "net.pt2", batch=None)
    assert [spec.name for spec in model.inputs] == inputs
    leaves = torch.utils._pytree.tree_leaves
    tensors = [leaf for leaf in leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
    assert all(map(torch.equal, leaves(model.module(*tensors)), leaves(module(*arguments, **named))))
    torch.export.export(model.module, tuple(map(torch.from_numpy, make_inputs(model, 0).values())))  # as backends do
