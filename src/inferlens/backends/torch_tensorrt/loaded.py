"""Runs a compiled module from a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferlens.backends.torch_tensorrt.files import open_module
from inferlens.backends.torch_tensorrt.front_ends import compiling
from inferlens.backends.torch_tensorrt.replay import ReplayingRunner
from inferlens.errors import Unsupported


class LoadedRunner(ReplayingRunner):
    """Calls a compiled module as it is: neither moved nor cast nor compiled."""

    def build(self, module: Any) -> Callable[..., Any]:
        """The module as it is."""
        self.preparation.facts["flavour"] = self.library.flavour
        with compiling(self.model.name, "capture"):
            return self.captured(module)

    def _moved(self) -> Any:
        if self.model.module is not None:
            return self.model.module
        if self.model.path is None:
            raise Unsupported(f"'{self.model.spec}' is no compiled module.")
        return open_module(self.model.path)
