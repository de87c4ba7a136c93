"""What is made once for all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.partitions import Made


@pytest.fixture(scope="session")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Partitions of real models, and a run of the command."""
    from tests.partitions import made

    return made(tmp_path_factory.mktemp("partitions"))


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be done in processes of its own is done in this one."""
    from tests.commands import stay

    stay(monkeypatch)
