"""What needs an NVIDIA GPU is skipped without one."""

import pytest

from inferlens.backends.base import Preparation

try:
    import torch
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def on_a_gpu():
    """Asked before any other fixture."""
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture
def preparation(tmp_path):
    (tmp_path / "case").mkdir()
    return Preparation(tmp_path / "case", tmp_path / "cache")
