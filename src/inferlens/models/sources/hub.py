"""``hub:REPO:NAME``: an entry point of a PyTorch hub repository, a local folder or one already in the hub's cache."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError, library, suggestion
from inferlens.models.model import ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Source


class Hub(Source):
    """Entry points of hub repositories. Running their code is what the user asks for by naming them."""

    prefix = "hub"
    runs_code = True

    def find(self, name: str) -> ModelInfo:
        """See :class:`Source`."""
        folder, entry = _split(name)
        _check(folder)
        return ModelInfo(spec=f"hub:{name}", name=entry, format="module")

    def open(self, name: str, request: LoadRequest) -> Opened:  # noqa: ARG002 - a file of weights is loaded afterwards
        """See :class:`Source`."""
        import torch

        repository, entry = _split(name)
        folder = _check(repository)
        known = vars(_hubconf(folder))
        entries = [each for each, value in known.items() if callable(value) and not each.startswith("_")]
        if entry not in entries:
            raise InferlensError(
                f"The hub repository {repository} has no '{entry}'.",
                expected=f"one of {', '.join(entries)}",
                hint=suggestion(entry, entries),
            )
        arguments = _without_weights(folder, entry)
        module = torch.hub.load(str(folder), entry, source="local", **arguments)
        if not isinstance(module, torch.nn.Module):
            raise InferlensError(f"hub:{name} gives a {type(module).__name__}.", expected="an nn.Module")
        return Opened(format="module", module=module, fresh=bool(arguments), source=f"hub folder {folder.name}")


def _split(name: str) -> tuple[str, str]:
    repository, _, entry = name.rpartition(":")
    if not repository or not entry:
        raise InferlensError(f"'hub:{name}' names no model of a repository.", expected="hub:REPO:NAME")
    return repository, entry


def _check(repository: str) -> Path:
    """The repository's folder.

    Raises:
        InferlensError: if it would have to be fetched.
    """
    torch = library("torch", extra="torch")
    if Path(repository, "hubconf.py").exists():
        return Path(repository)
    owner_and_name, _, branch = repository.partition(":")
    pattern = owner_and_name.replace("/", "_") + f"_{branch or '*'}"
    cached = sorted(folder for folder in Path(torch.hub.get_dir()).glob(pattern) if (folder / "hubconf.py").exists())
    if not cached:
        raise InferlensError(
            f"The hub repository '{repository}' is not on this machine, and nothing is fetched from the network.",
            expected="a folder with a hubconf.py, or a repository in the hub's cache",
            hint=f"torch.hub.load('{repository}', ...) once where there is a network",
        )
    return cached[0]


def _without_weights(folder: Path, entry: str) -> dict[str, Any]:
    """Arguments that keep the entry point from fetching weights, as far as it takes such arguments."""
    parameters = inspect.signature(getattr(_hubconf(folder), entry)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "weights" in parameters:
        return {"weights": None}
    return {"pretrained": False} if "pretrained" in parameters or takes_any else {}


def _hubconf(folder: Path) -> Any:
    import importlib.util
    import sys

    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("hubconf", folder / "hubconf.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module
