"""Winners of tunings in int8: fresh processes run them without the data that they were calibrated with."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import inferlens
from inferlens import InferlensError, load_records
from inferlens.models import resolve
from tests.backends import small
from tests.commands import inferlens as command
from tests.commands import shorten, stay
from tests.execution.test_deploy import LOADED, NET, QUICK, RUN, folder_of, in_a_process

BACKENDS = ("onnxruntime:cpu", "openvino:cpu", "torch_compile:default")
FILES = {
    "onnxruntime:cpu": {"model.onnx"}, "openvino:cpu": {"model.xml", "model.bin"},
    "torch_compile:default": {"model.pt2"},
}  # fmt: skip


@pytest.fixture(scope="module")
def winners(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a tuning left that tried one backend in int8 alone, and cases of others; data and cache are gone."""
    output, moved = tmp_path_factory.mktemp("tuned"), tmp_path_factory.mktemp("winners")
    data = output / "data.npz"
    np.savez(data, image=np.random.default_rng(0).standard_normal((8, 3, 16, 16)))
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        shorten(patch)
        words = {"threads": 1, "input": "image=2x3x16x16", "calibration": str(data), "output": output}
        inferlens.tune(NET, only=(BACKENDS[0], "int8", "threads"), budget="1s", **words)
        inferlens.bench(NET, backend=BACKENDS[1:], precision="int8", **{**QUICK, **words})
    results = output / "tests.backends.small.Convolution"
    assert f'calibration = "{data}"' in (results / "best" / "best.toml").read_text()
    found[BACKENDS[0]] = Path(shutil.move(results / "best", moved / "tuned"))
    shutil.rmtree(results / "tuning")
    for place, label in enumerate(BACKENDS[1:]):
        found[label] = Path(shutil.move(folder_of(results, label), moved / f"case{place}"))
    shutil.rmtree(output)
    return found


@pytest.fixture(scope="module")
def asked(winners: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, and the outputs of the model in fp32 for them."""
    (record,) = load_records(winners["openvino:cpu"])
    case = inferlens.Case(
        model=record.case.model, backend="pytorch", inputs=record.case.inputs, batch=record.case.batch
    )
    model = resolve.load(case)
    inputs = small.arrays(model, seed=5)
    (expected,) = small.eager(model, inputs)
    path = tmp_path_factory.mktemp("asked") / "asked.npz"
    np.savez(path, image=inputs["image"], expected=expected)
    return path


def test_the_folder_of_a_winner_is_enough(winners: dict[str, Path], asked: Path, tmp_path: Path) -> None:
    found = in_a_process(LOADED, asked, *winners.values(), cwd=tmp_path)
    assert {label: error < 0.1 for label, (error, *_) in found.items()} == dict.fromkeys(BACKENDS, True)
    assert all(error > 1e-4 for error, *_ in found.values()), "none of them is the model in fp32"


def test_a_winner_in_files_runs_without_this_library(winners: dict[str, Path], asked: Path, tmp_path: Path) -> None:
    folders = []
    for place, (label, folder) in enumerate(winners.items()):
        name = f"deploy{place}"
        done = command("export", "--best", str(folder), "--output", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        written = {path.name for path in (tmp_path / name).iterdir()}
        assert written == {"run.py", "requirements.txt", *FILES[label]}
        folders.append(tmp_path / name)
    assert "torchao==" in (folders[2] / "requirements.txt").read_text()
    found = in_a_process(RUN, asked, *folders, cwd=tmp_path)
    assert [1e-4 < error < 0.1 for error in found.values()] == [True] * len(BACKENDS), found


def test_to_quantize_it_anew_takes_the_data(winners: dict[str, Path]) -> None:
    with pytest.raises(InferlensError, match=r"There is no data '.*data\.npz'"):
        inferlens.load(winners["onnxruntime:cpu"], rebuild=True)


def test_without_the_quantized_file_nothing_is_calibrated_with_noise(winners: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(winners["onnxruntime:cpu"], tmp_path / "one"))
    (spoilt,) = (folder / "quantized").glob("*.onnx")
    spoilt.unlink()
    with pytest.raises(InferlensError, match=r"\.onnx is missing"):
        inferlens.load(folder)
