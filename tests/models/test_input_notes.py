"""A file of PyTorch's that was written here knows its inputs; what a stranger wrote into it is read with care."""

import json
import zipfile

import pytest
import torch

from inferlens.models.files import NOTE, input_note
from inferlens.spec.case import TensorSpec
from tests.models.loading import loaded
from tests.refusals import refusal

SPECS = (TensorSpec("tokens 1", (2, 12), "int64", 0, 50), TensorSpec("mask", (2, 12)))


class Masked(torch.nn.Module):
    """Two inputs, called otherwise than in the note."""

    def forward(self, first, second):
        return first * second


def stored(path, extra):
    """The module in a file with these extra ones."""
    if path.suffix == ".pt":
        torch.jit.save(torch.jit.script(Masked().eval()), str(path), _extra_files=extra)
    else:
        feed = (torch.arange(24).reshape(2, 12) % 3, torch.ones(2, 12))
        torch.export.save(torch.export.export(Masked().eval(), feed), path, extra_files=extra)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_names_shapes_types_and_ranges_come_back(suffix, tmp_path):
    model = loaded(stored(tmp_path / f"m{suffix}", input_note(SPECS, "float32")))
    assert model.inputs == SPECS
    assert model.module(torch.ones(2, 12, dtype=torch.int64), torch.ones(2, 12)).shape == (2, 12)


def test_torchscript_runs_at_the_type_it_is_in_and_at_other_shapes_than_noted(tmp_path):
    path = stored(tmp_path / "m.pt", input_note(SPECS, "bfloat16"))
    assert [spec.dtype for spec in loaded(path).inputs] == ["int64", "bfloat16"]
    wide = tuple(TensorSpec(spec.name, (3, 99), spec.dtype) for spec in SPECS)
    for words, shape in (({"batch": 5}, (5, 12)), ({"inputs": wide}, (3, 99))):
        assert [spec.shape for spec in loaded(path, **words).inputs] == [shape, shape]
    (ranges,) = TensorSpec.parse_all(["a=1..4x12:int64:opt=2", "b=1..4x12:float32:opt=2"])
    assert loaded(stored(tmp_path / "m.pt", input_note(ranges, "float32"))).inputs == ranges


@pytest.mark.parametrize("name", ["", "two\nlines", "x[0]", "\x1b[31m"])
def test_names_that_would_be_refused_are_not_noted(name):
    assert input_note((TensorSpec(name, (2, 12)),), "float32") == {}


SPEC = {"name": "a", "shape": [2, 12], "dtype": "float32"}
HOSTILE = {
    "nothing": "", "no JSON": "import os", "a second note": {"inputs": [SPEC]}, "deep": "[" * 100_000,
    "a list": [SPEC, SPEC], "no inputs": {"inputs": []},
    "of a later day": {"inputs": [SPEC], "schema": "inferlens.inputs/9"}, "more": {"inputs": [SPEC], "code": "1"},
    "two of one name": {"inputs": [SPEC, SPEC]},
    "long": {"inputs": [SPEC], "schema": "inferlens.inputs/1" + " " * (1 << 20)},
    "name": {"inputs": [{**SPEC, "name": "\x1b[2J"}]}, "path": {"inputs": [{**SPEC, "name": "__import__('os')"}]},
    "type": {"inputs": [{**SPEC, "dtype": "load"}]}, "shape": {"inputs": [{**SPEC, "shape": [-2, 12]}]},
    "size": {"inputs": [{**SPEC, "shape": ["2", 12]}]}, "large": {"inputs": [{**SPEC, "shape": [1 << 20, 1 << 20]}]},
    "huge": {"inputs": [{**SPEC, "shape": [10**30]}]}, "sizes": {"inputs": [{**SPEC, "least": [1], "most": [4, 12]}]},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_note_that_makes_no_sense_is_one_message(what, tmp_path):
    text = HOSTILE[what] if isinstance(HOSTILE[what], str) else json.dumps(HOSTILE[what])
    path = stored(tmp_path / "m.pt", {NOTE: text})
    if what == "a second note":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"other/extra/{NOTE}", text)
    assert refusal("not valid", loaded, path).hint == "export it again"


def test_a_note_of_other_inputs_than_the_program_has_is_refused(tmp_path):
    for specs in (SPECS[:1], SPECS[::-1], (SPECS[0], TensorSpec("mask", (2, 12, 1)))):
        refusal("do not fit its program", loaded, stored(tmp_path / "m.pt2", input_note(specs, "float32")))
