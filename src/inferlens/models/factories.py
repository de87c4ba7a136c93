"""Models from the user's own code: factories, entry points of hub repositories, and live modules.

A live module is written to a file by the parent process and opened from it in the worker; the file is our own and
lives as long as the run. cloudpickle takes classes of ``__main__`` and of notebooks along.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import os
import sys
import sysconfig
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from inferlens.errors import InferlensError, LateModule, check_choice, library, paths_like, suggestion
from inferlens.models.inputs import format_of, named_tensors, with_example
from inferlens.models.model import LoadRequest, Model, ModelInfo, Source
from inferlens.spec.case import short_name

torch: Any = LateModule("torch")

SOURCES = ("torchvision", "timm", "transformers", "hub", "inferlens")


class Factory(Source):
    """``package.module:factory``, importable from the working directory too, or ``path/to/file.py:factory``.

    The factory returns an ``nn.Module``, or a module and its example inputs.
    """

    prefix = "factory"
    runs_code = True

    def find(self, name: str) -> ModelInfo:
        module, _, factory = name.partition(":")
        file = code_file(module)
        if file and not factory:
            names = [f"{module}:{function}" for function in _factories(file)]
            expected = f"one of {', '.join(names[:5])}" if names else "path/to/file.py:factory"
            hint = next(iter(names), f"{module}:FUNCTION")
            message = (
                f"The file {name} has factories, and none was named." if names else f"No factory in {name} was named."
            )
            raise InferlensError(message, expected=expected, hint=hint)
        if not (file or _origin(module)) or not factory:
            raise InferlensError(
                f"'{name}' is neither a model of a known source nor an importable factory.",
                expected="torchvision:, timm:, transformers:, hub: or inferlens:NAME, package.module:factory, "
                "or path/to/file.py:factory",
                hint=paths_like(Path(module)) or suggestion(module, SOURCES),
            )
        return ModelInfo(spec=f"factory:{name}", name=short_name(f"factory:{name}"), format="module", batch=None)

    def open(self, name: str, request: LoadRequest) -> Model:  # noqa: ARG002 - the factory makes its own weights
        path, _, attribute = name.partition(":")
        try:
            module = import_code(path)
            if not hasattr(module, attribute):
                raise InferlensError(
                    f"{path} has no '{attribute}'.",
                    expected="a function or class in it that makes an nn.Module",
                    hint=suggestion(attribute, dir(module)),
                )
            result: Any = getattr(module, attribute)()
        except (ImportError, AttributeError) as error:
            if shadowed := _shadowed(error, code_file(path) or Path(path)):
                raise shadowed from error
            raise
        built, example = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        return with_example(_checked_module(built, name), example, weights=f"made by {name}, seeded", source=name)


class Hub(Source):
    """``hub:REPO:NAME``: an entry point of a PyTorch hub repository, a local folder or one in the hub's cache.

    By naming it the user agrees to run its code.
    """

    prefix = "hub"
    runs_code = True

    def find(self, name: str) -> ModelInfo:
        _, entry = _repository(name)
        return ModelInfo(spec=f"hub:{name}", name=entry, format="module")

    def open(self, name: str, request: LoadRequest) -> Model:  # noqa: ARG002 - a file of weights is loaded afterwards
        folder, entry = _repository(name)
        with torch.hub._add_to_sys_path(str(folder)):
            entries: dict[str, Any] = vars(torch.hub._import_module("hubconf", str(folder / "hubconf.py")))
        public = (name for name, value in entries.items() if callable(value) and name[0] != "_")
        check_choice("entry point", entry, public)
        arguments = _without_weights(entries[entry])
        module = torch.hub.load(str(folder), entry, source="local", **arguments)
        module = _checked_module(module, name)
        return Model(module=module, fresh=bool(arguments), source=f"hub folder {folder.name}")


class Live(Source):
    """Modules of the parent process."""

    prefix = "live"

    def find(self, name: str) -> ModelInfo:
        raise InferlensError(
            f"'live:{name}' cannot be looked up by name.",
            expected="a module of a running program",
            hint="inferlens.bench(module, example_inputs) in Python",
        )

    def open(self, name: str, request: LoadRequest) -> Model:
        import cloudpickle

        assert request.live
        working_folder = os.getcwd()
        sys.path.insert(0, working_folder)  # the program may import its code from here, before libraries
        try:
            module, example = cloudpickle.loads(request.live.read_bytes())
        finally:
            sys.path.remove(working_folder)
        if isinstance(module, bytes):
            module = torch.jit.load(io.BytesIO(module))
        return with_example(module, example, weights="as handed over", source=f"live {name}")


def save(module: Any, example: Any, path: Path) -> ModelInfo:
    """Write a live module and its example inputs to ``path``. Raises InferlensError if that fails."""
    torch, cloudpickle = library("torch", extra="torch"), library("cloudpickle", extra="torch")
    if not isinstance(module, torch.nn.Module):
        raise InferlensError(f"A model cannot be a {type(module).__name__}.", expected="a name, a file or an nn.Module")
    if example is None:
        raise InferlensError("A live module needs example inputs.", hint="inferlens.bench(module, example_inputs)")
    tensors = named_tensors(module, example)
    format, script = format_of(module), io.BytesIO()
    try:
        if format == "torchscript":  # which no pickle takes
            torch.jit.save(module, script)
        path.write_bytes(cloudpickle.dumps((script.getvalue() or module, example)))
    except Exception as error:  # whatever a module's members raise when pickled
        message = f"The module cannot be sent to another process: {type(error).__name__}: {error}."
        raise InferlensError(message, hint="a factory: inferlens.bench('package.module:factory')") from error
    first = next(iter(tensors.values()))
    batch = int(first.shape[0]) if first.dim() else None
    name = getattr(module, "original_name", type(module).__name__)
    return ModelInfo(spec=f"live:{name}", name=name, format=format, batch=batch)


def enter(checkout: Path) -> None:
    """Change the folder that this process, and the child processes that it starts, work in and import from.

    Imports search this folder, and its subfolder ``src``, after the standard library and before installed packages,
    which may include another version of the code. Raises InferlensError if there is no such folder.
    """
    folder = checkout.resolve()
    if not folder.is_dir():
        raise InferlensError(f"There is no folder {checkout}.", expected="a checkout of the model's code")
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    _import_first_from(str(folder), *([str(folder / "src")] if (folder / "src").is_dir() else []))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.chdir(folder)


def library_paths() -> set[str]:
    names = ("stdlib", "platstdlib")
    return {str(Path(sysconfig.get_path(name)) / end) for name in names for end in ("", "lib-dynload")}


def place(spec: str) -> Path | None:
    """Return the path of the code or the file of a model by its full name; ``None`` if a library has it."""
    prefix, _, name = spec.partition(":")
    if prefix == Factory.prefix:
        module = name.partition(":")[0]
        return code_file(module) or _origin(module)
    if prefix == Hub.prefix:
        return _repository(name)[0]
    return Path(name) if Path(name).exists() else None


def import_from_here() -> None:
    """Let modules be imported from the working directory too, after the standard library and installed packages."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _import_first_from(*folders: str) -> None:
    """Import from these folders after the standard library, and before installed packages."""
    standard = [path for path in sys.path if path in library_paths() or path.endswith(".zip")]
    sys.path[:] = [*standard, *folders, *(path for path in sys.path if path not in (*standard, *folders))]


def _factories(file: Path) -> list[str]:
    """Return the names of the public functions in a file that need no arguments. The file is not run."""
    with suppress(SyntaxError, ValueError):
        functions = [node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.FunctionDef)]
        return [
            function.name
            for function in functions
            if len(function.args.posonlyargs + function.args.args) == len(function.args.defaults)
            and None not in function.args.kw_defaults
            and not function.name.startswith("_")
        ]
    return []


def code_file(module: str) -> Path | None:
    """Return the file of user code that is named by its path, or as a module in the working directory."""
    if module.endswith(".py"):
        paths = [Path(module)]
    else:
        paths = [Path(f"{module.replace('.', '/')}{end}") for end in (".py", "/__init__.py")]
    return next((path for path in paths if path.is_file()), None)


def import_code(module: str) -> ModuleType:
    """Import user code, named by its path or as a module. It can import its neighbors, as a script can.

    A file in the working directory comes before an installed module. Other code still imports the installed module.
    """
    import_from_here()
    file = code_file(module)
    if file is None:
        return import_module(module)
    file = file.resolve()
    folder, names = file.parent, [file.stem] if file.stem != "__init__" else []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    _import_neighbors_from(folder)
    top = folder / (f"{names[0]}.py" if folder == file.parent and file.stem == names[0] else f"{names[0]}/__init__.py")
    first = _origin(names[0])
    if not first or first.resolve() != top:
        if top == file:  # a single file gets another name: other code imports the module that comes first
            return _load(f"{names[0]}_here" if first else names[0], file)
        if names[0] not in {*sys.modules, *sys.stdlib_module_names}:
            _load(names[0], top)
    return import_module(".".join(names))


def _load(name: str, file: Path) -> ModuleType:
    """Import a file under a name, even if another module has this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _origin(module: str) -> Path | None:
    """Return the file from which Python imports a module, or the name of a module that is built in."""
    import_from_here()
    with suppress(ImportError, ValueError):
        if spec := importlib.util.find_spec(module):
            return Path(spec.origin or next(iter(spec.submodule_search_locations or ())))
    return None


_folders: list[str] = []  # the folders of user code that was imported


def _import_neighbors_from(folder: Path) -> None:
    """Import from a folder after installed packages, and no longer from the folder of another model's code."""
    for former in [path for path in _folders if path != str(folder)]:
        _folders.remove(former)
        sys.path.remove(former)
        for name, module in [*sys.modules.items()]:
            if (getattr(module, "__file__", None) or "").startswith(former + os.sep):
                del sys.modules[name]
    if str(folder) not in sys.path:
        _folders.append(str(folder))
        sys.path.append(str(folder))


def _shadowed(error: ImportError | AttributeError, file: Path) -> InferlensError | None:
    """Return an error if a module has the name of a neighbor of the user's code and hides it, else ``None``."""
    name = error.name if isinstance(error, ImportError) else getattr(getattr(error, "obj", None), "__name__", "")
    name = (name or "").partition(".")[0]
    paths = (file.with_name(f"{name}.py"), file.with_name(name)) if name else ()
    neighbor = next((path for path in paths if path.exists()), None)
    first = neighbor and (getattr(sys.modules.get(name), "__file__", None) or _origin(name))
    if not neighbor or not first or neighbor.resolve() in (Path(first).resolve(), Path(first).resolve().parent):
        return None
    hint = f"rename {neighbor.name}"
    return InferlensError(f"{neighbor} is hidden by {first}, which has the same name: {error}.", hint=hint)


def _checked_module(module: Any, name: str) -> Any:
    if not isinstance(module, torch.nn.Module):
        message = f"{name} returns a value of type {type(module).__name__}."
        raise InferlensError(message, expected="an nn.Module, or (nn.Module, example inputs)")
    return module


def _repository(name: str) -> tuple[Path, str]:
    """Return folder and entry point of ``REPO:NAME``."""
    repository, _, entry = name.rpartition(":")
    if not repository or not entry:
        raise InferlensError(f"'hub:{name}' names no model of a repository.", expected="hub:REPO:NAME")
    torch = library("torch", extra="torch")
    owner_and_name, _, branch = repository.partition(":")
    pattern = owner_and_name.replace("/", "_") + f"_{branch or '*'}"
    for folder in (Path(repository), *sorted(Path(torch.hub.get_dir()).glob(pattern))):
        if (folder / "hubconf.py").exists():
            return folder, entry
    raise InferlensError(
        f"The hub repository '{repository}' is not on this machine, and nothing is fetched from the network.",
        expected="a folder with a hubconf.py, or a repository in the hub's cache",
        hint=f"torch.hub.load('{repository}', ...) once where there is a network",
    )


def _without_weights(entry: Any) -> dict[str, Any]:
    """Return arguments that keep the entry point from fetching weights, if it takes such arguments."""
    parameters = inspect.signature(entry).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "weights" in parameters:
        return {"weights": None}
    return {"pretrained": False} if "pretrained" in parameters or takes_any else {}
