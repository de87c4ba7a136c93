"""Profiles of cases in processes of their own, and traces by torch.profiler."""

import gzip
import itertools
import json
import re
from functools import partial

import msgspec
import pytest

import inferlens
from inferlens.errors import InferlensError
from inferlens.execution import child as processes
from inferlens.execution import profile as profiling
from inferlens.execution.child import Outcome
from inferlens.execution.profile import run_name
from inferlens.execution.protocol import Observer, TaskResult
from inferlens.execution.scheduler import Scheduler
from inferlens.measure.monitor import default_threads
from inferlens.record.profile import Ceilings
from inferlens.record.record import Environment, Gpu
from inferlens.record.store import load_profiles
from inferlens.spec.case import Case, TensorSpec
from inferlens.spec.plan import Plan
from inferlens.trace.model import Category
from inferlens.trace.read import read_trace
from tests import commands


def profiled(folder, *, runs=8, **words):
    words = {"model": "fake:demo", "backend": "fake", "mode": "latency", "warmup": 1, "iterations": 30, **words}
    made = profiling.run(Plan.from_words({**words, "output": str(folder)}), ("layer",), runs, Observer())
    return [profile for profile, _ in made]


def crash(monkeypatch, crashing):
    """Lets the processes of a task crash."""

    def launch(task, *more, **words):
        if task == crashing:
            return commands.ended("crashed", "killed by SIGSEGV", ("bang",))
        return commands.launch(task, *more, **words)

    monkeypatch.setattr(processes, "launch", launch)


@pytest.mark.usefixtures("without_torch", "surveyed_here")
def test_a_profile_lies_beside_the_record_of_the_unprofiled_run_in_a_process_of_its_own(tmp_path):
    (profile,) = profiled(tmp_path, backend="fake:steady", option="fake.latency=10")
    assert (profile.status, profile.level, profile.runs) == ("ok", "layer", 8)
    assert [layer.name for layer in profile.layers.layers] == ["stem", "body.0", "body.1+head"]
    assert all(len(layer.times) == 8 for layer in profile.layers.layers)
    assert profile.layers.whole == pytest.approx((0.01,) * 8)
    assert [phase.name for phase in profile.phases] == ["load", "build", "first inference", "warm-up", "steady state"]
    loaded = load_profiles([tmp_path])
    assert (loaded.profiles, loaded.records[profile.id].id) == ([profile], profile.record)
    assert len(loaded.records[profile.id].samples("latency")) == 30


@pytest.mark.usefixtures("one_process")
def test_what_did_not_run_is_not_profiled_and_a_crash_while_profiling_leaves_the_record(tmp_path, monkeypatch):
    (profile,) = profiled(tmp_path / "raised", option="fake.trouble=raise")
    assert (profile.status, profile.layers, "told to fail" in profile.reason) == ("failed", None, True)
    crash(monkeypatch, "profile")
    (profile,) = profiled(tmp_path)
    assert (profile.status, profile.reason, profile.output_tail) == ("crashed", "killed by SIGSEGV", ("bang",))
    assert load_profiles([tmp_path]).records[profile.id].status == "ok"
    monkeypatch.setattr(processes, "launch", commands.launch)
    monkeypatch.setattr(profiling, "LayerProfiler", type("Nobody", (), {}))
    (profile,) = profiled(tmp_path, backend="fake:steady")
    assert (profile.status, profile.reason) == ("unsupported", "fake:steady does not report its layers.")


def test_a_live_module(tmp_path, monkeypatch, one_process):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(profiling, "ceilings_of", lambda *_: FAST)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    words = {"backend": "pytorch", "iterations": 5, "warmup": 1, "output": str(tmp_path)}
    (made,) = inferlens.profile(module, torch.randn(2, 8), runs=3, **words)
    assert (made.status, made.reason, made.ceilings) == ("ok", "", FAST)
    assert {"0", "1"} <= {path for layer in made.layers.layers for path in layer.modules}
    with pytest.raises(InferlensError, match="go with a live module"):
        inferlens.profile("fake:demo", torch.randn(2, 8))


def test_several_processes_and_a_folder_that_cannot_be_are_refused(tmp_path, one_process):
    with pytest.raises(InferlensError, match="one process for each level"):
        profiled(tmp_path, repeats=3)
    (tmp_path / "results").write_text("a file")
    with pytest.raises(InferlensError, match=r"cannot be written: .+"):
        profiled(tmp_path / "results")


def test_levels_are_words_with_commas():
    assert (profiling.levels_of("layer"), profiling.levels_of("kernel,layer")) == (("layer",), ("kernel", "layer"))
    assert profiling.levels_of(["module", "layer", "kernel"]) == ("layer", "kernel"), "modules come from layers"
    with pytest.raises(InferlensError, match="no level 'kernels'"):
        inferlens.profile("fake:demo", level="kernels")


def test_kernels_are_of_a_gpu(tmp_path, one_process):
    """Each level has a profile of its own, and that the CPU has no kernels is known before anything is loaded."""
    words = {"backend": "fake:steady", "iterations": 30, "output": str(tmp_path)}
    made = inferlens.profile("fake:demo", level="layer,kernel", **words)
    assert [(each.level, each.status) for each in made] == [("layer", "ok"), ("kernel", "unsupported")]
    assert ("Kernels are what a GPU runs" in made[1].reason, made[1].phases) == (True, ())
    assert {path.name for path in tmp_path.rglob("profile-*.json")} == {"profile-kernel.json", "profile-layer.json"}
    loaded = inferlens.load_profiles([tmp_path]).profiles
    assert sorted(loaded, key=lambda one: one.level, reverse=True) == list(made)  # both may be of one millisecond


# The ceilings of devices: measured once for a machine and kept; they never fail a profile.

MACHINE = Environment(cpu="a processor", cpu_threads=4, gpus=(Gpu(name="a GPU"),), libraries={"torch": "2.14"})
CPU, GPU = Case(model="x:y", backend="pytorch"), Case(model="x:y", backend="tensorrt", device="cuda", threads=2)
FAST = Ceilings(device="a processor", bandwidth=1e9, rates={"fp32": 1e9})


class GpuLaunch:
    """Stands for the process that measures."""

    def __init__(self, folder):
        self.folder, self.jobs, self.outcome = folder, [], Outcome(TaskResult(value=FAST))

    def __call__(self, task, job, returns, *, timeout):
        self.jobs.append(job)
        return self.outcome

    def asked(self, *cases, rebuild=False, **machine):
        """The ceilings of one command's cases."""
        scheduler = Scheduler(Plan(model=("x:y",), output=str(self.folder), rebuild=rebuild))
        vars(scheduler.environments)["here"] = msgspec.structs.replace(MACHINE, **machine)
        return [profiling.ceilings_of(case, scheduler) for case in cases]


@pytest.fixture
def launched(tmp_path, monkeypatch):
    made = GpuLaunch(tmp_path)
    monkeypatch.setattr(processes, "launch", made)
    return made


def test_ceilings_are_measured_once_for_each_machine_library_device_and_number_of_threads(launched):
    assert launched.asked(CPU, CPU) + launched.asked(CPU) == [FAST] * 3
    launched.asked(GPU, msgspec.structs.replace(GPU, threads=4), msgspec.structs.replace(CPU, threads=2))
    found = [(job.name, job.device, job.threads) for job in launched.jobs]
    assert found == [("a processor", "cpu", default_threads()[0]), ("a GPU", "cuda", None), ("a processor", "cpu", 2)]
    launched.asked(CPU, libraries={"torch": "2.15"})
    launched.asked(CPU, rebuild=True)
    assert len(launched.jobs) == 5


def test_disturbed_or_broken_ceilings_are_not_kept(launched, tmp_path):
    disturbed = msgspec.structs.replace(FAST, disturbed="Somebody interrupted.")
    launched.outcome = Outcome(TaskResult(value=disturbed))
    assert launched.asked(CPU) == [disturbed]
    launched.outcome = Outcome(TaskResult(value=FAST))
    assert launched.asked(CPU) == [FAST]
    (file,) = (tmp_path / ".cache").iterdir()
    file.write_bytes(b"[" * 100_000)
    assert launched.asked(CPU) == [FAST]
    assert len(launched.jobs) == 3


def test_ceilings_that_cannot_be_measured_have_a_reason(launched):
    launched.outcome = commands.ended("crashed", "killed by SIGSEGV")
    (found,) = launched.asked(CPU)
    assert (found.bandwidth, found.absent) == (0.0, {"all": "killed by SIGSEGV"})
    assert not list((launched.folder / ".cache").iterdir())


def test_a_profile_of_a_model_that_writes_into_its_input_says_so(tmp_path, monkeypatch, one_process):
    torch = pytest.importorskip("torch")

    class Halves(torch.nn.Module):
        def forward(self, x):
            return x.mul_(0.5) + 1

    monkeypatch.setattr(profiling, "ceilings_of", lambda *_: FAST)
    (made,) = inferlens.profile(Halves(), torch.ones(1, 3), backend="pytorch", iterations=5, warmup=1, output=tmp_path)
    (message,) = [warning.message for warning in made.warnings if warning.code == "inputs-not-renewed"]
    assert message.startswith("The model writes into its input 'x'. Each profiled call goes on with")


# Traces: what is in the files, where they lie, and what is said of cases that have none.


MODEL = """
import torch

def build():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
    return torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2048, 10)).eval(), (
        torch.zeros(1, 3, 16, 16),
    )
"""


@pytest.fixture
def taken(monkeypatch, tmp_path):
    """Takes traces without another process."""
    commands.stay(monkeypatch)
    (tmp_path / "traced_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    return partial(commands.traced, model="traced_model:build", backend="pytorch", device="cpu")


def names(file):
    trace = read_trace(file)
    return trace.names_of(trace.rows(Category.ANNOTATION))


def test_a_trace_has_the_active_steps_and_what_was_asked_for(taken, tmp_path):
    (made,) = taken(tmp_path / "results", batch=2)
    assert (made.status, made.reason, made.unseen) == ("ok", "", "")
    (file,) = made.files
    assert file == tmp_path / "results" / "traced_model.build" / "pytorch-fp32-b2-cpu" / "trace.json.gz"
    assert [path.name for path in file.parent.iterdir()] == ["trace.json.gz"]
    assert set(names(file)) == {f"{span}{n}" for span in ("inferlens step ", "ProfilerStep#") for n in (2, 3, 4)}
    content = json.loads(gzip.decompress(file.read_bytes()))
    assert content["inferlens"]["case"] == "pytorch fp32 batch 2 cpu"
    assert content["inferlens"]["inputs"] == ["input=2x3x16x16:float32"]
    plain = inferlens.load_trace(file)
    (all_of_it,) = taken(tmp_path / "full", stacks=True, memory=True, shapes=True)
    full = inferlens.load_trace(all_of_it.files[0])
    calls = {row["name"]: row["calls"] for row in full.operators().to_dicts()}
    assert calls["aten::linear"] == calls["aten::conv2d"] == 3
    assert full.steps()["step"].to_list() == ["2", "3", "4"]
    assert any("[1,3,16,16]" in shapes for shapes in full.operators("shapes")["shapes"].to_list())
    has = [(len(each.memory()) > 0, any("Linear" in path for path in each.modules()["path"])) for each in (plain, full)]
    assert has == [(False, False), (True, True)]


def test_steps_are_let_pass_thrown_away_kept_and_repeated_as_asked(taken, tmp_path):
    (made,) = taken(tmp_path / "results", wait=2, warmup=1, active=2, repeat=2)
    assert [file.name for file in made.files] == ["trace.json.gz", "trace-2.json.gz"]
    spans = [sorted(name for name in names(file) if name.startswith("inferlens")) for file in made.files]
    assert spans == [["inferlens step 3", "inferlens step 4"], ["inferlens step 8", "inferlens step 9"]]
    assert [len(shown.steps) for shown in made.contents] == [2, 2]
    assert made.cost == pytest.approx(made.step / made.untraced)


@pytest.mark.filterwarnings("ignore")
def test_tensorboards_own_loader_reads_log_folders(taken, tmp_path):
    """The loader of torch-tb-profiler 0.4.3."""
    from torch_tb_profiler.consts import WORKER_PATTERN
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    words = {"tensorboard": tmp_path / "runs", "stacks": True, "memory": True, "shapes": True}
    made = taken(tmp_path / "out", batch=[1, 8], repeat=2, **words) + taken(tmp_path / "out", batch=1, **words)
    folders = ["pytorch_bs1_cpu", "pytorch_bs8_cpu", "pytorch_bs1_cpu@2"]
    assert [each.files[0].parent.name for each in made] == folders
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(folders)
    for each in made:
        pairs = [WORKER_PATTERN.match(file.name).groups() for file in each.files]
        assert len({worker for worker, _ in pairs}) == 1
        assert sorted({span for _, span in pairs}) == [span for _, span in pairs]
        assert sorted(each.files[0].parent.iterdir()) == sorted(each.files)
    worker, span = pairs[-1]
    profile = RunProfileData.parse(worker, span, str(made[-1].files[0]), str(tmp_path))
    run = RunGenerator(worker, span, profile).generate_run_profile()
    assert [view.name for view in run.views] == ["overall", "operator", "trace", "memory", "module"]
    assert profile.steps_names == ["2", "3", "4"]
    assert {"aten::conv2d", "aten::linear"} <= {row.name for row in profile.op_list_groupby_name}


@pytest.mark.parametrize("backend", ["torchscript:trace", "onnxruntime:cpu"])
def test_other_backends_of_this_process_are_traced(backend, taken, tmp_path):
    pytest.importorskip(backend.partition(":")[0].replace("torchscript", "torch"))
    (made,) = taken(tmp_path / "results", backend=backend)
    assert made.status == "ok", made.reason
    assert len(made.contents[0].steps) == 3
    assert bool(made.unseen) == (made.contents[0].operators == 0) == (backend != "torchscript:trace")
    assert not made.unseen or f"{made.case.backend_label} have no operators" in made.unseen


def test_what_cannot_be_traced_is_a_row_with_a_reason_and_leaves_no_folder(taken, tmp_path, monkeypatch):
    options = {"option": ["fake.trouble=none,raise"], "model": ["fake:demo", "fake:other"], "backend": "fake:steady"}
    fine, failed, other, _ = taken(tmp_path / "out", tensorboard=tmp_path / "runs", **options)
    assert (fine.status, failed.status, other.status) == ("ok", "failed", "ok")
    assert ("told to fail" in failed.reason, failed.files, "told to fail" in failed.log.read_text()) == (True, (), True)
    assert sorted((tmp_path / "runs" / "demo").iterdir()) == sorted([fine.files[0].parent, failed.log])
    assert other.files[0].parent.parent.name == "other"  # several models have folders of their own
    _, refused = taken(tmp_path / "out", backend="pytorch,tensorrt")
    assert (refused.status, refused.files) == ("unsupported", ())
    assert refused.reason
    crash(monkeypatch, "trace")
    (made,) = taken(tmp_path / "crash")
    assert (made.status, made.reason) == ("crashed", "killed by SIGSEGV")
    assert not list((tmp_path / "crash" / "traced_model.build").iterdir())


def test_a_trace_has_a_process_of_its_own(tmp_path, one_process, monkeypatch):
    tasks = []
    monkeypatch.setattr(processes, "launch", lambda task, *a, **b: tasks.append(task) or commands.launch(task, *a, **b))
    words = {"model": "fake:demo", "backend": "fake:steady", "device": "cpu"}
    (made,) = commands.traced(tmp_path, **words)
    assert (made.status, tasks[-1]) == ("ok", "trace"), made.reason
    with pytest.raises(InferlensError, match="one process"):
        commands.traced(tmp_path, **words, repeats=3)


def test_names_of_log_folders_differ_where_cases_differ():
    ways = [("pytorch", ""), ("torch_tensorrt", "dynamo"), ("torch_tensorrt", "compile"), ("torch_compile", "default"),
            ("torch_compile", "max-autotune"), ("onnxruntime", "cpu"), ("onnxruntime", "cuda")]  # fmt: skip
    more = [
        {}, {"threads": 2}, {"options": {"tf32": True}}, {"options": {"tf32": False}}, {"seed": 1}, {"weights": "best"},
        {"inputs": (TensorSpec("x", (1, 3, 64, 64)),)}, {"io": "host"}, {"cold": True}, {"options": {"x": "a/b " * 40}},
    ]  # fmt: skip
    axes = list(itertools.product(ways, ("fp32", "fp16"), (None, 1, 8), ("cpu", "cuda"), more))
    cases = [
        Case(model="m", backend=backend, variant=variant, precision=precision, batch=batch, device=device, **extra)
        for (backend, variant), precision, batch, device, extra in axes
    ]
    found = [run_name(case, "module") for case in cases]
    assert {"pytorch_bs8", "ttrt_fp32_bs8", "ttrt_fp16_bs8"} <= set(found)
    assert len(set(found)) == len(axes)
    assert all(re.fullmatch(r"[\w.=-]{1,150}", name) for name in found)


def test_the_command_says_where_traces_are_and_how_to_look_at_them(tmp_path):
    options = ("-b", "fake:steady,fake:fast", "--option", "fake.trouble=none,raise", "--tensorboard", "runs")
    done = commands.inferlens("profile", "fake:demo", *options, "--torch-profiler", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert len(folders) == 2
    assert all(f"runs/{folder}" in "".join(done.stdout.split()) for folder in folders), "on several lines, if long"
    assert (done.stdout.count("told to fail"), "tensorboard --logdir runs" in done.stderr) == (2, True)
    assert "inferlens trace " in done.stderr
