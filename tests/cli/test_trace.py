"""``inferlens trace`` as a person runs it."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from inferlens.cli.commands import app
from inferlens.cli.options import fast_words
from inferlens.trace.distributed import runs_in, traces_in
from inferlens.views.table import FORMATS
from inferlens.views.trace import VIEWS
from tests.commands import inferlens
from tests.snapshots import compare_with_stored
from tests.trace.samples import event, faster, kernel, launch, of_torch, step, text, training


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpu.json").write_bytes(training())
    (tmp_path / "cpu.json").write_bytes(of_torch())
    (tmp_path / "broken.json").write_text("Hello")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("format", FORMATS)
def test_every_view_in_every_format(format, folder):
    for name in ("gpu.json", "cpu.json"):
        done = inferlens("trace", name, "--view", ",".join(VIEWS), "--format", format, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        if format == "json":
            shown = json.loads(done.stdout)
            assert (shown["schema"], shown["view"]) == ("inferlens.trace/1", ",".join(VIEWS))
        elif format == "csv":
            assert "table" in (csv.DictReader(io.StringIO(done.stdout)).fieldnames or ())
        else:
            assert ("Sequential" in done.stdout) == (name == "cpu.json")
        if format == "html":
            assert ("GPU self" in done.stdout) == (name == "gpu.json")  # no columns of a GPU that is not there
            assert done.stdout.count("<script") == 1  # the page's own
            assert "default-src 'none'" in done.stdout


def test_a_page_of_a_trace_is_that_of_a_report(folder):
    assert inferlens("trace", "gpu.json", "-o", "page.html", cwd=folder).returncode == 0
    page = (folder / "page.html").read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Answer", "Traces"]
    assert "steps-1.csv" in page


def test_steps_are_drawn(folder):
    done = inferlens("trace", "gpu.json", "--plot", "steps.svg", cwd=folder)
    assert (done.returncode, done.stderr.strip()) == (0, "Wrote steps.svg.")
    assert {"kernel", "copy"} <= {*re.findall(r"[^<>]+(?=</text>)", (folder / "steps.svg").read_text())}
    for name in ("a", "b"):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "trace.json").write_bytes(training())
    assert inferlens("trace", "runs", "--plot", "runs.png", cwd=folder).returncode == 0
    assert (folder / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_rows_are_told_apart_and_limited(folder):
    done = inferlens("trace", "gpu.json", "--view", "kernels", "--by", "operator", "--format", "csv", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["operator"] for row in rows} == {"aten::mm", "aten::linear", "aten::copy_"}
    one = inferlens("trace", "gpu.json", "--view", "steps", "--step", "1", "--format", "json", cwd=folder).stdout
    assert [row["step"] for row in json.loads(one)["traces"][0]["tables"]["steps"]] == ["1"]


def test_a_trace_comes_through_a_pipe_and_loads_no_framework():
    """Neither PyTorch nor polars, which would take longer than reading."""
    script = (
        "import sys; from inferlens.cli.main import main; sys.argv = ['inferlens', 'trace', '-']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'polars', 'pandas', 'vl_convert', 'scipy'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=training(), capture_output=True, check=True, env=dict(os.environ), timeout=60)
    assert b"Test GPU" in done.stdout


def test_frames_of_polars(folder):
    pytest.importorskip("polars")
    from inferlens import load_trace

    trace = load_trace(folder / "gpu.json")
    assert trace.kernels()["name"].to_list() == ["add", "s16816gemm", "Memcpy DtoH (Device -> Pageable)"]
    assert trace.steps()["step"].to_list() == ["0", "1"]
    assert (trace.operators("shapes").height, trace.events().height, trace.overview().steps) == (3, 24, 2)
    for frame in (trace.modules(), trace.memory(), trace.timeline(), trace.kernels(by_operator=True)):
        assert frame.columns
    assert trace.advice()[0].seconds > 0


def one_kernel(name: str, module: str) -> bytes:
    """A step with a kernel in a module."""
    around = event(module, 5, 90, "user_annotation")
    return text(step(0, 0, 100), around, launch(1, 10), kernel(1, 20, 50, name))


FILES = {
    "gpu": training(), "faster": faster(), "unmarked": text(launch(1, 10), kernel(1, 20, 50, "gemm")),
    "old": one_kernel("old", "Net"), "new": one_kernel("new", "Net"), "engine": one_kernel("new", "Engine"),
    "b" * 60: one_kernel("old", "Net"),
}  # fmt: skip
LINES = {
    "overview": "gpu.json", "overview, wide": "gpu.json --wide",
    "kernels": "gpu.json --view kernels", "operators": "gpu.json --view operators --columns calls,device_self",
    "operators by shape": "gpu.json --view operators --by shapes,stack --top 1",
    "columns": "gpu.json --view kernels --columns calls,min",
    "against": "faster.json --against gpu.json", "against, kernels": "faster.json --against gpu.json --view kernels",
    "against, unmarked": "unmarked.json --against gpu.json",
    "against, other kernels": "new.json --against old.json --view kernels",
    "against, other modules": "engine.json --against old.json --view kernels",
    "against, long names": f"{'b' * 60}.json --against old.json",
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_screen(name, tmp_path):
    for file, data in FILES.items():
        (tmp_path / f"{file}.json").write_bytes(data)
    done = inferlens("trace", *LINES[name].split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    compare_with_stored(f"trace/{name}", done.stderr + done.stdout)


def test_programs_get_the_sums_of_all_steps(folder):
    done = inferlens("trace", "gpu.json", "--view", "kernels", "--format", "json", cwd=folder)
    row, *_ = json.loads(done.stdout)["traces"][0]["tables"]["kernels"]
    assert (row["calls"], row["total"]) == (2, pytest.approx(400e-6))


def test_what_is_shown_can_be_chosen_and_written(folder):
    done = inferlens("trace", "gpu.json", "--view", "kernels", "-o", "kernels.csv", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert len((folder / "kernels.csv").read_text().splitlines()) == 4


def test_damage_is_remarked_on_and_too_little_memory_is_one_error(folder, monkeypatch):
    (folder / "cut.json").write_bytes(training()[:-2000])
    done = inferlens("trace", "cut.json", "--view", "kernels", cwd=folder)
    assert (done.returncode, "s16816gemm" in done.stdout) == (0, True)
    assert done.stderr.startswith("cut.json: ")

    def nothing_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("inferlens.trace.analysis.read_trace", nothing_left)
    done = inferlens("trace", "gpu.json", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not enough memory" in done.stderr


def test_right_words_mean_what_the_command_says_and_wrong_ones_are_left_to_it():
    command = typer.main.get_command(app).get_command(None, "trace")
    every = "a.json --against b.json --step 7 --top 3 --depth 2 -f json --wide --columns calls -o c.json"
    for line in ("a.json", "-", "a.json --view=overview,kernels --by=operator", every):
        with command.make_context("trace", line.split()) as context:
            assert (fast_words("trace", "path", line.split()) or {}).items() <= context.params.items()
    for line in ("", "--help", "a.json b.json", "a.json --vie x", "a.json --top 0", "a.json --top x"):
        assert fast_words("trace", "path", line.split()) is None


# Two traces, the ranks of a job, and log folders


def test_against(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_bytes(training())
    (tmp_path / "b.json").write_bytes(faster())
    words = ("--view", "overview,operators,kernels,modules,timeline", "--format", "json")
    done = inferlens("trace", "b.json", "--against", "a.json", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (shown,) = json.loads(done.stdout)["traces"]
    assert [*shown["tables"]] == ["parts", "idle", "operators", "kernels", "modules", "execution"]
    assert shown["trace"] == "b.json against a.json"
    assert shown["answer"][:2] == [
        "Traced step: 600 -> 400 µs. Kernels: 300 -> 130 µs.",
        "Tracing slows the host: inferlens bench measures the speed.",
    ]
    assert "Kernels, copies and fills: 340 -> 130 µs a step; 1 in both, 1 new, 2 gone." in shown["answer"]
    step_row = shown["tables"]["parts"][-1]
    assert [round(step_row[key] * 1e6) for key in ("before", "after", "change")] == [600, 400, -200]
    states = {row["name"]: row["state"] for row in shown["tables"]["kernels"]}
    assert (states["relu"], states["add"]) == ("new", "gone"), "of what the candidate does and the base does not"
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = inferlens("trace", "b.json", "--against", "a.json", "--view", "kernels", cwd=tmp_path).stdout
    monkeypatch.delenv("FORCE_COLOR")
    assert "\x1b[32madd" in coloured, "green: the candidate takes less"
    assert "\x1b[31mrelu" in coloured
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "a.json").write_bytes(faster())
    assert inferlens("trace", "c/a.json", "--against", "a.json", cwd=tmp_path).stdout.startswith("c/a.json against a.")


def rank(number: int | None, size: int = 16, begin: float = 0) -> bytes:
    """A step in which half of the communication is hidden behind a kernel; of a rank, if it has one."""
    talks = [
        step(0, begin, 500), event("nccl:all_reduce", begin + 10, 20, External__id=4), launch(1, begin + 12),
        launch(2, begin + 50), kernel(1, begin + 100, 100, "ncclDevKernel_AllReduce", stream=20),
        kernel(2, begin + 150, 100, "gemm"),
    ]  # fmt: skip
    about = {} if number is None else {"distributedInfo": {"rank": number, "world_size": size}}
    return text(*talks, **about)


def test_ranks_of_a_job(tmp_path):
    for number in (10, 2):
        (tmp_path / f"job_{number}.json").write_bytes(rank(number))
    (tmp_path / "notes.json").write_text("{}")
    assert [path.name for path in traces_in(tmp_path)] == ["job_2.json", "job_10.json", "notes.json"]
    done = inferlens("trace", ".", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0
    assert "notes.json is JSON without entries" in done.stderr
    first, _ = json.loads(done.stdout)["traces"][0]["tables"]["ranks"]
    assert (first["name"], first["rank"], first["step_time"]) == ("job_2.json", 2, pytest.approx(500e-6))
    assert first["overlapped"] == 0.5
    (tmp_path / "notes.json").unlink()
    shown = inferlens("trace", ".", cwd=tmp_path).stdout
    assert "2 ranks of one job" in shown
    assert "Why the GPU is idle" not in shown, "the overview of each is for those who ask for it"
    assert inferlens("trace", ".", "--wide", cwd=tmp_path).stdout.count("Why the GPU is idle") == 2


@pytest.mark.parametrize(("files", "why"), [
    ({"a.json": rank(None), "b.json": rank(None)}, "a.json has no rank"),
    ({"a.json": rank(0), "b.json": rank(None)}, "b.json has no rank"),
    ({"a.json": rank(1), "b.json": rank(1)}, "several have the same rank"),
    ({"a.json": rank(0, 2), "b.json": rank(1, 4)}, "they are of jobs of different sizes"),
    ({"a.json": rank(0), "b.json": rank(1, begin=5e6)}, "they were not taken at the same time"),
    ({"rank0.json": rank(None), "rank1.json": rank(None)}, ""),
])  # fmt: skip
def test_only_traces_that_say_so_are_ranks_of_one_job(files, why, tmp_path):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    done = inferlens("trace", ".", "--format", "json", cwd=tmp_path)
    together, *_ = json.loads(done.stdout)["traces"]
    assert [*together["tables"]] == ["runs" if why else "ranks"]
    assert (f"not ranks of one job ({why})" in together["answer"][0]) == bool(why)
    rows = [line.split()[0] for line in inferlens("trace", ".", cwd=tmp_path).stdout.splitlines() if ".json  " in line]
    assert rows == [*files], "both are listed"


def calls(begin: int) -> bytes:
    """Two steps of 500 us, in each a kernel of 100 us that begins so many us after the step."""
    events = []
    for number, start in enumerate((0, 500)):
        at = start + begin
        events += [step(number, start, 500), launch(number + 1, at - 10, 5), kernel(number + 1, at, 100, "gemm")]
    return text(*events)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name, data in (("bs8", calls(100)), ("bs16", training()), ("bs1", calls(300))):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / f"host_{name}.1.pt.trace.json").write_bytes(data)
    (tmp_path / "runs" / "notes.txt").write_text("no trace")
    return tmp_path / "runs"


def test_runs_are_rows_and_other_views_are_each_runs(logs):
    assert [name for name, _ in runs_in(logs)] == ["bs1", "bs8", "bs16"]
    done = inferlens("trace", "runs", "--view", "overview,kernels", cwd=logs.parent)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("bs")]
    assert rows == ["bs1", "bs8", "bs16"] * 2, "of the table of runs, then what takes most in each"
    assert "100 % of the GPU's time goes to gemm." in done.stdout
    assert "While traced, the GPU waits for the host in 3 of 3; tracing adds to that." in done.stdout
    assert not {"CPU", "bottleneck"} & set(done.stdout.split()), "the column is for --wide"
    done = inferlens("trace", "runs", "--view", "kernels", "--top", "1", cwd=logs.parent)
    assert [f"{name} · kernels" in done.stdout for name in ("bs1", "bs8", "bs16")] == [True] * 3
    (logs / "bs8" / "host_bs8.1.pt.trace.json").write_text("nothing of it")
    done = inferlens("trace", "runs", "--format", "json", cwd=logs.parent)
    assert done.returncode == 0
    assert "host_bs8" in done.stderr
    together, *each = json.loads(done.stdout)["traces"]
    table = together["tables"]["runs"]
    assert [row["name"] for row in table] == [one["trace"] for one in each] == ["bs1", "bs16"]
    assert [(row["kernel"], row["bound"]) for row in table] == [(pytest.approx(100e-6), "host"), (300e-6, "host")]
    assert [row["step_time"] for row in table] == [one["overview"]["step_time"] for one in each]


def test_log_folders_are_compared_as_their_traces(logs):
    done = inferlens("trace", "runs/bs1", "--against", "runs/bs8", cwd=logs.parent)
    assert (done.returncode, done.stderr) == (0, "")
    (logs / "bs8" / "second.json").write_bytes(training())
    for paths, says in ((("runs/bs1", "runs/bs8"), "2 traces"), (("runs", "runs/bs1"), "There is no trace in")):
        done = inferlens("trace", paths[0], "--against", paths[1], cwd=logs.parent)
        assert done.returncode == 2
        assert says in done.stderr
