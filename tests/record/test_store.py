"""Records on disk: whole or not at all, never overwritten, and what is broken is said."""

import gzip
import json
import lzma
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import jsonschema
import pytest
from msgspec.structs import replace

from inferlens import load_records
from inferlens.analysis.samples import latencies
from inferlens.execution.protocol import as_json, from_json
from inferlens.record.files import write_whole
from inferlens.record.record import Agreement, Environment, Measurement, ModelFacts, Record, decode, encode, json_schema
from inferlens.record.store import INFORMATION, LATENCY, LOG, MOST_LINES, Store, engine_files, find_log, save_profile
from inferlens.record.store import RECORD as RECORD_FILE
from inferlens.spec.case import Budget, Case
from tests.analysis.profiles import eager, failed, layer, profile
from tests.refusals import refusal
from tests.views.samples import case, failure, record

CASE = Case(model="fake:demo", backend="fake", variant="steady")
RECORD = Record(
    id="a", created="2026-01-01T00:00:00.000+00:00", case=CASE, budget=Budget(), status="ok",
    model=ModelFacts(name="demo"), environment=Environment(cpu="a CPU"),
    measurements=(Measurement(metric="latency", unit="s", clock="fake", samples=(0.1, 0.2)),),
)  # fmt: skip


def put(folder, data, name="record.json"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)


def test_two_runs_of_a_case_never_share_a_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = {folder.name for folder in pool.map(lambda _: Store(tmp_path).claim(CASE, "demo"), range(24))}
    assert folders == {CASE.folder, *(f"{CASE.folder}@{number}" for number in range(2, 25))}


def test_a_record_comes_back_as_it_went(tmp_path):
    folder = Store(tmp_path).claim(CASE, "demo")
    Store.save(folder, RECORD)
    assert load_records([tmp_path]).records == [RECORD] == [from_json(as_json(RECORD), Record)]
    assert load_records([folder / "record.json", tmp_path / "demo"]).records == [RECORD]
    assert decode(json.dumps(json.loads(encode(RECORD)) | {"mood": 3}).encode()) == RECORD  # of a later version


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    write_whole(path, b"old")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    refusal(r"record.json cannot be written: No space left", Store.save, tmp_path, RECORD)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"record.json": b"old"}


def test_what_a_profile_measured_takes_no_place_of_what_was_benchmarked(tmp_path):
    profiled = replace(RECORD, id="b", created="2026-01-02T00:00:00.000+00:00")
    elsewhere = replace(profiled, id="c", case=replace(CASE, model="fake:other"))
    for item in (profiled, elsewhere):
        folder = Store(tmp_path).claim(item.case, item.case.model)
        Store.save(folder, item)
        put(folder, b"{}", "profile-layer.json")
    assert {record.id for record in load_records([tmp_path])} == {"b", "c"}
    Store.save(Store(tmp_path).claim(CASE, "demo"), RECORD)
    assert {record.id for record in load_records([tmp_path])} == {"a", "c"}


def test_what_is_no_record_is_a_problem_beside_the_good_ones(tmp_path):
    Store.save(Store(tmp_path).claim(CASE, "demo"), RECORD)
    broken = [
        b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"schema":"inferlens.record/9"}', b'{"schema":"inferlens.record/1"}',
        b"[" * 100_000, encode(RECORD)[:-20], encode(RECORD).replace(b'"ok"', b'"great"'),
    ]  # fmt: skip
    for number, data in enumerate(broken):
        put(tmp_path / f"broken{number}", data)
    loaded = load_records([tmp_path])
    assert (loaded.records, len(loaded.problems)) == ([RECORD], len(broken))
    assert all("broken" in problem for problem in loaded.problems)


@pytest.mark.parametrize(("end", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_records_are_read_and_damaged_ones_are_problems(tmp_path, end, pack):
    packed = pack(encode(RECORD))
    for name, data in {"whole": packed, "cut": packed[: len(packed) // 2], "other": b"no such packing"}.items():
        put(tmp_path / name, data, f"record.json{end}")
    loaded = load_records([tmp_path])
    assert (loaded.records, loaded.folders) == ([RECORD], {RECORD.id: tmp_path / "whole"})
    assert len(loaded.problems) == 2


def test_a_folder_that_is_not_there_or_has_nothing_is_one_message(tmp_path):
    refusal("does not exist", load_records, [tmp_path / "nowhere"])
    refusal("no record", load_records, [tmp_path])
    (tmp_path / "resnet18").mkdir()
    refusal(re.escape(f"did you mean {tmp_path / 'resnet18'}?"), load_records, [tmp_path / "resnet81"])
    (tmp_path / "results").write_text("a file")
    refusal("cannot be written", Store(tmp_path / "results").claim, CASE, "demo")


def test_records_keep_to_the_published_schema():
    published = json.loads((Path(__file__).parents[2] / "docs" / "record.schema.json").read_text())
    assert published == json_schema(), "regenerate it: make schema"
    jsonschema.validate(json.loads(encode(RECORD)), published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(encode(RECORD)) | {"status": "great"}, published)


def test_numbers_that_are_not_finite_stay_readable():
    odd = Measurement(metric="latency", unit="s", clock="host", samples=(0.01, float("nan"), float("inf")))
    record = decode(encode(replace(RECORD, measurements=(odd,))))
    assert record.measurements[0].samples == (0.01, None, None)
    assert (*latencies(record).samples,) == (0.01,)
    wrong = replace(RECORD, agreement=Agreement(reference="x", rel_l2=float("inf"), agrees=False))
    assert decode(encode(wrong)).agreement == Agreement(reference="x", rel_l2=None, agrees=False)


# The log of a case: which one is meant, and that it is plain text of bounded length


def keep(folder, of, log=None):
    folder.mkdir(parents=True)
    (folder / RECORD_FILE).write_bytes(encode(of))
    if log is not None:
        (folder / LOG).write_bytes(log)


def found(root, named):
    return find_log(load_records([root]), named)


@pytest.fixture
def root(tmp_path):
    said = b"loading\n10 %\r50 %\r100 %\r\n\x1b[31mred\x1b[0m\x07 \xff\x9b2J\n"
    keep(tmp_path / "a", record(case(), id="a"), said)
    keep(tmp_path / "b", failure(case("openvino"), id="b"), b"it broke\n")
    keep(tmp_path / "c", record(case("openvino", precision="fp16"), id="c"), b"")
    keep(tmp_path / "d", failure(case("tensorrt:rtx"), id="d", output_tail=("the", "end")))
    return tmp_path


@pytest.mark.parametrize(("named", "text"), [
    ("pytorch", "loading\n100 %\nred  \ufffd\ufffd2J"), ("openvino fp32 batch 1 cpu", "it broke"),
    ("resnet18 openvino", "it broke"),  # the only one that did not run
    ("fp16", ""), ("tensorrt", "the\nend"), ("c", ""),
])  # fmt: skip
def test_the_case_that_is_meant(root, named, text):
    assert found(root, named).text == text


@pytest.mark.parametrize(("named", "count"), [("nothing", 0), ("resnet18", 4), ("", 0)])
def test_none_or_several(root, named, count):
    refusal(f"fits {count or 'no'} cases.*'openvino fp32 batch 1 cpu'", found, root, named)


def test_a_long_log_and_what_is_no_file(tmp_path):
    keep(tmp_path / "a", record(case(), id="a"), b"x\n" * 2 * MOST_LINES + b"last\n")
    keep(tmp_path / "b", record(case("openvino"), id="b"))
    os.mkfifo(tmp_path / "b" / LOG)
    long = found(tmp_path, "pytorch")
    assert (long.cut, len(long.text.splitlines()), long.text[-4:]) == (True, MOST_LINES, "last")
    assert (found(tmp_path, "openvino").text, found(tmp_path, "openvino").path) == ("", None)


# The two files that scripts around TensorRT read, from a profile of an engine of AlexNet's first layers

CONVOLUTION = "[CONVOLUTION]-[aten_ops.convolution.default]-[/features/0/convolution] + [RELU]-[/features/1/relu]"
REFORMAT = f"Reformatting CopyNode for Input Tensor 0 to {CONVOLUTION}"
BINDINGS = ["x", "output0"]
TIMES = {REFORMAT: (38.912e-6, 21.504e-6, 9.216e-6), CONVOLUTION: (38.912e-6, 31.744e-6, 26.624e-6)}
# What the inspector of TensorRT 10 tells of two layers, with detailed verbosity.
FORMAT = "Channel major FP16 format where channel % 8 == 0"
BETWEEN = {"Name": "Reformatted Input", "Location": "Device", "Dimensions": [1, 3, 224, 224], "Format/Datatype": FORMAT}
INSPECTED = [
    {"Name": REFORMAT, "LayerType": "Reformat", "Outputs": [BETWEEN], "Origin": "REFORMAT", "StreamId": 0},
    {
        "Name": CONVOLUTION, "LayerType": "CaskConvolution", "Inputs": [BETWEEN], "Kernel": [11, 11], "Stride": [4, 4],
        "Weights": {"Type": "Half", "Count": 23232}, "HasReLU": 1, "Metadata": "",
        "TacticName": "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc",
    },
]  # fmt: skip


def engine(*, details=True):
    """Three runs; beside the engine a layer that PyTorch runs."""
    layers = []
    for item in INSPECTED:
        name = str(item["Name"])
        layers.append(layer(name, None, times=TIMES[name], kind="x", details={"inspector": item if details else name}))
    layers.append(layer("aten::nonzero", None, times=(1e-3, 1e-3, 1e-3)))
    return profile(case("tensorrt", device="cuda"), layers, timed="GPU", facts={"engine_bindings": BINDINGS})


def test_milliseconds_of_every_run_and_what_the_inspector_says(tmp_path):
    for details, layers in ((True, INSPECTED), (False, [REFORMAT, CONVOLUTION])):
        save_profile(tmp_path, engine(details=details))
        times = {REFORMAT: [0.038912, 0.021504, 0.009216], CONVOLUTION: [0.038912, 0.031744, 0.026624]}
        assert json.loads((tmp_path / LATENCY).read_text()) == times
        assert json.loads((tmp_path / INFORMATION).read_text()) == {"Layers": layers, "Bindings": BINDINGS}


def test_layers_of_one_name_keep_a_number_for_every_run():
    profile, name = engine(), 'same "name"\n<b>'
    same = tuple(replace(item, name=name) for item in profile.layers.layers)
    files = engine_files(replace(profile, layers=replace(profile.layers, layers=same)))
    assert {name: len(times) for name, times in json.loads(files[LATENCY]).items()} == {name: 3, f"{name} #2": 3}


def test_what_is_no_engine_has_no_such_files_and_leaves_none_of_an_earlier_one(tmp_path):
    save_profile(tmp_path, engine())
    save_profile(tmp_path, failed(case("tensorrt", device="cuda")))
    save_profile(tmp_path, eager())
    assert [path.name for path in tmp_path.iterdir()] == ["profile-layer.json"]
    assert engine_files(eager()) == {}
