"""Exported programs are opened without trust if they are data alone, and never run what their text says."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inferlens.errors import InferlensError
from inferlens.models.model import Model
from inferlens.models.resolve import find, load
from inferlens.models.sources.program_check import code_in, is_arithmetic
from inferlens.spec.case import Case


class Net(torch.nn.Module):
    """Sizes in expressions, named outputs, text arguments: what exported programs have besides numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = torch.nn.functional.gelu(self.body(x), approximate="tanh")
        pairs = torch.cat([y, y]).reshape(-1, 2)
        return {"pairs": pairs, "rest": [torch.einsum("ij,kj->ik", y, y), y.mean(0)]}


def opened(path: Path, trust: bool = False) -> Model:
    return load(Case(model=find(str(path)).spec, backend="pytorch", batch=None), trust=trust)


def exported(folder: Path) -> Path:
    path = folder / "net.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Net().eval(), (torch.ones(4, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


def rewritten(path: Path, change: Callable[[dict[str, Any]], None], copy: str = "") -> Path:
    """The file with its program changed; ``copy`` is a second name under which the old program stays."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    (model,) = (name for name in parts if name.endswith("models/model.json"))
    if copy:
        parts[model.replace("model.json", copy)] = parts[model]
    program = json.loads(parts[model])
    change(program)
    parts[model] = json.dumps(program).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def test_a_program_with_free_sizes_and_named_outputs_opens_and_answers(tmp_path: Path) -> None:
    path = exported(tmp_path)
    assert code_in(path) == ""
    module = opened(path).module
    assert module is not None
    assert module(torch.ones(7, 3))["pairs"].shape == (28, 2)


@pytest.mark.parametrize("where", ["size", "bound", "name", "tree", "guard", "metadata"])
def test_text_that_would_run_as_python_never_does(tmp_path: Path, where: str) -> None:
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    hostile = {"as_expr": {"expr_str": code, "hint": None}}

    def change(program: dict[str, Any]) -> None:
        graph = program["graph_module"]["graph"]
        tensors = graph["tensor_values"]
        if where == "size":
            tensors[next(iter(tensors))]["sizes"][0] = hostile
        elif where == "bound":
            next(iter(tensors.values()))["strides"][0] = hostile
        elif where == "name":
            graph["nodes"][0]["name"] = f"y; {code}"
        elif where == "tree":
            call = program["graph_module"]["module_call_graph"][0]["signature"]
            context = json.dumps({"__enum__": True, "fqn": "antigravity:x", "name": "y"})
            call["out_spec"] = json.dumps([1, {"type": "builtins.dict", "context": context, "children_spec": []}])
        elif where == "guard":
            program["guards_code"] = [code]
        else:  # a value called like a field that is not looked into
            tensors["metadata"] = {**next(iter(tensors.values())), "sizes": [hostile]}

    path = rewritten(exported(tmp_path), change)
    if where == "guard":  # not run at all, so the file can be opened
        assert opened(path).format == "exported"
    else:
        with pytest.raises(InferlensError, match="can run code when it is opened") as raised:
            opened(path)
        assert "--trust" in raised.value.hint
    assert not mark.exists()


def test_two_programs_of_one_name_are_refused(tmp_path: Path) -> None:
    path = rewritten(exported(tmp_path), lambda program: None, copy="MODEL.json")
    with pytest.raises(InferlensError, match="two parts of one name"):
        opened(path)


@pytest.mark.parametrize("part", ["net/data/constants/custom_obj_0", "net/data/aotinductor/model/x.so"])
def test_pickled_objects_and_native_code_are_refused(tmp_path: Path, part: str) -> None:
    path = exported(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(part, b"anything")
    with pytest.raises(InferlensError, match="--trust"):
        opened(path)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("2*s77", True), ("Max(1, s0//2) + 1", True), ("Symbol('s17', positive=True, integer=True)", True),
        ("Eq(s0, 4)", True), ("((s0 - 1)//2) < 9", True), ("open(s0)", False), ("().__class__", False),
        ("__import__", False), ("[x for x in y]", False), ("Symbol('a.b()')", False), ("s0 +", False), ("", False),
        ("Max.mro()", False), ("(lambda: 1)()", False), ("x := 1", False), ("f'{x}'", False),
    ],
)  # fmt: skip
def test_sizes_are_arithmetic_and_nothing_else(text: str, fine: bool) -> None:
    assert is_arithmetic(text) is fine
