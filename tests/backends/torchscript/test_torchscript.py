"""What TorchScript has beyond the contract."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.backends.torchscript.backend import quiet
from inferlens.errors import Unsupported
from inferlens.models.adapter import ByKeyword
from tests.backends import small
from tests.backends.profiling.layered import prepared, profiled

LABELS = ("torchscript:trace", "torchscript:script")


@pytest.mark.parametrize("options", [{"freeze": True}, {"optimize_for_inference": True}, {"channels_last": True}])
@pytest.mark.parametrize("label", LABELS)
def test_options_leave_outputs_right(label: str, options: dict[str, bool], preparation: Preparation) -> None:
    model = small.model()
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    case = small.case(label, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing that a user could do about it may be heard
        with small.backend(label).prepare(model, case, preparation) as runner:
            feed = runner.place(inputs)
            for _ in range(4):  # the profiling executor changes the program after the first calls
                assert small.error(runner.collect(runner.infer(feed)), expected) < TOLERANCES["fp32"]
    assert preparation.facts["torchscript"] in ("traced", "scripted")


class Lambda(nn.Module):
    def forward(self, image: torch.Tensor) -> Any:
        return (lambda *values: values[0])(image, *[])


@dataclass
class Answer:
    more: torch.Tensor
    double: torch.Tensor


class Returning(nn.Module):
    def forward(self, image: torch.Tensor) -> Any:
        return Answer(image + 1, image * 2) if image.sum() != 0 else Answer(image, image)


def test_what_cannot_be_scripted_is_a_row_with_a_reason(preparation: Preparation) -> None:
    runner = small.backend("torchscript").prepare(small.model(Lambda), small.case("torchscript:script"), preparation)
    with pytest.raises(Unsupported, match=r"TorchScript cannot script 'lambda': .+") as caught:
        runner.__enter__()
    assert caught.value.hint == "--backend torchscript:trace"
    assert preparation.phases[-1].name == "build"


class Subtract(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 6)

    def forward(self, values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.linear(values) - tokens


@pytest.mark.parametrize("names", [("values", "tokens"), ("tokens", "values")])
@pytest.mark.parametrize("label", LABELS)
def test_a_model_whose_inputs_have_names_runs_and_knows_its_modules(
    label: str, names: tuple[str, str], tmp_path: Path
) -> None:
    model = small.model(Subtract)
    specs = {spec.name: spec for spec in small.TWO_INPUTS}
    assert model.module is not None
    module = ByKeyword.of(model.module, names)
    model = dataclasses.replace(model, module=module, inputs=tuple(specs[name] for name in names))
    preparation = prepared(tmp_path)
    found = profiled(label, model, preparation, runs=3)
    assert [layer.modules for layer in found.layers] == [("linear",), ("",)]


def test_outputs_that_a_trace_does_not_know_are_flattened_and_constants_are_kept(preparation: Preparation) -> None:
    model = small.model(Returning)
    inputs = small.arrays(model)
    got = small.run(model, small.case("torchscript:trace"), preparation, inputs)
    assert small.error(got, [inputs["image"] + 1, inputs["image"] * 2]) < TOLERANCES["fp32"]
    assert "Python boolean" in preparation.facts["trace_warnings"][0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_loaded_archive_runs_as_it_is(frozen: bool, precision: str, tmp_path: Path, preparation: Preparation) -> None:
    """What was frozen has constants, which are not cast."""
    model = small.model(format="torchscript")
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    with quiet():
        script = torch.jit.script(model.module)
        torch.jit.save(torch.jit.freeze(script) if frozen else script, tmp_path / "model.pt")
        model = dataclasses.replace(model, module=torch.jit.load(tmp_path / "model.pt"), path=tmp_path / "model.pt")
    case = small.case("torchscript:trace", precision=precision, options={"freeze": True})
    if frozen and precision == "bf16":
        with pytest.raises(Unsupported, match="was frozen"):
            small.run(model, case, preparation, inputs)
        return
    assert small.error(small.run(model, case, preparation, inputs), expected) < TOLERANCES[precision]
    assert preparation.facts["torchscript"].startswith("loaded")


def test_exported_programs_are_traced_and_not_scripted(preparation: Preparation) -> None:
    model = small.model(format="exported")
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    program = torch.export.export(model.module, (torch.from_numpy(inputs["image"]),))
    model = dataclasses.replace(model, module=program.module())
    got = small.run(model, small.case("torchscript:trace"), preparation, inputs)
    assert small.error(got, expected) < TOLERANCES["fp32"]
    with pytest.raises(Unsupported, match="no source to script"):
        small.backend("torchscript").prepare(model, small.case("torchscript:script"), preparation)
