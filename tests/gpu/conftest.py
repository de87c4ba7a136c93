"""Tests that need an NVIDIA GPU are skipped without one."""

import pytest

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
    from tests.backends import small

    return small.preparation(tmp_path)
