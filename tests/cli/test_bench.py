"""``inferlens bench`` and its neighbours, as a person runs them, also with a plan of several machines."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inferlens import load_records
from inferlens.backends import BACKENDS
from inferlens.backends.base import Absence, Capabilities, Support
from inferlens.cli import bench
from inferlens.cli.backends import missing
from inferlens.cli.bench import skipped_ways
from inferlens.execution import remote
from inferlens.execution.cases import cases_of, race_plan
from inferlens.record.record import Record
from inferlens.spec.plan import Plan
from tests.commands import inferlens, output_of, refusal_of
from tests.execution.test_launching import Mortal, Some
from tests.views.samples import case, record


def test_ways_that_are_left_out_by_default_are_named():
    assert skipped_ways(Plan(model=("m",)), [record(case("torch_compile"))]).startswith(
        "bf16 (--precision bf16); torch_compile:max-autotune (--backend, builds for minutes); options"
    )
    on_gpu = [record(case(device="cuda"))]
    assert skipped_ways(Plan(model=("m",)), on_gpu).startswith("fp16, bf16 (--precision fp16,bf16); torchscript (")
    assert skipped_ways(Plan(model=("m",), precision=("fp32",)), [record(case())]) == "options (inferlens tune)"


def test_failed_cases_are_rows_and_the_exit_code_says_whether_anything_was_measured(tmp_path):
    words = ("bench", "fake:demo", "--iterations", "20", "-b", "fake", "--option")
    mixed = output_of(*words, "fake.trouble=none,raise", cwd=tmp_path)
    assert "This backend was told to fail" in " ".join(mixed.split())
    none = inferlens(*words, "fake.trouble=raise", cwd=tmp_path)
    assert (none.returncode, "failed" in none.stdout) == (1, True)


FAST_ONLY = "--only fake:fast,fp32,knob_a --dry-run"
DRY_RUNS = {
    "bench fake:a fake:b -b fake:all --batch 1,8 --device cpu,cuda --dry-run": [
        r"24 cases, 12 of them can run: about", "only on cpu"],
    "bench fake:demo -b fake:all --batch 1,2,3,4,5,6,7,8 --precision fp32,fp8 --dry-run": [
        r"32 more cases: --json lists all of them\.",
        r"\n48 cases, 24 of them can run: about \d+ min( \d+ s)?, then rounds: about 1 min \(--within\)\.\n$"],
    f"tune fake:a fake:b --batch 1,8 {FAST_ONLY}": ["a fake:fast fp32 batch 1 cpu"],
    "tune fake:demo --only fake:fast,fake:steady,fp8 --dry-run": [r"0 candidates in all\.", "fake:steady fp8"],
    "tune fake:demo --only fake --batch 1,2,3,4,5 --dry-run": [
        r"more rows: --json\.", r" candidates in all; --budget decides how many of them are measured\."],
}  # fmt: skip


@pytest.mark.parametrize("line", DRY_RUNS)
def test_a_dry_run_lists_on_one_screen_what_it_would_measure_and_measures_none(line, tmp_path):
    listed = output_of(*line.split(), cwd=tmp_path)
    assert all(re.search(pattern, listed) for pattern in DRY_RUNS[line]), listed
    assert (len(listed.splitlines()) <= 24, max(map(len, listed.splitlines())) <= 100) == (True, True)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_as_data_and_of_what_was_measured(tmp_path):
    cases, *_ = DRY_RUNS
    data = json.loads(output_of(*cases.split(), "--json", cwd=tmp_path))
    assert (len(data), data[0]["case"]["model"]) == (24, "fake:a")
    candidates = json.loads(output_of("tune", "fake:a", *FAST_ONLY.split(), "--json", cwd=tmp_path))["candidates"]
    assert all(each["seconds"] > 0 and each["case"]["backend"] == "fake" for each in candidates)
    output_of("bench", "fake:demo", "-b", "fake", "--iterations", "5", cwd=tmp_path)
    known = output_of("bench", "fake:demo", "-b", "fake", "--dry-run", cwd=tmp_path)
    assert known.splitlines()[-1] == "1 case, 1 of them can run: about 5 s."


def test_a_plan_file_and_words_of_the_command_line_that_overrule_it(tmp_path):
    plan = 'model = "fake:demo"\nbackend = "fake:all"\niterations = 20\nquick = true\nbatch = [1, 2]\n'
    (tmp_path / "plan.toml").write_text(plan)
    shown = output_of("bench", "plan.toml", "--batch", "4", "--output", "elsewhere", cwd=tmp_path)
    assert re.search("inferlens profile fake:demo .* --output elsewhere", shown)
    names = sorted(path.parent.name for path in tmp_path.glob("elsewhere/demo/*/record.json"))
    assert names == ["fake-fast-fp32-b4-cpu", "fake-noisy-fp32-b4-cpu", "fake-steady-fp32-b4-cpu"]


def test_backends_names_every_backend_and_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    one = output_of("backends", "onnxruntime", cwd=tmp_path)
    assert all(word in one for word in ("graph_optimization=all", "--option onnxruntime.", "extended"))
    said = output_of("backends", cwd=tmp_path)
    lines = said.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100, lines[-1][:6]) == (True, True, "Next: ")
    assert all(name in said for name in BACKENDS.names() if name != "fake")
    wide = output_of("backends", "--wide", cwd=tmp_path)
    assert all(word in wide for word in ("libraries: numpy", *BACKENDS.names()))
    data = json.loads(inferlens("backends", "--json", cwd=tmp_path).stdout)
    assert data["environment"]["cpu"]
    assert set(BACKENDS.names()) <= set(data["backends"])
    for name, can in data["backends"].items():
        assert can["supports"] or can["absent"][0]["reason"], name


def test_what_does_not_work_is_said_once_for_all_that_it_holds_for():
    none, old = Absence("", "no GPU", "a GPU", "cuda"), Absence("rtx", "too old", "a newer one", "cuda")
    here = Capabilities(formats=("module",), supports=(Support("", "cpu", ("fp32",)),), absent=(none,))
    there = Capabilities(formats=("module",), absent=(Absence("trt", "no GPU", "a GPU", "cuda"), old))
    found = missing({"one": here, "other": there})
    assert found == {"one on cuda, other": ["no GPU", "a GPU"], "other": ["too old", "a newer one"]}


def test_a_closed_pipe_is_no_error(tmp_path):
    command = f"{sys.executable} -m inferlens backends fake | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == ""


def test_one_option_with_several_values_is_compared_with_its_default(tmp_path):
    sweep = ("bench", "fake:demo", "-b", "fake", "--option", "fake.knob_a=0,1,2")
    done = inferlens(*sweep, "-o", "sweep.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FASTEST fake:steady knob_a=1 3.20 ms 1.25x fake:steady" in done.stdout
    assert ">(default)</text>" in (tmp_path / "sweep.svg").read_text(), "the curve begins with the default"
    done = inferlens(*sweep, "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["rows"]
    assert [(row["options"], row["is_reference"]) for row in rows] == [
        ("knob_a=1", False), ("knob_a=2", False), ("", True)
    ]  # fmt: skip


@pytest.mark.parametrize(("options", "count"), [
    ({"fake.knob_a": "1,2"}, 3), ({"fake.knob_a": "0,1"}, 2), ({"fake.knob_a": "1"}, 1),
    ({"fake.knob_a": "0,0"}, 1), ({"fake.knob_c": "1", "fake.knob_d": "1,2"}, 3),
    ({"fake.knob_a": "1,2", "fake.knob_c": "1,2"}, 4),
])  # fmt: skip
def test_the_default_is_added_to_the_values_of_one_option(options, count, one_process):
    plan = Plan.from_words({"model": "fake:demo", "backend": "fake", "option": options})
    assert len(cases_of(race_plan(plan))) == count
    assert race_plan(race_plan(plan)) == race_plan(plan)


# Tuning


def test_several_batches_are_one_screen(tmp_path):
    words = ("--batch", "1,8", "--only", "fake:fast,fp32,knob_a")
    done = inferlens("tune", "fake:demo", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 24
    for batch in (1, 8):
        assert f"demo, batch {batch}:" in done.stderr
        assert f"results/demo/batch-{batch}/best" in done.stdout
    assert "inferlens export --best results/demo/batch-1/best -o deploy" in done.stdout
    data = json.loads(inferlens("tune", "fake:demo", *words, "--json", cwd=tmp_path).stdout)
    assert [each["best"]["batch"] for each in data["tunings"]] == [1, 8]
    (tmp_path / "plan.toml").write_text('model = "fake:demo"\nbatch = [1, 8]\n')
    again = inferlens("tune", "plan.toml", *words[2:], cwd=tmp_path)
    assert "batch-8/best" in again.stdout
    assert "best so far" not in again.stderr, "it is the same tuning"


MACHINES = """
model = ["fake:demo", "fake:other"]
backend = ["fake:steady", "fake:fast"]
quick = true
max_time = 0.05
warmup = 1
objectives = ["latency", "throughput"]
[machines.here]
[machines.lab]
launcher = "nowhere"
"""


def test_each_objective_is_a_table_and_what_was_out_of_reach_is_tried_again(tmp_path, monkeypatch):
    (tmp_path / "machines.toml").write_text(MACHINES)
    listed = inferlens("bench", "machines.toml", "--dry-run", cwd=tmp_path).stdout
    assert "4 parts, one for each machine and objective." in listed
    done = inferlens("bench", "machines.toml", cwd=tmp_path)
    assert (done.returncode, "lab was left out" in done.stderr) == (1, True)
    lines = done.stdout.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    latency, throughput = done.stdout.split("Throughput")
    assert "demo:  LIKELY FASTEST  fake:fast  2.00 ms  2.00x fake:steady" in latency
    assert "other:  LIKELY FASTEST  fake:fast  500 items/s  2.00x fake:steady" in throughput
    assert len(load_records(tmp_path / "results").records) == 8

    monkeypatch.setattr(remote, "launcher_of", Some)
    monkeypatch.setattr(Some, "those", [Mortal(kind="lab")])
    done = inferlens("bench", "machines.toml", cwd=tmp_path)
    assert (done.returncode, "8 of 8 cases measured before" in done.stderr) == (0, False), done.stderr
    assert len(load_records(tmp_path / "results").records) == 16
    assert [each.name for each in sorted((tmp_path / "results").iterdir())] == ["latency", "throughput"]


@pytest.mark.parametrize(("wrong", "said"), [
    (MACHINES.partition("[machines")[0], "names no machines"),
    (MACHINES.replace('"latency"', '"speed"'), "no objective of a fleet 'speed'"),
    ("mode = 'both'" + MACHINES, "A fleet has no 'mode'"),
    (MACHINES.replace("launcher", "lancher"), "For the machine 'lab', latency: There is no word of a plan 'lancher'"),
    (MACHINES.replace("objectives", "objective"), "did you mean objectives?"),
    (MACHINES.replace("max_time", "iterations = 9\nmax_time"), "For the machine 'here', throughput: iterations"),
    (MACHINES.replace("[machines.here]", ""), "no launcher 'nowhere'"),
])  # fmt: skip
def test_bad_files_are_refused(wrong, said, tmp_path):
    (tmp_path / "machines.toml").write_text(wrong)
    assert said in refusal_of("bench", "machines.toml", cwd=tmp_path)
    assert not (tmp_path / "results").exists()


def test_a_machine_on_which_nothing_ran_is_an_exit_code(tmp_path):
    words = MACHINES.partition("[machines.lab]")[0].replace("quick", 'option = "fake.trouble=raise"\nquick')
    (tmp_path / "machines.toml").write_text(words)
    assert inferlens("bench", "machines.toml", cwd=tmp_path).returncode == 1


def test_an_interrupted_one_can_go_on(tmp_path, monkeypatch):
    (tmp_path / "machines.toml").write_text(MACHINES.partition("[machines.lab]")[0])
    ran: list[str] = []

    def measured(plan: Plan) -> tuple[list[Record], bool]:
        ran.append(plan.budget.mode)
        return [], len(ran) == 2

    monkeypatch.setattr(bench, "measure_plan", measured)
    first, second = (inferlens("bench", "machines.toml", cwd=tmp_path) for _ in range(2))
    assert (first.returncode, "goes on from here" in first.stderr, second.returncode) == (130, True, 0)
    assert ran == ["latency", "throughput"] * 2


# Models that are no pure functions: what the answer says of them, and which ways are ranked.

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.change(x)

def made(change):
    net = Net()
    net.change = change.__get__(net)
    return net, (torch.randn(4, 8),)

def noise():
    return made(lambda self, x: self.layer(x) + torch.randn_like(x))

def writes():
    return made(lambda self, x: self.layer(x.mul_(0.5).add_(1)))

def counts():
    def change(self, x):
        self.count += 1
        return self.layer(x) + self.count
    return made(change)

def masked():
    return made(lambda self, x: self.layer(x).masked_fill(torch.arange(8) % 4 == 0, float("-inf")))

def frozen():
    def change(self, x):
        twice = 2 if torch.compiler.is_compiling() else 1
        return (self.layer(x) * twice).masked_fill(torch.arange(8) % 4 == 0, float("-inf"))
    return made(change)

def half():
    return nn.Linear(8, 8).half(), (torch.randn(4, 8).half(),)
"""


def benched(folder: Path, factory: str, backends: str = "pytorch,onnxruntime:cpu") -> str:
    (folder / "behaving.py").write_text(MODELS, "utf-8")
    words = ("--backend", backends, "--mode", "latency", "--quick", "--iterations", "5", "--warmup", "1")
    return output_of("bench", f"behaving.py:{factory}", *words, "--output", "out", cwd=folder)


@pytest.mark.parametrize(("factory", "answer", "rows"), [
    ("writes", "", {"pytorch": "right", "onnxruntime:cpu": "right"}),
    ("noise", "outputs not compared: they are random", {"pytorch": "random", "onnxruntime:cpu": "random"}),
    ("counts", "the model keeps state", {"pytorch": "keeps state", "onnxruntime:cpu": "state lost"}),
    ("masked", "outputs with NaN or inf", {"pytorch": "right", "onnxruntime:cpu": "right"}),
    ("frozen", "outputs with NaN or inf", {"pytorch": "right", "onnxruntime:cpu": "wrong"}),
])  # fmt: skip
def test_the_answer_says_how_the_model_behaves(tmp_path, factory, answer, rows):
    shown = benched(tmp_path, factory)
    headline = shown.split("\n\n")[1]
    assert answer in headline
    assert ("THE ONLY WAY THAT RAN RIGHT  pytorch" in headline) >= (rows["onnxruntime:cpu"] in ("state lost", "wrong"))
    for name, word in rows.items():
        (line,) = [line for line in shown.splitlines() if line[3:].startswith(f"{name} ")]
        assert word in line


def test_a_half_precision_module_runs_in_its_own_type(tmp_path):
    assert "fp16" in benched(tmp_path, "half", "pytorch")
    (record,) = tmp_path.glob("out/*/*/record.json")
    assert json.loads(record.read_bytes())["case"]["precision"] == "fp16"


def test_tune_ends_at_once_where_outputs_are_random(tmp_path):
    (tmp_path / "behaving.py").write_text(MODELS, "utf-8")
    said = refusal_of("tune", "behaving.py:noise", "--budget", "100s", "--output", "out", cwd=tmp_path)
    assert "behaving.py:noise gives random outputs: a wrong candidate cannot be told from a right one" in said
