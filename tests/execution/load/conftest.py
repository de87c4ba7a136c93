"""Instances under load are processes of the fake backend, which need no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferlens.backends.base import Capabilities
from inferlens.execution import cases


@pytest.fixture(scope="module", autouse=True)
def fake_backend_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide PyTorch from the processes that a test starts, and probe backends in this process."""

    def probe(names: tuple[str, ...], python: str = "") -> dict[str, Capabilities]:
        return cases.capabilities(cases.NamesJob(names=tuple(names)), None)

    folder: Path = tmp_path_factory.mktemp("without-torch")
    (folder / "torch.py").write_text("raise ImportError('PyTorch is left out of this test')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
        patch.setattr(cases, "probe", probe)
        yield
