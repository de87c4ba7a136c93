"""Several processes on one machine's GPUs: a worker for each GPU, and rounds that are held at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import inferlens
from inferlens.record.record import IN_TURNS


def test_a_worker_for_each_gpu(tmp_path: Path) -> None:
    """Cases that do the same work are on one card, each record tells which, and all outputs are right."""
    records = inferlens.bench(
        ["torchvision:resnet18", "torchvision:squeezenet1_1"], backend="pytorch,torchscript:trace", precision="fp16",
        option="pytorch.cuda_graph=false", device="cuda", devices="all", quick=True, iterations=20, warmup=5,
        output=tmp_path,
    )  # fmt: skip
    assert [(record.status, record.ranked) for record in records] == [("ok", True)] * 4
    cards = {model: {record.machine.gpu_uuid for record in records if record.case.model == model} for model in
             {record.case.model for record in records}}  # fmt: skip
    assert all(len(its) == 1 and "" not in its for its in cards.values())
    assert len(set.union(*cards.values())) == min(torch.cuda.device_count(), 2)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 4, reason="needs four CPUs")
def test_two_rounds_at_once_take_turns_on_the_gpu(tmp_path: Path) -> None:
    records = inferlens.bench(
        "torchvision:resnet18", backend="pytorch,torchscript:trace", precision="fp16", device="cuda", within="1s",
        option="pytorch.cuda_graph=false", output=tmp_path,
    )  # fmt: skip
    assert {record.status for record in records} == {"ok"}
    rounds = {record.repeat for record in records if record.repeat}
    assert {1, 2} <= rounds
    assert all(IN_TURNS in record.facts for record in records if record.repeat)
