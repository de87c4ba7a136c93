"""The trace of profiles, held against the Trace Event Format.

The format: "Trace Event Format", 2016, sections JSON Object Format, Complete Events and Metadata Events.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from inferlens.record.profile import Kernel, Kernels, Layer, Profile
from inferlens.record.store import load_profiles
from inferlens.views.profiles.timeline import LONGEST_NAME, render_timeline
from tests.analysis.profiles import eager, failed, layer, nasty, of_kernels, profile, saved
from tests.commands import inferlens
from tests.refusals import refusal
from tests.views.samples import case

MS = 1_000_000  # nanoseconds


def checked(data: bytes) -> dict[str, Any]:
    """The trace with its rows by name: every event has a name, and a row that is named."""
    trace = json.loads(data)
    named: dict[int, str] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        assert event["name"].strip()
        if event["name"] == "thread_name":
            named[event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            rows.setdefault(named[event["tid"]], []).append(event)
    return {**trace, "rows": rows}


def span(event: dict[str, Any]) -> tuple[int, int]:
    """Nanoseconds."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)


def placed(name: str, begin: float, time: float, *modules: str, runs: int = 2, **fields: Any) -> Layer:
    """A layer that begins and takes so many milliseconds in every run."""
    return layer(name, None, *modules, times=(time / 1e3,) * runs, begins=(begin / 1e3,) * runs, **fields)


def placed_profile(*layers: Layer, begun: tuple[float, ...] = (0.0, 0.05), label: str = "onnxruntime:cpu") -> Profile:
    """Two runs of 10 ms, 40 ms apart."""
    made = profile(case(label), list(layers))
    told = replace(made.layers, whole=(0.01, 0.01), begun=begun, started="2026-05-04T10:00:00+00:00")
    return replace(made, runs=2, layers=told)


def network() -> Profile:
    """A module of two layers, a layer of no module, and one more of the module; then a fused one."""
    return placed_profile(
        placed("a", 0, 1, "block.a"), placed("b", 1, 2, "block.b"), placed("copy", 3, 0.5),
        placed("c", 3.5, 1, "block.c"), placed("d+e", 5, 3, "head.d", "head.e"),
    )  # fmt: skip


def kernels() -> Profile:
    """Two streams at the same time, and a kernel that is launched four times."""
    found = (
        Kernel(name="gemm<128, 64>", stream=7, times=(1e-3,) * 2, begins=(0.0,) * 2, modules=("a",), grid=(8, 1, 1)),
        Kernel(name="relu", stream=7, times=(1e-3,) * 2, begins=(2e-3,) * 2, modules=("b",), tensor_cores=False),
        Kernel(name="copy", kind="copy", stream=13, times=(3e-3,) * 2, begins=(0.5e-3,) * 2),
        Kernel(name="add", stream=7, times=(4e-3,) * 2, begins=(3e-3,) * 2, calls=4),
    )
    kernels = Kernels(kernels=found, whole=(0.01, 0.01), begun=(0.0, 0.05), busy=(9e-3,) * 2, launches=7, clock="CUPTI")
    return of_kernels("pytorch", kernels)


def traced(folder: Path, *profiles: Profile) -> dict[str, Any]:
    """The trace of profiles that were stored, checked."""
    saved(folder, *profiles)
    return checked(render_timeline(load_profiles([folder]))[0])


def drawn(trace: dict[str, Any], row: str, run: int = 1) -> list[tuple[str, float, float]]:
    """Name, begin and length in milliseconds of what a row has in a run."""
    (events,) = [events for name, events in trace["rows"].items() if name.startswith(row)]
    return [(event["name"], span(event)[0] / MS, (span(event)[1] - span(event)[0]) / MS)
            for event in events if event["args"]["run"] == run]  # fmt: skip


UNDATED = [layer("a", None, "a", times=(1e-3, 2e-3)), layer("b", None, "b", times=(3e-3, 4e-3))]
AROUND = placed("", 0, 2, ""), placed("one", 0.5, 3, "one"), placed("twice", 4, 4, "twice", calls=2)
SIDE_BY_SIDE = "host · layers ({} of 2 side by side)"
UNKNOWN = "host · layers (laid out in order, when each began is not known)"


@pytest.mark.parametrize(("made", "row", "run", "expected"), [
    (network(), "host · runs", 1, [("run 1", 0, 10)]), (network(), "host · runs", 2, [("run 2", 50, 10)]),
    (network(), "host · layers", 2, [("a", 50, 1), ("b", 51, 2), ("copy", 53, 0.5), ("c", 53.5, 1), ("d+e", 55, 3)]),
    # A layer of no known module ends them; a fused layer is the deepest module's that contains all of its modules.
    (network(), "modules", 1, [("the model", 0, 3), ("block", 0, 3), ("a", 0, 1), ("b", 1, 2), ("the model", 3.5, 4.5),
                               ("block", 3.5, 1), ("c", 3.5, 1), ("head", 5, 3)]),
    (placed_profile(*AROUND), "modules", 1, [("the model", 0, 8), ("one", 0.5, 3), ("twice", 4, 4)]),
    (profile(case(), UNDATED), UNKNOWN, 2, [("a", 50, 2), ("b", 52, 4)]),
    # A container's own time lies around the modules in it; a module that is called twice is drawn as one.
    (placed_profile(*AROUND), SIDE_BY_SIDE.format(1), 1, [("(no name)", 0, 2), ("twice", 4, 4)]),
    (placed_profile(*AROUND), SIDE_BY_SIDE.format(2), 1, [("one", 0.5, 3)]),
    (kernels(), "GPU stream 13 · kernels", 1, [("copy", 0.5, 3)]),
])  # fmt: skip
def test_what_ran_stands_where_it_was(made, row, run, expected, tmp_path):
    assert drawn(traced(tmp_path, made), row, run) == expected


def test_names_are_escaped_and_long_ones_shortened(tmp_path):
    trace = traced(tmp_path, nasty())
    (row,) = [events for name, events in trace["rows"].items() if name.startswith("host · layers")]
    assert all(len(event["name"]) <= LONGEST_NAME for event in trace["traceEvents"])
    assert all(len(json.dumps(event)) < 2000 for event in row)


def test_profiles_that_cannot_be_right_are_left_out_with_a_reason(tmp_path):
    short = placed_profile(layer("a", None, times=(1e-3, 1e-3), begins=(0.0,)))
    undated = placed_profile(placed("a", 0, 1), begun=(), label="openvino")
    endless = placed_profile(placed("a", 0, 1e9), label="pytorch")
    profiles = load_profiles([saved(tmp_path, short, undated, endless)])
    refused = str(refusal("not as many as there were runs", render_timeline, profiles))
    assert ("openvino" in refused, "more than a day" in refused) == (True, True)


def test_kernels_have_their_shape(tmp_path):
    row = traced(tmp_path, kernels())["rows"]["GPU stream 7 · kernels"]
    assert [event["name"] for event in row] == ["gemm<128, 64>", "relu", "add"] * 2
    assert (row[0]["args"]["grid"], row[1]["args"]["tensor cores"]) == ("8x1x1", False)


def test_the_command_writes_it(tmp_path):
    folder = saved(tmp_path, eager(), failed(case("openvino"), "It <broke>."))
    done = inferlens("layers", str(folder), "--trace", "trace.json.gz", cwd=tmp_path)
    assert (done.returncode, "Not drawn: openvino fp32. It <broke>." in done.stderr) == (0, True)
    assert checked(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["rows"]
