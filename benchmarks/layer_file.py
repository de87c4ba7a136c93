"""How long the file of a large model's layers takes to write and to read, how large it is, and what a call-back costs.

The profile is made: 2,000 layers of 20 blocks, 200 runs, each layer with its time and its begin in each of them. Times
are the least of a few tries, on this machine's disk. What hooks cost is shown for each module of an eager chain of
modules that do nothing: the fastest run with hooks, one without, and the least time from the end of a run to the next.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from inferlens.record import layer_profile
from inferlens.record.layer_profile import Layer, Layers, Profile, Tensor
from inferlens.record.profile_store import LoadedProfiles, load_profiles, save
from inferlens.record.record import Environment, ModelFacts
from inferlens.spec.case import Case

LAYERS = 2000
RUNS = 200
SIZES = ((100, 50), (LAYERS, RUNS))
CHAINS = (20, 200, 2000)
TRIES = 3


def large(layers: int, runs: int) -> Profile:
    """The profile of so many layers and runs, the same every time."""
    random = np.random.default_rng(0)
    times = random.gamma(4.0, 5e-6, (layers, runs))
    begins = np.cumsum(times, axis=0) - times
    whole = times.sum(axis=0) + 1e-4
    shape = Tensor(shape=(8, 256, 56, 56), dtype="float16")
    made = (
        Layer(
            name=f"/encoder/block.{place % 20}/layer.{place}/convolution + /encoder/block.{place % 20}/relu.{place}",
            kind="Convolution",
            modules=(f"encoder.block.{place * 20 // layers}.layer.{place}",),
            operators=("Conv", "Relu"),
            inputs=(shape,),
            outputs=(shape,),
            times=tuple(times[place].tolist()),
            begins=tuple(begins[place].tolist()),
        )
        for place in range(layers)
    )
    case = Case(model="large", backend="fake")
    begun = tuple((np.cumsum(whole) - whole).tolist())
    told = Layers(layers=tuple(made), whole=tuple(whole.tolist()), timed="host", clock="made", begun=begun)
    return Profile(
        id="large", created="2026-01-01T00:00:00+00:00", case=case, level="layer", runs=runs, status="ok",
        model=ModelFacts(name="large"), environment=Environment(), layers=told,
    )  # fmt: skip


def main() -> None:
    """Prints the tables."""
    console = Console(width=120)
    table = Table(title="A profile of layers on disk and in views, seconds", title_justify="left")
    for header in ("layers x runs", "MB", "write", "read", "layers", "modules", "trace", "trace, MB", "compressed, MB"):
        table.add_column(header, justify="right", no_wrap=True)
    for layers, runs in SIZES:
        table.add_row(f"{layers:,} x {runs}", *_file(large(layers, runs)))
    console.print(table)
    table = Table(title="What the hooks of eager PyTorch cost for each module, and what is done after a run")
    for header in ("modules", "in a run, µs", "of that without hooks, µs", "after a run, µs"):
        table.add_column(header, justify="right")
    for count in CHAINS:
        table.add_row(f"{count:,}", *(f"{1e6 * seconds / count:.2f}" for seconds in _hooks(count)))
    console.print(table)


def _file(made: Profile) -> list[str]:
    """The cells of a profile's row."""
    from inferlens.views.profiled import modules, parts, perfetto
    from inferlens.views.profiled.cases import groups, of_level
    from inferlens.views.table import render

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write = _least(lambda: save(place, made))
        read = _least(lambda: load_profiles([place]))
        loaded = LoadedProfiles(profiles=[made])
        cases = of_level(loaded, None)
        steps = (
            lambda: render(parts.document("layer", cases)),
            lambda: render(modules.document(groups(loaded))),
            lambda: perfetto.render(loaded),
        )
        seconds = [f"{taken:.3f}" for taken in (write, read, *map(_least, steps))]
        traces = [perfetto.render(loaded, compressed=compressed)[0] for compressed in (False, True)]
        size = len(layer_profile.encode(made))
        return [f"{size / 1e6:.1f}", *seconds, *(f"{len(trace) / 1e6:.1f}" for trace in traces)]


def _least(what: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few tries."""
    taken = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        what()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _hooks(count: int) -> tuple[float, float, float]:
    """Seconds of a run of a chain with hooks, of one without, and of what is done after one."""
    import torch
    from torch import nn

    from inferlens.backends.profiling.module_hooks import layers_of

    class Runner:
        """Calls the chain."""

        def infer(self, feed: Any) -> Any:
            return chain(*feed)

        def synchronize(self) -> None:
            """Nothing, on the CPU."""

    chain = nn.Sequential(*(nn.Identity() for _ in range(count))).eval()
    feed = (torch.zeros(1),)
    bare = _least(lambda: [chain(*feed) for _ in range(10)]) / 10
    runner: Any = Runner()
    told = layers_of(runner, chain, feed, 20, on_gpu=False)
    steps = np.diff(told.begun)
    after = float((steps - np.asarray(told.whole[:-1])).min())
    return min(told.whole), bare, after


if __name__ == "__main__":
    main()
