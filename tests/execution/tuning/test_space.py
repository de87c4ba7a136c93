"""What a tuning tries: every family that works here, and each effective configuration once."""

import sys
from itertools import product

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from inferlens.backends import BACKENDS, importable_backends
from inferlens.backends.base import Capabilities, Knob, Support
from inferlens.backends.fake import Fake
from inferlens.execution.cases import ProbeResult, expand
from inferlens.execution.tuning import space as searched
from inferlens.execution.tuning.search import Search
from inferlens.execution.tuning.space import combinations, combined, explore, neighbours, search_selection, size
from inferlens.spec.case import Case
from inferlens.spec.objective import Objective
from inferlens.spec.plan import Plan, as_plan
from tests.refusals import refusal
from tests.spec.test_plan import FAKE, GPU_HOST, LAPTOP, QUANTIZING, RESNET, engine, onnx_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ABLE = {"fake": BACKENDS.get("fake")().capabilities()}
KNOBS = (
    Knob(name="latency", values=(2.0, 1.0)), Knob(name="per_item", values=(0.5,), needs=("latency",), build=2.0),
    Knob(name="error", values=(0.1, 0.2), precisions=("fp16",), build=3.0),
    Knob(name="clock", values=("host",), excludes=("trouble",)),
    Knob(name="trouble", values=("raise",), excludes=("clock",), variants=("steady",)),
)  # fmt: skip
STEADY = Case(model="fake:demo", backend="fake", variant="steady")
CPUS = 4
QUANTIZES = Support("cpu", "cpu", ("fp32", "int8"), quantizes=("int8",))


@pytest.fixture
def knobs(monkeypatch):
    monkeypatch.setattr(Fake, "knobs", KNOBS)


def space(able=ABLE, found=FAKE, tries=None, **words):
    plan = Plan.from_words({"model": found.spec, **words})
    here = ProbeResult(plan, [found], dict(able), dict(able))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searched, "probe_plan", lambda *_: [here])
        return explore(plan, search_selection(**{"cpus": CPUS, **(tries or {})}))


def labels(found):
    return [each.case.label for each in found.families]


# Families


def test_families_are_every_backend_variant_and_precision_that_works_here():
    found = space(LAPTOP, RESNET)
    floats = ("fp32", "fp16", "bf16")
    assert labels(found) == [
        *(f"pytorch {each} batch 1 cpu" for each in floats),
        *(f"torchscript:{variant} {each} batch 1 cpu" for variant in ("trace", "script") for each in floats),
        "onnxruntime:cpu fp32 batch 1 cpu",
    ]
    why = {(each.case.backend_label, each.case.precision): str(each.refusal) for each in found.refused}
    assert "no kernels" in why["onnxruntime:cpu", "fp16"]
    assert "no CUDA provider" in why["onnxruntime:cuda", "fp32"]
    assert found.references[0].label == "pytorch fp32 batch 1 cpu"


def test_the_ways_that_backends_recommend_are_candidates_without_the_options_that_are_left_out():
    for tries, option in ({}, " optimize_for_inference=true"), ({"without": ("optimize_for_inference",)}, ""):
        ways = [case.way for case in space(LAPTOP, RESNET, tries).recommended if case.precision == "fp32"]
        assert ways == ["pytorch", f"torchscript:trace{option}", "onnxruntime:cpu"]


def test_a_space_without_reference_and_recommended_ways_is_searched():
    script = space(LAPTOP, RESNET, {"only": ["torchscript:script", "fp32"]})
    assert [*script.references, *script.recommended] == []
    assert len(Search(script, Objective.parse("latency")).ask(lambda _: 1.0)) == 1


def test_what_runs_on_another_device_is_not_tried_unless_it_is_asked_for():
    found = space(GPU_HOST, RESNET)
    assert labels(found) == [f"pytorch {each} batch 1 cuda" for each in ("fp32", "fp16", "bf16")]
    hints = {each.case.backend_label: each.refusal.hint for each in found.refused if each.refusal}
    assert hints["torchscript:trace"] == "--device cpu"
    assert labels(space(GPU_HOST, RESNET, {"only": ["onnxruntime"]})) == ["onnxruntime:cpu fp32 batch 1 cpu"]
    both = space(GPU_HOST, RESNET, {"only": ["pytorch", "fp32"]}, device="cpu,cuda")
    assert labels(both) == ["pytorch fp32 batch 1 cpu", "pytorch fp32 batch 1 cuda"]


def test_a_quantized_or_compiled_model_has_one_precision():
    found = space(QUANTIZING, onnx_file("int8"))
    assert labels(found) == ["onnxruntime:cpu int8 batch 1 cpu"]
    able = {"tensorrt": Capabilities(formats=("engine",), supports=(Support("rtx", "cuda", ("fp32", "fp16")),))}
    assert labels(space(able, engine())) == ["tensorrt:rtx fp16 batch 2 cuda"]


def test_int8_is_tried_where_there_is_data_to_calibrate_with_or_it_is_asked_for():
    able = {"onnxruntime": Capabilities(formats=("module",), supports=(QUANTIZES,))}
    fp32, int8 = "onnxruntime:cpu fp32 batch 1 cpu", "onnxruntime:cpu int8 batch 1 cpu"
    assert (labels(space(able, RESNET)), labels(space(able, RESNET, calibration="random"))) == ([fp32], [fp32, int8])
    assert labels(space(able, RESNET, precision="fp32,int8", calibration="random")) == [fp32, int8]
    assert labels(space(able, RESNET, precision="fp32", calibration="random")) == [fp32]
    without = {each.case.label: each.refusal for each in space(able, RESNET, precision="fp32,int8").refused}
    assert without[int8].hint.startswith("--calibration DATA")


def test_axes_of_the_plan_multiply_families_and_its_options_are_those_of_all(knobs):
    words = {"option": ["fake.latency=2,4", "fake.error=0"], "threads": 2, "batch": "1,8"}
    found = space(tries={"only": ["fake:fast", "fp32"]}, **words)
    assert [(each.case.batch, each.case.options, each.case.threads) for each in found.families] == [
        (1, {"latency": 2.0}, 2), (1, {}, 2), (8, {"latency": 2.0}, 2), (8, {}, 2),
    ]  # fmt: skip
    assert [knob.name for knob in found.knobs["fake"]] == ["per_item", "clock", "trouble"]


def test_variants_that_are_run_alike_are_one_family(monkeypatch):
    def effective(case):
        return replace(case, variant="steady" if case.variant == "noisy" else case.variant)

    monkeypatch.setattr(Fake, "effective", effective)
    found = space(tries={"only": ["fp32"]})
    assert [each.case.variant for each in found.families] == ["steady", "fast"]


# What is left out


@pytest.mark.parametrize(("tries", "words", "variants", "precisions", "names"), [
    ({}, {}, "steady fast noisy", "fp32 fp16 bf16", "latency per_item error clock trouble threads"),
    ({"only": ["fake:fast", "fp16"]}, {}, "fast", "fp16", "latency per_item error clock trouble threads"),
    ({"only": ["latency", "fake.error"]}, {}, "steady fast noisy", "fp32 fp16 bf16", "latency error"),
    ({"only": ["fake"], "without": ["fake:noisy", "bf16", "threads", "fake.clock"]}, {}, "steady fast",
     "fp32 fp16", "latency per_item error trouble"),
    ({"without": ["fp32"]}, {"backend": "fake:fast", "precision": "fp32,fp16"}, "fast", "fp16",
     "latency per_item error clock trouble threads"),
])  # fmt: skip
def test_names_narrow_what_is_search_selection(knobs, tries, words, variants, precisions, names):
    found = space(tries=tries, **words)
    expected = {(variant, precision) for variant in variants.split() for precision in precisions.split()}
    assert {(each.case.variant, each.case.precision) for each in found.families} == expected
    assert [knob.name for knob in found.knobs["fake"]] == names.split()


@pytest.mark.parametrize(("tries", "values"), [
    ({}, {"latency": (2.0,)}), ({"measures": ["latency", "memory"]}, {"latency": (2.0,)}),
    ({"measures": ["throughput"]}, {"latency": (2.0,), "per_item": (0.5,)}),
    ({"measures": ["latency", "throughput"]}, {"latency": (2.0,), "per_item": (0.5,)}),
    ({"measures": ["throughput"], "without": ["per_item"]}, {"latency": (2.0,)}),
    ({"only": ["per_item"]}, {"per_item": (0.5,)}),
    ({"file": "[knobs.fake]\nper_item = [0.25]"}, {"latency": (2.0,), "per_item": (0.25,)}),
])  # fmt: skip
def test_a_knob_for_another_objective_is_tried_if_it_is_named(monkeypatch, tmp_path, tries, values):
    knobs = (Knob(name="latency", values=(2.0,)), Knob(name="per_item", values=(0.5,), objectives=("throughput",)))
    monkeypatch.setattr(Fake, "knobs", knobs)
    if text := tries.get("file"):
        (tmp_path / "space.toml").write_text(text)
        tries = {**tries, "file": tmp_path / "space.toml"}
    assert {knob.name: knob.values for knob in space(tries={"cpus": 1, **tries}).knobs["fake"]} == values


@pytest.mark.parametrize(("tries", "words", "message"), [
    ({"only": ["faek"]}, {}, "no backend or variant, precision or option 'faek'.*did you mean fake"),
    ({"without": ["fake:fsat"]}, {}, "did you mean .*fake:fast"),
    ({"without": ["latensy"]}, {}, "did you mean .*latency"),
    ({"only": ["fp16"], "without": ["fp16"]}, {}, "No precision is left to try"),
    ({"only": ["fake:fast"]}, {"backend": "fake:steady"}, "No backend or variant is left to try"),
    ({"only": ["pytorch"]}, {"option": "fake.latency=2"}, "for a backend that the plan leaves out"),
])  # fmt: skip
def test_what_leaves_nothing_or_is_no_name_is_refused(knobs, tries, words, message):
    refusal(message, space, {**ABLE, **LAPTOP}, tries=tries, **words)


def test_a_space_file_narrows_and_widens(knobs, tmp_path):
    file = tmp_path / "space.toml"
    file.write_text(
        'backends = ["fake:fast", "fake:steady"]\nprecision = ["fp16"]\n[knobs]\nthreads = [3]\n'
        '[knobs.fake]\nlatency = [3, 4, "3.0"]   # 4 is the default\nerror = []\nwhen = "enter"\n'
    )
    found = space(tries={"file": file, "without": ["fake:steady"]})
    assert labels(found) == ["fake:fast fp16 batch 1 cpu"]
    values = {knob.name: knob.values for knob in found.knobs["fake"]}
    assert values == {
        "latency": (3.0,), "per_item": (0.5,), "clock": ("host",), "trouble": ("raise",), "threads": (3,),
        "when": ("enter",),
    }  # fmt: skip
    assert found.knobs["fake"][1].needs == ("latency",)


@pytest.mark.parametrize(("text", "message"), [
    ("backend = ['fake']", "no word of a space file 'backend'.*did you mean backends"),
    ("backends = ['fp16']", "no backend or variant 'fp16'"),
    ("precision = ['fp61']", "no precision 'fp61'.*did you mean fp16"), ("knobs = 3", "'3' names no knobs"),
    ("[knobs]\nlatensy = [1]", "no knob 'latensy'.*latency"),
    ("[knobs.faek]\nlatency = [1]", "no backend 'faek'.*did you mean fake"),
    ("[knobs.fake]\nlatensy = []", "no option 'latensy'.*did you mean latency"),
    ("[knobs.fake]\nlatency = ['quick']", "does not take 'quick'"),
    ("[knobs.fake]\nthreads = [0]", "not valid for threads"), ("backends = [", "The space file .* cannot be read"),
])  # fmt: skip
def test_a_space_file_that_means_nothing_is_refused(tmp_path, text, message):
    (tmp_path / "space.toml").write_text(text)
    refusal(message, search_selection, tmp_path / "space.toml")


@pytest.mark.parametrize(("cpus", "counts"), [(1, ()), (2, (1, 2)), (3, (1, 3)), (16, (8, 16, 1))])
def test_threads_are_one_half_the_cpus_and_all(cpus, counts, monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 1000)
    case = Case(model=RESNET.spec, backend="pytorch")
    assert space(LAPTOP, RESNET, {"cpus": cpus}).values(case).get("threads", ()) == counts
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: cpus if logical else max(cpus // 2, 1))
    but_one = tuple(each for each in counts if each != max(cpus // 2, 1))
    assert space(LAPTOP, RESNET, {"cpus": cpus}).values(case).get("threads", ()) == but_one, "a thread a core is usual"
    on_gpu = Case(model=RESNET.spec, backend="pytorch", device="cuda")
    assert "threads" not in space(GPU_HOST, RESNET, {"cpus": cpus}).values(on_gpu)


# Candidates


def test_one_effective_configuration_is_one_case(knobs):
    plain = combined(STEADY, {})
    assert plain == STEADY
    assert combined(STEADY, {"latency": 4.0, "error": None, "when": "infer", "threads": None}) == plain
    assert combined(STEADY, {"latency": "2"}) == combined(STEADY, {"latency": 2.0})
    assert combined(STEADY, {"per_item": 0.5}) == plain, "without latency it does nothing"
    assert combined(STEADY, {"error": 0.1}) == plain, "in fp32 it does nothing"
    both = combined(STEADY, {"per_item": 0.5, "latency": 1.0, "threads": 2})
    assert (both.options, both.threads) == ({"latency": 1.0, "per_item": 0.5}, 2)
    assert combined(both, {"latency": None, "threads": None}) == plain
    assert combined(STEADY, {"trouble": "raise", "clock": "host"}).options == {"clock": "host"}
    refusal("no option 'latensy'", combined, STEADY, {"latensy": 1})


def test_what_the_plan_asks_for_stays_beside_every_neighbour(knobs):
    found = space(option="fake.clock=host")
    near = neighbours(found.families[0].case, found)
    assert len(near) == 6
    assert all(case.options["clock"] == "host" and "trouble" not in case.options for case in near)


def reached(family, found):
    """What steps from neighbour to neighbour lead to."""
    seen, left = {family.digest}, [family]
    while left:
        for near in neighbours(left.pop(), found):
            if near.digest not in seen:
                seen.add(near.digest)
                left.append(near)
    return seen


NAMES = {"latency": (2.0, 1.0), "per_item": (0.5,), "error": (0.1,), "when": ("enter", "exit")}


@st.composite
def drawn(draw):
    names = draw(st.lists(st.sampled_from(sorted(NAMES)), unique=True))
    some = st.lists(st.sampled_from(sorted(NAMES)), max_size=2, unique=True).map(tuple)
    return tuple(
        Knob(name=name, values=NAMES[name], needs=draw(some), excludes=tuple({*draw(some)} - {name}))
        for name in names
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(drawn())
def test_whatever_the_conditions_each_candidate_is_there_once(knobs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fake, "knobs", knobs)
        found = space(tries={"only": ["fake:steady", "fp32"], "cpus": 2})
        (family,) = (each.case for each in found.families)
        every = {case.digest: case for case in (combined(family, changes) for changes in all_changes(found))}
        made = {case.digest: case for case in combinations(family, found)}
        assert (made, size(found)) == (every, len(made))
        for case in made.values():
            assert (combined(case, {}), found.family(case)) == (case, family)
            assert case.digest not in {near.digest for near in neighbours(case, found)}
        assert reached(family, found) == made.keys()


def all_changes(found):
    knobs = found.knobs["fake"]
    for values in product(*((None, *knob.values) for knob in knobs)):
        yield {knob.name: value for knob, value in zip(knobs, values, strict=True)}


# The whole way


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_plan_file_says_every_neighbour_of_every_family(device):
    """Of all backends, as if each ran everywhere: their knobs are data."""
    floats = ("fp32", "fp16", "bf16")
    able = {
        backend.name: Capabilities(
            formats=("module",), supports=tuple(Support(v, device, floats) for v in backend.variants)
        )
        for backend in importable_backends()
    }
    found = space(able, RESNET)
    for family in (each.case for each in found.families):
        for case in neighbours(family, found):
            assert found.family(case) == family
            plan = Plan.from_words(tomllib.loads(as_plan(case)))
            assert [each.case for each in expand(plan, [RESNET], able)] == [case]
