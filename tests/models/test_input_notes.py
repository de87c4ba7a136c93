"""A file of PyTorch's that was written here knows its inputs; what a stranger wrote into it is read with care."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inferlens.errors import InferlensError
from inferlens.models.sources.files import NOTE, input_note
from inferlens.spec.case import TensorSpec
from tests.models.loading import loaded

SPECS = (TensorSpec("tokens 1", (2, 12), "int64", 0, 50), TensorSpec("mask", (2, 12)))
SUFFIXES = (".pt", ".pt2")
Stored = Callable[[str, dict[str, str]], Path]


class Masked(torch.nn.Module):
    """Two inputs, called otherwise than in the note."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first * second


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module as a file of either kind, without a note."""
    folder, module = tmp_path_factory.mktemp("files"), Masked().eval()
    torch.jit.save(torch.jit.script(module), str(folder / "m.pt"))
    feed = (torch.arange(24).reshape(2, 12) % 3, torch.ones(2, 12))
    torch.export.save(torch.export.export(module, feed), folder / "m.pt2")
    return folder


@pytest.fixture
def stored(files: Path, tmp_path: Path) -> Stored:
    """Makes a copy with these extra files, as PyTorch writes them."""

    def make(suffix: str, extra: dict[str, str]) -> Path:
        path = Path(shutil.copy(files / f"m{suffix}", tmp_path))
        with zipfile.ZipFile(path, "a") as archive:
            for name, text in extra.items():
                archive.writestr(f"m/extra/{name}", text)
        return path

    return make


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_shapes_types_and_ranges_come_back(suffix: str, tmp_path: Path) -> None:
    note, module, path = input_note(SPECS, "float32"), Masked().eval(), tmp_path / f"m{suffix}"
    if suffix == ".pt":
        torch.jit.save(torch.jit.script(module), str(path), _extra_files=note)
    else:
        feed = (torch.arange(24).reshape(2, 12) % 3, torch.ones(2, 12))
        torch.export.save(torch.export.export(module, feed), path, extra_files=note)
    model = loaded(path)
    assert model.inputs == SPECS
    assert model.module is not None
    assert model.module(torch.ones(2, 12, dtype=torch.int64), torch.ones(2, 12)).shape == (2, 12)


def test_torchscript_runs_at_the_type_it_is_in_and_at_other_shapes_than_noted(stored: Stored) -> None:
    path = stored(".pt", input_note(SPECS, "bfloat16"))
    assert [spec.dtype for spec in loaded(path).inputs] == ["int64", "bfloat16"]
    assert [spec.shape for spec in loaded(path, batch=5).inputs] == [(5, 12), (5, 12)]
    wide = tuple(TensorSpec(spec.name, (3, 99), spec.dtype) for spec in SPECS)
    assert [spec.shape for spec in loaded(path, inputs=wide).inputs] == [(3, 99), (3, 99)]


def test_a_range_of_sizes_is_noted_with_torchscript(stored: Stored) -> None:
    specs = TensorSpec.parse_all(["a=1..4x12:int64:opt=2", "b=1..4x12:float32:opt=2"])
    path = stored(".pt", input_note(specs, "float32"))
    assert loaded(path).inputs == specs
    with pytest.raises(InferlensError, match="Batch 5 is outside of the range"):
        loaded(path, batch=5)


@pytest.mark.parametrize("name", ["", "two\nlines", "x[0]", "n" * 201, "\x1b[31m"])
def test_names_that_would_be_refused_are_not_noted(name: str) -> None:
    assert input_note((TensorSpec(name, (2, 12)),), "float32") == {}


SPEC = {"name": "a", "shape": [2, 12], "dtype": "float32"}
HOSTILE: dict[str, Any] = {
    "nothing": "",
    "no JSON": "import os",
    "a second note": {"inputs": [SPEC]},
    "deep": "[" * 100_000,
    "a list": [SPEC, SPEC],
    "no inputs": {"inputs": []},
    "of a later day": {"inputs": [SPEC], "schema": "inferlens.inputs/9"},
    "more": {"inputs": [SPEC], "code": "1"},
    "two of one name": {"inputs": [SPEC, SPEC]},
    "long": {"inputs": [SPEC], "schema": "inferlens.inputs/1" + " " * (1 << 20)},
    "name": {"inputs": [{**SPEC, "name": "\x1b[2J"}]},
    "path": {"inputs": [{**SPEC, "name": "__import__('os')"}]},
    "type": {"inputs": [{**SPEC, "dtype": "load"}]},
    "shape": {"inputs": [{**SPEC, "shape": [-2, 12]}]},
    "size": {"inputs": [{**SPEC, "shape": ["2", 12]}]},
    "large": {"inputs": [{**SPEC, "shape": [1 << 20, 1 << 20]}]},
    "huge": {"inputs": [{**SPEC, "shape": [10**30]}]},
    "sizes": {"inputs": [{**SPEC, "least": [1], "most": [4, 12]}]},
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_note_that_makes_no_sense_is_one_message(suffix: str, what: str, stored: Stored) -> None:
    text = HOSTILE[what] if isinstance(HOSTILE[what], str) else json.dumps(HOSTILE[what])
    path = stored(suffix, {NOTE: text})
    if what == "a second note":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"other/extra/{NOTE}", text)
    with pytest.raises(InferlensError) as raised:
        loaded(path)
    assert not {"\n", "\x1b"} & set(str(raised.value))
    assert len(str(raised.value)) < 500
    assert raised.value.hint


@pytest.mark.parametrize("specs", [SPECS[:1], SPECS[::-1], (SPECS[0], TensorSpec("mask", (2, 12, 1)))])
def test_a_note_of_other_inputs_than_the_program_has_is_refused(specs: tuple[TensorSpec, ...], stored: Stored) -> None:
    with pytest.raises(InferlensError, match="is not what its program takes"):
        loaded(stored(".pt2", input_note(specs, "float32")))
