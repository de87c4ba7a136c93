"""Each rule that says how far a profile can be trusted: when it speaks, and when it must not."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.analysis.findings.crafted import (
    MS,
    ON_GPU,
    RUNS,
    kernel,
    launched,
    layer,
    layered,
    of_rule,
    the,
    untouched,
)


def test_a_profile_that_is_not_of_what_runs_untouched() -> None:
    of = layered(layer("conv", 10.0))
    found = the("doubtful-profile", of, record=untouched(of, 4.0))
    assert found.sentence.startswith(
        "The layers' profile is doubtful: a profiled call takes 2.50x as long as an untouched one (10.0 ms and 4.00 ms"
    )
    assert (
        "something else slowed the untouched calls" in the("doubtful-profile", of, record=untouched(of, 20.0)).sentence
    )
    for near in (8.0, 10.0, 12.5):
        assert not of_rule("doubtful-profile", of, record=untouched(of, near)), near
    assert not of_rule("doubtful-profile", of), "that is not known"


def test_the_gpu_cannot_work_longer_than_an_untouched_call() -> None:
    of = launched(kernel("add", 2000.0))
    assert "the GPU works 2.00 ms in a profiled run" in the("doubtful-profile", of, record=untouched(of, 1.5)).sentence
    assert not of_rule("doubtful-profile", of, record=untouched(of, 1.9))


def test_time_of_no_known_module() -> None:
    unknown = msgspec.structs.replace(layer("lost", 2.0), modules=())
    reorder = layer("reorder", 2.0, "Reorder")
    absent = {"modules": "not known for 1 layer: it was taken apart."}
    found = the("not-attributed", layered(unknown, layer("conv", 6.0), absent=absent))
    assert found.sentence == (
        "1 layer of no known module takes 25 % of a profiled run (2.00 ms): lost. (not known for 1 layer: it was "
        "taken apart.)"
    )
    assert not of_rule("not-attributed", layered(unknown, layer("conv", 60.0))), "little"
    inserted = msgspec.structs.replace(unknown, details={"inserted": "by the backend"})
    for nobodys in (inserted, msgspec.structs.replace(reorder, modules=())):
        assert not of_rule("not-attributed", layered(nobodys, layer("conv", 6.0)))


def varying(name: str, low: float, high: float, every: int = 5) -> Any:
    """A layer that takes ``high`` milliseconds in one of ``every`` runs, and ``low`` in the others."""
    times = tuple((high if run % every == 0 else low) * MS for run in range(RUNS))
    return msgspec.structs.replace(layer(name, low), times=times)


def summed(*layers: Any) -> Any:
    of = layered(*layers)
    assert of.layers
    whole = tuple(map(sum, zip(*(each.times for each in layers), strict=True)))
    return msgspec.structs.replace(of, layers=msgspec.structs.replace(of.layers, whole=whole))


def test_runs_and_layers_that_vary() -> None:
    found = the("unstable", summed(layer("conv", 10.0), varying("nms", 1.0, 4.0)))
    assert found.sentence == (
        "1 layer varies and takes 9.09 % of a run: the 95th percentile of nms is 4.00 ms, 4.00x its median of 1.00 ms."
    )
    assert "quiet machine" in found.advice
    runs = the("unstable", summed(varying("conv", 10.0, 25.0), varying("nms", 1.0, 4.0)))
    assert runs.sentence == "Profiled runs vary: their 95th percentile is 29.0 ms, 2.64x their median of 11.0 ms."
    assert not of_rule("unstable", summed(layer("conv", 10.0), varying("nms", 0.1, 0.3))), "no loss to speak of"
    assert not of_rule("unstable", summed(layer("conv", 10.0), varying("nms", 1.0, 1.5)))


def test_layers_and_kernels_at_the_same_time() -> None:
    layers = [layer("left", 6.0), layer("right", 6.0)]
    assert the("overlap", layered(*layers, whole=8.0)).sentence == (
        "Layers overlap: they add up to 12.0 ms in a run of 8.00 ms."
    )
    assert not of_rule("overlap", layered(*layers, whole=12.0))
    kernels = [kernel("left", 600.0, stream=7), kernel("right", 600.0, stream=8)]
    assert "on 2 streams" in the("overlap", launched(*kernels, busy=0.8 * MS)).sentence
    assert not of_rule("overlap", launched(*kernels))


def test_an_engine_that_keeps_names_alone() -> None:
    bare = [layer(name, 1.0, kind="", inputs=(), outputs=()) for name in ("a", "b")]
    assert the("names-only", layered(*bare, of=ON_GPU)).sentence.startswith(
        "Only names and times are known of 2 layers"
    )
    assert not of_rule("names-only", layered(*bare, layer("conv", 1.0), of=ON_GPU))
