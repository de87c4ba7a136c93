from __future__ import annotations

import msgspec
import pytest

from inferlens import InferlensError
from inferlens.analysis.compare.cases import matches, pair_of
from inferlens.record.record import Environment, Gpu
from tests.analysis.compare.sides import ran
from tests.views.samples import case

HERE, THERE = (Environment(cpu="one CPU", gpus=(Gpu(name=name),)) for name in ("A", "B"))


def on(environment, of=None, run="base"):
    return ran(of, run=f"{run}-{environment.gpus[0].name}", environment=environment, processes=2)


def runs(found):
    return [tuple(side and side.first.run for side in each) for each in found]


def test_cases_are_in_the_order_of_the_base():
    first, second, third = case(), case("openvino"), case("onnxruntime:cpu")
    found = matches([*ran(second), *ran(first)], [*ran(third, run="new"), *ran(first, run="new")])
    assert [next(filter(None, each)).first.case for each in found] == [second, first, third]


@pytest.mark.parametrize(
    "change",
    [{"batch": 2}, {"precision": "fp16"}, {"threads": 1}, {"options": {"a": 1}}, {"seed": 1}, {"weights": "x"},
     {"io": "host"}, {"model": "other"}],
)  # fmt: skip
def test_cases_that_differ_in_anything_are_not_compared(change):
    other = msgspec.structs.replace(case(), **change)
    found = matches([*ran(), *ran(case("openvino"))], [*ran(other, run="new"), *ran(case("openvino"), run="new")])
    assert sum(pair_of(each) is not None for each in found) == 1


def test_each_machine_is_compared_with_itself_and_a_case_of_one_machine_on_each_side_with_the_other():
    found = matches([*on(HERE), *on(THERE)], [*on(THERE, run="new"), *on(HERE, run="new")])
    assert runs(found) == [("base-A", "new-A"), ("base-B", "new-B")]
    assert runs(matches(on(HERE), on(THERE, run="new"))) == [("base-A", "new-B")]


def test_a_machine_without_its_like_on_the_other_side_is_left_alone():
    assert runs(matches([*on(HERE), *on(THERE)], on(HERE, run="new"))) == [("base-A", "new-A"), ("base-B", None)]
    third = Environment(cpu="one CPU", gpus=(Gpu(name="C"),))
    with pytest.raises(InferlensError, match="No case is on both sides"):
        matches([*on(HERE), *on(THERE)], on(third, run="new"))


def test_a_record_is_not_compared_with_itself():
    with pytest.raises(InferlensError, match="records in common"):
        matches(ran(), ran())


@pytest.mark.parametrize(("base", "candidate"), [([], []), (ran(), []), (ran(), ran(case("openvino")))])
def test_nothing_on_both_sides_is_one_message(base, candidate):
    with pytest.raises(InferlensError, match="No case is on both sides") as error:
        matches(base, candidate)
    assert "inferlens show" in error.value.hint
