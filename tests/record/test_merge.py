"""Stores joined: each record once and as it was, and nothing from outside of its folder. Partitions are data, too."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from inferlens import load_records
from inferlens.record import builds
from inferlens.record.record import Artefact, Environment, Gpu, encode
from inferlens.record.store import Store, merge
from tests.commands import inferlens
from tests.refusals import refusal

from .test_store import CASE, RECORD


def on(card, name):
    gpu = Gpu(name="NVIDIA L4", uuid=f"GPU-{card}")
    return msgspec.structs.replace(RECORD, id=name, run=name, environment=Environment(cpu="a CPU", gpus=(gpu,)))


def kept(root, *records):
    for record in records:
        Store.save(Store(root).claim(CASE, "demo"), record)
    return root


def content(root):
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


@pytest.fixture
def two(tmp_path):
    """Two machines with cards of one kind, with a log and a built model beside the record of the first."""
    one, other = kept(tmp_path / "one", on("1", "a")), kept(tmp_path / "other", on("2", "b"))
    path = next(one.rglob("record.json")).parent
    (path / "output.log").write_text("built")
    (path / "package").mkdir()
    (path / "package" / "model.onnx").write_bytes(b"\0" * 9)
    return one, other


def test_records_of_two_machines_lie_in_one_store_as_they_were(two, tmp_path):
    before = [content(path) for path in two]
    done = inferlens("show", *map(str, two), "-o", str(tmp_path / "all"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 new, 0 there already" in done.stdout
    name = f"demo/{CASE.folder}"
    moved = {file.replace(CASE.folder, f"{CASE.folder}@2"): data for file, data in before[1].items()}
    assert content(tmp_path / "all") == before[0] | moved
    assert f"{name}/package/model.onnx" in before[0]
    assert [content(path) for path in two] == before
    assert not [path for path in (tmp_path / "all").iterdir() if path.name != "demo"]


def test_a_record_comes_once_however_often_it_is_merged(two, tmp_path):
    store = tmp_path / "all"
    copy = shutil.copytree(two[0], tmp_path / "copy")
    assert (merge([*two, copy], store).new, merge([*two, store], store).new) == (2, 0)
    assert merge([tmp_path], store).present == 3  # from above the store itself
    assert [record.id for record in load_records(store).records] == ["a", "b"]
    done = inferlens("show", "all", "-o", "all", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Records in all: 0 new, 0 there already.")


def test_light_leaves_what_was_built(two, tmp_path):
    merge(two, tmp_path / "all", artefacts=False)
    assert {Path(name).name for name in content(tmp_path / "all")} == {"record.json", "output.log"}


def test_what_is_broken_or_leads_elsewhere_is_said_and_left(two, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a key")
    one, other = two
    path = next(one.rglob("record.json")).parent
    (path / "link").symlink_to(secret)
    (path / "folder").symlink_to(tmp_path)
    os.mkfifo(path / "pipe")
    hostile = msgspec.structs.replace(on("3", "c"), artefacts=(Artefact("../../secret", "engine", 5),))
    kept(other, hostile)
    for name, data in (("cut", encode(RECORD)[:50]), ("other", b'{"schema": "inferlens.record/9"}')):
        (other / name).mkdir()
        (other / name / "record.json").write_bytes(data)
    (other / "linked").mkdir()
    (other / "linked" / "record.json").symlink_to(path / "record.json")
    merged = merge(two, tmp_path / "all")
    assert merged.new == 2
    assert len(merged.problems) == 7
    for what in ("link or", "'../../secret'", "record/9"):
        assert any(what.replace("link or", "It is a link, or no file") in problem for problem in merged.problems), what
    assert b"a key" not in content(tmp_path / "all").values()


def test_names_of_models_do_not_leave_the_store(tmp_path):
    model = msgspec.structs.replace(RECORD.model, name="../../up")
    kept(tmp_path / "one", msgspec.structs.replace(RECORD, model=model))
    merge([tmp_path / "one"], tmp_path / "deep" / "all")
    assert {path.parts[0] for path in map(Path, content(tmp_path / "deep" / "all"))} == {"_.._up"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["all"]


def test_a_merge_that_fails_leaves_whole_records_alone_and_goes_on_later(two, tmp_path, monkeypatch):
    store, copy = tmp_path / "all", shutil.copyfile

    def full(source, target):
        if source.name == "model.onnx":
            raise OSError(28, "No space left on device")
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        refusal("No space left", merge, two[::-1], store)
    assert content(store) == content(two[1])
    assert (merge(two, store).new, merge(two, store).new) == (1, 0)


@pytest.mark.parametrize(("item", "what"), [
    ("empty", "There is no record"), ("file", "is not a folder"), ("nowhere", "is not a folder"),
])  # fmt: skip
def test_no_record_is_an_error_that_leaves_no_folder(tmp_path, item, what):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    done = inferlens("show", item, "-o", "all", cwd=tmp_path)
    assert (done.returncode, what in done.stderr, (tmp_path / "all").exists()) == (2, True, False)


def test_what_layers_lose_comes_along_and_what_was_written_last_counts(two, tmp_path):
    best = builds.QuantizedFile(keep="", share=1.0, outputs=())
    layers = (builds.LayerError("head", ("Gemm",), 1.0, 0.1),)
    for seconds, root in ((2.0, two[0]), (1.0, two[1])):
        quantization = builds.Quantization(
            path="m.onnx", case=CASE, best=best, samples=8, size_before=9, size=4, seconds=seconds, layers=layers
        )
        builds.save_quantization(root / "demo", quantization)
        os.utime(root / "demo" / builds.quantization_name(quantization), (seconds, seconds))
    (two[1] / "demo" / "quantized-broken.json").write_text("{}")
    file = tmp_path / "all" / "demo" / builds.quantization_name(quantization)
    for sources, last in ((two[1:], 1.0), (two, 2.0), (two[1:], 2.0)):
        (problem,) = merge(sources, tmp_path / "all").problems
        assert "quantized-broken.json was left out" in problem
        assert builds.read_quantization(file).seconds == last
    assert not [path for path in (tmp_path / "all").iterdir() if path.name != "demo"]


# Partitions as data: counting, merging, and which ``min_block_size`` gives the fewest segments


def segment(side, count, graph=0, module=""):
    why = "unsupported" if side == "PyTorch" else ""
    return builds.Segment(side, tuple(builds.Operator(f"aten.op{index}", module, why) for index in range(count)), graph)


MIXED = (segment("TensorRT", 7), segment("PyTorch", 2, module="head"), segment("TensorRT", 3), segment("PyTorch", 1))


def at(min_block_size):
    """What a partitioner makes of ``MIXED``: small engines go to the neighbours that PyTorch runs."""
    small = [
        builds.Segment("PyTorch", segment.operators) if len(segment.operators) < min_block_size else segment
        for segment in MIXED
    ]
    return builds.merged(small)


def part(**known):
    return builds.partition_of(MIXED, front_end="compile", min_block_size=1, **known)


def test_everything_is_counted():
    breaks = [builds.Interruption(0, "print", "model.py line 7", ""), builds.Interruption(1, "unknown to us")]
    partition = part(interruptions=breaks, **builds.choices_of([7, 3], 5, at))
    assert (partition.operators, partition.in_tensorrt, partition.engines) == (13, 10, (7, 3))
    assert [item.segment for item in partition.breaks] == [1, 3]
    head = partition.breaks[0]
    assert (head.modules, head.operators, head.why) == (("head",), {"aten.op0": 1, "aten.op1": 1}, ("unsupported",))
    assert partition.graph_breaks == ("print (model.py line 7)", "unknown to us")
    assert msgspec.json.decode(msgspec.json.encode(partition), type=builds.Partition) == partition


def test_choices_cover_every_value_that_leaves_an_engine_and_the_cases_own():
    choices = builds.choices_of([7, 3], 5, at)["choices"]
    assert choices == (builds.Choice(1, 3, (7, 3), 4), builds.Choice(4, 7, (7,), 2))
    assert builds.choices_of([7, 3], 7, at)["choices"] == choices
    assert builds.choices_of([7, 3], 100, at)["choices"] == (*choices, builds.Choice(8, 100, (), 1))
    assert builds.choices_of([], 100, at) == {"choices": (), "ways": 0}


def test_the_fewest_segments_are_those_that_leave_an_engine():
    few, less, none = builds.Choice(1, 1, (5, 5), 3), builds.Choice(2, 5, (9,), 3), builds.Choice(6, 9, (), 1)
    assert part(choices=[less, few, none]).fewest == few, "of equal ones that with most in TensorRT"
    assert part(choices=[none]).fewest is None


@pytest.mark.parametrize("own", [1, 5, 199, 200, 400, 1000])
def test_of_many_sizes_the_largest_and_the_cases_own_are_tried(own):
    asked = []

    def evaluate(value):
        asked.append(value)
        return (segment("TensorRT", 400),)

    choices = builds.choices_of(range(1, 401), own, evaluate)["choices"]
    assert builds.MOST_CHOICES <= len(asked) == len(set(asked)) <= builds.MOST_CHOICES + 1
    assert choices[-1].most == max(own, 400)
    assert any(choice.least <= own <= choice.most for choice in choices)
