"""Models made so that the right answer is known, on every backend that tells its layers, and in every view."""

from __future__ import annotations

import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from inferlens.models.model import Model
from inferlens.record.layer_profile import Layers, Profile, decode, encode
from inferlens.record.profile_store import LoadedProfiles
from inferlens.spec.case import TensorSpec
from inferlens.views.profiled import perfetto
from tests.analysis.profile.samples import profile
from tests.backends.profiling.layered import Fused, model, prepared, profiled, seconds
from tests.views.profiled import data
from tests.views.samples import case
from tests.views.trace_format import checked, span

BACKENDS = ("pytorch", "onnxruntime:cpu", "openvino:cpu", "torchscript:trace", "torch_compile:default")
FUSED = {"onnxruntime:cpu": 3, "openvino:cpu": 3, "torch_compile:default": 2}  # of a convolution, a norm and a ReLU
RUNS = 9
TURNS = 5
NAMES = ("with spaces", "<b>tag</b> &lt;", "{braces} [brackets]; 100 % $x, é 層", "n" * 3000)


class Block(nn.Module):
    """A convolution and what some backends fuse it with, so that all of its layers are in one module."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.conv(image))


class Costly(nn.Module):
    """The second module has eight times the work of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block(64, 64)
        self.second = Block(64, 512)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(image))


class Shared(nn.Module):
    """A module called twice, two that share their weights, one without kernels, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.one, self.other = Block(3, 3), Block(3, 3), Block(3, 3)
        self.other.conv.weight, self.other.conv.bias = self.one.conv.weight, self.one.conv.bias
        self.nothing = nn.Identity()
        self.never = nn.Linear(3, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.other(self.one(self.nothing(self.twice(self.twice(image)))))


class Loop(nn.Module):
    """A module that is called five times in a loop, and one with the same work that is called once."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.once = Block(64, 64), Block(64, 64)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for _ in range(TURNS):
            image = self.step(image)
        return self.once(image)


class Named(nn.Module):
    """Modules whose names break out of whatever they stand in."""

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_module(name, nn.Conv2d(3, 3, 3, padding=1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for name in NAMES:
            image = torch.sigmoid(self.get_submodule(name)(image))
        return image


SHAPES: dict[Any, tuple[int, ...]] = {Costly: (1, 64, 32, 32), Loop: (1, 64, 32, 32)}


@functools.cache
def seen(kind: Any) -> tuple[Profile, ...]:
    """The profile of a model on each backend, as it comes back from its file."""
    return tuple(_profiled(kind, label) for label in BACKENDS)


def _profiled(kind: Any, label: str) -> Profile:
    with tempfile.TemporaryDirectory() as folder:
        made = profiled(label, model(kind, *SHAPES.get(kind, ())), prepared(Path(folder)), RUNS)
    whole = msgspec.structs.replace(profile(case(label), []), id=label, runs=RUNS, layers=made)
    return decode(encode(whole))


def of(kind: Any) -> list[tuple[str, Layers]]:
    """The layers of a model on each backend."""
    return [(each.id, each.layers) for each in seen(kind) if each.layers]


def tree(kind: Any, **options: Any) -> dict[str, dict[str, Any]]:
    """The cells of each module's row, by backend."""
    (shown,) = data("modules", *seen(kind), median=None, **options)["models"]
    labels = [column["profile"] for column in shown["columns"]]
    rows = [row for row in shown["rows"] if row["kind"] == "module"]
    return {row["path"]: dict(zip(labels, row["cells"], strict=True)) for row in rows}


def fastest(told: Layers, name: str) -> float:
    """The least time of a module's layers, which other work on the machine lengthens least."""
    return seconds([layer for layer in told.layers if {name, f"{name}.conv"} & set(layer.modules)])


def test_a_module_with_eight_times_the_work_takes_about_eight_times_as_long() -> None:
    found = tree(Costly)
    for label, told in of(Costly):
        assert found["second"][label]["times"]["median"] > found["first"][label]["times"]["median"]
        assert 3 < fastest(told, "second") / fastest(told, "first") < 60
    for each in data("layers", *seen(Costly), median=None)["cases"]:
        assert each["rows"][0]["modules"][0] == "second.conv"


def test_two_modules_that_share_weights_have_rows_and_layers_of_their_own() -> None:
    found = tree(Shared)
    for label, told in of(Shared):
        assert found["one"][label]["times"]
        assert found["other"][label]["times"]
        assert not any({"one.conv", "other.conv"} <= set(layer.modules) for layer in told.layers)


def test_a_module_called_twice_has_the_time_of_both_calls() -> None:
    found = tree(Shared)
    for label, told in of(Shared):
        its = [layer for layer in told.layers if {"twice", "twice.conv"} & set(layer.modules)]
        assert sum(layer.calls for layer in its if "conv" in layer.kind.lower()) == 2
        sums = sorted(sum(run) for run in zip(*(layer.times for layer in its), strict=True))
        assert found["twice"][label]["times"]["median"] == pytest.approx(sums[RUNS // 2])


def test_a_loop_has_the_time_of_all_its_turns() -> None:
    found = tree(Loop)
    for label, told in of(Loop):
        its = [layer for layer in told.layers if "step.conv" in layer.modules and "conv" in layer.kind.lower()]
        assert sum(layer.calls for layer in its) == TURNS
        assert found["step"][label]["times"]
        assert TURNS / 4 < fastest(told, "step") / fastest(told, "once") < TURNS * 8


def test_a_loop_of_an_onnx_file_is_timed_without_what_it_repeats(tmp_path: Path) -> None:
    """ONNX Runtime tells the nodes of the body, OpenVINO the loop as one."""
    told = _loop_of_a_file("onnxruntime:cpu", tmp_path)
    loop, convolution = (next(layer for layer in told.layers if layer.kind == kind) for kind in ("Loop", "Conv"))
    assert (loop.calls, convolution.calls) == (1, TURNS)
    assert min(convolution.times) > 0
    made = msgspec.structs.replace(profile(case("onnxruntime:cpu"), []), runs=RUNS, layers=told)
    trace = checked(perfetto.render(LoadedProfiles(profiles=[made]))[0])
    assert any(name.startswith("host · layers (in several pieces") for name in trace["rows"])
    assert _loop_of_a_file("openvino:cpu", tmp_path).layers[0].kind == "Loop"


def _loop_of_a_file(label: str, folder: Path) -> Layers:
    """The layers of an ONNX file in which a convolution is repeated; what holds for all layers is checked."""
    import onnx
    from onnx import TensorProto, helper

    shape = [1, 16, 32, 32]
    weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32) * 0.05
    value = helper.make_tensor_value_info
    turn, go, on = (value(*each, []) for each in (("turn", TensorProto.INT64), ("go", TensorProto.BOOL),
                                                  ("on", TensorProto.BOOL)))  # fmt: skip
    state, after, image, out = (value(name, TensorProto.FLOAT, shape) for name in ("state", "next", "image", "out"))
    convolution = helper.make_node("Conv", ["state", "weight"], ["next"], name="body/conv", pads=[1] * 4)
    going_on = helper.make_node("Identity", ["go"], ["on"], name="body/on")
    body = helper.make_graph([convolution, going_on], "body", [turn, go, state], [on, after])
    loop = helper.make_node("Loop", ["turns", "yes", "image"], ["out"], name="loop", body=body)
    constants = {"weight": weight, "turns": np.array(TURNS, np.int64), "yes": np.array(True)}
    known = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([loop], "loop", [image], [out], known)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(whole, folder / "loop.onnx")
    own = Model("loop.onnx", "loop", "onnx", (TensorSpec("image", tuple(shape)),), path=folder / "loop.onnx")
    return profiled(label, own, prepared(folder), RUNS)


def test_a_module_without_kernels_takes_nothing_or_is_not_there() -> None:
    cells = tree(Shared)["nothing"]
    assert cells["pytorch"]["times"]["median"] < 1e-3
    assert [cells[label] for label in BACKENDS[1:]] == [None] * 4
    assert "never" not in tree(Shared)


def test_a_fused_chain_is_whole_in_the_module_around_it_or_split_among_its_parts() -> None:
    (chain,) = [path for path in tree(Fused) if path not in ("last", "") and not path.endswith((".0", ".1", ".2"))]
    whole, split = tree(Fused), tree(Fused, fused="split")
    for label, told in of(Fused):
        fused = tuple(f"{chain}.{place}" for place in range(3))[3 - FUSED.get(label, 1) :]
        assert fused in [layer.modules for layer in told.layers]
        if len(fused) == 1:
            assert all(len(layer.modules) == 1 for layer in told.layers)
            continue
        assert (whole[f"{chain}.1"][label]["times"], whole[f"{chain}.1"][label]["shared"]) == (None, True)
        shares = [split[f"{chain}.{place}"][label]["times"]["typical"] for place in range(3)]
        assert shares[-len(fused) :] == pytest.approx([shares[-1]] * len(fused))
        assert sum(shares) == pytest.approx(whole[chain][label]["times"]["typical"])


def test_every_backend_traces_every_name() -> None:
    for label, told in of(Named):
        assert {module for layer in told.layers for module in layer.modules} >= set(NAMES), label
    assert set(tree(Named)) == set(NAMES)


@pytest.mark.parametrize("kind", [Costly, Shared, Fused, Loop, Named])
def test_a_trace_has_every_run_and_all_of_every_layer(kind: Any) -> None:
    trace = checked(perfetto.render(LoadedProfiles(profiles=list(seen(kind))))[0])
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for process, (label, told) in enumerate(of(kind), start=1):
        mine = [event for event in events if event["pid"] == process]
        runs = [span(event) for event in mine if event["cat"] == "runs"]
        assert runs == [
            (round(begin * 1e9), round((begin + whole) * 1e9))
            for begin, whole in zip(told.begun, told.whole, strict=True)
        ]
        assert runs[0][0] == 0
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(runs))
        for place, layer in enumerate(told.layers, start=1):
            its = [event for event in mine if event["cat"] == "layers" and event["args"]["place"] == place]
            assert len(its) == RUNS, label
            for event, time in zip(sorted(its, key=lambda one: one["args"]["run"]), layer.times, strict=True):
                begin, end = span(event)
                run = runs[event["args"]["run"] - 1]
                assert end - begin == pytest.approx(time * 1e9, abs=2)
                assert run[0] <= begin
