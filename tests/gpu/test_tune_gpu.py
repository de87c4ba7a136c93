"""A tuning on an NVIDIA GPU: it ends with a winner that is right, and that can be used."""

from __future__ import annotations

from pathlib import Path

import torch

import inferlens
from inferlens.models import resolve
from inferlens.record.record import IN_TURNS, KERNEL_FAMILIES


def test_it_ends_with_a_right_winner_that_can_be_called(tmp_path: Path) -> None:
    (tuned,) = inferlens.tune(
        "torchvision:resnet18", backend="pytorch,torch_compile", precision="fp16", batch=8, device="cuda",
        without=["torch_compile:max-autotune", "torch_compile:max-autotune-no-cudagraphs"], budget="80s",
        output=tmp_path,
    ).tuned  # fmt: skip
    assert tuned.best
    assert (tuned.best.device, tuned.best.precision, tuned.best.batch) == ("cuda", "fp16", 8)
    assert {record.status for record in tuned.final_records} == {"ok"}
    assert all(record.agreement and record.agreement.agrees for record in tuned.final_records)
    looked = [record for record in tuned.search_records if record.ranked]
    assert all(abs(sum(record.facts[KERNEL_FAMILIES].values()) - 1) < 0.01 for record in looked), "of the GPU time"
    named = [record for record in tuned.search_records if record.ranked and IN_TURNS in record.facts]
    if not any("case_memory" in record.machine.absent for record in named if record.machine):  # NVML names processes
        peaks = [record.memory.device_peak or 0 for record in named]
        assert min(peaks) > 100 * 2**20
        assert max(peaks) < 8 * 2**30, "of one process, not of all that took turns"
    module = resolve.load(tuned.best).module
    assert module is not None
    images = torch.rand(8, 3, 224, 224, device="cuda", dtype=torch.half)
    with torch.no_grad():
        expected = module.cuda().half()(images)
        found = inferlens.load(tmp_path / "resnet18" / "best")(images)
    assert torch.linalg.norm(found.float() - expected.float()) < 0.02 * torch.linalg.norm(expected.float())
