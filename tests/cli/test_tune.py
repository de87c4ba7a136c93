"""``inferlens tune`` as a person runs it."""

import json

from tests.commands import inferlens


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
    listed = inferlens("tune", "fake:a", "fake:b", *words, "--dry-run", cwd=tmp_path).stdout
    assert "a fake:fast fp32 batch 1 cpu" in listed
    listed = inferlens("tune", "fake:a", *words[2:], "--dry-run", "--json", cwd=tmp_path).stdout
    assert all(each["seconds"] > 0 and each["case"]["backend"] == "fake" for each in json.loads(listed)["candidates"])


def test_what_cannot_run_at_all_is_listed_with_its_reasons(tmp_path):
    words = ("tune", "fake:demo", "--only", "fake:fast,fake:steady,fp8")
    done = inferlens(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    listed = inferlens(*words, "--dry-run", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "0 candidates in all." in listed.stdout
    assert "fake:steady fp8" in listed.stdout


def test_what_would_be_tried_fits_on_a_screen(tmp_path):
    listed = inferlens("tune", "fake:demo", "--only", "fake", "--batch", "1,2,3,4,5", "--dry-run", cwd=tmp_path).stdout
    assert "more rows: --json." in listed
    assert " candidates in all; --budget decides how many of them are measured." in listed
    assert len(listed.splitlines()) <= 24
