"""A file of PyTorch's that was written here knows its inputs; what a stranger wrote into it is read with care."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from inferlens.errors import InferlensError
from inferlens.models import input_notes
from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.spec.case import Case, TensorSpec

SPECS = (TensorSpec("tokens 1", (2, 12), "int64", 0, 50), TensorSpec("mask", (2, 12)))
SUFFIXES = (".pt", ".pt2")


class Masked(torch.nn.Module):
    """Two inputs, called otherwise than in the note."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first * second


def stored(path: Path, extra: dict[str, str]) -> Path:
    """The module as a file of the kind that the suffix says."""
    feed = (torch.arange(24).reshape(2, 12) % 3, torch.ones(2, 12))
    if path.suffix == ".pt":
        torch.jit.save(torch.jit.script(Masked().eval()), str(path), _extra_files=extra)
    else:
        torch.export.save(torch.export.export(Masked().eval(), feed), path, extra_files=extra)
    return path


def opened(path: Path, **fields: Any) -> Model:
    return load(Case(model=find(str(path)).spec, backend="pytorch", **{"batch": None, **fields}))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_shapes_types_and_ranges_come_back(suffix: str, tmp_path: Path) -> None:
    model = opened(stored(tmp_path / f"m{suffix}", input_notes.write(SPECS, "float32")))
    assert model.inputs == SPECS
    assert model.module is not None
    assert model.module(torch.ones(2, 12, dtype=torch.int64), torch.ones(2, 12)).shape == (2, 12)


def test_floats_are_of_the_type_that_the_file_is_in(tmp_path: Path) -> None:
    model = opened(stored(tmp_path / "m.pt", input_notes.write(SPECS, "bfloat16")))
    assert [spec.dtype for spec in model.inputs] == ["int64", "bfloat16"]


def test_torchscript_runs_at_other_shapes_than_noted_when_asked_to(tmp_path: Path) -> None:
    path = stored(tmp_path / "m.pt", input_notes.write(SPECS, "float32"))
    assert [spec.shape for spec in opened(path, batch=5).inputs] == [(5, 12), (5, 12)]
    wide = tuple(TensorSpec(spec.name, (3, 99), spec.dtype) for spec in SPECS)
    assert [spec.shape for spec in opened(path, inputs=wide).inputs] == [(3, 99), (3, 99)]


def test_a_range_of_sizes_is_noted_with_torchscript(tmp_path: Path) -> None:
    specs = tuple(
        TensorSpec.parse(f"{name}=1..4x12:{dtype}:opt=2") for name, dtype in (("a", "int64"), ("b", "float32"))
    )
    path = stored(tmp_path / "m.pt", input_notes.write(specs, "float32"))
    assert opened(path).inputs == specs
    with pytest.raises(InferlensError, match="Batch 5 is outside of the range") as raised:
        opened(path, batch=5)
    assert raised.value.expected == "1 to 4"


@pytest.mark.parametrize("name", ["", "two\nlines", "x[0]", "n" * 201, "\x1b[31m"])
def test_names_that_would_be_refused_are_not_noted(name: str, tmp_path: Path) -> None:
    assert input_notes.write((TensorSpec(name, (2, 12)),), "float32") == {}


SPEC = {"name": "a", "shape": [2, 12], "dtype": "float32"}
HOSTILE: dict[str, Any] = {
    "nothing": "",
    "no JSON": "import os",
    "deep": "[" * 100_000,
    "a list": [SPEC, SPEC],
    "no inputs": {"inputs": []},
    "of a later day": {"inputs": [SPEC], "schema": "inferlens.inputs/9"},
    "more": {"inputs": [SPEC], "code": "1"},
    "two of one name": {"inputs": [SPEC, SPEC]},
    "many": {"inputs": [{**SPEC, "name": f"a{index}"} for index in range(1001)]},
    "long": {"inputs": [SPEC], "schema": "inferlens.inputs/1" + " " * (1 << 20)},
    "name": {"inputs": [{**SPEC, "name": "\x1b[2J"}]},
    "path": {"inputs": [{**SPEC, "name": "__import__('os')"}]},
    "type": {"inputs": [{**SPEC, "dtype": "load"}]},
    "shape": {"inputs": [{**SPEC, "shape": [-2, 12]}]},
    "size": {"inputs": [{**SPEC, "shape": ["2", 12]}]},
    "large": {"inputs": [{**SPEC, "shape": [1 << 20, 1 << 20]}]},
    "huge": {"inputs": [{**SPEC, "shape": [10**30]}]},
    "sizes": {"inputs": [{**SPEC, "least": [1], "most": [4, 12]}]},
    "range": {"inputs": [{**SPEC, "dtype": "int64", "low": 5, "high": 5}]},
    "half a range": {"inputs": [{**SPEC, "dtype": "int64", "low": 5}]},
    "wide range": {"inputs": [{**SPEC, "dtype": "int8", "low": 0, "high": 1000}]},
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_note_that_makes_no_sense_is_one_message(suffix: str, what: str, tmp_path: Path) -> None:
    text = HOSTILE[what] if isinstance(HOSTILE[what], str) else json.dumps(HOSTILE[what])
    path = stored(tmp_path / f"m{suffix}", {input_notes.NAME: text})
    with pytest.raises(InferlensError) as raised:
        opened(path)
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 500
    assert raised.value.hint


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_notes_are_refused(suffix: str, tmp_path: Path) -> None:
    path = stored(tmp_path / f"m{suffix}", input_notes.write(SPECS, "float32"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"other/extra/{input_notes.NAME}", "{}")
    with pytest.raises(InferlensError, match="several notes"):
        opened(path)


@pytest.mark.parametrize("specs", [SPECS[:1], SPECS[::-1], (SPECS[0], TensorSpec("mask", (2, 12, 1)))])
def test_a_note_of_other_inputs_than_the_program_has_is_refused(specs: tuple[TensorSpec, ...], tmp_path: Path) -> None:
    path = stored(tmp_path / "m.pt2", input_notes.write(specs, "float32"))
    with pytest.raises(InferlensError, match="is not what its program takes") as raised:
        opened(path)
    assert raised.value.hint == "export it again"
