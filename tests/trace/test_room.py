"""Traces that memory has no room for are one clear error, before memory is used up."""

from __future__ import annotations

import pytest

from inferlens.errors import InferlensError
from inferlens.trace import read
from inferlens.trace.reading import builder
from tests.trace.samples import training


def test_columns_that_memory_has_no_room_for_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_UNASKED", 0)
    monkeypatch.setattr(builder, "memory_left", lambda: 1000)
    with pytest.raises(InferlensError, match="larger than memory"):
        read(training())


def test_small_traces_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        raise AssertionError("the system was asked")

    monkeypatch.setattr(builder, "memory_left", asked)
    assert len(read(training())) > 0
