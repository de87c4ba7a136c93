"""What ``torch.compile`` has beyond the contract."""

from __future__ import annotations

import shutil

import pytest
import torch

from inferlens.backends.base import TOLERANCES, Preparation
from inferlens.backends.torch_compile import backend as torch_compile
from inferlens.errors import Unsupported
from tests.backends import small
from tests.backends.profiling.layered import Breaking, model


def test_graph_breaks_are_counted_and_said(preparation: Preparation) -> None:
    network = model(Breaking, 1, 4, 32)
    inputs = small.arrays(network)
    expected = small.eager(network, inputs)
    got = small.run(network, small.case("torch_compile:default"), preparation, inputs)
    assert small.error(got, expected) < TOLERANCES["fp32"]
    assert preparation.facts["graphs"] == 2
    assert preparation.facts["graph_breaks"]["count"] == 1
    assert "graph_break" in preparation.facts["graph_breaks"]["reasons"][0]
    assert [warning.code for warning in preparation.warnings] == ["graph-breaks"]
    case = small.case("torch_compile:default", options={"fullgraph": True})
    runner = small.backend("torch_compile").prepare(model(Breaking, 1, 4, 32), case, preparation)
    with pytest.raises(Unsupported, match=r"does not compile into one graph: .+"):
        runner.__enter__()


def test_one_graph_has_no_breaks_and_is_in_the_cache_the_second_time(preparation: Preparation) -> None:
    for _ in range(2):
        network = small.model()
        small.run(network, small.case("torch_compile:default"), preparation, small.arrays(network))
    assert preparation.facts["graphs"] == 1
    assert preparation.facts["graph_breaks"] == {"count": 0, "reasons": []}
    assert preparation.facts["compile_cache"] == {"hits": 1, "misses": 0}
    assert preparation.phases[-1].note == "cached"


def test_reduce_overhead_says_that_a_cpu_has_no_graphs(preparation: Preparation) -> None:
    small.backend("torch_compile").prepare(small.model(), small.case("torch_compile:reduce-overhead"), preparation)
    assert [warning.code for warning in preparation.warnings] == ["no-effect"]


def test_no_compiler_is_an_absence_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    able = small.backend("torch_compile").capabilities()
    refusal = able.refusal(small.case("torch_compile:default"), small.found("module"))
    assert refusal is not None
    assert ("C++ compiler" in refusal.what, "g++" in refusal.hint) == (True, True)
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "my-compiler" else None)
    assert torch_compile.compiler_absence(torch, "cpu") is None
