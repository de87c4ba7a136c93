"""Calls in flight together on the CPU: several threads, right outputs, or the answer that they cannot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from inferlens.backends.base import Preparation
from tests.backends import small


@pytest.mark.parametrize(
    "label", ["pytorch", "torchscript:trace", "torchscript:script", "onnxruntime:cpu", "openvino:cpu"]
)
def test_each_thread_gets_the_outputs_of_its_own_feed(label: str, preparation: Preparation) -> None:
    model = small.model(batch=2)
    with small.backend(label).prepare(model, small.case(label, threads=1), preparation) as runner:
        feeds = [small.arrays(model, seed=seed) for seed in range(4)]
        right = [small.eager(small.model(batch=2), feed) for feed in feeds]
        callers = [runner.caller() for _ in feeds]
        placed = [runner.place(feed) for feed in feeds]

        def work(index: int) -> float:
            call = callers[index]
            assert call is not None
            return max(small.error(runner.collect(call(placed[index])), right[index]) for _ in range(50))

        with ThreadPoolExecutor(len(feeds)) as pool:
            assert max(pool.map(work, range(len(feeds)))) < 1e-5


def test_compiled_code_is_not_called_by_several_threads(preparation: Preparation) -> None:
    label = "torch_compile:default"
    runner = small.backend(label).prepare(small.model(), small.case(label), preparation)
    assert runner.caller() is None
