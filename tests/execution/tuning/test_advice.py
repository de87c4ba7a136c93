"""What profiles advise a tuning to try, and what the answer says of advice that paid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.analysis.measures import bottleneck
from inferlens.analysis.tuning import Advice, Candidate
from inferlens.backends.base import Capabilities, Support
from inferlens.execution.tuning.search import advice_of, advised
from inferlens.execution.tuning.space import SearchSpace
from inferlens.record.record import KERNEL_FAMILIES, Measurement, Record
from inferlens.spec.case import Case
from inferlens.views.renderers import render
from inferlens.views.tuning import tuning_document
from tests.execution.tuning.test_space import space
from tests.execution.tuning.test_tune import tune
from tests.spec.test_plan import FLOATS, GPU_HOST, RESNET
from tests.views.samples import record

pytestmark = pytest.mark.usefixtures("one_process")
COMPILED = Capabilities(
    formats=("module",), supports=(Support("default", "cuda", FLOATS), Support("reduce-overhead", "cuda", FLOATS))
)


def on_gpu(**words: Any) -> SearchSpace:
    machine = {"pytorch": GPU_HOST["pytorch"], "torch_compile": COMPILED}
    return space(machine, RESNET, device="cuda", **words)


def measured(case: Case, *, enqueue: float = 0.1, kernels: dict[str, float] | None = None) -> Record:
    """A record of a call of 1 ms, of which so much is spent to enqueue it."""
    series = {"latency": 1e-3, "enqueue time": enqueue * 1e-3, "GPU time": 0.9e-3}
    measurements = tuple(
        Measurement(metric=name, unit="s", clock="a clock", samples=(seconds,) * 50)  # type: ignore[arg-type]
        for name, seconds in series.items()
    )
    facts = {KERNEL_FAMILIES: kernels} if kernels else {}
    return record(case, measurements=measurements, facts=facts)


def ways(records: list[Record], found: SearchSpace, behind: float = 0.0) -> list[str]:
    return [case.way for case in advised(records, lambda _: behind, found)]


@pytest.mark.parametrize(
    ("enqueue", "kernels", "expected"),
    [
        (0.95, {"convolution": 1.0}, "host"),
        (0.1, {"convolution": 0.9, "reformat": 0.1}, "layout"),
        (0.1, {"convolution": 0.4, "elementwise": 0.6}, "memory"),
        (0.1, {"convolution": 0.8, "elementwise": 0.2}, ""),
        (0.1, None, ""),
    ],
)
def test_what_limits_a_call(enqueue: float, kernels: dict[str, float] | None, expected: str) -> None:
    case = on_gpu().families[0].case
    assert bottleneck(measured(case, enqueue=enqueue, kernels=kernels)) == expected


def test_calls_that_wait_for_the_host_are_advised_a_cuda_graph() -> None:
    found = on_gpu(precision="fp16")
    eager, compiled, _ = (each.case for each in found.families)
    assert ways([measured(eager, enqueue=0.95)], found) == ["pytorch fp16 cuda_graph=true"]
    assert ways([measured(compiled, enqueue=0.95)], found) == ["torch_compile:reduce-overhead fp16"]
    assert ways([measured(eager)], found) == []


def test_conversions_of_layouts_are_advised_every_setting_against_them() -> None:
    found = on_gpu(precision="fp16")
    compiled = found.families[1].case
    assert ways([measured(compiled, kernels={"reformat": 0.2})], found) == [
        f"torch_compile:default fp16 {settings}" for settings in ("freezing=true", "channels_last=true")
    ]


def test_what_is_bound_by_memory_is_advised_lower_precisions() -> None:
    found = on_gpu(backend="pytorch")
    eager = found.families[0].case
    assert ways([measured(eager, kernels={"elementwise": 0.9})], found) == [
        "pytorch fuse=true", "pytorch fp16", "pytorch bf16",
    ]  # fmt: skip


def test_nothing_is_advised_for_ways_that_are_far_behind() -> None:
    found = on_gpu(precision="fp16")
    eager = found.families[0].case
    assert ways([measured(eager, enqueue=0.95)], found, behind=math.log(3)) != []
    assert ways([measured(eager, enqueue=0.95)], found, behind=math.log(5)) == []
    assert ways([measured(eager, kernels={"reformat": 0.2})], found, behind=math.log(1.5)) == []


def test_advice_paid_if_the_winner_has_it_and_is_faster_than_the_ways_that_had_the_limit() -> None:
    found = on_gpu(precision="fp16")
    eager, compiled, graphed = (each.case for each in found.families)
    records = [measured(eager, enqueue=0.95), measured(compiled, enqueue=0.95), measured(graphed)]
    tried = [
        Candidate(record=each.id, speedup=speed, low=0.9 * speed, high=1.05 * speed)
        for each, speed in zip(records, (0.2, 0.5, 1.0), strict=True)
    ]
    known = {each.id: each for each in records}
    assert advice_of(graphed, tried, known, found) == (
        Advice("torch_compile:reduce-overhead", "host", "torch_compile:default fp16", 2.0),
    )
    assert advice_of(eager, tried, known, found) == ()


def test_the_answer_says_which_advice_advice_of(tmp_path: Path) -> None:
    tuned = tune(tmp_path, only=("fake:steady", "fp32", "fake.knob_a"))
    advice = Advice("cuda_graph=True", "host", "pytorch", 2.1)
    shown = " ".join(render(tuning_document(replace(tuned, advice=(advice,))), "table", width=100).split())
    assert "Advice that paid: cuda_graph=true, since calls of pytorch waited for the host (2.10x)." in shown
