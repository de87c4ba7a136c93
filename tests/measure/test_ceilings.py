"""Ceilings: the sustained rate counts, without lucky runs and without interruptions by others."""

import pytest

torch = pytest.importorskip("torch")

from inferlens.measure import ceilings  # noqa: E402
from inferlens.measure.ceilings import host_timer, sustained  # noqa: E402


@pytest.fixture
def quick(monkeypatch):
    """Sizes and repeats of a moment."""
    monkeypatch.setattr(ceilings, "ROUNDS", 1)
    monkeypatch.setattr(ceilings, "SECONDS", 0.0)
    monkeypatch.setattr(ceilings, "MATRICES", {"cpu": (32, 64)})
    monkeypatch.setattr(ceilings, "copy_sizes", lambda _: (1 << 16, 1 << 18))


@pytest.mark.usefixtures("quick")
def test_a_cpu_has_a_bandwidth_and_a_rate():
    threads = torch.get_num_threads()
    made = ceilings.measure("cpu", "a processor", threads=1)
    assert (made.device, made.absent["tf32"]) == ("a processor", "no CPU has TF32")
    assert min(made.bandwidth, made.rates["fp32"], made.cached) > 0
    assert set(made.rates) | set(made.absent) == {"fp32", "tf32", "fp16", "bf16"}
    assert (made.basis.endswith(", 1 thread"), bool(made.measured)) == (True, True)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("on_cpu", "times", "expected"), [
    (False, [(0.1, False), (2.0, False)], (2.0, True)),  # not the best of luck
    (True, [(5.0, True), (2.0, False)] * 15, (2.0, True)),  # others took a core away from some
    (True, [(3.0, True), (4.0, False)] * 15, (3.0, False)),
])  # fmt: skip
def test_the_sustained_rate_counts_and_on_a_cpu_the_fastest(on_cpu, times, expected, monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 50)
    monkeypatch.setattr(ceilings.time, "perf_counter", iter(range(100)).__next__)
    left = iter([(9.0, False)] * 17 + times)  # and the last one for ever

    def timer(_):
        return next(left, times[-1])

    if on_cpu:
        monkeypatch.setattr(ceilings, "host_timer", timer)
    assert sustained(lambda: None, timer) == expected


@pytest.mark.usefixtures("quick")
def test_interruptions_are_reported_and_sizes_beyond_the_memory_left_out(monkeypatch):
    monkeypatch.setattr(ceilings, "host_timer", lambda call: (host_timer(call)[0], True))
    monkeypatch.setattr(ceilings, "copy_sizes", lambda _: (1 << 16, 1 << 60))
    made = ceilings.measure("cpu", "a processor", 1)
    assert (made.bandwidth > 0, "other programs" in made.disturbed.lower()) == (True, True)
