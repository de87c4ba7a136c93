"""``inferlens bench PLAN.toml`` with machines: several objectives, and machines that cannot be reached."""

import pytest

from inferlens import load_records
from inferlens.cli import bench
from inferlens.execution import remote
from inferlens.record.record import Record
from inferlens.spec.plan import Plan
from tests.commands import inferlens, refusal_of
from tests.execution.test_launching import Mortal, Some

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
