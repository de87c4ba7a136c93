"""Load on a real GPU: answers are right, its use and energy are in the record, and nothing compiles under load."""

import pytest

from inferlens.execution.load.run import load_test
from inferlens.execution.protocol import Observer

pytestmark = pytest.mark.alone


def loaded(output, backend, option="", **words):
    way = {"backend": backend, "device": "cuda", "precision": "fp16", "option": [option] if option else []}
    own = {"instances": 1, "seconds": "1.5s", "batching": "max=2", "output": str(output)}
    records = []
    load_test("resnet18", {**way, **own, **words}, Observer(), records)
    (record,) = records
    assert record.status == "ok", record.reason
    assert record.agreement.agrees, record.agreement
    assert record.mixed_up == 0
    return record


def test_a_record_has_the_use_and_the_energy_of_the_gpu(tmp_path):
    record = loaded(tmp_path, "pytorch", "pytorch.cuda_graph=true", rate=("200",))
    (run,) = record.runs
    assert run.throughput == pytest.approx(200, rel=0.1)
    assert 0 < run.gpu <= 1
    assert run.energy.joules is None or 0.1 < run.energy.joules < 5, run.energy


def test_nothing_compiles_under_load(tmp_path):
    record = loaded(tmp_path, "torch_compile:reduce-overhead", rate=("200",))
    assert record.runs[0].compiled == {}
