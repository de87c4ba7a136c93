"""Modules with characteristic layers, their profiles, which are checked, and traces of real kernels."""

import gzip
import itertools
import json
import math
import sys
from collections import OrderedDict
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from inferlens.backends.base import TOLERANCES, KernelTracer
from inferlens.backends.profiling.kernels import kernels_of_runs, sources_by_scope
from inferlens.backends.profiling.runs import read_runs
from inferlens.backends.tensorrt.layers import inspected_layers, kernel_sources
from inferlens.models.model import Model
from inferlens.record.profile import GpuLimits
from inferlens.spec.case import TensorSpec
from inferlens.trace.read import read_trace
from tests.backends import small

RUNS = 3
RESOLUTION = 5e-6  # seconds for each layer; OpenVINO's counters are the coarsest
ODD = "a 'b' <c>, [d]/é"


class Fused(nn.Module):
    """Convolution, batch norm and ReLU that compilers make one of, in a module with an odd name."""

    def __init__(self):
        super().__init__()
        block = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.add_module(ODD, block)
        self.last = nn.Conv2d(32, 4, 1)
        nn.init.uniform_(block[1].running_var, 0.5, 2.0)

    def forward(self, image):
        return self.last(self.get_submodule(ODD)(image))


class Shared(nn.Module):
    """A module that is called twice, two that share their weights, one without work, one that is never called."""

    def __init__(self):
        super().__init__()
        self.twice, self.one, self.other = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.other.weight, self.other.bias = self.one.weight, self.one.bias
        self.nothing, self.never = nn.Identity(), nn.Linear(3, 3)

    def forward(self, image):
        image = torch.sigmoid(self.twice(torch.sigmoid(self.twice(image))))
        return self.other(torch.sigmoid(self.one(self.nothing(image))))


def costly():
    """Return two convolutions that take milliseconds; the second has eight times the work of the first."""
    first, second = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 512, 3, padding=1)
    return nn.Sequential(OrderedDict(first=first, activation=nn.Sigmoid(), second=second))


class Attention(nn.Module):
    """Parts of a transformer after a residual convolution."""

    def __init__(self):
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.linear, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, image):
        image = self.stem(image)
        words = torch.relu(image + self.block(image)).flatten(2).transpose(1, 2)
        words = self.norm(words + nn.functional.gelu(self.linear(words)))
        return self.attention(words, words, words)[0]


def product():
    """Return a product, which a library computes: to compile code for other operators takes Inductor seconds."""
    return nn.Linear(16, 4)


class Breaking(nn.Module):
    """Two graphs of Inductor's, with an operator that Python runs between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, image):
        image = torch.relu(self.first(image))
        torch._dynamo.graph_break()
        return torch.relu(self.second(image))


def model(kind, *shape):
    torch.manual_seed(0)
    spec = TensorSpec("image", shape or (1, 3, 32, 32))
    return Model("small", "small", "module", (spec,), module=kind().eval())


def residual_network():
    """Return a ResNet of four blocks."""
    resnet = pytest.importorskip("torchvision").models.resnet
    torch.manual_seed(0)
    module = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1]).eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):  # statistics near those of the activations: no layer is drowned
            nn.init.uniform_(part.running_var, 0.5, 2.0)
    return Model("resnet", "resnet", "module", (TensorSpec("image", (1, 3, 128, 128)),), module=module)


def prepared(folder, level="layer"):
    """Return a preparation. Inductor, which numbers graphs in their code, begins at 0, and finds cached code."""
    if "torch._inductor.compile_fx" in sys.modules:
        torch._inductor.compile_fx._graph_counter = itertools.count()
    preparation = small.preparation(folder)
    preparation.level = level
    return preparation


def profiled(label, model, preparation, runs=RUNS, **case):
    """Return the layers of ``model``; check its outputs afterwards."""
    inputs = small.arrays(model)
    expected = small.eager(model, inputs) if model.module is not None else None
    runner = small.backend(label).prepare(model, small.case(label, threads=1, **case), preparation)
    with runner:
        feed = runner.place(inputs)
        for _ in range(2):
            runner.infer(feed)
        layers = runner.profile_layers(feed, runs)
        if expected is not None:
            assert small.error(runner.collect(runner.infer(feed)), expected) < TOLERANCES["fp32"]
    check(layers, runs)
    return layers


def check(layers, runs):
    """Check the layers of any backend."""
    assert layers.layers
    assert len(layers.whole) == runs
    for layer in layers.layers:
        assert layer.name or layer.modules == ("",)
        assert layer.kind
        assert layer.calls >= 1
        assert len(layer.times) == runs
        assert len(layer.begins) in (0, runs)
        assert all(math.isfinite(value) and value >= 0 for value in (*layer.times, *layer.begins))
    for run, whole in enumerate(layers.whole):
        assert total(layers, run) <= whole + RESOLUTION * len(layers.layers)
    if not any(layer.begins for layer in layers.layers):
        assert layers.absent["begins"]


def total(layers, run):
    return sum(layer.times[run] for layer in layers.layers)


def of(layers, *modules):
    """Return the layers that came from all of ``modules``, in order."""
    return [layer for layer in layers.layers if set(modules) <= set(layer.modules)]


def seconds(layers):
    """Return the time of some layers together in the fastest run."""
    return min(map(sum, zip(*(layer.times for layer in layers), strict=True)))


def known_share(layers):
    """Return the share of time in layers with a module."""
    return seconds([layer for layer in layers.layers if layer.modules]) / seconds(list(layers.layers))


def hooks(model):
    """Forward hooks that are on the modules of a model, or on all modules there are."""
    from torch.nn.modules import module as everywhere

    own = [hook for part in model.module.modules() for hook in (*part._forward_pre_hooks, *part._forward_hooks)]
    return [*own, *everywhere._global_forward_pre_hooks, *everywhere._global_forward_hooks]


# Kernels of real traces of an H200, which ``traces/README.md`` describes

FOLDER = Path(__file__).parent / "traces"
EAGER, GRAPH, ENGINE = "eager", "inductor-graph", "torch-tensorrt"
ENGINES = (ENGINE, "torch-tensorrt-python", "torch-tensorrt-vit")
NAMES = (EAGER, GRAPH, *ENGINES)
H200 = GpuLimits(
    name="NVIDIA H200", multiprocessors=132, threads_per_multiprocessor=2048, registers_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472, compute_capability="9.0",
)  # fmt: skip


class Tracer(KernelTracer):
    """A tracer with the sources of kernels from a function."""

    def __init__(self, sources):
        self._sources = sources

    def kernel_sources(self, launched):
        return self._sources(launched)


SCOPED = Tracer(sources_by_scope)


@cache
def runs(name):
    """The runs of a trace."""
    return tuple(read_runs(read_trace(FOLDER / f"{name}.json.gz")))


def engine(name):
    """The layers of a trace's engine."""
    information = json.loads(gzip.decompress((FOLDER / f"{name}-engine.json.gz").read_bytes()))
    return inspected_layers(information["Layers"], lambda _: ((), ()))


def kernels(name):
    """Return the kernels of a trace with their origins."""
    tracer = SCOPED if name == EAGER else None
    if name in ENGINES:
        tracer = Tracer(lambda launched: kernel_sources(launched, engine(name), {}))
    return kernels_of_runs(runs(name), H200, tracer, label=name)
