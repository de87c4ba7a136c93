from __future__ import annotations

from pathlib import Path

import pytest

from inferlens.backends.base import Preparation
from tests.backends import small


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    return small.preparation(tmp_path)
