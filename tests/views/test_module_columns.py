"""Modules from kernels, and which profile of each case is its column: figures known in advance, whatever is there."""

from __future__ import annotations

import csv
import io
import json

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from inferlens.backends.profiling.traced_runs import GPU_CLOCK
from inferlens.errors import InferlensError
from inferlens.record.kernel_profile import Kernel, Kernels
from inferlens.record.layer_profile import Layer, Profile
from inferlens.record.profile_store import LoadedProfiles
from inferlens.views.profiled import FORMATS, kernels, modules
from inferlens.views.profiled.cases import groups
from inferlens.views.profiled.module_columns import columns
from tests.analysis.profile.kernel_profiles import made, nasty, of_kernels, traced
from tests.analysis.profile.samples import NASTY, eager, fused, profile, untouched
from tests.backends.profiling.kernel_samples import ENGINE
from tests.views.samples import case

RUNS = 20
EVENTS = "CUDA events"


def loaded(*profiles: Profile, median: float | None = 8e-3, level=None) -> list:
    records = {each.id: untouched(each, median) for each in profiles} if median else {}
    return groups(LoadedProfiles(profiles=list(profiles), records=records), level)


def drawn(*profiles: Profile, format="table", median: float | None = 8e-3, **options) -> str:
    return modules.render(loaded(*profiles, median=median), format, **{"width": 250, **options})


def row(text: str, name: str) -> list[str]:
    """Cells of the row of that name, without the lines of the tree."""
    (found,) = [line for line in text.splitlines() if line.lstrip("├─└│ ").startswith(f"{name}  ")]
    return found.partition(f"{name} ")[2].split()


def kernel(ms: float, *paths: str, stream: int = 7) -> Kernel:
    return Kernel(name="k", modules=paths, times=(ms / 1000,) * RUNS, stream=stream)


def of_layers(label: str, *layers: tuple[float, str | None], clock: str = EVENTS, outside: float = 2e-3) -> Profile:
    """A profile of layers of so many ms each, of a module or of none that is known."""
    parts = [
        Layer(name=path or "?", modules=() if path is None else (path,), times=(ms / 1000,) * RUNS)
        for ms, path in layers
    ]
    of = profile(case(label, device="cuda", precision="fp16"), parts, outside=outside, timed="GPU")
    return replace(of, layers=replace(of.layers, clock=clock))


def eager_kernels(label: str = "pytorch", scale: float = 1.0, **fields) -> Profile:
    """3.5 ms of kernels, times ``scale``, and ``unknown`` ms that are of no known module."""
    unknown = fields.pop("unknown", 0.0)
    each = [kernel(1 * scale, "conv1"), kernel(2 * scale, "layer1.0"), kernel(0.5 * scale, "layer1.1")]
    each += [kernel(unknown)] if unknown else []
    return of_kernels(label, made(*each, **{"idle": 6e-3, **fields}))


# Columns of kernels


def test_shares_are_of_all_kernels_and_not_of_the_idle_run():
    text = drawn(eager_kernels(unknown=0.5), depth=1)
    assert "20 runs · kernel times, as shares of all kernels · unfolded 1 of 2 deep" in text
    assert row(text, "all kernels") == ["4.00", "100", "%"]
    assert row(text, "conv1") == ["1.00", "25", "%"]
    assert row(text, "layer1 +2") == ["2.50", "62.5", "%"]
    assert row(text, "not attributed") == ["0.500", "12.5", "%"]
    assert "whole run" not in text
    assert "in no" not in text
    assert "GPU busy" not in text, "it is all kernels"
    assert "layer1 takes most: 62.5 % with pytorch fp16." in text
    assert "Attributed to no module, of the kernels' time: 12.5 % with pytorch fp16." in text


def test_how_much_of_an_untouched_call_the_gpu_works():
    of = eager_kernels(unknown=0.5)
    (median,) = [one.unprofiled for group in loaded(of) for one in group]
    middle = sorted(median)[len(median) // 2]
    text = drawn(of)
    share = f"{4e-3 / middle:.1%}".replace("%", " %")
    assert f"The GPU works 4.00 ms of an untouched call's {middle * 1e3:.2f} ms ({share}) with pytorch fp16." in text
    assert row(text, "untouched call") == [f"{middle * 1e3:.2f}"]
    assert "as long as an untouched one, which is the host's time and not the kernels'" in text
    assert "Above 100 % kernels took longer" in drawn(of, median=2e-3)
    assert "Above 100 %" not in text
    assert "GPU works" not in drawn(of, median=None)
    assert "What profiling cost with pytorch fp16 is not known." in drawn(of, median=None)


def test_kernels_side_by_side_have_shares_of_their_sum():
    both = made(kernel(1, "a", stream=1), kernel(3, "b", stream=2), busy=3e-3)
    text = drawn(of_kernels("pytorch", both))
    assert row(text, "all kernels") == ["4.00", "100", "%"]
    assert row(text, "a") == ["1.00", "25", "%"]
    assert row(text, "b") == ["3.00", "75", "%"]
    assert row(text, "GPU busy") == ["3.00"]
    assert "The GPU works 3.00 ms of an untouched call's" in text
    assert (
        "Kernels add up to more than the time in which the GPU was busy, as some ran side by side: with pytorch" in text
    )
    same = kernels.render([one for group in loaded(of_kernels("pytorch", both)) for one in group], width=250)
    assert row(same, "all kernels")[0] == "4,000"
    assert row(same, "GPU busy")[0] == "3,000"
    broken = of_kernels("pytorch", replace(both, busy=(1.0,)))
    assert "GPU" not in drawn(broken).split("unfolded")[1], "how long it was busy is not known"


def test_every_format_says_what_shares_are_of():
    profiles = [eager_kernels(unknown=0.2), of_layers("tensorrt", (1, "conv1"), (3, None))]
    (tree,) = json.loads(drawn(*profiles, format="json"))["models"]
    assert tree["level"] == "layer"
    told = [(each["level"], each["share_of"], each["timed"], each["clock"]) for each in tree["columns"]]
    assert told == [("layer", "run", "GPU", EVENTS), ("kernel", "kernels", "GPU", "CUPTI")]
    of_run, of_all = tree["columns"]
    assert of_all["busy"]["typical"] == pytest.approx(3.7e-3)
    assert of_all["reconciliation"]["whole"]["typical"] == pytest.approx(9.7e-3)
    assert of_all["reconciliation"]["layers"]["share"] == pytest.approx(3.7 / 9.7)
    assert of_run["busy"] is None
    whole, *_, last = tree["rows"]
    assert [cell["times"]["typical"] for cell in whole["cells"]] == pytest.approx([6e-3, 3.7e-3])
    assert (last["kind"], last["cells"][1]) == ("outside layers", None)
    assert last["cells"][0]["times"]["share"] == pytest.approx(2 / 6)
    lines = list(csv.DictReader(io.StringIO(drawn(*profiles, format="csv"))))
    for level, share_of, whole_time in (("kernel", "kernels", 3.7e-3), ("layer", "run", 6e-3)):
        mine = [line for line in lines if line["level"] == level]
        assert {line["share_of"] for line in mine} == {share_of}
        assert sum(float(line["typical"]) for line in mine if line["depth"] == "1") == pytest.approx(whole_time)
        assert sum(float(line["share"]) for line in mine if line["depth"] == "1") == pytest.approx(1)


# Which level


def levels(*profiles: Profile, level=None) -> list[str]:
    """The level of the profile of each column, and what its shares are of."""
    (group,) = loaded(*profiles)
    shown = columns(group, level, None).shown
    return [f"{one.case.profile.level} of {one.runs.share_of}" for one in shown]


PYTORCH = of_layers("pytorch", (10, "conv1"), (20, "layer1.0"))
TENSORRT = of_layers("tensorrt", (1, "conv1"), (2, "layer1.0"))
COMPILED = of_layers("torch_compile", (0.5, "conv1"), (1, "layer1.0"), clock=GPU_CLOCK)
UNTRACED = of_kernels("torch_compile", made(kernel(1), kernel(0.5)))
TRACED = eager_kernels("torch_compile", 0.5)


@pytest.mark.parametrize(
    ("profiles", "shown"),
    [
        ([PYTORCH], ["layer of run"]),
        ([PYTORCH, eager_kernels()], ["kernel of kernels"]),
        ([PYTORCH, eager_kernels(), TENSORRT], ["layer of run"] * 2),
        ([eager_kernels(), TENSORRT], ["layer of run", "kernel of kernels"]),
        ([PYTORCH, eager_kernels(), TENSORRT, eager_kernels("tensorrt", 0.2)], ["kernel of kernels"] * 2),
        ([PYTORCH, eager_kernels(unknown=0.3)], ["kernel of kernels"]),
        ([PYTORCH, eager_kernels(unknown=0.5)], ["layer of run"]),
        # Kernels that are not traced: the layers, where these are kernels too.
        ([PYTORCH, eager_kernels(), COMPILED, UNTRACED], ["kernel of kernels", "layer of kernels"]),
        ([PYTORCH, eager_kernels(), COMPILED], ["kernel of kernels", "layer of kernels"]),
        ([PYTORCH, eager_kernels(), COMPILED, TRACED], ["kernel of kernels"] * 2),
        ([PYTORCH, eager_kernels(), UNTRACED], ["layer of run", "kernel of kernels"]),
        ([PYTORCH, COMPILED], ["layer of run"] * 2),
        ([COMPILED], ["layer of kernels"]),
        ([eager_kernels(), UNTRACED], ["kernel of kernels"] * 2),
    ],
)
def test_the_level_that_is_shown(profiles, shown):
    assert levels(*profiles) == shown


@pytest.mark.parametrize(
    ("level", "shown"),
    [("layer", ["layer of run"] * 3), ("kernel", ["kernel of kernels", "layer of kernels"])],
)
def test_a_level_that_is_asked_for_is_shown_alone(level, shown):
    profiles = [PYTORCH, eager_kernels(), TENSORRT, COMPILED, UNTRACED]
    assert levels(*profiles, level=level) == shown
    assert levels(eager_kernels(), UNTRACED, level="layer") == []
    assert levels(UNTRACED, level="kernel") == ["kernel of kernels"]


def test_the_other_level_is_told():
    both = [PYTORCH, eager_kernels()]
    assert "--level layer shows the layers of pytorch fp16." in drawn(*both)
    assert "--level layer" not in drawn(eager_kernels())
    assert "--level" not in drawn(eager())
    assert "--level kernel shows the kernels of pytorch fp16; of tensorrt fp16 there are none." in drawn(
        *both, TENSORRT
    )
    text = drawn(*both, of_layers("torch_compile", (1, "conv1")), UNTRACED)
    assert "those of torch_compile fp16 are not traced to modules." in text
    text = drawn(*both, COMPILED, UNTRACED)
    assert "From the profile of layers, whose kernels CUPTI timed: torch_compile fp16." in text
    assert row(text, "all kernels") == ["3.50", "100", "%", "1.50", "100", "%"]
    assert row(text, "conv1") == ["1.00", "28.6", "%", "0.500", "★", "33.3", "%"]
    assert "fp16 kernels" not in text, "all are of kernels"


def test_a_case_without_the_level_says_so():
    text = drawn(PYTORCH, eager_kernels(), TENSORRT, level="kernel")
    assert (
        "tensorrt fp16 has no kernels: It was not profiled at that level; inferlens profile MODEL --level ker" in text
    )
    broken = of_kernels("tensorrt", None, status="failed", reason="It broke.", hint="--timeout")
    assert "tensorrt fp16 has no kernels: It broke. --timeout" in drawn(eager_kernels(), broken)
    assert "tensorrt fp16 has no kernels: It broke. --timeout" in drawn(TENSORRT, broken, level="kernel")
    assert levels(eager_kernels(), broken) == ["kernel of kernels"], "it did not run"
    (tree,) = json.loads(drawn(PYTORCH, UNTRACED, level="layer", format="json"))["models"]
    assert [(each["level"], each["reason"].partition(";")[0]) for each in tree["failed"]] == [
        ("layer", "It was not profiled at that level")
    ]
    assert drawn(PYTORCH, level="kernel", format="csv").count("\n") == 1
    with pytest.raises(InferlensError, match="no modules of the level 'kernels'"):
        drawn(PYTORCH, level="kernels")


def test_columns_of_both_levels_are_told_apart():
    text = drawn(traced(), of_layers("tensorrt", (1, "conv1"), (1, None)), depth=1)
    assert "GPU times of layers, as shares of the whole run and kernel times, as shares of all kernels" in text
    assert row(text, "whole run, or all kernels")
    assert "layers and kernels of no known module" in text
    assert "pytorch fp16 kernels" in text
    assert "(some columns are times of layers, some of kernels)" in text
    assert "★" not in text


def test_kernels_are_compared_however_long_the_host_took():
    assert "★" in drawn(eager_kernels(), TRACED, median=1e-3)
    text = drawn(eager_kernels(), TRACED, traced(ENGINE), level="kernel", median=1e-3)
    assert (
        "Not compared with others: torch_tensorrt:dynamo fp16 (more than 10 % is in kernels of no known module)" in text
    )


def test_a_level_is_chosen_where_there_is_one():
    both = [PYTORCH, traced(), traced(ENGINE)]
    of_layer = [one.profile.level for group in loaded(*both, level="layer") for one in group]
    assert of_layer == ["layer", "kernel"]
    of_kernel = [one.profile.level for group in loaded(*both, level="kernel") for one in group]
    assert of_kernel == ["kernel", "kernel"]
    assert len([one for group in loaded(*both) for one in group]) == 3


def test_the_reference_is_named_as_its_column_is():
    text = drawn(PYTORCH, eager_kernels(), TRACED, fused="split", reference="torch_compile fp16")
    assert text.index("torch_compile") < text.index("pytorch")
    assert "host times of layers" in drawn(eager(), fused())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_any_name_at_any_width(format, width):
    nothing = of_kernels("torch_compile", Kernels(kernels=(), whole=(1e-3,) * RUNS, busy=(0.0,) * RUNS, launches=0))
    text = drawn(nasty(), nothing, TENSORRT, format=format, width=width)
    if format == "json":
        assert NASTY in {each["path"] for each in json.loads(text)["models"][0]["rows"]}
    elif format == "csv":
        assert NASTY in {cell for line in csv.reader(io.StringIO(text)) for cell in line}
    else:
        assert "\x1b" not in text
        assert "\u202e" not in text
    if format == "table":
        assert max(map(cell_len, text.splitlines())) <= max(width, 60)


def test_no_kernels_at_all():
    nothing = of_kernels("pytorch", Kernels(kernels=(), whole=(1e-3,) * RUNS, busy=(0.0,) * RUNS, launches=0))
    text = drawn(nothing)
    assert row(text, "all kernels") == ["0"]
    assert "No module has a time of its own." in text
