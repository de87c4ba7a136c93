"""A file is named by what it holds, whatever it is called, and nothing in it is executed."""

import gzip
import json
import pickle
import struct
import zipfile

import onnx
import pytest
import torch

from inferlens.record.files import FileType, file_kind
from tests.models.loading import Bomb, graph


def saved(path, content, **options):
    torch.save(content, path, **options)
    return file_kind(path).kind


def small():
    return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))


@pytest.mark.parametrize(("content", "kind"), [
    ([{"count": 30}, {"name": "conv", "timeMs": 3.1, "averageMs": 0.1}], FileType.TRTEXEC),
    ([{"startInMs": 1, "endInMs": 1.2, "startComputeMs": 1.2, "latencyMs": 0.9}], FileType.TRTEXEC),
    ({"Layers": [{"Name": "conv"}], "Bindings": ["x"]}, FileType.TRTEXEC_LAYERS),
    ([[1000 + i, i % 2, 512 * i, 3] for i in range(50)], FileType.PROFILER_FILE),
    ({"segments": [{"address": 1}], "device_traces": [[]]}, FileType.MEMORY_SNAPSHOT),
    ({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "x"}]}, FileType.PROFILER_FILE),
    ({"metadata": {"total_size": 1}, "weight_map": {"a": "b.safetensors"}}, FileType.WEIGHTS_INDEX),
    ({"schema": "inferlens.record/1"}, FileType.RECORD), ({"schemaVersion": 1, "traceEvents": []}, FileType.TRACE),
    ([{"ph": "X", "name": "a", "args": {"timeMs": 3}}], FileType.TRACE),
    ([{"cat": "Session", "pid": 1, "tid": 1, "dur": 3, "ts": 5, "ph": "X", "name": "a"}], FileType.TRACE),
    ([{"file": "bs_32.json.gz", "batch_size": 32}], FileType.JSON), ([1, 2, 3], FileType.JSON),
])  # fmt: skip
def test_json_is_named_by_who_writes_it(content, kind):
    text = json.dumps(content, indent=2).encode()
    assert file_kind(text).kind is file_kind(json.dumps(content).encode()).kind is kind
    assert file_kind(gzip.compress(text))[::2] == (kind, "gzip")


@pytest.mark.parametrize(("data", "kind"), [
    (b"", FileType.EMPTY), (b"\n<!DOCTYPE html><html><head>", FileType.HTML), (b"ftrt" + bytes(80), FileType.ENGINE),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 5\n", FileType.LFS_POINTER),
    (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', FileType.HTML),
    (b'<?xml version="1.0"?>\n<net name="main" version="11">', FileType.OPENVINO),
    (struct.pack("<I", 20) + b'{"stride": 32}' + b"ftrt" + bytes(80), FileType.ULTRALYTICS_ENGINE),
    (bytes(4) + b"TFL3" + bytes(9), FileType.OTHER_MODEL), (bytes(257) + b"ustar", FileType.ARCHIVE),
    (b"PK\x03\x04rest", FileType.DAMAGED), (b"hello", FileType.DATA), (bytes(64), FileType.UNKNOWN),
    (b"\x80\x04", FileType.PICKLE),
])  # fmt: skip
def test_other_files_are_named_by_how_they_begin(data, kind):
    assert file_kind(data).kind is kind


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_of_torch_save_is_named_by_its_outline(tmp_path, legacy):
    module, how = small(), {"_use_new_zipfile_serialization": not legacy}
    state = module.state_dict()
    for kind, contents in {
        FileType.WEIGHTS: (state, {"epoch": 3, "net": dict(state)}, {"a": {"b": {"c": state}}}),
        FileType.MODULE: (module, {"model": module, "ema": None}), FileType.PICKLE: ({"epoch": 3}, [1], "text"),
    }.items():  # fmt: skip
        assert {saved(tmp_path / "net.pt", content, **how) for content in contents} == {kind}


def test_models_are_named_whatever_they_are_called(tmp_path):
    path, feed = tmp_path / "file", (torch.ones(3, 4),)
    program = torch.export.export(small().eval(), feed)
    torch.export.save(program, tmp_path / "a.pt2")
    assert file_kind((tmp_path / "a.pt2").rename(path)).kind is FileType.EXPORTED
    torch.jit.save(torch.jit.trace(small().eval(), feed), str(path))
    assert file_kind(path).kind is FileType.TORCHSCRIPT
    onnx.save(graph([onnx.helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}), path)
    assert file_kind(path).kind is FileType.ONNX
    pytest.importorskip("safetensors.torch").save_file(small().state_dict(), path)
    assert file_kind(path).kind is FileType.SAFETENSORS
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("aoti/data/aotinductor/model/a.wrapper.so", "")
        archive.writestr("aoti/archive_format", "pt2")
    assert file_kind(path).kind is FileType.OTHER_MODEL
    path.write_bytes(path.read_bytes()[:40])
    assert "cut short" in file_kind(path).title


def test_nothing_in_a_pickle_is_called(tmp_path):
    mark = tmp_path / "ran"
    for content in (Bomb(mark), {"model": Bomb(mark)}):
        assert file_kind(pickle.dumps(content)).kind is saved(tmp_path / "a.pt", content) is FileType.PICKLE
    assert not mark.exists()
