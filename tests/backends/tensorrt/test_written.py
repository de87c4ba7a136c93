"""A plan and its provenance: both are on disk, or what was there before."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inferlens.backends.base import Preparation
from inferlens.backends.tensorrt.builds import write_engine
from inferlens.backends.tensorrt.engine import Built, built
from inferlens.backends.tensorrt.written import write_plan
from inferlens.errors import InferlensError
from inferlens.models import provenance


@pytest.fixture
def made(job: Any, preparation: Preparation) -> Built:
    return built(job(), preparation)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def content(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_full_disk_leaves_the_old_engine(job: Any, preparation: Preparation, tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    write_engine(job(), preparation, path)
    other = job(compute_capability="8.9")
    built(other, preparation)  # in the cache, so that writing is all there is to do
    before = content(tmp_path)
    with (
        largest_file(1000),
        pytest.raises(InferlensError, match=rf"{path} cannot be written: File too large") as raised,
    ):
        write_engine(other, preparation, path)
    assert str(path) in raised.value.what
    assert "room" in raised.value.hint
    assert content(tmp_path) == before
    assert provenance.read(path) is not None


def test_without_a_place_for_the_one_the_other_is_not_written(made: Built, tmp_path: Path) -> None:
    for name, in_the_way in (("a.engine", "a.engine.json"), ("b.engine", "b.engine")):
        (tmp_path / in_the_way).mkdir()
        with pytest.raises(InferlensError, match=rf"{in_the_way} is a folder"):
            write_plan(tmp_path / name, made.plan, made.provenance)
    assert content(tmp_path) == {}
    with pytest.raises(InferlensError, match=r"nowhere/a\.engine cannot be written: No such file"):
        write_plan(tmp_path / "nowhere" / "a.engine", made.plan, made.provenance)


def test_a_plan_that_cannot_be_replaced_keeps_its_own_provenance(
    made: Built, job: Any, preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights can allow the one and forbid the other; as root nothing does, so the second move is made to fail."""
    import os

    path, move = tmp_path / "a.engine", os.replace
    other = built(job(compute_capability="8.9"), preparation)

    def replace(source: Any, target: Any) -> None:
        if Path(target) == path:
            raise PermissionError(13, "Permission denied")
        move(source, target)

    for before in ({}, None):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            expected = content(tmp_path) if before is None else before
            with pytest.raises(InferlensError, match="cannot be written: Permission denied"):
                write_plan(path, other.plan, other.provenance)
            assert content(tmp_path) == expected
        write_plan(path, made.plan, made.provenance)
    assert provenance.read(path) == made.provenance
