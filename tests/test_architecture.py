"""The shape of the code: imports go one way, the core is light, nobody asks for a backend's name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import inferlens
from inferlens.backends import BACKENDS
from inferlens.models.model import Format

ROOT = Path(inferlens.__file__).parent
# From the bottom to the top: a room may import from those before it, and from itself.
ROOMS = [
    "errors", "reasons", "units", "limits", "registry", "spec", "record", "stats", "trace", "analysis", "models",
    "backends", "measure", "execution", "views", "cli", "api", "__main__",
]  # fmt: skip
MOST_AT_THE_TOP = 20
MOST_IN_A_FOLDER = 20
FRAMEWORKS = {
    "torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx",
    "torch_tensorrt", "vl_convert", "cloudpickle", "safetensors", "pynvml", "scipy",
}  # fmt: skip
BELOW_VIEWS = ("inferlens.backends", "inferlens.models", "inferlens.measure")
LONG_FUNCTION = 61  # an option of a command takes a line
LONG_FILE = 800


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(tree: ast.AST, top_level_only: bool) -> Iterator[str]:
    """Full names that a module imports; at the top level alone: those that cost when the module is imported."""
    nodes = list(tree.body) if top_level_only and isinstance(tree, ast.Module) else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(name_of(path))
    if room == "__init__":
        return  # the public names, imported when first used
    for name in imports(ast.parse(path.read_text()), top_level_only=False):
        if name.startswith("inferlens."):
            other = room_of(name.removeprefix("inferlens."))
            if other in ROOMS:
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path.name} imports {name}, which is above it"


def test_the_house_has_these_rooms() -> None:
    entries = {path.stem for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert entries - {"__init__", "py"} == set(ROOMS)
    assert len(entries) <= MOST_AT_THE_TOP


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_frameworks_are_imported_late(path: Path) -> None:
    if name_of(path).startswith("models.zoo.") and path.name != "__init__.py":
        return  # a network is a class of PyTorch's; its module is imported when it is built
    names = imports(ast.parse(path.read_text()), top_level_only=True)
    assert not {name for name in names if name.split(".")[0] in FRAMEWORKS}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_functions_and_files_fit_the_eye(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONG_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno
            assert lines <= LONG_FUNCTION, f"{path.name}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_text_is_read_and_written_in_utf8_whatever_the_locale(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            encoded = any(isinstance(value, ast.Constant) and value.value in ("utf-8", "utf-8-sig") for value in values)
            assert encoded or node.func.attr not in ("read_text", "write_text"), f"{path.name}, line {node.lineno}"
            assert not any(keyword.arg == "text" for keyword in node.keywords if node.func.attr in ("run", "Popen"))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every literal that is no docstring."""
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)))
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_nothing_outside_a_backend_holds_its_name() -> None:
    """In no text, be it a tuple, a constant or a message, but for examples in the command line's help.

    Two formats of model files are called like the backends that write them.
    """
    backends = set(BACKENDS.names()) - {"fake"}
    name = re.compile(rf"(?<![\w-])({'|'.join(sorted(backends))})(?!\w)")
    for path in modules():
        room, tree = room_of(name_of(path)), ast.parse(path.read_text())
        if room in ("backends", "cli"):
            continue
        found = {text for _, text in texts(tree) if name.search(text)}
        assert not found - (set(get_args(Format)) if room == "models" else set()), path


def test_folders_have_twenty_entries_at_most() -> None:
    for folder in (ROOT, *(path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__")):
        assert len([path for path in folder.iterdir() if path.name != "__pycache__"]) <= MOST_IN_A_FOLDER, folder


def test_views_see_no_runner_and_backends_see_no_record() -> None:
    for path in modules():
        room = room_of(name_of(path))
        names = set(imports(ast.parse(path.read_text()), top_level_only=False))
        if room == "views":
            assert not any(name.startswith(BELOW_VIEWS) for name in names)
        if room == "backends":
            assert "inferlens.record.record.Record" not in names


def test_there_are_no_import_cycles() -> None:
    graph = {
        name_of(path): {
            name.removeprefix("inferlens.")
            for name in imports(ast.parse(path.read_text()), top_level_only=True)
            if name.startswith("inferlens.")
        }
        for path in modules()
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name in done or name not in graph:
            return
        for other in graph[name]:
            visit(other, (*way, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_no_two_public_classes_have_one_name() -> None:
    seen: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                seen.setdefault(node.name, []).append(path.as_posix())
    assert not {name: places for name, places in seen.items() if len(places) > 1}


def test_public_names_are_what_they_say() -> None:
    for name in inferlens.__all__:
        assert getattr(inferlens, name) is not None
    with pytest.raises(AttributeError):
        _ = inferlens.nothing_of_that_name
    assert set(inferlens.__all__) <= set(dir(inferlens))


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import inferlens, inferlens.cli, sys; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & (FRAMEWORKS | {"numpy", "psutil"})
