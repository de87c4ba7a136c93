from __future__ import annotations

import msgspec
import pytest

from inferlens import InferlensError
from inferlens.analysis.comparison import compare, differences_sentence, environment_differences
from inferlens.record.machine import MachineLog
from inferlens.record.record import Environment, Gpu, ModelFacts
from inferlens.spec.case import Budget, TensorSpec
from tests.analysis.comparison_sides import broken, ran
from tests.views.samples import case

GPU = Gpu(name="a GPU", memory=80 * 2**30, uuid="GPU-1", power_limit=700.0)
WHERE = Environment(
    cpu="a CPU", cpu_cores=8, cpu_threads=16, governor="performance", memory=64 * 2**30, gpus=(GPU,), driver="570.1",
    cuda_driver="12.8", system="Linux", container="docker", python="CPython 3.11", inferlens="0.1.0",
    libraries={"torch": "2.9.0"}, variables={"OMP_NUM_THREADS": "4"}, git_revision="abc",
)  # fmt: skip
CUDA = case(device="cuda")


def found(of, **changes):
    """Differences of one case, where the candidate's environment has ``changes``."""
    environment = msgspec.structs.replace(WHERE, **changes)
    pair = ran(of, environment=WHERE)[0], ran(of, run="new", environment=environment)[0]
    return {
        difference.field: (difference.base, difference.candidate, difference.unlike)
        for difference in environment_differences([pair])
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cpu": ""}, {"CPU": ("a CPU", "unknown", True)}),
        ({"cpu_cores": 4}, {"CPU cores": ("8", "4", True)}),
        ({"gpus": (GPU, GPU)}, {"GPUs": ("a GPU", "2 x a GPU", True)}),
        ({"gpus": (msgspec.structs.replace(GPU, uuid="GPU-2", memory=GPU.memory - 2**20),)},
         {"GPU card": ("GPU-1", "GPU-2", False)}),
        ({"driver": "580.1"}, {"driver": ("570.1 (CUDA 12.8)", "580.1 (CUDA 12.8)", True)}),
        ({"variables": {}}, {"OMP_NUM_THREADS": ("4", "not there", True)}),
        ({"variables": {"OMP_NUM_THREADS": "4", "LD_PRELOAD": "x.so"}}, {"LD_PRELOAD": ("not there", "x.so", False)}),
        ({"memory": 32 * 2**30}, {"memory": ("64.0 GiB", "32.0 GiB", False)}),
        ({"memory": 64 * 2**30 - 2**20}, {}),
        ({"libraries": {"torch": "2.10.0", "onnx": "1.2"}},
         {"torch": ("2.9.0", "2.10.0", False), "onnx": ("not there", "1.2", False)}),
        ({}, {}),
    ],
)  # fmt: skip
def test_fields(changes, expected):
    assert found(CUDA, **changes) == expected


def test_a_revision_counts_where_the_model_is_code_of_the_user():
    """Elsewhere it is that of whatever folder the command was run in."""
    changed = {"git_revision": "def+"}
    expected = {"git revision": ("abc", "def+", False)}
    assert found(case(model="factory:mine:net"), **changed) == expected
    assert found(msgspec.structs.replace(case(), checkout="../new"), **changed) == expected
    assert found(case(), **changed) == {}


def test_every_field_of_the_environment_is_looked_at():
    values = {str: "else", int: 1, tuple: (), dict: {"else": "else"}}
    for field in msgspec.structs.fields(Environment):
        kind = type(getattr(WHERE, field.name))
        of = case(model="factory:mine:net", device="cuda")
        assert found(of, **{field.name: values[kind]}), field.name


@pytest.mark.parametrize(
    ("base", "candidate", "watched", "expected"),
    [
        ((700.0,), (450.5,), ("", ""), [("700 W", "450.5 W", True)]),
        ((700.0,), (701.0,), ("", ""), []),  # as drivers round it
        ((700.0, 450.0), (700.0, 450.0), ("GPU-1", "GPU-2"), [("700 W", "450 W", True)]),
        ((700.0, 450.0), (700.0, 300.0), ("GPU-1", "GPU-1"), []),
        ((700.0, 450.0), (300.0,), ("", ""), []),  # which of the two it was is not known
    ],
)
def test_the_power_limit_is_that_of_the_gpu_that_was_watched(base, candidate, watched, expected):
    one, record = (
        ran(
            CUDA,
            environment=Environment(
                gpus=tuple(Gpu(name="a GPU", uuid=f"GPU-{n}", power_limit=limit) for n, limit in enumerate(limits, 1))
            ),
            machine=MachineLog(interval=0.02, gpu_uuid=uuid),
        )[0]
        for limits, uuid in zip((base, candidate), watched, strict=True)
    )
    told = environment_differences([(one, record)])
    assert [
        (difference.base, difference.candidate, difference.unlike)
        for difference in told
        if difference.field == "GPU power limit"
    ] == expected


@pytest.mark.parametrize(
    ("facts", "field", "unlike"),
    [
        ({"inputs": (TensorSpec("x", (1, 3, 299, 299)),)}, "inputs", True),
        ({"weights_sha256": "b" * 64}, "weights", False),
        ({"parameters": 7}, "parameters", False),
    ],
)
def test_the_model_as_it_was_run(facts, field, unlike):
    model = ModelFacts(name="m", inputs=(TensorSpec("x", (1, 3, 224, 224)),), weights_sha256="a" * 64, parameters=5)
    model_facts = msgspec.structs.replace(model, **facts)
    base, (candidate,) = ran(model=model), ran(run="new", model=model_facts, processes=1)
    (difference,) = environment_differences([(base[0], candidate)])
    assert (difference.field, difference.unlike) == (field, unlike)
    failed = broken(run="new", model=msgspec.structs.replace(model_facts))
    assert not environment_differences([(base[0], failed)]), "it may not have got as far as its model"


def test_every_field_of_the_budget_is_looked_at_but_the_deadline():
    values = {str: "else", int: 7, float: 7.0, type(None): 7}
    for field in msgspec.structs.fields(Budget):
        budget = Budget(**{field.name: values[type(getattr(Budget(), field.name))]})
        pair = ran(budget=Budget())[0], ran(run="new", budget=budget)[0]
        assert bool(environment_differences([pair])) == (
            field.name not in ("timeout", "threshold", "level", "within")
        ), field.name


def test_what_both_have_is_said_before_what_one_lacks():
    one, environment = (msgspec.structs.replace(WHERE, libraries=item) for item in ({"b": "1"}, {"a": "1", "b": "2"}))
    found = environment_differences([(ran(environment=one)[0], ran(run="new", environment=environment)[0])])
    assert differences_sentence(found[::-1]) == differences_sentence(found) == "b 1 / 2, a not there / 1"


def test_unlike_machines_are_refused_with_all_that_differs():
    environment = msgspec.structs.replace(WHERE, cpu="another", cpu_threads=8, git_revision="def")
    base = [*ran(environment=WHERE), *ran(case("openvino"), environment=WHERE)]
    candidate = [*ran(run="new", environment=environment), *ran(case("openvino"), run="new", environment=WHERE)]
    with pytest.raises(InferlensError) as error:
        compare(base, candidate)
    assert error.value.what.splitlines()[1:] == [
        "  CPU: a CPU / another (1 of 2 cases)",
        "  CPU threads: 16 / 8 (1 of 2 cases)",
    ]
    assert "--unlike" in error.value.hint
    compared = compare(base, candidate, unlike=True)
    assert [difference.field for difference in compared.differences if difference.unlike] == ["CPU", "CPU threads"]
    assert [compared_case.verdict for compared_case in compared.cases] == ["SAME", "SAME"]
