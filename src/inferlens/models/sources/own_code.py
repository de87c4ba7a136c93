"""Models that the user's own code makes: factories, entry points of hub repositories, and live modules.

A live module is written to a file by the parent process and opened from it in the worker; the file is our own and
lives as long as the run. cloudpickle takes classes of ``__main__`` and of notebooks along.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError, check_choice, library, suggestion
from inferlens.models.inputs import format_of, named_tensors, with_example
from inferlens.models.model import ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Source

SOURCES = ("torchvision", "timm", "transformers", "hub", "inferlens")


class Factory(Source):
    """``package.module:factory``, importable from the working directory too.

    The factory returns an ``nn.Module``, or a module and its example inputs.
    """

    prefix = "factory"
    runs_code = True

    def find(self, name: str) -> ModelInfo:
        module, _, factory = name.partition(":")
        _here()
        try:
            known = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            known = False
        if not known or not factory:
            raise InferlensError(
                f"'{name}' is neither a model of a known source nor an importable factory.",
                expected="torchvision:, timm:, transformers:, hub: or inferlens:NAME, or package.module:factory",
                hint=_near(module, factory),
            )
        return ModelInfo(spec=f"factory:{name}", name=factory, format="module", batch=None)

    def open(self, name: str, request: LoadRequest) -> Opened:  # noqa: ARG002 - the factory makes its own weights
        path, _, attribute = name.partition(":")
        _here()
        module = import_module(path)
        if not hasattr(module, attribute):
            raise InferlensError(
                f"{path} has no '{attribute}'.",
                expected="a function or class in it that makes an nn.Module",
                hint=suggestion(attribute, dir(module)),
            )
        made: Any = getattr(module, attribute)()
        built, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        return with_example(_module(built, name), example, weights=f"made by {name}, seeded", source=name)


class Hub(Source):
    """``hub:REPO:NAME``: an entry point of a PyTorch hub repository, a local folder or one in the hub's cache.

    Running its code is what the user asks for by naming it.
    """

    prefix = "hub"
    runs_code = True

    def find(self, name: str) -> ModelInfo:
        _, entry = _repository(name)
        return ModelInfo(spec=f"hub:{name}", name=entry, format="module")

    def open(self, name: str, request: LoadRequest) -> Opened:  # noqa: ARG002 - a file of weights is loaded afterwards
        import torch

        folder, entry = _repository(name)
        known = _hubconf(folder)
        check_choice("entry point", entry, (each for each in known if callable(known[each]) and each[0] != "_"))
        arguments = _without_weights(known[entry])
        module = torch.hub.load(str(folder), entry, source="local", **arguments)
        source = f"hub folder {folder.name}"
        return Opened(format="module", module=_module(module, name), fresh=bool(arguments), source=source)


class Live(Source):
    """The module that the parent process has in hand."""

    prefix = "live"

    def find(self, name: str) -> ModelInfo:
        raise InferlensError(
            f"'live:{name}' cannot be looked up by name.",
            expected="a module of a running program",
            hint="inferlens.bench(module, example_inputs) in Python",
        )

    def open(self, name: str, request: LoadRequest) -> Opened:
        import cloudpickle
        import torch

        assert request.live
        module, example = cloudpickle.loads(request.live.read_bytes())
        if isinstance(module, bytes):
            module = torch.jit.load(io.BytesIO(module))
        return with_example(module, example, weights="as handed over", source=f"live {name}")


def save(module: Any, example: Any, path: Path) -> ModelInfo:
    """Writes a live module and its example inputs to ``path``. Raises InferlensError if they cannot be."""
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
        raise InferlensError(
            f"The module cannot be sent to another process: {type(error).__name__}: {error}.",
            hint="a factory: inferlens.bench('package.module:factory')",
        ) from error
    first = next(iter(tensors.values()))
    batch = int(first.shape[0]) if first.dim() else None
    name = getattr(module, "original_name", type(module).__name__)
    return ModelInfo(spec=f"live:{name}", name=name, format=format, batch=batch)


def enter(checkout: Path) -> None:
    """Makes a folder the one that this process works in and imports from, in place of the former.

    Where packages lie in a folder ``src``, from there too. Processes that are started from here do the same. Raises
    InferlensError if there is no such folder.
    """
    folder = checkout.resolve()
    if not folder.is_dir():
        raise InferlensError(f"There is no folder {checkout}.", expected="a checkout of the model's code")
    former = ("", os.getcwd())
    places = [str(folder), *([str(folder / "src")] if (folder / "src").is_dir() else [])]
    sys.path[:] = [*places, *(path for path in sys.path if path not in (*former, *places))]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.chdir(folder)


def place(spec: str) -> Path | None:
    """Where the code or the file of a model lies that is named in full; ``None`` if a library has it."""
    prefix, _, name = spec.partition(":")
    if prefix == Factory.prefix:
        _here()
        with suppress(ImportError, ValueError):
            found = importlib.util.find_spec(name.partition(":")[0])
            return Path(found.origin) if found and found.origin else None
        return None
    if prefix == Hub.prefix:
        return _repository(name)[0]
    return Path(name) if Path(name).exists() else None


def _near(module: str, factory: str) -> str:
    """What may be meant: a module where a file was named, or a source or a module here of nearly that name."""
    if module.endswith(".py"):
        return f"{module.removesuffix('.py').strip('./').replace('/', '.')}:{factory or 'FACTORY'}"
    here = [path.stem for path in Path.cwd().glob("*.py")]
    return "".join(f"{each}:{factory}" for each in get_close_matches(module, (*SOURCES, *here), 1))


def _here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _module(made: Any, name: str) -> Any:
    import torch

    if not isinstance(made, torch.nn.Module):
        raise InferlensError(
            f"{name} gives a {type(made).__name__}.", expected="an nn.Module, or (nn.Module, example inputs)"
        )
    return made


def _repository(name: str) -> tuple[Path, str]:
    """Folder and entry point of ``REPO:NAME``."""
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
    """Arguments that keep the entry point from fetching weights, as far as it takes such arguments."""
    parameters = inspect.signature(entry).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "weights" in parameters:
        return {"weights": None}
    return {"pretrained": False} if "pretrained" in parameters or takes_any else {}


def _hubconf(folder: Path) -> dict[str, Any]:
    from torch import hub

    with hub._add_to_sys_path(str(folder)):
        names: dict[str, Any] = vars(hub._import_module("hubconf", str(folder / "hubconf.py")))
        return names
