"""Models made so that the right answer is known, on every backend that tells its layers."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from inferlens.record.profile import Profile, decode_profile, encode_profile
from tests.analysis.profiles import profile
from tests.backends.profiling.samples import model, prepared, profiled, seconds
from tests.views.profiled import data
from tests.views.samples import case

# Inductor compiles ten kernels by themselves, for a minute, and is left out.
BACKENDS = ("pytorch", "onnxruntime:cpu", "openvino:cpu", "torchscript:trace")
RUNS = 9
TURNS = 5


class Block(nn.Module):
    """A convolution and what some backends fuse it with, so that all of its layers are in one module."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.conv(image))


class Exact(nn.Module):
    """Modules of one size, but for ``second``, which has eight times the work of the others.

    One is called in a loop, one twice, two share their weights, one has no kernels, and one is never called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.step, self.twice = Block(64, 64), Block(64, 512), Block(64, 64), Block(64, 64)
        self.one, self.other = Block(64, 64), Block(64, 64)
        self.other.conv.weight, self.other.conv.bias = self.one.conv.weight, self.one.conv.bias
        self.nothing = nn.Identity()
        self.never = nn.Linear(3, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for _ in range(TURNS):
            image = self.step(image)
        image = self.other(self.one(self.nothing(self.twice(self.twice(image)))))
        return self.second(self.first(image))


def exact_profile(label: str, folder: Path) -> Profile:
    """Return the profile of the model on a backend, as it comes back from its file."""
    layers = profiled(label, model(Exact, 1, 64, 32, 32), prepared(folder), RUNS)
    whole = msgspec.structs.replace(profile(case(label), []), id=label, runs=RUNS, layers=layers)
    return decode_profile(encode_profile(whole))


def test_times_are_of_all_calls_and_of_as_much_work_as_there_is(tmp_path_factory):
    profiles = [exact_profile(label, tmp_path_factory.mktemp("exact")) for label in BACKENDS]
    (tree,) = data("modules", *profiles, median=None)["models"]
    labels = [column["profile"] for column in tree["columns"]]
    rows = [row for row in tree["rows"] if row["kind"] == "module"]
    found = {row["path"]: dict(zip(labels, row["cells"], strict=True)) for row in rows}
    for label, layers in ((item.id, item.layers) for item in profiles):
        convolutions = [layer for layer in layers.layers if "conv" in layer.kind.lower()]
        for name, calls in (("first", 1), ("second", 1), ("one", 1), ("other", 1), ("twice", 2), ("step", TURNS)):
            its = [layer for layer in layers.layers if {name, f"{name}.conv"} & set(layer.modules)]
            assert sum(layer.calls for layer in its if layer in convolutions) == calls, (label, name)
            sums = sorted(sum(run) for run in zip(*(layer.times for layer in its), strict=True))
            assert found[name][label]["times"]["median"] == pytest.approx(sums[RUNS // 2])
        assert not any({"one.conv", "other.conv"} <= set(layer.modules) for layer in layers.layers), (
            "weights are shared"
        )
        # The least times are what other work on the machine lengthens least.
        least = {name: seconds([layer for layer in layers.layers if {name, f"{name}.conv"} & set(layer.modules)])
                 for name in ("first", "second", "step")}  # fmt: skip
        assert 3 < least["second"] / least["first"] < 60
        assert TURNS / 4 < least["step"] / least["first"] < TURNS * 8
    for item in data("layers", *profiles, median=None)["cases"]:
        assert any("second" in module or "step" in module for module in item["rows"][0]["modules"])
    assert found["nothing"]["pytorch"]["times"]["median"] < 1e-3
    assert [found["nothing"][label] for label in BACKENDS[1:]] == [None] * 3
    assert "never" not in found
