"""The ceilings of a real GPU: within what its maker promises, and in the order that its units have."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from inferlens.measure.ceilings import measure  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def test_a_gpu_has_a_bandwidth_and_rates_that_repeat() -> None:
    begin = time.perf_counter()
    first = measure("cuda", torch.cuda.get_device_name())
    assert time.perf_counter() - begin < 30
    second = measure("cuda", torch.cuda.get_device_name())
    assert first.bandwidth == pytest.approx(second.bandwidth, rel=0.05)
    for precision, rate in first.rates.items():
        assert rate == pytest.approx(second.rates[precision], rel=0.1), precision
    properties = torch.cuda.get_device_properties(0)
    clock = getattr(properties, "memory_clock_rate", 0)  # kHz; two transfers a cycle
    if clock:
        assert 0.5 < first.bandwidth / (2e3 * clock * properties.memory_bus_width / 8) <= 1
    if "tf32" in first.rates:
        assert first.rates["fp32"] < first.rates["tf32"] < first.rates["fp16"]
        assert first.rates["bf16"] == pytest.approx(first.rates["fp16"], rel=0.2)
