"""The shape of the code: imports go one way, the core is light, nobody asks for a backend's name."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
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
    "errors", "units", "limits", "registry", "spec", "record", "stats", "trace", "analysis", "models",
    "backends", "measure", "execution", "views", "cli", "api", "__main__",
]  # fmt: skip
MOST_AT_THE_TOP = 20
MOST_IN_A_FOLDER = 20
FRAMEWORKS = {
    "torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime", "openvino", "tensorrt", "tensorrt_rtx",
    "torch_tensorrt", "vl_convert", "cloudpickle", "safetensors", "pynvml", "scipy",
}  # fmt: skip
BELOW_VIEWS = ("inferlens.backends", "inferlens.models", "inferlens.measure")
BANNED_WORDS = {
    "able", "alone", "apart", "asked", "beside", "each", "forms", "found", "gathered", "judged", "known", "looked",
    "made", "meant", "mine", "of", "raced", "said", "seen", "several", "telling", "theirs", "those", "told", "what",
    "who", "whom", "whose", "worth",
}  # fmt: skip
BANNED_NAMES: dict[str, int] = {
    "analysis": 20, "backends": 28, "cli": 33, "errors": 7, "execution": 90, "limits": 1, "measure": 12, "models": 13,
    "record": 10, "spec": 21, "stats": 7, "trace": 29, "units": 1, "views": 36,
}  # fmt: skip
BANNED_OPENINGS: dict[str, int] = {}
LONG_FUNCTION = 61  # an option of a command takes a line
LONG_FILE = 800


@functools.cache
def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@functools.cache
def imports(tree: ast.AST, top_level_only: bool) -> tuple[str, ...]:
    return tuple(_imports(tree, top_level_only))


def _imports(tree: ast.AST, top_level_only: bool) -> Iterator[str]:
    """Yield full names that a module imports, also through strings; at the top level alone: those that cost time.

    Imports for type checkers do not count.
    """
    nodes = list(tree.body) if top_level_only and isinstance(tree, ast.Module) else list(ast.walk(tree))
    checking = {id(node) for test in nodes if is_type_checking(test) for node in ast.walk(test)}
    for node in (node for node in nodes if id(node) not in checking):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"inferlens(\.\w+)+(:\w+)?", str(node.value)):
            yield str(node.value).partition(":")[0]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def room_of(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_go_one_way(path):
    room = room_of(name_of(path))
    if room == "__init__":
        return  # the public names, imported when first used
    for name in imports(tree_of(path), top_level_only=False):
        if name.startswith("inferlens."):
            other = room_of(name.removeprefix("inferlens."))
            if other in ROOMS:
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path.name} imports {name}, which is above it"


def test_the_house_has_these_rooms():
    entries = {path.stem for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert entries - {"__init__", "py"} == set(ROOMS)
    assert len(entries) <= MOST_AT_THE_TOP


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_frameworks_are_imported_late(path):
    if name_of(path).startswith("models.zoo"):
        return  # a network is a class of PyTorch's; its module is imported when it is built
    names = imports(tree_of(path), top_level_only=True)
    assert not {name for name in names if name.split(".")[0] in FRAMEWORKS}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_functions_and_files_fit_the_eye(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONG_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno
            assert lines <= LONG_FUNCTION, f"{path.name}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_text_is_read_and_written_in_utf8_whatever_the_locale(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            encoded = any(isinstance(value, ast.Constant) and value.value in ("utf-8", "utf-8-sig") for value in values)
            assert encoded or node.func.attr not in ("read_text", "write_text"), f"{path.name}, line {node.lineno}"
            assert not any(keyword.arg == "text" for keyword in node.keywords if node.func.attr in ("run", "Popen"))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(tree_of(path))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every literal that is no docstring."""
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)))
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_nothing_outside_a_backend_holds_its_name():
    """In no text, be it a tuple, a constant or a message, but for examples in the command line's help.

    Two formats of model files are called like the backends that write them.
    """
    backends = set(BACKENDS.names()) - {"fake"}
    name = re.compile(rf"(?<![\w-])({'|'.join(sorted(backends))})(?!\w)")
    for path in modules():
        room, tree = room_of(name_of(path)), tree_of(path)
        if room in ("backends", "cli"):
            continue
        found = {text for _, text in texts(tree) if name.search(text)}
        assert not found - (set(get_args(Format)) if room == "models" else set()), path


def test_folders_have_twenty_entries_at_most():
    for folder in (ROOT, *(path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__")):
        assert len([path for path in folder.iterdir() if path.name != "__pycache__"]) <= MOST_IN_A_FOLDER, folder


def test_views_see_no_runner_and_backends_see_no_record():
    for path in modules():
        room = room_of(name_of(path))
        names = set(imports(tree_of(path), top_level_only=False))
        if room == "views":
            assert not any(name.startswith(BELOW_VIEWS) for name in names)
        if room == "backends":
            assert "inferlens.record.record.Record" not in names


def module_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports, also inside functions and through strings."""
    names = {name_of(path).removesuffix(".__init__") for path in modules()}
    graph: dict[str, set[str]] = {}
    for path in modules():
        module = name_of(path).removesuffix(".__init__")
        for name in imports(tree_of(path), top_level_only=False):
            target = name.removeprefix("inferlens.")
            while target and target not in names:
                target = target.rpartition(".")[0]
            if name.startswith("inferlens.") and target not in ("", module):
                graph.setdefault(module, set()).add(target)
    return graph


def test_there_are_no_import_circles():
    graph, done = module_graph(), set[str]()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in graph.get(name, ()):
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module gives to functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_names_are_plain_english():
    """The count of each room may only shrink: lower it here once it has."""
    counts: Counter[str] = Counter()
    for path in modules():
        names = [*identifiers(tree_of(path)), path.stem]
        parts = (set(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")) for name in names)
        counts[room_of(name_of(path))] += sum(bool(words & BANNED_WORDS) for words in parts)
    assert {room: count for room, count in counts.items() if count > BANNED_NAMES.get(room, 0)} == {}


def test_docstrings_begin_with_a_verb():
    """The count of each room may only shrink: lower it here once it has."""
    counts: Counter[str] = Counter()
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node) or ""
                counts[room_of(name_of(path))] += bool(re.match(r"(What|Whether|How|Of|Those)\b", text))
    assert {room: count for room, count in counts.items() if count > BANNED_OPENINGS.get(room, 0)} == {}


def test_no_two_public_classes_have_one_name():
    seen: dict[str, list[str]] = {}
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                seen.setdefault(node.name, []).append(path.as_posix())
    assert not {name: places for name, places in seen.items() if len(places) > 1}


def test_public_names_are_what_they_say():
    for name in inferlens.__all__:
        assert getattr(inferlens, name) is not None
    with pytest.raises(AttributeError):
        _ = inferlens.nothing_of_that_name
    assert set(inferlens.__all__) <= set(dir(inferlens))


def test_importing_the_package_imports_nothing_heavy():
    script = "import inferlens, inferlens.cli, sys; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & (FRAMEWORKS | {"numpy", "psutil"})
