"""Measured cases on an NVIDIA GPU as callables, in order with PyTorch's current stream, and as files with a script."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import inferlens
from inferlens import load_records
from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError
from inferlens.models import resolve
from tests.backends import small
from tests.commands import inferlens as command
from tests.commands import stay
from tests.execution.test_deploy import NET, QUICK, RUN
from tests.gpu.test_backends_gpu import RUNS, name


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[0]} {name(run[1])}".strip())
def case(request, tmp_path):
    """The folder of a case that was measured here in fp16; skips what this machine lacks."""
    label, options = request.param
    of = {"cuda_graph": False} if (label, options) == ("pytorch", {}) else options  # by itself it is two ways
    option = {f"{label.partition(':')[0]}.{key}": value for key, value in of.items()}
    words = {**QUICK, "threads": None, "device": "cuda", "precision": "fp16", "option": option}
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        try:
            records = inferlens.bench(NET, backend=label, input="image=2x3x16x16", output=tmp_path / "results", **words)
        except InferlensError as error:
            pytest.skip(str(error))
    if records[0].status == "unsupported":
        pytest.skip(records[0].reason)
    assert records[0].status == "ok", records[0].reason
    return tmp_path / "results" / "tests.backends.small.Convolution"


def tensors(folder, seed):
    """An input on the GPU, and the outputs that belong to it."""
    model = resolve.load(load_records(folder)[0].case)
    arrays = small.arrays(model, seed=seed)
    return torch.from_numpy(arrays["image"]).cuda().half(), small.eager(model, arrays)


def test_a_loaded_case_is_right_on_any_stream_and_keeps_its_outputs(case):
    (record,) = load_records(case)
    tolerance = BACKENDS.get(record.case.backend)().tolerance(record.case)
    (one, right), (two, other) = tensors(case, 1), tensors(case, 2)
    before = torch.cuda.current_stream()
    with inferlens.load(case) as fast:
        assert torch.cuda.current_stream() == before
        assert (torch.is_inference_mode_enabled(), torch.is_grad_enabled()) == (False, True)
        first = fast(one)
        second = fast(image=two)
        assert first.is_cuda
        assert small.error([first.float().cpu().numpy()], right) < tolerance, "the second call overwrote the first"
        assert small.error([second.float().cpu().numpy()], other) < tolerance
        with torch.cuda.stream(torch.cuda.Stream()):
            late = torch.empty_like(one)
            torch.cuda._sleep(50_000_000)
            late.copy_(one)  # comes to be there while the call is enqueued
            third = fast(late).float() * 1
            late.zero_()
            third = third.cpu()
        assert small.error([third.numpy()], right) < tolerance
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(50_000_000)
            fourth = fast(one)
        with torch.cuda.stream(torch.cuda.Stream()):
            fifth = fast(two)
        torch.cuda.synchronize()
        assert small.error([fourth.float().cpu().numpy()], right) < tolerance, "two streams called it at once"
        assert small.error([fifth.float().cpu().numpy()], other) < tolerance
        assert small.error([fast(one.cpu().float().numpy()).float().cpu().numpy()], right) < tolerance
    assert torch.cuda.current_stream() == before


def test_its_files_run_without_this_library(case, tmp_path):
    (record,) = load_records(case)
    _, (right,) = tensors(case, 1)
    image = small.arrays(resolve.load(record.case), seed=1)["image"]
    np.savez(tmp_path / "asked.npz", image=image, expected=right)
    done = command("export", "--best", str(case), "-o", "deploy", "--trust", cwd=tmp_path)
    if "cannot save its compiled model" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    moved = RUN.replace("from_numpy(image)", "from_numpy(image).to(example)").replace(
        "np.asarray(outputs[0] if isinstance(outputs, (list, tuple)) else outputs)",
        "np.asarray(getattr(o := outputs[0] if isinstance(outputs, (list, tuple)) else outputs, 'cpu', lambda: o)())",
    )
    program = [sys.executable, "-c", moved, "asked.npz", "deploy"]
    ran = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stderr
    tolerance = BACKENDS.get(record.case.backend)().tolerance(record.case)
    assert json.loads(ran.stdout.splitlines()[-1])["deploy"] < tolerance
