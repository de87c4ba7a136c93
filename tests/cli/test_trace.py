"""``inferlens trace`` as a person runs it."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from inferlens.cli.commands import app
from inferlens.cli.options import fast_words
from inferlens.views.table import FORMATS
from inferlens.views.trace import VIEWS
from tests.commands import inferlens, output_of, refusal_of
from tests.snapshots import compare_with_stored
from tests.trace.samples import event, faster, kernel, launch, of_torch, step, text, training


def one_kernel(name: str, module: str) -> bytes:
    """A step with a kernel in a module."""
    around = event(module, 5, 90, "user_annotation")
    return text(step(0, 0, 100), around, launch(1, 10), kernel(1, 20, 50, name))


def rank(number: int | None, size: int = 16, begin: float = 0) -> bytes:
    """A step in which half of the communication is hidden behind a kernel; of a rank, if it has one."""
    talks = [
        step(0, begin, 500), event("nccl:all_reduce", begin + 10, 20, External__id=4), launch(1, begin + 12),
        launch(2, begin + 50), kernel(1, begin + 100, 100, "ncclDevKernel_AllReduce", stream=20),
        kernel(2, begin + 150, 100, "gemm"),
    ]  # fmt: skip
    about = {} if number is None else {"distributedInfo": {"rank": number, "world_size": size}}
    return text(*talks, **about)


def calls(begin: int) -> bytes:
    """Two steps of 500 us, in each a kernel of 100 us that begins so many us after the step."""
    events = []
    for number, start in enumerate((0, 500)):
        at = start + begin
        events += [step(number, start, 500), launch(number + 1, at - 10, 5), kernel(number + 1, at, 100, "gemm")]
    return text(*events)


FILES = {
    "gpu.json": training(), "faster.json": faster(), "unmarked.json": text(launch(1, 10), kernel(1, 20, 50, "gemm")),
    "old.json": one_kernel("old", "Net"), f"{'b' * 60}.json": one_kernel("old", "Net"), "c/gpu.json": faster(),
    "new.json": one_kernel("new", "Net"), "engine.json": one_kernel("new", "Engine"), "broken.json": b"Hello",
    "job/job_10.json": rank(10), "job/job_2.json": rank(2), "logs/bs8/host.1.pt.trace.json": calls(100),
    "logs/bs16/host.1.pt.trace.json": training(), "logs/bs1/host.1.pt.trace.json": calls(300),
    "logs/notes.txt": b"no trace", "job/notes.json": b"{}", "two/bs1/host.1.pt.trace.json": calls(300),
    "two/bs8/host.1.pt.trace.json": b"nothing of it",
}  # fmt: skip


def written(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder and return it."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Traces, the ranks of a job, and a log folder of three runs."""
    return written(tmp_path, FILES)


def traces(words: str, folder: Path) -> list[dict[str, Any]]:
    """What programs get of traces."""
    return json.loads(output_of("trace", *words.split(), "--format", "json", cwd=folder))["traces"]


@pytest.mark.parametrize("format", FORMATS)
def test_every_view_in_every_format(format, folder):
    (folder / "cpu.json").write_bytes(of_torch())
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


def test_a_page_of_a_trace_is_that_of_a_report(folder, undrawn):
    for words, charts in (("gpu.json", True), ("gpu.json --view overview,kernels", False), ("logs", True)):
        output_of("trace", *words.split(), "-o", "page.html", cwd=folder)
        page = (folder / "page.html").read_text()
        assert (re.findall(r"<h2>(.*?)</h2>", page) == ["Answer", "Traces"], "steps-1.csv" in page) == (charts, charts)


def test_steps_are_drawn(folder):
    done = inferlens("trace", "gpu.json", "--plot", "steps.svg", cwd=folder)
    assert (done.returncode, done.stderr.strip()) == (0, "Wrote steps.svg.")
    assert {"kernel", "copy"} <= {*re.findall(r"[^<>]+(?=</text>)", (folder / "steps.svg").read_text())}
    output_of("trace", "logs", "--plot", "runs.png", cwd=folder)
    assert (folder / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_of_steps_ranks_and_runs_derived_by_hand(folder):
    (every,) = traces("gpu.json --view kernels", folder)
    row, *_ = every["tables"]["kernels"]
    assert (row["calls"], row["total"]) == (2, pytest.approx(400e-6)), "the sums of all steps"
    job, *_ = traces("job", folder)
    first, _ = job["tables"]["ranks"]
    known = (first["name"], first["rank"], first["step_time"], first["overlapped"])
    assert known == ("job_2.json", 2, pytest.approx(500e-6), 0.5)
    together, *each = traces("logs", folder)
    table = together["tables"]["runs"]
    assert [(row["name"], row["bound"]) for row in table] == [("bs1", "host"), ("bs8", "host"), ("bs16", "host")]
    assert [row["kernel"] for row in table] == pytest.approx([100e-6, 100e-6, 300e-6])
    assert [row["step_time"] for row in table] == [one["overview"]["step_time"] for one in each]


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
    "against, the same name": "c/gpu.json --against gpu.json --view kernels",
    "ranks": "job", "ranks, wide": "job --wide",
    "runs": "logs --view overview,kernels", "runs, kernels": "logs --view kernels --wide --top 1",
    "runs, against": "logs/bs1 --against logs/bs8", "a broken run": "two",
    "kernels by operator": "gpu.json --view kernels --by operator --format csv",
    "one step": "gpu.json --view steps --step 1 --format csv",
    "sums of all steps": "gpu.json --view kernels --format csv",
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_screen(name, folder):
    done = inferlens("trace", *LINES[name].split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    compare_with_stored(f"trace/{name}", done.stderr + done.stdout)


def test_damage_is_remarked_on_and_too_little_memory_is_one_error(folder, monkeypatch):
    (folder / "cut.json").write_bytes(training()[:-2000])
    done = inferlens("trace", "cut.json", "--view", "kernels", cwd=folder)
    assert (done.returncode, "s16816gemm" in done.stdout) == (0, True)
    assert done.stderr.startswith("cut.json: ")

    def nothing_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("inferlens.trace.analysis.read_trace", nothing_left)
    assert "not enough memory" in refusal_of("trace", "gpu.json", cwd=folder)


def test_right_words_mean_what_the_command_says_and_wrong_ones_are_left_to_it():
    command = typer.main.get_command(app).get_command(None, "trace")
    every = "a.json --against b.json --step 7 --top 3 --depth 2 -f json --wide --columns calls -o c.json"
    for line in ("a.json", "-", "a.json --view=overview,kernels --by=operator", every):
        with command.make_context("trace", line.split()) as context:
            assert (fast_words("trace", "path", line.split()) or {}).items() <= context.params.items()
    for line in ("", "--help", "a.json b.json", "a.json --vie x", "a.json --top 0", "a.json --top x"):
        assert fast_words("trace", "path", line.split()) is None


# Two traces, the ranks of a job, and log folders


def test_what_takes_less_is_green_and_what_takes_more_is_red(folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = output_of("trace", "faster.json", "--against", "gpu.json", "--view", "kernels", cwd=folder)
    assert ("\x1b[32madd" in coloured, "\x1b[31mrelu" in coloured) == (True, True)


@pytest.mark.parametrize(("files", "why"), [
    ({"a.json": rank(None), "b.json": rank(None)}, "a.json has no rank"),
    ({"a.json": rank(0), "b.json": rank(None)}, "b.json has no rank"),
    ({"a.json": rank(1), "b.json": rank(1)}, "several have the same rank"),
    ({"a.json": rank(0, 2), "b.json": rank(1, 4)}, "they are of jobs of different sizes"),
    ({"a.json": rank(0), "b.json": rank(1, begin=5e6)}, "they were not taken at the same time"),
    ({"rank0.json": rank(None), "rank1.json": rank(None)}, ""),
])  # fmt: skip
def test_only_traces_that_say_so_are_ranks_of_one_job(files, why, tmp_path):
    together, *_ = traces(".", written(tmp_path, files))
    assert [*together["tables"]] == ["runs" if why else "ranks"]
    assert (f"not ranks of one job ({why})" in together["answer"][0]) == bool(why)
    rows = [line.split()[0] for line in inferlens("trace", ".", cwd=tmp_path).stdout.splitlines() if ".json  " in line]
    assert rows == [*files], "both are listed"


def test_a_log_folder_is_compared_if_it_has_one_trace(folder):
    (folder / "logs" / "bs8" / "second.json").write_bytes(training())
    for path, against, says in (("logs/bs1", "logs/bs8", "2 traces"), ("logs", "logs/bs1", "There is no trace in")):
        assert says in refusal_of("trace", path, "--against", against, cwd=folder)
