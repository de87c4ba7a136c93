"""Modules from kernels, and which profile of each case is its column: figures known in advance, whatever is there."""

import pytest
from msgspec.structs import replace

from inferlens.backends.profiling.runs import GPU_CLOCK
from inferlens.record.profile import Kernel, Layer, Profile
from inferlens.views.profiles.cases import group_profiles
from inferlens.views.profiles.modules import module_columns
from tests.analysis.profiles import made, of_kernels, profile, traced
from tests.backends.profiling.samples import ENGINE
from tests.snapshots import compare_with_stored, screens_test
from tests.views import profiled
from tests.views.profiled import loaded
from tests.views.samples import case

RUNS = 20
EVENTS = "CUDA events"


def drawn(*profiles: Profile, **options) -> str:
    return profiled.drawn("modules", *profiles, **{"median": 8e-3, **options})


def kernel(ms: float, *paths: str, stream: int = 7) -> Kernel:
    return Kernel(name="k", modules=paths, times=(ms / 1000,) * RUNS, stream=stream)


def of_layers(label: str, *layers: tuple[float, str | None], clock: str = EVENTS) -> Profile:
    """A profile of layers of so many ms each, of a module or of none that is known."""
    parts = [
        Layer(name=path or "?", modules=() if path is None else (path,), times=(ms / 1000,) * RUNS)
        for ms, path in layers
    ]
    of = profile(case(label, device="cuda", precision="fp16"), parts, outside=2e-3, timed="GPU")
    return replace(of, layers=replace(of.layers, clock=clock))


def eager_kernels(label: str = "pytorch", scale: float = 1.0, unknown: float = 0.0) -> Profile:
    """3.5 ms of kernels, times ``scale``, and ``unknown`` ms that are of no known module."""
    each = [kernel(1 * scale, "conv1"), kernel(2 * scale, "layer1.0"), kernel(0.5 * scale, "layer1.1")]
    each += [kernel(unknown)] if unknown else []
    return of_kernels(label, made(*each, idle=6e-3))


PYTORCH = of_layers("pytorch", (10, "conv1"), (20, "layer1.0"))
TENSORRT = of_layers("tensorrt", (1, "conv1"), (2, "layer1.0"))
COMPILED = of_layers("torch_compile", (0.5, "conv1"), (1, "layer1.0"), clock=GPU_CLOCK)
UNTRACED = of_kernels("torch_compile", made(kernel(1), kernel(0.5)))
TRACED = eager_kernels("torch_compile", 0.5)


def test_kernels_side_by_side_have_shares_of_their_sum():
    both = of_kernels("pytorch", made(kernel(1, "a", stream=1), kernel(3, "b", stream=2), busy=3e-3))
    (tree,) = profiled.data("modules", both)["models"]
    assert tree["columns"][0]["busy"]["typical"] == pytest.approx(3e-3)
    compare_with_stored("modules/side by side", drawn(both))
    broken = replace(both, kernels=replace(both.kernels, busy=(1.0,)))
    assert "GPU at work" not in drawn(broken), "how long it was busy is not known"


BROKEN = of_kernels("tensorrt", None, status="failed", reason="It broke.", hint="--timeout")
SEVERAL = [eager_kernels(f"b{number}") for number in range(4)]
LAYERS = of_layers("tensorrt", (1, "conv1"), (1, None))
test_screen = screens_test("modules", {
    "of kernels": lambda: drawn(eager_kernels(unknown=0.5), depth=1),
    "of kernels without a record": lambda: drawn(eager_kernels(), median=None),
    "several": lambda: drawn(*SEVERAL),
    "both levels": lambda: drawn(traced(), LAYERS, depth=1),
    "by a reference": lambda: drawn(
        eager_kernels(), TRACED, traced(ENGINE), level="kernel", reference="torch_compile", median=1e-3
    ),
    "without the level": lambda: drawn(PYTORCH, eager_kernels(), TENSORRT, level="kernel"),
    "broken": lambda: drawn(eager_kernels(), BROKEN),
})  # fmt: skip


def test_kernels_are_compared_however_long_the_host_took():
    (tree,) = profiled.data("modules", eager_kernels(), TRACED, median=20e-3)["models"]
    assert any(cell["fastest"] for item in tree["rows"] for cell in item["cells"] if cell)


def levels(*profiles: Profile, level=None) -> list[str]:
    """The level of the profile of each column, and what its shares are of."""
    (group,) = group_profiles(loaded(*profiles))
    return [f"{one.case.profile.level} of {one.runs.share_of}" for one in module_columns(group, level, None).columns]


@pytest.mark.parametrize(("level", "profiles", "shown"), [
    (None, [PYTORCH, eager_kernels()], ["kernel of kernels"]),
    (None, [PYTORCH, eager_kernels(), TENSORRT], ["layer of run"] * 2),
    (None, [eager_kernels(), TENSORRT], ["kernel of kernels", "layer of run"]),
    (None, [PYTORCH, eager_kernels(), TENSORRT, eager_kernels("tensorrt", 0.2)], ["kernel of kernels"] * 2),
    (None, [PYTORCH, eager_kernels(unknown=0.3)], ["kernel of kernels"]),
    (None, [PYTORCH, eager_kernels(unknown=0.5)], ["layer of run"]),
    # Kernels that are not traced: the layers, where these are kernels too.
    (None, [PYTORCH, eager_kernels(), COMPILED, UNTRACED], ["kernel of kernels", "layer of kernels"]),
    (None, [PYTORCH, eager_kernels(), COMPILED, TRACED], ["kernel of kernels"] * 2),
    (None, [PYTORCH, eager_kernels(), UNTRACED], ["layer of run", "kernel of kernels"]),
    (None, [COMPILED], ["layer of kernels"]), (None, [eager_kernels(), UNTRACED], ["kernel of kernels"] * 2),
    ("layer", [PYTORCH, eager_kernels(), TENSORRT, COMPILED, UNTRACED], ["layer of run"] * 3),
    ("kernel", [PYTORCH, eager_kernels(), TENSORRT, COMPILED, UNTRACED], ["kernel of kernels", "layer of kernels"]),
    ("layer", [eager_kernels(), UNTRACED], []), ("kernel", [UNTRACED], ["kernel of kernels"]),
])  # fmt: skip
def test_the_level_that_is_shown(level, profiles, shown):
    assert levels(*profiles, level=level) == shown


def test_a_case_without_the_level_says_so():
    assert levels(eager_kernels(), BROKEN) == ["kernel of kernels"], "it did not run"
    (tree,) = profiled.data("modules", PYTORCH, UNTRACED, level="layer")["models"]
    assert [(item["level"], item["reason"].partition(";")[0]) for item in tree["failed"]] == [
        ("layer", "It was not profiled at that level")
    ]
    assert profiled.lines("modules", PYTORCH, level="kernel") == []
