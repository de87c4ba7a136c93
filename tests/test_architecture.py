"""The shape of the code: imports go one way, the core is light, nobody asks for a backend's name."""

from __future__ import annotations

import ast
import functools
import gc
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
    "analysis": 15, "backends": 14, "cli": 20, "errors": 7, "execution": 65, "limits": 1, "measure": 9, "models": 9,
    "record": 7, "spec": 14, "stats": 7, "trace": 24, "units": 1, "views": 20,
}  # fmt: skip
BANNED_OPENINGS: dict[str, int] = {}
LONG_FUNCTION = 61  # an option of a command takes a line
LONG_FILE = 800
MODULE = re.compile(r"inferlens(\.\w+)+(:\w+)?")


@pytest.fixture(scope="module", autouse=True)
def no_collection() -> Iterator[None]:
    """To look for garbage among the nodes of all modules takes longer than to parse them."""
    gc.disable()
    yield
    gc.enable()


@functools.cache
def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@functools.cache
def imports(path: Path, top_level_only: bool = False) -> tuple[str, ...]:
    """Return full names that a module imports, also through strings; at the top level alone: those that cost time.

    Imports for type checkers do not count.
    """
    nodes = tree_of(path).body if top_level_only else nodes_of(path)
    checking = {id(node) for test in nodes if is_type_checking(test) for node in ast.walk(test)}
    names: list[str] = []
    for node in (node for node in nodes if id(node) not in checking):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE.fullmatch(node.value):
            names.append(node.value.partition(":")[0])
    return tuple(names)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room_of(name: str) -> str:
    return name.split(".")[0]


def test_imports_go_one_way():
    inside = [path for path in modules() if name_of(path) != "__init__"]  # the public names, imported when first used
    for path in inside:
        room = room_of(name_of(path))
        for name in imports(path):
            target = room_of(name.removeprefix("inferlens."))
            if name.startswith("inferlens.") and target in ROOMS:
                assert ROOMS.index(target) <= ROOMS.index(room), f"{path.name} imports {name}, which is above it"


def test_the_house_has_these_rooms():
    entries = {path.stem for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert entries - {"__init__", "py"} == set(ROOMS)


def test_frameworks_are_imported_late():
    for path in modules():
        names = imports(path, top_level_only=True)
        heavy = {name for name in names if name.split(".")[0] in FRAMEWORKS}
        # A network is a class of PyTorch's; its module is imported when it is built.
        assert not heavy or name_of(path).startswith("models.zoo"), f"{path.name} imports {heavy}"


def test_functions_and_files_fit_the_eye():
    for path in modules():
        assert len(path.read_text("utf-8").splitlines()) <= LONG_FILE, path.name
        for node in nodes_of(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno
                assert lines <= LONG_FUNCTION, f"{path.name}: {node.name} has {lines} lines"


def test_text_is_read_and_written_in_utf8_whatever_the_locale():
    for path in modules():
        calls = [node for node in nodes_of(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        for call in calls:
            values = [*call.args, *(keyword.value for keyword in call.keywords)]
            encoded = any(isinstance(value, ast.Constant) and value.value in ("utf-8", "utf-8-sig") for value in values)
            assert encoded or call.func.attr not in ("read_text", "write_text"), f"{path.name}, line {call.lineno}"
            assert not any(keyword.arg == "text" for keyword in call.keywords if call.func.attr in ("run", "Popen"))


def test_every_module_says_what_it_is_for():
    assert [path.name for path in modules() if not ast.get_docstring(tree_of(path))] == []


def texts(path: Path) -> set[str]:
    """Return every literal of a module that is no docstring."""
    bodies = (node.body for node in nodes_of(path) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)))
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    literals = (node for node in nodes_of(path) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return {node.value for node in literals if isinstance(node.value, str)}


def test_nothing_outside_a_backend_holds_its_name():
    """In no text, be it a tuple, a constant or a message, but for examples in the command line's help.

    Two formats of model files are called like the backends that write them.
    """
    backends = set(BACKENDS.names()) - {"fake"}
    name = re.compile(rf"(?<![\w-])({'|'.join(sorted(backends))})(?!\w)")
    for path in modules():
        room = room_of(name_of(path))
        if room not in ("backends", "cli"):
            named = {text for text in texts(path) if name.search(text)}
            assert not named - (set(get_args(Format)) if room == "models" else set()), path


def test_folders_have_twenty_entries_at_most():
    for folder in (ROOT, *(path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__")):
        assert len([path for path in folder.iterdir() if path.name != "__pycache__"]) <= MOST_IN_A_FOLDER, folder


def test_views_see_no_runner_and_backends_see_no_record():
    for path in modules():
        room = room_of(name_of(path))
        names = set(imports(path))
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
        for name in imports(path):
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


def identifiers(path: Path) -> Iterator[str]:
    """Yield the names that a module gives to functions, classes, parameters, variables and attributes."""
    for node in nodes_of(path):
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
        names = [*identifiers(path), path.stem]
        parts = (set(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")) for name in names)
        counts[room_of(name_of(path))] += sum(bool(words & BANNED_WORDS) for words in parts)
    assert {room: count for room, count in counts.items() if count > BANNED_NAMES.get(room, 0)} == {}


def test_docstrings_begin_with_a_verb():
    """The count of each room may only shrink: lower it here once it has."""
    counts: Counter[str] = Counter()
    for path in modules():
        for node in nodes_of(path):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node) or ""
                counts[room_of(name_of(path))] += bool(re.match(r"(What|Whether|How|Of|Those)\b", text))
    assert {room: count for room, count in counts.items() if count > BANNED_OPENINGS.get(room, 0)} == {}


def test_no_two_public_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.as_posix())
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


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
