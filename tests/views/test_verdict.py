from __future__ import annotations

import math

from inferlens.record.record import Environment
from inferlens.views.rows import rows
from inferlens.views.verdict import verdict

from .samples import CPU, CPU_MACHINE, GPU_MACHINE, WRONG, case, failure, record, series

WHERE = f"torchvision:resnet18 on {CPU}: "
NOT_BETWEEN = "one process each: variation between runs is in no intervals."
SURE = (
    f"Medians of 100 samples, {NOT_BETWEEN} So what is within 51.5 % is not told apart; --repeats 5 measures how far "
    "runs differ."
)


def constant(backend: str, seconds: float, count: int = 100, batch: int = 1, **fields):
    return record(case(backend, batch=batch), samples=(seconds,) * count, **fields)


def told(*records, reference=None):
    return verdict(rows(records, reference))


def test_a_clear_winner():
    assert told(constant("pytorch", 0.02), constant("openvino", 0.01)) == [
        f"{WHERE}openvino fp32 was fastest: 2.00x as fast as pytorch fp32 (95 % interval 2.00 to 2.00), "
        "10.0 ms against 20.0 ms.",
        SURE,
    ]


def test_each_batch_has_its_sentence_and_says_where_its_ratio_has_no_interval():
    alike = tuple(0.04 + 1e-5 * math.sin(index / 60) for index in range(400))  # worth a sample or two
    records = [constant("pytorch", 0.02 * b, batch=b) for b in (1, 8)]
    records += [constant("openvino", 0.01, batch=1), record(case("openvino", batch=8), samples=alike)]
    first, second, *_ = told(*records)
    assert first.startswith(f"torchvision:resnet18 on {CPU}, at batch 1: openvino fp32 was fastest: 2.00x")
    assert "4.00x as fast as pytorch fp32 (95 % interval none)" in second


def test_different_winners_are_told_apart():
    records = [constant("pytorch", 0.02, batch=1), constant("pytorch", 0.02, batch=8)]
    records += [constant("openvino", 0.01, batch=1), constant("openvino", 0.04, batch=8)]
    first, second, _ = told(*records)
    assert first.startswith(f"torchvision:resnet18 on {CPU}, at batch 1: openvino fp32 was fastest")
    assert second == (
        f"torchvision:resnet18 on {CPU}, at batch 8: pytorch fp32, the reference, was fastest: 20.0 ms. "
        "Next is openvino fp32, 0.500x as fast (0.500 to 0.500)."
    )


def test_two_that_cannot_be_told_apart():
    near = [
        record(case(), samples=series(0.01, 100, 0.1)),
        record(case("openvino"), samples=series(0.01001, 100, 0.1, seed=1)),
    ]
    found = rows(near)
    low = min(found, key=lambda row: row.median or 0)
    sentence = verdict(found)[0]
    assert "pytorch fp32 (the reference)" in sentence
    assert "are within each other's doubt, so none is called the fastest." in sentence
    assert f"The lowest median is {low.name}'s" in sentence


def on(device: str, seconds: float, backend: str = "pytorch", **fields):
    return record(case(backend, device=device), samples=(seconds,) * 100, environment=GPU_MACHINE, **fields)


def test_none_ran():
    assert told(failure(case()), failure(case("openvino"))) == [f"{WHERE}no case ran, so nothing is ranked."]
    assert told(constant("pytorch", 0.02, agreement=WRONG)) == [
        f"{WHERE}no case ran with right outputs, so nothing is ranked.",
        "pytorch fp32 was wrong, so not ranked.",
    ]
    assert told() == []


def test_a_fast_wrong_answer_is_named():
    wrong = constant("torchscript:trace", 0.001, agreement=WRONG)
    sentences = told(constant("pytorch", 0.02), constant("openvino", 0.01), wrong)
    assert sentences[1] == "torchscript:trace fp32 was faster but wrong, so not ranked."


def test_machines_are_not_compared():
    sentences = told(
        constant("pytorch", 0.02, environment=CPU_MACHINE),
        constant("openvino", 0.01, environment=Environment(cpu="AMD EPYC 9654")),
    )
    assert sentences[-1] == "Rows of different machines are not compared with each other."
    assert GPU_MACHINE.gpus
