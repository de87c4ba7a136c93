"""``inferlens tune`` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import inferlens


def test_a_study_in_every_format_and_as_a_picture(tmp_path: Path) -> None:
    study = ("tune", "fake:demo", "--study", "fake.knob_a=1,2")
    done = inferlens(*study, "-o", "study.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "round 3: knob_a=1 1.25x the default" in done.stderr
    assert done.stdout.splitlines()[2] == "knob_a=1 is 1.25x its default (1.18 to 1.33)."
    assert "The records: inferlens show results/demo" in done.stdout
    names, *lines = ((tmp_path / "study.csv").read_text()).splitlines()
    assert names.startswith("value,")
    assert [line.partition(",")[0] for line in lines] == ["0", "1", "2"]
    done = inferlens(*study, "--json", "-o", "study.svg", cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (data["knob"], data["default"]) == ("fake.knob_a", 0)
    assert [each["verdict"] for each in data["values"]] == [None, "FASTER", "FASTER"]
    assert data["values"][1]["row"]["speedup"] == pytest.approx(1.25)
    assert "knob_a=1 is 1.25x its default" in (tmp_path / "study.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--space", "missing.toml"), "The space file missing.toml does not exist."),
        (("--study", "fake.knob_a=9"), "does not take '9'"),
        (("--study", "fake.knob_a=1", "--only", "fake"), "With --study, --only would do nothing."),
        (("--study", "fake.knob_a=1", "--within", "error=1", "--dry-run"), "--within and --dry-run would do nothing."),
        (("--study", "fake.knob_z=1", "--dry-run"), "knob_z"),
        (("--study", "fake.knob_a=1", "--for", "energy"), "no objective of a study 'energy'"),
        (("--study", "fake.knob_a=1", "-o", "study.xyz"), "file ending"),
    ],
)
def test_bad_words_are_one_message(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = inferlens("tune", "fake:demo", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_study_of_which_nothing_runs_has_exit_code_1(tmp_path: Path) -> None:
    done = inferlens("tune", "fake:demo", "--study", "fake.knob_a=1", "--option", "fake.trouble=raise", cwd=tmp_path)
    assert done.returncode == 1
    assert "Not even the default of knob_a ran" in done.stdout


def test_several_batches_are_one_screen(tmp_path: Path) -> None:
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
    listed = inferlens("tune", "fake:a", "fake:b", *words, "--dry-run", cwd=tmp_path).stdout
    assert "a fake:fast fp32 batch 1 cpu" in listed
    listed = inferlens("tune", "fake:a", *words[2:], "--dry-run", "--json", cwd=tmp_path).stdout
    assert all(each["seconds"] > 0 and each["case"]["backend"] == "fake" for each in json.loads(listed)["candidates"])


def test_what_cannot_run_at_all_is_listed_with_its_reasons(tmp_path: Path) -> None:
    words = ("tune", "fake:demo", "--only", "fake:fast,fake:steady,fp8")
    done = inferlens(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    listed = inferlens(*words, "--dry-run", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "0 candidates in all." in listed.stdout
    assert "fake:steady fp8" in listed.stdout


def test_what_would_be_tried_fits_on_a_screen(tmp_path: Path) -> None:
    listed = inferlens("tune", "fake:demo", "--only", "fake", "--batch", "1,2,3,4,5", "--dry-run", cwd=tmp_path).stdout
    assert "more rows: --json." in listed
    assert " candidates in all; --budget decides how many of them are measured." in listed
    assert len(listed.splitlines()) <= 24
