"""The work of a small network and the ceilings of a device on which its floors come out even."""

from typing import Any

from inferlens.record.profile import Ceilings, Layer, ModuleWork, OperatorWork, Profile, Work
from tests.analysis.profiles import NASTY, layer, profile
from tests.views.samples import case

RATE, BANDWIDTH = 1e9, 1e9  # a million FLOPs or bytes take a millisecond
MEGA = 1_000_000


def work_of(*modules: ModuleWork, **fields: Any) -> Work:
    return Work(modules=modules, note="counted", **fields)


def module(path: str, flops: float = 0.0, weights: float = 0, outputs: float = 0, **sources: float) -> ModuleWork:
    """A module in millions; of ``sources``, ``given`` are the model's inputs and ``_`` in a path stands for a dot."""
    given, calls, returned = sources.pop("given", 0), int(sources.pop("calls", 1)), sources.pop("returned", 0)
    return ModuleWork(
        module=path, kind="Module", calls=calls, flops=flops * MEGA, weights=round(weights * MEGA),
        inputs=round((given + sum(sources.values())) * MEGA), outputs=round(outputs * MEGA),
        sources={name.replace("_", "."): round(size * MEGA) for name, size in sources.items()},
        returned=round(returned * MEGA),
    )  # fmt: skip


def operator(
    path: str, name: str, flops: float = 0.0, weights: float = 0, outputs: float = 0, *, given: float = 0,
    made: dict[int, float] | None = None, returned: float = 0,
) -> OperatorWork:  # fmt: skip
    """One call in millions; ``made``: what others made of what it reads, by their places."""
    sources = {place: round(size * MEGA) for place, size in (made or {}).items()}
    return OperatorWork(
        module=path, operator=name, flops=flops * MEGA, weights=round(weights * MEGA),
        inputs=round(given * MEGA) + sum(sources.values()), outputs=round(outputs * MEGA), sources=sources,
        returned=round(returned * MEGA),
    )  # fmt: skip


CHAIN = work_of(
    module("conv", flops=20, weights=1, outputs=2, given=2),
    module("norm", weights=0.5, outputs=2, conv=2),
    module("relu", outputs=2, norm=2),
    module("head", flops=1, weights=4, outputs=1, relu=2, returned=1),
)


def ceilings(**rates: float) -> Ceilings:
    return Ceilings(device="a device", bandwidth=BANDWIDTH, rates=rates or {"fp32": RATE}, basis="by hand")


def timed(name: str, seconds: float, *modules: str, **fields: Any) -> Layer:
    """A layer that takes so long in each of eight runs."""
    return layer(name, None, *modules, times=(seconds,) * 8, **fields)


def worked(layers: list[Layer], work: Work | None = CHAIN, **fields: Any) -> Profile:
    """A profile with its work and ceilings."""
    known = {"ceilings": ceilings(), "of": case("pytorch"), **fields}
    return profile(known.pop("of"), layers, work=work, **known)


def nasty() -> Profile:
    """Names that break out of whatever they stand in."""
    work = work_of(module(NASTY, flops=10, weights=1, outputs=1, given=1), module("." * 500, flops=1, outputs=1))
    layers = [timed(NASTY, 10e-3, NASTY, kind=NASTY), timed("", 1e-3, "." * 500), timed("x", 1e-3)]
    return worked(layers, work, of=case(model=NASTY))
