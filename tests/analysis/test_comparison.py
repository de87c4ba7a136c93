import math

import msgspec
import pytest
from msgspec.structs import replace

import inferlens
from inferlens.analysis.comparison import compare, differences_sentence, environment_differences, match_cases
from inferlens.record.record import Environment, Gpu, Measurement, ModelFacts
from inferlens.spec.case import Budget, TensorSpec
from tests.refusals import refusal
from tests.views.samples import WRONG, broken, case, ran, saved

FAST, SLOW = case("openvino"), case("onnxruntime:cpu")


def one(base, candidate, **words):
    """The only case of a comparison."""
    (compared_case,) = compare(base, candidate, **words).cases
    return compared_case


@pytest.mark.parametrize(("rate", "verdict"), [(90.0, "SLOWER"), (110.0, "FASTER"), (100.0, "SAME")])
def test_more_throughput_is_faster(rate, verdict):
    found = one(ran(rate=100.0), ran(rate=rate, run="new"), metric="throughput")
    assert found.verdict == verdict
    assert found.change == pytest.approx(rate / 100 - 1, abs=1e-6)
    assert found.ratio == pytest.approx(100 / rate)
    assert found.change_interval.low <= found.change <= found.change_interval.high
    assert found.candidate.median == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("metric", ["GPU time", "gpu-time", " GPU_TIME "])
def test_gpu_time(metric):
    of = case(device="cuda")
    compared = compare(ran(of, gpu=9e-3), ran(of, gpu=5e-3, run="new"), metric=metric)
    assert compared.metric == "GPU time"
    assert compared.cases[0].verdict == "FASTER"


RIGHT = ran(seconds=5e-3, run="new")


@pytest.mark.parametrize(("candidate", "state", "reason"), [
    ([broken(status="out of memory", run="new")], "out of memory", "out of memory. It fell."),
    ([*RIGHT[:4], broken(status="timed out", run="new")], "timed out", "(1 of 5 processes)"),  # the others are fast
    ([*RIGHT[:4], *ran(seconds=5e-3, run="new", agreement=WRONG)[4:]], "wrong",
     "wrong outputs. Relative L2 error 0.52 is above 0.0001."),
])  # fmt: skip
def test_what_did_not_end_well_is_never_faster(candidate, state, reason):
    compared = compare(ran(), candidate)
    (of,) = compared.cases
    assert (of.verdict, of.candidate.state, of.candidate.median) == ("DID NOT RUN", state, None)
    assert reason in of.reason
    assert compared.exit_code == compare(candidate, ran()).exit_code == 4


def test_a_case_of_one_side_alone_did_not_run_on_the_other():
    compared = compare([*ran(), *ran(SLOW)], [*ran(run="new"), *ran(FAST, run="new")])
    assert {one.case.backend: (one.base.state, one.candidate.state) for one in compared.cases} == {
        "pytorch": ("ok", "ok"), "onnxruntime": ("ok", "missing"), "openvino": ("missing", "ok"),
    }  # fmt: skip
    assert [compared_case.verdict for compared_case in compared.cases] == ["SAME", "DID NOT RUN", "DID NOT RUN"]
    assert compared.exit_code == 4
    assert compared.comparisons == 1


def test_what_ran_on_neither_side_is_no_news():
    dead = [broken(FAST, "unsupported")], [broken(FAST, "unsupported", run="new")]
    compared = compare([*ran(), *dead[0]], [*ran(run="new"), *dead[1]])
    assert [compared_case.verdict for compared_case in compared.cases] == ["SAME", "DID NOT RUN"]
    assert compared.cases[1].ran_on_neither
    assert compared.exit_code == 0
    assert compare(*dead).exit_code == 4, "nothing at all was compared"


def test_the_worst_decides_the_exit_code():
    base = [*ran(noise=20), *ran(FAST), *ran(SLOW)]
    same, slower = ran(SLOW, run="new"), ran(SLOW, 20e-3, run="new")
    undecided, stopped = ran(noise=20, run="new"), [broken(FAST, run="new")]
    assert compare(base, [*undecided, *stopped, *slower]).exit_code == 1
    assert compare(base, [*undecided, *stopped, *same]).exit_code == 4
    assert compare(base, [*undecided, *ran(FAST, run="new"), *same]).exit_code == 3


@pytest.mark.parametrize("samples", [
    (), (0.0,) * 50, (math.nan,) * 50, (math.inf,) * 50, (None,) * 50, (-1.0,) * 50, (5e-324,) * 50, (1e308,) * 50,
])  # fmt: skip
def test_samples_that_are_no_times_cannot_be_compared(samples):
    measured = (Measurement(metric="latency", unit="s", clock="a clock", samples=samples),)
    compared = compare(ran(measurements=measured), ran(run="new"))
    assert [(compared_case.verdict, compared_case.ratio) for compared_case in compared.cases] == [("DID NOT RUN", None)]
    assert compared.exit_code == compare(ran(), ran(run="new", measurements=measured)).exit_code == 4


def test_from_folders_and_files_and_python(tmp_path):
    base, candidate = saved(tmp_path / "base", ran()), saved(tmp_path / "new", ran(seconds=11e-3, run="new"))
    compared = inferlens.compare(base, str(candidate), threshold=0.05)
    assert compared == inferlens.compare(ran(), ran(seconds=11e-3, run="new"), threshold=0.05)
    assert compared.with_verdict("SLOWER") == compared.cases
    first = sorted(base.rglob("record.json"))[0]
    assert len(inferlens.compare(first, candidate).cases[0].base.records) == 1


# Which cases belong together

HERE, THERE = (Environment(cpu="one CPU", gpus=(Gpu(name=name),)) for name in ("A", "B"))


def on(environment, of=None, run="base"):
    return ran(of, run=f"{run}-{environment.gpus[0].name}", environment=environment, processes=2)


def runs(found):
    return [tuple(side and side.first.run for side in item) for item in found]


@pytest.mark.parametrize("change", [
    {"batch": 2}, {"precision": "fp16"}, {"threads": 1}, {"options": {"a": 1}}, {"seed": 1}, {"weights": "x"},
    {"io": "host"}, {"model": "other"},
])  # fmt: skip
def test_cases_that_differ_in_anything_are_not_compared(change):
    other = replace(case(), **change)
    found = match_cases([*ran(), *ran(case("openvino"))], [*ran(other, run="new"), *ran(case("openvino"), run="new")])
    assert sum(all(item) for item in found) == 1


def test_each_machine_is_compared_with_itself_and_a_case_of_one_machine_on_each_side_with_the_other():
    found = match_cases([*on(HERE), *on(THERE)], [*on(THERE, run="new"), *on(HERE, run="new")])
    assert runs(found) == [("base-A", "new-A"), ("base-B", "new-B")]
    assert runs(match_cases(on(HERE), on(THERE, run="new"))) == [("base-A", "new-B")]


def test_a_machine_without_its_like_on_the_other_side_is_left_alone():
    assert runs(match_cases([*on(HERE), *on(THERE)], on(HERE, run="new"))) == [("base-A", "new-A"), ("base-B", None)]
    third = Environment(cpu="one CPU", gpus=(Gpu(name="C"),))
    refusal("No case is on both sides", match_cases, [*on(HERE), *on(THERE)], on(third, run="new"))


GPU = Gpu(name="a GPU", memory=80 * 2**30, uuid="GPU-1", power_limit=700.0)
WHERE = Environment(
    cpu="a CPU", cpu_cores=8, cpu_threads=16, governor="performance", memory=64 * 2**30, gpus=(GPU,), driver="570.1",
    cuda_driver="12.8", system="Linux", container="docker", python="CPython 3.11", inferlens="0.1.0",
    libraries={"torch": "2.9.0"}, variables={"OMP_NUM_THREADS": "4"}, git_revision="abc",
)  # fmt: skip
CUDA = case(device="cuda")


def found(of, **changes):
    """Differences of one case, where the candidate's environment has ``changes``."""
    environment = replace(WHERE, **changes)
    pair = ran(of, environment=WHERE)[0], ran(of, run="new", environment=environment)[0]
    return {one.field: (one.base, one.candidate, one.unlike) for one in environment_differences([pair])}


@pytest.mark.parametrize(("changes", "expected"), [
    ({"cpu": ""}, {"CPU": ("a CPU", "unknown", True)}), ({"cpu_cores": 4}, {"CPU cores": ("8", "4", True)}),
    ({"gpus": (GPU, GPU)}, {"GPUs": ("a GPU", "2 x a GPU", True)}), ({}, {}), ({"memory": 64 * 2**30 - 2**20}, {}),
    ({"gpus": (replace(GPU, uuid="GPU-2", memory=GPU.memory - 2**20),)}, {"GPU card": ("GPU-1", "GPU-2", False)}),
    ({"driver": "580.1"}, {"driver": ("570.1 (CUDA 12.8)", "580.1 (CUDA 12.8)", True)}),
    ({"variables": {}}, {"OMP_NUM_THREADS": ("4", "not there", True)}),
    ({"variables": {"OMP_NUM_THREADS": "4", "LD_PRELOAD": "x.so"}}, {"LD_PRELOAD": ("not there", "x.so", False)}),
    ({"memory": 32 * 2**30}, {"memory": ("64.0 GiB", "32.0 GiB", False)}),
    ({"libraries": {"torch": "2.10.0", "onnx": "1.2"}},
     {"torch": ("2.9.0", "2.10.0", False), "onnx": ("not there", "1.2", False)}),
])  # fmt: skip
def test_fields(changes, expected):
    assert found(CUDA, **changes) == expected


def test_a_revision_counts_where_the_model_is_code_of_the_user():
    """Elsewhere it is that of whatever folder the command was run in."""
    changed = {"git_revision": "def+"}
    expected = {"git revision": ("abc", "def+", False)}
    assert found(case(model="factory:mine:net"), **changed) == expected
    assert found(replace(case(), checkout="../new"), **changed) == expected
    assert found(case(), **changed) == {}


def test_every_field_of_the_environment_is_looked_at():
    values = {str: "else", int: 1, tuple: (), dict: {"else": "else"}}
    for field in msgspec.structs.fields(Environment):
        kind = type(getattr(WHERE, field.name))
        of = case(model="factory:mine:net", device="cuda")
        assert found(of, **{field.name: values[kind]}), field.name


@pytest.mark.parametrize(("base", "candidate", "expected"), [
    ((700.0,), (450.5,), [("700 W", "450.5 W", True)]),
    ((700.0,), (701.0,), []),  # as drivers round it
    ((700.0, 450.0), (300.0,), []),  # which of the two it was is not known
])  # fmt: skip
def test_a_power_limit_counts_if_all_gpus_share_it(base, candidate, expected):
    def limited(limits):
        gpus = tuple(Gpu(name="a GPU", power_limit=limit) for limit in limits)
        return ran(CUDA, environment=Environment(gpus=gpus))[0]

    differences = environment_differences([(limited(base), limited(candidate))])
    limits = [item for item in differences if item.field == "GPU power limit"]
    assert [(item.base, item.candidate, item.unlike) for item in limits] == expected


@pytest.mark.parametrize(("facts", "field", "unlike"), [
    ({"inputs": (TensorSpec("x", (1, 3, 299, 299)),)}, "inputs", True),
    ({"weights_sha256": "b" * 64}, "weights", False), ({"parameters": 7}, "parameters", False),
])  # fmt: skip
def test_the_model_as_it_was_run(facts, field, unlike):
    model = ModelFacts(name="m", inputs=(TensorSpec("x", (1, 3, 224, 224)),), weights_sha256="a" * 64, parameters=5)
    model_facts = replace(model, **facts)
    base, (candidate,) = ran(model=model), ran(run="new", model=model_facts, processes=1)
    (difference,) = environment_differences([(base[0], candidate)])
    assert (difference.field, difference.unlike) == (field, unlike)
    failed = broken(run="new", model=replace(model_facts))
    assert not environment_differences([(base[0], failed)]), "it may not have got as far as its model"


def test_every_field_of_the_budget_is_looked_at_but_the_deadline():
    values = {str: "else", int: 7, float: 7.0, type(None): 7}
    for field in msgspec.structs.fields(Budget):
        budget = Budget(**{field.name: values[type(getattr(Budget(), field.name))]})
        pair = ran(budget=Budget())[0], ran(run="new", budget=budget)[0]
        is_deadline = field.name in ("timeout", "threshold", "level", "within")
        assert bool(environment_differences([pair])) != is_deadline, field.name


def test_what_both_have_is_said_before_what_one_lacks():
    one, environment = (replace(WHERE, libraries=item) for item in ({"b": "1"}, {"a": "1", "b": "2"}))
    found = environment_differences([(ran(environment=one)[0], ran(run="new", environment=environment)[0])])
    assert differences_sentence(found[::-1]) == differences_sentence(found) == "b 1 / 2, a not there / 1"


def test_unlike_machines_are_refused_with_all_that_differs():
    environment = replace(WHERE, cpu="another", cpu_threads=8, git_revision="def")
    base = [*ran(environment=WHERE), *ran(case("openvino"), environment=WHERE)]
    candidate = [*ran(run="new", environment=environment), *ran(case("openvino"), run="new", environment=WHERE)]
    error = refusal("CPU: a CPU", compare, base, candidate)
    assert error.what.splitlines()[1:] == [
        "  CPU: a CPU / another (1 of 2 cases)", "  CPU threads: 16 / 8 (1 of 2 cases)",
    ]  # fmt: skip
    assert "--unlike" in error.hint
    compared = compare(base, candidate, unlike=True)
    assert [difference.field for difference in compared.differences if difference.unlike] == ["CPU", "CPU threads"]
    assert [compared_case.verdict for compared_case in compared.cases] == ["SAME", "SAME"]
