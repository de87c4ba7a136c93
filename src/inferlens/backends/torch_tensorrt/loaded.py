"""Runs a compiled module from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferlens.backends.base import Preparation
from inferlens.backends.torch_tensorrt import files
from inferlens.backends.torch_tensorrt.front_ends import compiling
from inferlens.backends.torch_tensorrt.library import Library
from inferlens.backends.torch_tensorrt.options import Options
from inferlens.backends.torch_tensorrt.replay import ReplayingRunner
from inferlens.backends.torch_tensorrt.scripts import loaded_partition
from inferlens.errors import Unsupported
from inferlens.models import provenance
from inferlens.models.model import Model
from inferlens.record.partition import Segment
from inferlens.spec.case import Case

OPTIONS = ("cuda_graph", "tf32")  # those that mean something to a module that is compiled already


class LoadedRunner(ReplayingRunner):
    """Calls a compiled module as it is: neither moved nor cast nor compiled."""

    def __init__(self, model: Model, case: Case, preparation: Preparation, options: Options, library: Library) -> None:
        self._made = made = provenance.read(model.path) if model.path else None
        if model.path:
            files.check(model.path, made, library)
        for name in case.options:
            if name not in OPTIONS:
                why = f"{name} does nothing to a module that is compiled already."
                preparation.warn("no-effect", why, "Leave it out there.")
        autocast = bool(made and made.options.get("autocast"))  # then its inputs are fp32, whatever its precision
        super().__init__(model, case, preparation, msgspec.structs.replace(options, autocast=autocast), library)

    def build(self, module: Any) -> Callable[..., Any]:
        """The module as it is."""
        self.preparation.facts["flavour"] = self.library.flavour
        self._module = module
        self._tell_partition(module)
        with compiling(self.model.name, "capture"):
            return self.captured(module)

    def _tell_partition(self, module: Any) -> None:
        """Engines and the operators beside them, as a fact; a module that runs need not tell them."""
        made = self._made
        size = made.options.get("min_block_size") if made else None
        try:
            partition = loaded_partition(
                module,
                front_end=self.case.variant,
                min_block_size=size if isinstance(size, int) else self.options.min_block_size,
                flavour=self.library.flavour,
            )
        except Exception:  # what is in a file depends on the version that wrote it
            return
        if partition is not None:
            self.preparation.facts["partition"] = msgspec.to_builtins(partition)

    def inside(self) -> tuple[Any, Sequence[Segment]]:
        """The module of the file."""
        return self._module, ()

    def _moved(self) -> Any:
        if self.model.module is not None:
            return self.model.module
        if self.model.path is None:
            raise Unsupported(f"'{self.model.spec}' is no compiled module.")
        return files.open_module(self.model.path)
