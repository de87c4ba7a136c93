from __future__ import annotations

import pytest

from inferlens.measure.environment import collect


@pytest.mark.parametrize(
    "name", ["OMP_PROC_BIND", "ONEDNN_DEFAULT_FPMATH_MODE", "TORCHINDUCTOR_FREEZING", "TRITON_PTXAS_PATH", "LD_PRELOAD"]
)
def test_variables_that_change_speed_are_kept(name, monkeypatch):
    monkeypatch.setenv(name, "x")
    assert collect().variables[name] == "x"


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_HOME", "PATH", "OPENAI_API_KEY"])
def test_others_are_not(name, monkeypatch):
    monkeypatch.setenv(name, "x")
    assert name not in collect().variables
