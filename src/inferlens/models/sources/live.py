"""A live module of the parent process: written to a file there, opened from it in the worker.

The file is our own and lives as long as the run. cloudpickle takes classes of ``__main__`` and of notebooks along.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferlens.errors import InferlensError, library
from inferlens.models.examples import format_of, named_tensors, with_example
from inferlens.models.model import ModelInfo
from inferlens.models.sources.base import LoadRequest, Opened, Source


class Live(Source):
    """The module that the parent process has in hand."""

    prefix = "live"

    def find(self, name: str) -> ModelInfo:
        """See :class:`Source`; a live module is handed over, never looked up."""
        raise InferlensError(
            f"'live:{name}' cannot be looked up by name.",
            expected="a module of a running program",
            hint="inferlens.bench(module, example_inputs) in Python",
        )

    def open(self, name: str, request: LoadRequest) -> Opened:
        """See :class:`Source`."""
        import cloudpickle

        assert request.live
        module, script, example = cloudpickle.loads(request.live.read_bytes())
        if script is not None:
            import io

            import torch

            module = torch.jit.load(io.BytesIO(script))
        return with_example(module, example, weights="as handed over", source=f"live {name}")


def save(module: Any, example: Any, path: Path) -> ModelInfo:
    """Writes a live module and its example inputs to ``path``.

    Raises:
        InferlensError: if it is no module, or cannot be written, or the example inputs are missing or of another form.
    """
    torch, cloudpickle = library("torch", extra="torch"), library("cloudpickle", extra="torch")
    if not isinstance(module, torch.nn.Module):
        raise InferlensError(f"A model cannot be a {type(module).__name__}.", expected="a name, a file or an nn.Module")
    if example is None:
        raise InferlensError("A live module needs example inputs.", hint="inferlens.bench(module, example_inputs)")
    tensors = named_tensors(module, example)
    format = format_of(module)
    try:
        data = cloudpickle.dumps(
            (None, _script(module), example) if format == "torchscript" else (module, None, example)
        )
    except Exception as error:  # whatever a module's members raise when pickled
        raise InferlensError(
            f"The module cannot be sent to another process: {type(error).__name__}: {error}.",
            hint="a factory: inferlens.bench('package.module:factory')",
        ) from error
    path.write_bytes(data)
    first = next(iter(tensors.values()))
    batch = int(first.shape[0]) if first.dim() else None
    name = getattr(module, "original_name", type(module).__name__)
    return ModelInfo(spec=f"live:{name}", name=name, format=format, batch=batch)


def _script(module: Any) -> bytes:
    import io

    import torch

    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return buffer.getvalue()
