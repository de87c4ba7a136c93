"""Ceilings: what is sustained counts, not the best of luck, and not what others took."""

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
    assert made.basis.endswith(", 1 thread")
    assert made.measured
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("on_cpu", "taken", "found"), [
    (False, [(0.1, False), (2.0, False)], (2.0, True)),  # not the best of luck
    (True, [(5.0, True), (2.0, False)] * 15, (2.0, True)),  # others took a core away from some
    (True, [(3.0, True), (4.0, False)] * 15, (3.0, False)),
])  # fmt: skip
def test_what_is_sustained_counts_and_on_a_cpu_the_fastest(on_cpu, taken, found, monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 50)
    monkeypatch.setattr(ceilings.time, "perf_counter", iter(range(100)).__next__)
    left = iter([(9.0, False)] * 17 + taken)  # and the last one for ever

    def told(_):
        return next(left, taken[-1])

    if on_cpu:
        monkeypatch.setattr(ceilings, "host_timer", told)
    assert sustained(lambda: None, told) == found


def test_a_cpu_copies_what_is_in_no_cache_window_by_window():
    """Each call is the next window, as large as a short while lets it be."""
    rates, seen = [], []

    def told(call):
        seen.append(call().data_ptr())
        return 1.0, False

    ceilings.copies("cpu", [3 * ceilings.WINDOW], told, rates)
    assert (rates, len(set(seen))) == ([(2 * ceilings.WINDOW, True)], 3)


@pytest.mark.usefixtures("quick")
def test_interruptions_are_said_and_a_size_that_the_memory_does_not_hold_is_left_out(monkeypatch):
    monkeypatch.setattr(ceilings, "host_timer", lambda call: (host_timer(call)[0], True))
    monkeypatch.setattr(ceilings, "copy_sizes", lambda _: (1 << 16, 1 << 60))
    made = ceilings.measure("cpu", "a processor", 1)
    assert (made.bandwidth > 0, "other programs" in made.disturbed.lower()) == (True, True)


def test_copies_are_no_larger_than_the_memory_allows(monkeypatch):
    monkeypatch.setattr(ceilings, "memory_left", lambda: 2 << 30)
    monkeypatch.setattr(ceilings, "cache_bytes", lambda _: 1 << 30)
    assert max(ceilings.copy_sizes("cpu")) == 256 << 20
