"""Exported programs are opened without trust if they are data alone, and never run what their text says."""

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from inferlens.models.files import NOTE, code_in, input_note, is_arithmetic
from inferlens.spec.case import TensorSpec
from tests.models.loading import Bomb, loaded
from tests.refusals import refusal


class Net(torch.nn.Module):
    """Sizes in expressions, named outputs, text arguments: what exported programs have besides numbers."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 4)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.body(x), approximate="tanh")
        pairs = torch.cat([y, y]).reshape(-1, 2)
        return {"pairs": pairs, "rest": [torch.einsum("ij,kj->ik", y, y), y.mean(0)]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path, batch = tmp_path_factory.mktemp("program") / "net.pt2", torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Net().eval(), (torch.ones(4, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


@pytest.fixture
def program(stored, tmp_path):
    """A copy of it to break."""
    return Path(shutil.copy(stored, tmp_path))


def rewritten(path, change, copy="", inputs=None):
    """The file with its program changed; ``copy`` is a second name of the old one, ``inputs`` the sample inputs."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    (model,) = (name for name in parts if name.endswith("models/model.json"))
    for name in parts:
        if inputs and "sample_inputs" in name:
            buffer = io.BytesIO()
            torch.save(inputs, buffer)
            parts[name] = buffer.getvalue()
    if copy:
        parts[model.replace("model.json", copy)] = parts[model]
    program = json.loads(parts[model])
    change(program)
    parts[model] = json.dumps(program).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def test_a_program_with_free_sizes_and_named_outputs_opens_and_answers(stored):
    assert code_in(stored) == ""
    module = loaded(stored).module
    assert module(torch.ones(7, 3))["pairs"].shape == (28, 2)


@pytest.mark.parametrize("where", ["size", "bound", "name", "tree", "guard", "metadata"])
def test_text_that_would_run_as_python_never_does(program, tmp_path, where):
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    hostile = {"as_expr": {"expr_str": code, "hint": None}}

    def change(content):
        graph = content["graph_module"]["graph"]
        tensors = graph["tensor_values"]
        if where == "size":
            tensors[next(iter(tensors))]["sizes"][0] = hostile
        elif where == "bound":
            next(iter(tensors.values()))["strides"][0] = hostile
        elif where == "name":
            graph["nodes"][0]["name"] = f"y; {code}"
        elif where == "tree":
            call = content["graph_module"]["module_call_graph"][0]["signature"]
            context = json.dumps({"__enum__": True, "fqn": "antigravity:x", "name": "y"})
            call["out_spec"] = json.dumps([1, {"type": "builtins.dict", "context": context, "children_spec": []}])
        elif where == "guard":
            content["guards_code"] = [code]
        else:  # a value called like a field that is not looked into
            tensors["metadata"] = {**next(iter(tensors.values())), "sizes": [hostile]}

    path = rewritten(program, change)
    if where == "guard":  # not run at all, so the file can be opened
        assert loaded(path).format == "exported"
    else:
        assert "--trust" in refusal("can run code when it is opened", loaded, path).hint
    assert not mark.exists()


@pytest.mark.parametrize("part", ["twin", "net/data/constants/custom_obj_0", "net/data/aotinductor/model/x.so", "bomb"])
def test_pickled_objects_native_code_and_parts_of_one_name_are_refused(program, tmp_path, part):
    if part in ("twin", "bomb"):
        rewritten(program, lambda content: None, *(["MODEL.json"] if part == "twin" else ["", Bomb(tmp_path / "mark")]))
    else:
        with zipfile.ZipFile(program, "a") as archive:
            archive.writestr(part, b"anything")
    refusal("--trust", loaded, program)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("arithmetic", "texts"), [
    (True, ["2*s77", "Max(1, s0//2) + 1", "Symbol('s17', positive=True, integer=True)", "Eq(s0, 4)", "(s0-1)//2 < 9"]),
    (False, ["open(s0)", "().__class__", "__import__", "[x for x in y]", "Symbol('a.b()')", "s0 +", "", "Max.mro()",
             "(lambda: 1)()", "x := 1", "f'{x}'"]),
])  # fmt: skip
def test_sizes_are_arithmetic_and_nothing_else(arithmetic, texts):
    assert [text for text in texts if bool(is_arithmetic(text)) != arithmetic] == []


# A file that was written here knows its inputs; a note that a stranger wrote is read with care.

SPECS = (TensorSpec("tokens 1", (2, 12), "int64", 0, 50), TensorSpec("mask", (2, 12)))


class Masked(torch.nn.Module):
    """Two inputs, called otherwise than in the note."""

    def forward(self, first, second):
        return first * second


def noted(path, extra):
    """The module in a file with these extra ones."""
    if path.suffix == ".pt":
        torch.jit.save(torch.jit.script(Masked().eval()), str(path), _extra_files=extra)
    else:
        feed = (torch.arange(24).reshape(2, 12) % 3, torch.ones(2, 12))
        torch.export.save(torch.export.export(Masked().eval(), feed), path, extra_files=extra)
    return path


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_names_shapes_types_and_ranges_come_back(suffix, tmp_path):
    model = loaded(noted(tmp_path / f"m{suffix}", input_note(SPECS, "float32")))
    assert model.inputs == SPECS
    assert model.module(torch.ones(2, 12, dtype=torch.int64), torch.ones(2, 12)).shape == (2, 12)


def test_torchscript_runs_at_the_type_it_is_in_and_at_other_shapes_than_noted(tmp_path):
    path = noted(tmp_path / "m.pt", input_note(SPECS, "bfloat16"))
    assert [spec.dtype for spec in loaded(path).inputs] == ["int64", "bfloat16"]
    wide = tuple(TensorSpec(spec.name, (3, 99), spec.dtype) for spec in SPECS)
    for words, shape in (({"batch": 5}, (5, 12)), ({"inputs": wide}, (3, 99))):
        assert [spec.shape for spec in loaded(path, **words).inputs] == [shape, shape]
    (ranges,) = TensorSpec.parse_all(["a=1..4x12:int64:opt=2", "b=1..4x12:float32:opt=2"])
    assert loaded(noted(tmp_path / "m.pt", input_note(ranges, "float32"))).inputs == ranges


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
    path = noted(tmp_path / "m.pt", {NOTE: text})
    if what == "a second note":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"other/extra/{NOTE}", text)
    assert refusal("not valid", loaded, path).hint == "export it again"


def test_a_note_of_other_inputs_than_the_program_has_is_refused(tmp_path):
    for specs in (SPECS[:1], SPECS[::-1], (SPECS[0], TensorSpec("mask", (2, 12, 1)))):
        refusal("do not fit its program", loaded, noted(tmp_path / "m.pt2", input_note(specs, "float32")))
