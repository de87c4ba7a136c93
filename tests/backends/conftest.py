import pytest

from tests.backends import small


@pytest.fixture
def preparation(tmp_path):
    return small.preparation(tmp_path)
