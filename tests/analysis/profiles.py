"""Profiles made by hand: a small network on three backends, and what a hostile file may hold."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferlens.record.profile import Layer, Layers, Profile, Tensor
from inferlens.record.record import Record, encode
from inferlens.record.store import save_profile
from inferlens.spec.case import Case
from tests.views.samples import CPU_MACHINE, GPU_MACHINE, case, facts, record

RUNS = 40
NASTY = 'x"y"\n<b>&|`*\x1b[31m\u202e ' + "n" * 3000


def times(mean: float, runs: int = RUNS, seed: int = 0) -> tuple[float, ...]:
    """Times around ``mean``, in seconds."""
    noise = np.random.default_rng([seed, round(mean * 1e9)]).normal(0.0, 0.01, runs)
    return tuple(float(value) for value in mean * (1 + np.abs(noise)))


def layer(name: str, mean: float | None, *modules: str, runs: int = RUNS, **fields: Any) -> Layer:
    """A layer that takes ``mean`` seconds, or has no time."""
    shape = Tensor(shape=(1, 64, 56, 56), dtype="float32")
    defaults: dict[str, Any] = {"kind": "Conv", "inputs": (shape,), "outputs": (shape,)}
    taken = () if mean is None else times(mean, runs, seed=len(name))
    return Layer(**{"name": name, "modules": modules, "times": taken, **defaults, **fields})


def profile(of: Case, layers: list[Layer], *, outside: float = 0.2e-3, timed: str = "host", **fields: Any) -> Profile:
    """A profile whose whole is the sum of its layers and ``outside``."""
    time_layers = [layer.times for layer in layers if layer.times]
    runs = len(time_layers[0]) if time_layers else RUNS
    whole = tuple(float(value) + outside for value in np.sum(time_layers or [np.zeros(runs)], axis=0))
    begun, clock = tuple(0.05 * run for run in range(runs)), "host: perf_counter_ns"
    defaults: dict[str, Any] = {
        "id": f"profile {of.digest}", "record": f"{of.digest}-1", "created": "2026-05-04T10:00:01Z", "level": "layer",
        "runs": runs, "status": "ok", "model": facts(of),
        "environment": CPU_MACHINE if of.device == "cpu" else GPU_MACHINE,
        "layers": Layers(layers=tuple(layers), whole=whole, begun=begun, timed=timed, clock=clock),
    }  # fmt: skip
    return Profile(case=of, **{**defaults, **fields})


def failed(of: Case, reason: str = "It broke.") -> Profile:
    """A profile that did not get that far."""
    made = profile(of, [])
    return msgspec.structs.replace(made, status="failed", reason=reason, layers=None)


def eager() -> Profile:
    """One layer for each module, and one of the model itself."""
    layers = [layer("conv1", 2e-3, "conv1"), layer("bn1", 1e-3, "bn1", kind="BatchNorm2d")]
    for block in ("layer1.0", "layer1.1", "layer2.0"):
        layers += [layer(f"{block}.conv1", 1e-3, f"{block}.conv1"), layer(f"{block}.bn1", 0.5e-3, f"{block}.bn1")]
        layers.append(layer(block, 0.2e-3, block, kind="BasicBlock"))
    return profile(case("pytorch"), [*layers, layer("model", 0.1e-3, "", kind="ResNet")])


def fused() -> Profile:
    """Convolution and batch norm in one layer; one layer of no known module, one without a time."""
    layers = [layer("conv1+bn1", 1.5e-3, "conv1", "bn1")]
    for block in ("layer1.0", "layer1.1", "layer2.0"):
        layers.append(layer(f"{block}/conv+bn", 0.9e-3, f"{block}.conv1", f"{block}.bn1"))
    return profile(case("onnxruntime:cpu"), [*layers, layer("Reorder", 0.1e-3), layer("Gone", None, "dropout")])


def other() -> Profile:
    """Whole blocks in one layer; slower than the reference in layer2."""
    blocks = {"layer1.0": 0.8e-3, "layer1.1": 0.8e-3, "layer2.0": 5e-3}
    layers = [layer("stem", 1e-3, "conv1"), *(layer(f"{n} all", t, n) for n, t in blocks.items())]
    return profile(case("openvino"), layers)


def nasty() -> Profile:
    """Names that break out of whatever they stand in."""
    layers = [layer(NASTY, 1e-3, NASTY, kind=NASTY), layer("", 1e-3, "a..b", ".", "." * 5000)]
    return profile(case("pytorch", model=NASTY), layers)


def unprofiled(of: Profile, median: float) -> Record:
    """The record that a profile names."""
    return record(of.case, median=median, id=of.record)


def saved(folder: Path, *profiles: Profile, median: float | None = 6e-3) -> Path:
    """The profiles in folders of their cases, each beside its record."""
    for number, profile in enumerate(profiles):
        place = folder / f"case{number}"
        place.mkdir(parents=True)
        save_profile(place, profile)
        if median:
            (place / "record.json").write_bytes(encode(unprofiled(profile, median)))
    return folder
