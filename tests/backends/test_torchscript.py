"""TorchScript beyond the contract, and its layers: operators that are traced to their modules."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from inferlens.backends.availability import ignore_deprecations
from inferlens.backends.base import TOLERANCES
from inferlens.models.inputs import by_position
from tests.backends import small
from tests.backends.profiling.samples import Attention, Fused, Shared, check, model, of, prepared, profiled
from tests.backends.small import unsupported

TRACE, SCRIPT = "torchscript:trace", "torchscript:script"
LABELS = (TRACE, SCRIPT)
OPTIONS = ("", "freeze")


def encoder():
    """Return two layers of a transformer in a list of modules, which is never called itself."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.Sequential(OrderedDict(encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)))


class Turns(nn.Module):
    """A loop whose number of turns is known only at run time, and a branch."""

    def __init__(self):
        super().__init__()
        self.body, self.other = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, image):
        for _ in range(image.size(2) // 8):
            image = self.body(image)
        if image.dim() == 3:
            return torch.relu(self.other(image))
        return torch.tanh(self.other(image))


def layers(label, network, folder, option="", runs=3):
    return profiled(label, network, prepared(folder), runs=runs, options={option: True} if option else {})


def attributed(network, layers):
    """Check that all layers belong to modules of the network."""
    assert {path for layer in layers.layers for path in layer.modules} <= {p for p, _ in network.module.named_modules()}
    assert all(layer.modules and layer.operators for layer in layers.layers)
    assert "modules" not in layers.absent


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("label", LABELS)
def test_shared_and_repeated_modules(label, option, tmp_path):
    network = model(Shared)
    profile = layers(label, network, tmp_path, option)
    attributed(network, profile)
    convolutions = [layer for layer in profile.layers if "convolution" in layer.kind or layer.kind == "conv2d"]
    assert [layer.modules for layer in convolutions] == [("twice",), ("twice",), ("one",), ("other",)]
    assert len({layer.name for layer in profile.layers}) == len(profile.layers)
    assert len(of(profile, "")) == 3  # the sigmoids, though what works in place may have lost where it was
    assert [tensor.shape for layer in convolutions for tensor in layer.outputs] == [(1, 3, 32, 32)] * 4
    assert (convolutions[0].inputs[1].shape, convolutions[0].inputs[0].dtype) == ((3, 3, 3, 3), "float32")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("kind", [Attention, encoder])
def test_transformers_are_attributed(kind, label, option, tmp_path):
    """A linear layer that was taken apart, a sum and an activation of the model's own, modules in a list."""
    network = model(kind, 1, 8, 32) if kind is encoder else model(kind)
    profile = layers(label, network, tmp_path, option)
    attributed(network, profile)
    layered = {"encoder.layers.0", "encoder.layers.1"}
    expected = layered if kind is encoder else {"stem", "block", "linear", "norm", ""}
    assert expected <= {path for layer in profile.layers for path in layer.modules}


@pytest.mark.parametrize("option", OPTIONS)
def test_loops_and_branches(option, tmp_path):
    network = model(Turns, 1, 4, 32)
    profile = layers(SCRIPT, network, tmp_path, option)
    attributed(network, profile)
    computed = [(layer.kind, layer.modules) for layer in profile.layers if layer.kind in ("linear", "relu")]
    assert computed == [("linear", ("body",))] * 4 + [("linear", ("other",)), ("relu", ("",))]
    assert not any(layer.kind == "tanh" for layer in profile.layers)


def test_optimize_for_inference_has_no_layers(tmp_path):
    words = "optimize_for_inference leaves no names"
    unsupported(words, layers, TRACE, model(Fused), tmp_path, "optimize_for_inference")


def test_fused_groups_name_all_their_modules(tmp_path):
    """Use TorchScript's fuser as on a GPU; on the CPU it interprets the fused code."""

    def chain():
        return nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Tanh())

    before = torch._C._jit_can_fuse_on_cpu(), torch._C._jit_get_te_must_use_llvm_cpu()
    torch._C._jit_override_can_fuse_on_cpu(True)
    torch._C._jit_set_te_must_use_llvm_cpu(False)
    try:
        profile = layers(TRACE, model(chain), tmp_path)
    finally:
        torch._C._jit_override_can_fuse_on_cpu(before[0])
        torch._C._jit_set_te_must_use_llvm_cpu(before[1])
    linear, fused = profile.layers
    assert (linear.modules, fused.modules) == (("0",), ("1", "2"))
    assert fused.operators == ("aten::silu", "aten::tanh")


def test_outputs_that_are_flattened_and_more_runs_than_are_profiled_at_once(tmp_path):
    network = small.model(small.TwoInputs)
    layers = profiled(TRACE, network, prepared(tmp_path), runs=23)
    attributed(network, layers)
    assert {"embedding", "linear"} <= {path for layer in layers.layers for path in layer.modules}
    assert list(layers.begun) == sorted(layers.begun)
    check(layers, 23)


@dataclass
class Answer:
    more: torch.Tensor
    double: torch.Tensor


class Returning(nn.Module):
    def forward(self, image):
        return Answer(image + 1, image * 2) if image.sum() != 0 else Answer(image, image)


def test_a_module_that_cannot_be_scripted_is_a_row_with_a_reason(preparation):
    class Lambda(nn.Module):
        def forward(self, image):
            return (lambda *values: values[0])(image, *[])

    runner = small.backend("torchscript").prepare(small.model(Lambda), small.case("torchscript:script"), preparation)
    caught = unsupported(r"TorchScript cannot script 'lambda': .+", runner.__enter__)
    assert (caught.hint, preparation.phases[-1].name) == ("--backend torchscript:trace", "build")


class Subtract(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 6)

    def forward(self, values, tokens):
        return self.linear(values) - tokens


@pytest.mark.parametrize("names", [("values", "tokens"), ("tokens", "values")])
def test_a_model_whose_inputs_have_names_is_traced_and_knows_its_modules(names, tmp_path):
    model = small.model(Subtract)
    specs = {spec.name: spec for spec in small.TWO_INPUTS}
    module = by_position(model.module, names)
    model = dataclasses.replace(model, module=module, inputs=tuple(specs[name] for name in names))
    assert [layer.modules for layer in layers(TRACE, model, tmp_path).layers] == [("linear",), ("",)]
    unsupported("Inputs by name", layers, SCRIPT, model, tmp_path)


def test_outputs_that_a_trace_does_not_know_are_flattened_and_constants_are_kept(preparation):
    model = small.model(Returning)
    inputs = small.arrays(model)
    got = small.run(model, small.case("torchscript:trace"), preparation, inputs)
    assert small.error(got, [inputs["image"] + 1, inputs["image"] * 2]) < TOLERANCES["fp32"]
    assert "Python boolean" in preparation.facts["trace_warnings"][0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_loaded_archive_runs_as_it_is(frozen, precision, tmp_path):
    """A frozen archive has constants, which are not cast, and no modules."""
    model, path, preparation = small.model(format="torchscript"), tmp_path / "model.pt", prepared(tmp_path)
    with ignore_deprecations():
        script = torch.jit.script(model.module)
        torch.jit.save(torch.jit.freeze(script) if frozen else script, path)
        loaded = dataclasses.replace(model, module=torch.jit.load(path), path=path)
    case = small.case(TRACE, precision=precision, options={"freeze": True})
    if frozen and precision == "bf16":
        unsupported("was frozen", small.agrees, loaded, case, preparation, model)
        return
    small.agrees(loaded, case, preparation, model)
    assert preparation.facts["torchscript"].startswith("loaded")
    if frozen:
        profile = profiled(TRACE, loaded, prepared(tmp_path), runs=2)
        assert not any(layer.modules for layer in profile.layers)
        assert "frozen before it was saved" in profile.absent["modules"]


def test_exported_programs_are_not_scripted(preparation):
    exported = small.as_program(small.model())
    unsupported("no source to script", small.backend(SCRIPT).prepare, exported, small.case(SCRIPT), preparation)
