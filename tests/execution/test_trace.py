"""Traces by torch.profiler: what is in the files, where they lie, and what is said of cases that have none."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import inferlens
from inferlens.errors import InferlensError
from inferlens.execution import subprocess as processes
from inferlens.execution import trace as tracing
from inferlens.execution.trace import Traced, run_name
from inferlens.spec.case import Case, TensorSpec
from inferlens.trace import Category, read
from tests import commands

MODEL = """
import torch

def build():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
    return torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2048, 10)).eval(), (
        torch.zeros(1, 3, 16, 16),
    )
"""
# As torch-tb-profiler 0.4.3 has it (consts.WORKER_PATTERN); what it names a worker, and when the trace was written.
WORKER = re.compile(r"^(?P<worker>.+_\d+)\.(?P<span>\d+)\.pt\.trace\.json\.gz$")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands.stay(monkeypatch)
    (tmp_path / "traced_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)


def taken(folder: Path, **words: Any) -> list[Traced]:
    return commands.traced(folder, **{"model": "traced_model:build", "backend": "pytorch", "device": "cpu", **words})


def names(file: Path) -> list[str]:
    trace = read(file)
    return trace.names_of(trace.rows(Category.ANNOTATION))


@pytest.mark.usefixtures("here")
def test_a_trace_has_the_active_steps_and_says_what_it_is_of(tmp_path: Path) -> None:
    (made,) = taken(tmp_path / "results", batch=2)
    assert (made.status, made.reason, made.unseen) == ("ok", "", "")
    (file,) = made.files
    assert file == tmp_path / "results" / "build" / "pytorch-fp32-b2-cpu" / "trace.json.gz"
    assert [path.name for path in file.parent.iterdir()] == ["trace.json.gz"]
    assert sorted(names(file)) == sorted(
        f"{span}{number}" for span in ("inferlens step ", "ProfilerStep#") for number in (2, 3, 4)
    )
    content = json.loads(gzip.decompress(file.read_bytes()))
    assert content["inferlens"]["case"] == "pytorch fp32 batch 2 cpu"
    assert content["inferlens"]["inputs"] == ["input=2x3x16x16:float32"]


@pytest.mark.usefixtures("here")
def test_our_own_reader_finds_operators_shapes_memory_and_modules(tmp_path: Path) -> None:
    (plain,) = taken(tmp_path / "plain")
    (full,) = taken(tmp_path / "full", stacks=True, memory=True, shapes=True)
    trace = inferlens.load_trace(full.files[0])
    calls = {row["name"]: row["calls"] for row in trace.operators().to_dicts()}
    assert calls["aten::linear"] == calls["aten::conv2d"] == 3
    assert trace.steps()["step"].to_list() == ["2", "3", "4"]
    assert any("[1,3,16,16]" in shapes for shapes in trace.operators("shapes")["shapes"].to_list())
    assert any("Linear" in path for path in trace.modules()["path"].to_list())
    assert len(trace.memory())
    without = inferlens.load_trace(plain.files[0])
    assert not len(without.memory())
    assert not any("Linear" in path for path in without.modules()["path"].to_list())


@pytest.mark.usefixtures("here")
def test_steps_are_let_pass_thrown_away_kept_and_repeated_as_asked(tmp_path: Path) -> None:
    (made,) = taken(tmp_path / "results", wait=2, warmup=1, active=2, repeat=2)
    assert [file.name for file in made.files] == ["trace.json.gz", "trace-2.json.gz"]
    spans = [sorted(name for name in names(file) if name.startswith("inferlens")) for file in made.files]
    assert spans == [["inferlens step 3", "inferlens step 4"], ["inferlens step 8", "inferlens step 9"]]
    assert [len(shown.steps) for shown in made.shown] == [2, 2]
    assert made.step
    assert made.untraced
    assert made.cost == pytest.approx(made.step / made.untraced)


@pytest.mark.usefixtures("here")
def test_log_folders_are_named_for_their_cases_and_files_as_tensorboard_knows_them(tmp_path: Path) -> None:
    made = taken(tmp_path / "out", batch=[1, 8], tensorboard=tmp_path / "runs", repeat=2)
    made += taken(tmp_path / "out", batch=1, tensorboard=tmp_path / "runs")
    folders = ["pytorch_bs1_cpu", "pytorch_bs8_cpu", "pytorch_bs1_cpu@2"]
    assert [each.files[0].parent.name for each in made] == folders
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(folders)
    for each in made:
        matches = [WORKER.match(file.name) for file in each.files]
        assert all(matches)
        assert len({match["worker"] for match in matches if match}) == 1
        spans = [int(match["span"]) for match in matches if match]
        assert spans == sorted(set(spans))
        assert sorted(each.files[0].parent.iterdir()) == sorted(each.files)


@pytest.mark.usefixtures("here")
def test_several_models_have_folders_of_their_own(tmp_path: Path) -> None:
    words = {"model": ["fake:demo", "fake:other"], "backend": "fake:steady", "tensorboard": tmp_path / "runs"}
    made = taken(tmp_path / "out", **words)
    assert [str(each.files[0].parent.relative_to(tmp_path / "runs")) for each in made] == [
        "demo/fake_bs1_cpu", "other/fake_bs1_cpu",
    ]  # fmt: skip


@pytest.mark.usefixtures("here")
def test_a_backend_that_the_profiler_cannot_see_has_its_steps_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (made,) = taken(tmp_path / "results", backend="onnxruntime:cpu")
    assert made.status == "ok"
    assert len(made.shown[0].steps) == 3
    assert not any(name.startswith("aten") for name in read(made.files[0]).strings)
    assert "onnxruntime:cpu have 0 % of a step" in made.unseen
    assert "inferlens profile MODEL --level layer" in made.unseen


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("backend", ["torchscript:trace", "openvino"])
def test_other_backends_of_this_process_are_traced(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend.partition(":")[0].replace("torchscript", "torch"))
    (made,) = taken(tmp_path / "results", backend=backend)
    assert made.status == "ok", made.reason
    assert len(made.shown[0].steps) == 3
    assert bool(made.unseen) == (made.shown[0].operators == 0)


@pytest.mark.usefixtures("here")
def test_what_cannot_be_traced_is_a_row_with_a_reason_and_leaves_no_folder(tmp_path: Path) -> None:
    options = {"option": ["fake.trouble=none,raise"], "model": "fake:demo", "backend": "fake:steady"}
    fine, failed = taken(tmp_path / "out", tensorboard=tmp_path / "runs", **options)
    assert (fine.status, failed.status) == ("ok", "failed")
    assert "told to fail" in failed.reason
    assert not failed.files
    assert failed.log
    assert "told to fail" in failed.log.read_text()
    assert sorted(path for path in (tmp_path / "runs").iterdir()) == sorted([fine.files[0].parent, failed.log])
    (refused,) = taken(tmp_path / "out", backend="tensorrt")
    assert (refused.status, refused.files) == ("unsupported", ())
    assert refused.reason


@pytest.mark.usefixtures("here")
def test_a_crash_is_a_row_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(task: Any, *more: Any, **words: Any) -> Any:
        if task is tracing.trace_case:
            return commands.ended("crashed", "killed by SIGSEGV", ("bang",))
        return commands.launch(task, *more, **words)

    monkeypatch.setattr(processes, "launch", crashes)
    (made,) = taken(tmp_path / "out")
    assert (made.status, made.reason, made.output_tail) == ("crashed", "killed by SIGSEGV", ("bang",))
    assert not list((tmp_path / "out" / "build").iterdir())


def test_a_trace_has_a_process_of_its_own(tmp_path: Path) -> None:
    (made,) = taken(tmp_path, model="fake:demo", backend="fake:steady")
    assert made.status == "ok", made.reason
    assert "fake:steady have 0 % of a step" in made.unseen


# Names of log folders


@pytest.mark.parametrize(
    ("backend", "variant", "precision", "name"),
    [
        ("pytorch", "", "fp32", "pytorch_bs8"),
        ("torch_tensorrt", "dynamo", "fp32", "ttrt_fp32_bs8"),
        ("torch_tensorrt", "dynamo", "fp16", "ttrt_fp16_bs8"),
    ],
)
def test_the_names_that_were_asked_for(backend: str, variant: str, precision: str, name: str) -> None:
    case = Case(model="m", device="cuda", batch=8, backend=backend, variant=variant, precision=precision)
    assert run_name(case, "module") == name


def test_names_of_log_folders_differ_where_cases_differ() -> None:
    ways = [("pytorch", ""), ("torch_tensorrt", "dynamo"), ("torch_tensorrt", "compile"), ("torch_compile", "default"),
            ("torch_compile", "max-autotune"), ("onnxruntime", "cpu"), ("onnxruntime", "cuda")]  # fmt: skip
    more: list[dict[str, Any]] = [
        {}, {"threads": 2}, {"options": {"tf32": True}}, {"options": {"tf32": False}}, {"seed": 1}, {"weights": "best"},
        {"inputs": (TensorSpec("x", (1, 3, 64, 64)),)}, {"io": "host"}, {"cold": True}, {"options": {"x": "a/b " * 40}},
    ]  # fmt: skip
    cases = [
        Case(model="m", backend=backend, variant=variant, precision=precision, batch=batch, device=device, **extra)
        for (backend, variant), precision, batch, device, extra in itertools.product(
            ways, ("fp32", "fp16"), (None, 1, 8), ("cpu", "cuda"), more
        )
    ]
    found = [run_name(case, "module") for case in cases]
    assert len(set(found)) == len(cases)
    assert all(re.fullmatch(r"[\w.=-]{1,150}", name) for name in found)


# What was asked for and cannot be


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"active": 0}, "'0' is no value for active"),
        ({"wait": -1}, "'-1' is no value for wait"),
        ({"warmup": 1.5}, "'1.5' is no value for warmup"),
        ({"repeat": "often"}, "'often' is no value for repeat"),
        ({"stacks": "maybe"}, "maybe"),
        ({"repeats": 3}, "one process"),
    ],
)
def test_words_that_do_not_fit_are_refused(words: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(InferlensError, match=re.escape(what)):
        taken(tmp_path, **words)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--tensorboard", "runs"), "--tensorboard means nothing without --torch-profiler"),
        (("--stacks",), "--stacks means nothing without --torch-profiler"),
        (("--active", "3"), "--active means nothing without --torch-profiler"),
        (("--torch-profiler", "--level", "kernel"), "--level means nothing with --torch-profiler"),
        (("--torch-profiler", "--max-time", "1s"), "--max-time means nothing with --torch-profiler"),
        (("--torch-profiler", "--active", "0"), "--active"),
        (("--torch-profiler", "--wait", "-1"), "--wait"),
    ],
)
def test_options_that_do_not_go_together_are_one_message(arguments: tuple[str, ...], what: str, tmp_path: Path) -> None:
    done = commands.inferlens("profile", "fake:demo", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert what in done.stderr.replace("\n", " ")
    assert not list(tmp_path.iterdir())


# The command


@pytest.mark.usefixtures("here")
def test_the_command_says_where_traces_are_and_how_to_look_at_them(tmp_path: Path) -> None:
    options = ("-b", "fake:steady,fake:fast", "--option", "fake.trouble=none,raise", "--tensorboard", "runs")
    done = commands.inferlens("profile", "fake:demo", *options, "--torch-profiler", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert len(folders) == 2
    assert all(f"runs/{folder}" in done.stdout for folder in folders)
    assert done.stdout.count("told to fail") == 2
    assert "have 0 % of a step" in done.stdout
    assert "tensorboard --logdir runs" in done.stderr
    command = re.search(r"inferlens trace (\S+) --against", done.stderr)
    assert command
    (file,) = tmp_path.glob(command[1])
    assert commands.inferlens("trace", str(file), cwd=tmp_path).returncode == 0


@pytest.mark.usefixtures("here")
def test_no_trace_at_all_is_exit_code_1(tmp_path: Path) -> None:
    done = commands.inferlens(
        "profile", "fake:demo", "-b", "fake", "--option", "fake.trouble=raise", "--torch-profiler", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "told to fail" in done.stdout
    assert "inferlens trace" not in done.stderr


# TensorBoard's own loader


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings("ignore")
def test_tensorboards_own_loader_reads_them(tmp_path: Path) -> None:
    """The loader of torch-tb-profiler 0.4.3."""
    from torch_tb_profiler.consts import WORKER_PATTERN
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    (made,) = taken(tmp_path, tensorboard=tmp_path / "runs", stacks=True, memory=True, shapes=True)
    (file,) = made.files
    named = WORKER_PATTERN.match(file.name)
    assert named
    worker, span = named.groups()
    profile = RunProfileData.parse(worker, span, str(file), str(tmp_path))
    run = RunGenerator(worker, span, profile).generate_run_profile()
    assert [view.name for view in run.views] == ["overall", "operator", "trace", "memory", "module"]
    assert profile.steps_names == ["2", "3", "4"]
    assert {"aten::conv2d", "aten::linear"} <= {row.name for row in profile.op_list_groupby_name}
