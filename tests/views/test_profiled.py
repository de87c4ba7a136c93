"""Tables of profiles: what holds for all of them, whatever stands in the names; then layers, kernels and modules."""

import pytest
from msgspec.structs import replace

from inferlens.backends.profiling.runs import GPU_CLOCK
from inferlens.record.profile import Kernel, Layer, ModuleWork, Profile, Work
from inferlens.record.record import Warning
from inferlens.views.picture import chart_data
from inferlens.views.profiles import roofline as plots
from inferlens.views.profiles.cases import cases_of_level, group_profiles
from inferlens.views.profiles.layers_kernels import part_tables
from inferlens.views.profiles.modules import module_tree, modules_document
from inferlens.views.renderers import render
from tests.analysis.profiles import (
    NASTY_PROFILES,
    eager,
    failed,
    fused,
    kernel,
    layer,
    made,
    of_kernels,
    other,
    profile,
    traced,
)
from tests.backends.profiling.samples import ENGINE, GRAPH
from tests.refusals import refusal
from tests.snapshots import screens_test
from tests.views.profiled import data, drawn, lines, loaded
from tests.views.samples import GPU_MACHINE, WRONG, case

BROKEN = failed(case("torchscript:trace"), "It <broke>.")
ALL = (eager(), fused(), other(), BROKEN)
KERNELS = of_kernels("torch_compile", made(kernel("gemm", 1e-3, "a"), kernel("relu", 1e-3, "b")))


every_table = pytest.mark.parametrize("table", ["layers", "modules", "kernels", "roofline"])


# All of them


@every_table
def test_only_failures(table):
    level = "kernel" if table == "kernels" else "layer"
    broken = replace(failed(case()), level=level, hint="--device cuda")
    assert "It broke. --device cuda" in drawn(table, broken)
    assert "It broke." in drawn(table, broken, format="json")
    assert len(lines(table, broken)) == 0


@pytest.mark.parametrize(("table", "options"), [
    ("layers", {"sort": "tim"}), ("kernels", {"sort": "name"}), ("kernels", {"by": "module"}),
    ("roofline", {"sort": "wun"}), ("roofline", {"by": "modul"}), ("modules", {"level": "kernels"}),
    ("modules", {"fused": "half"}), ("modules", {"format": "cvs"}),
])  # fmt: skip
def test_what_there_is_not_is_refused(table, options):
    refusal(f"There is no .* '{next(iter(options.values()))}'", drawn, table, eager(), **options)


@pytest.mark.parametrize("top", [None, 1, 3])
@every_table
def test_csv_adds_up(table, top):
    time = "time" if table == "roofline" else "typical"
    rows = lines(table, NASTY_PROFILES["roofline"], *ALL, KERNELS, **({} if table == "modules" else {"top": top}))
    for digest in {item["digest"] for item in rows}:
        mine = [item for item in rows if item["digest"] == digest and item.get("depth", "1") in ("0", "1")]
        (whole,) = [item for item in mine if item["row"] == "whole"]
        assert sum(float(item[time] or 0) for item in mine if item is not whole) == pytest.approx(float(whole[time]))
    assert {item["row"] for item in rows} >= {"whole"}


# The screens


WARNED = (Warning("x", "Clocks moved.", "Hold them."),)
PARTS = [layer(f"l{n}", 10e-6, f"l{n}") for n in range(30)]
ON_GPU = profile(case(device="cuda"), PARTS, timed="GPU")
BLOCKS = [layer(f"{n}", n * 1e-4, f"block{n // 10}.{n % 10}") for n in range(60)]
CONV, NORM = (layer(name, 1e-3, name) for name in ("conv1", "bn1"))
WORK = Work(modules=(ModuleWork(module="conv1", flops=1e9),))
SEPARATE = replace(profile(case(), [CONV, NORM]), work=WORK)
TOGETHER = profile(case("openvino"), [layer("conv1+bn1", 1.5e-3, "conv1", "bn1")])
LATE = replace(failed(case(), "Too late."), id="late", created="2027-01-01T00:00:00Z")
SIDE_BY_SIDE = made(kernel("a", 1e-3, stream=1), kernel("b", 1e-3, stream=2), busy=1.2e-3)


def note_screen(table: str) -> str:
    """The screen of a profile with a warning and with modules that are not known."""
    of = profile(case(), [layer("a", 1e-3)], warnings=WARNED)
    of = replace(of, layers=replace(of.layers, absent={"modules": "not known"}))
    kernels = made(kernel("a", 1e-3), absent={"modules": "not known"})
    return drawn(table, of if table == "layers" else of_kernels("pytorch", kernels, warnings=WARNED))


def brief(parts: list[Layer]) -> str:
    groups = group_profiles(loaded(profile(case(), parts)))
    return render(modules_document(groups, rows=1, brief=True, command="modules D"))


SCREENS = {
    "layers": lambda: drawn("layers", eager(), top=3, width=160),
    "layers on a GPU": lambda: drawn("layers", ON_GPU, top=3, median=3e-4),
    "layers that overlap": lambda: drawn(
        "layers", profile(case(), [layer("a", 3e-3, "a"), layer("b", 3e-3, "b")], outside=-2e-3)
    ),
    "layers in two precisions": lambda: drawn(
        "layers", *(profile(case(f"b{of}"), [layer("conv", 1e-3, "conv", precision=of)]) for of in ("fp32", "int8")),
        width=100,
    ),
    "layers with notes": lambda: note_screen("layers"),
    "kernels": lambda: drawn("kernels", traced(), width=300, top=3, median=2e-3),
    "kernels, wide": lambda: drawn("kernels", traced(), width=300, wide=True),
    "kernels of two cases": lambda: drawn("kernels", traced(GRAPH), traced(ENGINE), width=300),
    "kernels side by side": lambda: drawn("kernels", of_kernels("pytorch", SIDE_BY_SIDE)),
    "kernels with notes": lambda: note_screen("kernels"),
    "modules": lambda: drawn("modules", *ALL),
    "modules that were fused": lambda: drawn("modules", SEPARATE, TOGETHER),
    "modules on a GPU": lambda: drawn("modules", ON_GPU),
    "modules of three cases": lambda: drawn("modules", *(profile(case(name), BLOCKS) for name in "abc"), width=100),
    "modules, brief": lambda: brief(BLOCKS),
    "modules, folded": lambda: drawn("modules", eager(), depth=1),
    "modules of a profile that failed later": lambda: drawn("modules", LATE, eager()),
    "modules of wrong outputs": lambda: render(
        modules_document(group_profiles(loaded(eager(), other(), agreement=WRONG))), width=200
    ),
}  # fmt: skip
test_screen = screens_test("profiles", SCREENS)


# Kernels


def test_different_kernels_have_different_names_however_narrow_the_terminal_is():
    begin, end = "void lib::gemm<__half, ", ", false>(int)"
    names = [f"{begin}{size}{end}" for size in ("64", "128", "256")]
    names += [f"cudnn_generated_engine_{'x' * 40}_{knob}_{'y' * 40}" for knob in ("knob_1", "knob_2", "knob_27")]
    of = of_kernels("pytorch", made(*(kernel(name, 1e-3) for name in names)))
    for width in (60, 100, 250):
        rows = drawn("kernels", of, width=width).partition("───\n")[2].splitlines()
        found = {name for line in rows if (name := line.split("  ")[0]).startswith(("gemm", "cudnn"))}
        assert len(found) == 6, width


def test_programs_get_kernels_by_their_calls():
    calls = [item["calls"] for item in data("kernels", traced(), sort="calls")["cases"][0]["rows"]]
    assert calls == sorted(calls, reverse=True)


# Modules


def test_the_reference_is_the_first_column():
    def names(**options) -> list[str]:
        found = data("modules", other(), fused(), eager(), **options)
        return [column["name"] for column in found["models"][0]["columns"]]

    assert names()[0] == "pytorch fp32"
    assert names(reference="onnxruntime")[0] == "onnxruntime:cpu fp32"
    refusal("No case fits", names, reference="tensorrt")
    assert names(reference="fp32")[0] == names()[0], "the plainest of those that fit"


def test_which_profiles_share_a_tree():
    several = [eager(), profile(case(batch=8), [layer("a", 1e-3, "a")])]
    several.append(profile(case(model="other"), [layer("a", 1e-3, "a")]))
    several.append(profile(case("fake"), [layer("a", 1e-3, "a")], environment=GPU_MACHINE))
    assert len(data("modules", *several)["models"]) == 4


def test_few_trees_share_a_table_with_their_modules_and_many_name_the_largest():
    batches = [profile(case(name, batch=batch), BLOCKS) for batch in (1, 4, 8) for name in ("pytorch", "fake")]
    shown = drawn("modules", *batches, width=100)
    assert len(shown.splitlines()) <= 24
    assert [shown.count(f"batch {batch} ") for batch in (1, 4, 8)] == [1, 1, 1]
    assert shown.count("  block5 ") == 3
    assert " largest " not in shown
    assert " largest " in drawn("modules", *batches, profile(case(batch=16), BLOCKS), width=100)


# Modules from kernels, and which profile of each case is its column: figures known in advance.

RUNS = 20
EVENTS = "CUDA events"


def tree_of(*profiles: Profile, **options) -> str:
    return drawn("modules", *profiles, **{"median": 8e-3, **options})


def steady_kernel(ms: float, *paths: str, stream: int = 7) -> Kernel:
    return Kernel(name="k", modules=paths, times=(ms / 1000,) * RUNS, stream=stream)


def of_layers(label: str, *layers: tuple[float, str | None], clock: str = EVENTS) -> Profile:
    """A profile of layers of so many ms each, of a module or of none that is known."""
    parts = [Layer(name=path or "?", modules=() if path is None else (path,), times=(ms / 1000,) * RUNS)
             for ms, path in layers]  # fmt: skip
    of = profile(case(label, device="cuda", precision="fp16"), parts, outside=2e-3, timed="GPU")
    return replace(of, layers=replace(of.layers, clock=clock))


def eager_kernels(label: str = "pytorch", scale: float = 1.0, unknown: float = 0.0) -> Profile:
    """3.5 ms of kernels, times ``scale``, and ``unknown`` ms that are of no known module."""
    paths = {"conv1": 1, "layer1.0": 2, "layer1.1": 0.5}
    each = [steady_kernel(ms * scale, path) for path, ms in paths.items()]
    each += [steady_kernel(unknown)] if unknown else []
    return of_kernels(label, made(*each, idle=6e-3))


PYTORCH = of_layers("pytorch", (10, "conv1"), (20, "layer1.0"))
TENSORRT = of_layers("tensorrt", (1, "conv1"), (2, "layer1.0"))
COMPILED = of_layers("torch_compile", (0.5, "conv1"), (1, "layer1.0"), clock=GPU_CLOCK)
UNTRACED = of_kernels("torch_compile", made(steady_kernel(1), steady_kernel(0.5)))
TRACED = eager_kernels("torch_compile", 0.5)


BOTH = of_kernels("pytorch", made(steady_kernel(1, "a", stream=1), steady_kernel(3, "b", stream=2), busy=3e-3))
CRASHED = of_kernels("tensorrt", None, status="failed", reason="It broke.", hint="--timeout")
SEVERAL = [eager_kernels(f"b{number}") for number in range(4)]
LAYERS = of_layers("tensorrt", (1, "conv1"), (1, None))
test_module_screen = screens_test("modules", {
    "of kernels": lambda: tree_of(eager_kernels(unknown=0.5), depth=1),
    "of kernels without a record": lambda: tree_of(eager_kernels(), median=None),
    "several": lambda: tree_of(*SEVERAL),
    "by a reference": lambda: tree_of(
        eager_kernels(), TRACED, traced(ENGINE), level="kernel", reference="torch_compile", median=1e-3
    ),
    "without the level": lambda: tree_of(PYTORCH, eager_kernels(), TENSORRT, level="kernel"),
    "broken": lambda: tree_of(eager_kernels(), CRASHED), "side by side": lambda: tree_of(BOTH),
})  # fmt: skip


def levels(*profiles: Profile, level=None) -> list[str]:
    """The level of the profile of each column, and what its shares are of."""
    (group,) = group_profiles(loaded(*profiles))
    return [f"{one.case.profile.level} of {one.runs.share_of}" for one in module_tree(group, level).columns]


@pytest.mark.parametrize(("level", "profiles", "shown"), [
    (None, [PYTORCH, eager_kernels()], ["kernel of kernels"]),
    (None, [PYTORCH, eager_kernels(), TENSORRT], ["layer of run"] * 2),
    (None, [eager_kernels(), TENSORRT], ["layer of run"]),
    (None, [PYTORCH, eager_kernels(), TENSORRT, eager_kernels("tensorrt", 0.2)], ["kernel of kernels"] * 2),
    (None, [PYTORCH, eager_kernels(unknown=0.5)], ["layer of run"]),
    (None, [COMPILED], ["layer of kernels"]), (None, [eager_kernels(), UNTRACED], ["kernel of kernels"] * 2),
    ("layer", [PYTORCH, eager_kernels(), COMPILED], ["layer of run"] * 2),
    ("kernel", [PYTORCH, eager_kernels(), TENSORRT, COMPILED, UNTRACED], ["kernel of kernels"] * 2),
    ("layer", [eager_kernels(), UNTRACED], []),
])  # fmt: skip
def test_the_level_that_is_shown(level, profiles, shown):
    assert levels(*profiles, level=level) == shown


def test_a_case_without_the_level_says_so():
    assert levels(eager_kernels(), CRASHED) == ["kernel of kernels"], "it did not run"
    (tree,) = data("modules", PYTORCH, UNTRACED, level="layer")["models"]
    assert [(item["level"], item["reason"].partition(";")[0]) for item in tree["failed"]] == [
        ("layer", "It was not profiled at that level")
    ]
    assert lines("modules", PYTORCH, level="kernel") == []


# Boxes


def boxes(*profiles: Profile, sort: str = "time", median: float | None = 6e-3):
    return part_tables("layer", cases_of_level(loaded(*profiles, median=median), "layer"), sort)


def test_boxes_are_drawn_of_any_names():
    pytest.importorskip("vl_convert")
    page, missing = plots.draw_cases(boxes(NASTY_PROFILES["layers"], *ALL, sort="order"), "html")
    assert "<b>" not in page.partition("</script>")[2]
    assert missing == ["Not drawn: torchscript:trace fp32. It <broke>."]
    refusal(r"nothing to draw.*It broke", plots.draw_cases, boxes(failed(case())), "svg")


@pytest.mark.parametrize(("times", "ends", "whiskers"), [
    (tuple(0.001 * run for run in range(41)), [2, 10, 20, 30, 38], "5th to 95th percentile"),
    ((0.001, 0.002, 0.003), [1, 1.5, 2, 2.5, 3], "all runs"),
])  # fmt: skip
def test_boxes_are_quantiles_over_the_runs(times, ends, whiskers):
    (of,) = boxes(profile(case(), [layer("a", None, "a", times=times)]), median=None)
    panel = plots._box_chart(of, of.table, None)
    ((box,),) = chart_data(panel)
    assert [box[end] for end in ("low", "lower", "middle", "upper", "high")] == pytest.approx(ends)
    assert whiskers in str(panel["layer"][0]["encoding"]["x"]["title"])
    assert "a has the largest share" in panel["title"]["text"]
