"""A measured case as a callable, and as files that run without this library: with the outputs of its model."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

import inferlens
from inferlens import InferlensError, load_records
from inferlens.backends.base import TOLERANCES, Deployer
from inferlens.backends.onnxruntime.backend import OnnxRuntime
from inferlens.models import resolve
from inferlens.record.record import Gpu
from inferlens.record.store import RECORD, Store
from inferlens.views.results import best_case
from tests.backends import small
from tests.commands import inferlens as command
from tests.commands import shorten, stay
from tests.refusals import refusal
from tests.views.samples import WRONG

NET, NESTED = "tests.backends.small:Convolution", "tests.backends.small:TwoInputs"
OPTIONS = {
    "pytorch": "fuse=true", "torchscript:trace": "freeze=true", "torch_compile:default": "channels_last=true",
    "onnxruntime:cpu": "graph_optimization=extended", "openvino:cpu": "streams=2",
}  # fmt: skip
BACKENDS = tuple(OPTIONS)
INT8 = ("onnxruntime:cpu", "openvino:cpu", "torch_compile:default")
FILES = {
    "onnxruntime:cpu": {"model.onnx"}, "openvino:cpu": {"model.xml", "model.bin"},
    "torch_compile:default": {"model.pt2"},
}  # fmt: skip
QUICK = {"quick": True, "iterations": 3, "warmup": 1, "threads": 1, "mode": "latency"}


def measured(output, model, backend, **words):
    """Records of a model, made in this process."""
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        inferlens.bench(model, backend=backend, output=output, **QUICK, **words)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A small model's records, of each backend here with an option, in another folder than where they were written."""
    output, moved = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("moved")
    option = [f"{label.partition(':')[0]}.{option}" for label, option in OPTIONS.items()]
    measured(output, NET, ",".join(BACKENDS), input="image=2x3x16x16", option=option)
    shutil.move(output / "tests.backends.small.Convolution", moved)
    shutil.rmtree(output)
    return moved


@pytest.fixture(scope="module")
def int8_winners(tmp_path_factory):
    """What a tuning left that tried one backend in int8 alone, and cases of others; data and cache are gone."""
    output, moved = tmp_path_factory.mktemp("tuned"), tmp_path_factory.mktemp("winners")
    data = output / "data.npz"
    np.savez(data, image=np.random.default_rng(0).standard_normal((8, 3, 16, 16)))
    with pytest.MonkeyPatch.context() as patch:
        stay(patch)
        shorten(patch)
        words = {"threads": 1, "input": "image=2x3x16x16", "calibration": str(data), "output": output}
        inferlens.tune(NET, only=(INT8[0], "int8", "threads"), budget="1s", **words)
        inferlens.bench(NET, backend=INT8[1:], precision="int8", **{**QUICK, **words})
    results = output / "tests.backends.small.Convolution"
    assert f'calibration = "{data}"' in (results / "best" / "best.toml").read_text()
    winners = {INT8[0]: Path(shutil.move(results / "best", moved / "tuned"))}
    shutil.rmtree(results / "tuning")
    for place, label in enumerate(INT8[1:]):
        winners[label] = Path(shutil.move(folder_of(results, label), moved / f"case{place}"))
    shutil.rmtree(output)
    return winners


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    """The same of a model of two inputs, whose outputs are nested."""
    output = tmp_path_factory.mktemp("nested")
    measured(output, NESTED, "pytorch,onnxruntime:cpu", input=["values=3x12", "tokens=3x6:int64:0..50"])
    return output / "tests.backends.small.TwoInputs"


@pytest.fixture
def one(results, tmp_path):
    """A copy of one record's folder, to be spoilt."""
    return Path(shutil.copytree(folder_of(results, "onnxruntime:cpu"), tmp_path / "one"))


def folder_of(results, label):
    records = load_records(results)
    return next(records.folders[record.id] for record in records if record.case.backend_label == label)


def changed(folder, **fields):
    """Writes a record with other fields in the place of the one in a folder."""
    record = replace(load_records(folder)[0], **fields)
    Store.save(folder, record)
    return record


@pytest.fixture(scope="module")
def reference(results, tmp_path_factory):
    """A file with inputs, and with the outputs of the model in fp32 for them."""
    model = resolve.load(load_records(results)[0].case)
    inputs = small.arrays(model, seed=5)
    (expected,) = small.eager(model, inputs)
    path = tmp_path_factory.mktemp("reference") / "reference.npz"
    np.savez(path, image=inputs["image"], expected=expected)
    return path


RUN = """
import json, runpy, sys
import numpy as np

sys.modules["inferlens"] = None  # it cannot be imported
with np.load(sys.argv[1]) as file:
    image, expected = file["image"], file["expected"]
errors = {}
for folder in sys.argv[2:]:
    script = runpy.run_path(folder + "/run.py", run_name="__main__")
    example = script["inputs"][0]
    value = image if isinstance(example, np.ndarray) else script["torch"].from_numpy(image)
    outputs = script["run"](value)
    output = np.asarray(outputs[0] if isinstance(outputs, (list, tuple)) else outputs)
    errors[folder] = float(np.linalg.norm(output - expected) / np.linalg.norm(expected))
print()
print(json.dumps(errors))
"""
LOAD = """
import json, sys
import numpy as np
import inferlens

with np.load(sys.argv[1]) as file:
    image, expected = file["image"], file["expected"]
loaded = {}
for folder in sys.argv[2:]:
    with inferlens.load(folder) as fast:
        outputs = [np.asarray(fast(image)), np.asarray(fast(image=image))]
        torch = sys.modules.get("torch")
        modes = [torch.is_inference_mode_enabled(), torch.is_grad_enabled()] if torch else [False, True]
        error = max(float(np.linalg.norm(output - expected) / np.linalg.norm(expected)) for output in outputs)
        loaded[fast.record.case.backend_label] = [error, *modes, bool(torch)]
print(json.dumps(loaded))
"""


def lines_of_program(code, *arguments, cwd):
    """Run a program in a fresh process, and return what it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def in_fresh_process(results, files, reference, tmp_path_factory):
    """Run the files of all cases, then load the folders of those in fp32, which need the model.

    PyTorch and its compiler take ten seconds to import, so both are done in one process.
    """
    root = Path(__file__).parents[2]
    order = f"import sys\nfolders = sys.argv[2:]\nsys.argv[2:] = folders[:{len(files)}]\n"
    then = f"del sys.modules['inferlens']\nsys.path.insert(0, {str(root)!r})\nsys.argv[2:] = folders[{len(files)}:]\n"
    folders = [*files.values(), *(folder_of(results, label) for label in BACKENDS)]
    code = order + RUN + then + LOAD
    *_, errors, loaded = lines_of_program(code, reference, *folders, cwd=tmp_path_factory.mktemp("fresh"))
    return json.loads(errors), json.loads(loaded)


def test_the_winner_of_a_model_file_needs_that_file_no_more(tmp_path, monkeypatch):
    stay(monkeypatch)
    shorten(monkeypatch)
    monkeypatch.chdir(tmp_path)
    module, image = small.Convolution().eval(), torch.ones(2, 3, 16, 16)
    torch.jit.trace(module, image).save("net.pt")
    words = {"only": ("torchscript:trace", "fp32", "threads"), "threads": 1, "input": "image=2x3x16x16"}
    inferlens.tune("net.pt", budget="1s", output="results", **words)
    Path("net.pt").unlink()
    with inferlens.load(shutil.move("results/net/best", "elsewhere")) as fast:
        torch.testing.assert_close(fast(image), module(image).detach())


def test_exported_files_are_loaded_without_pytorch(results, reference, tmp_path):
    before = "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnx', 'onnxscript')))\n"
    labels = ("onnxruntime:cpu", "openvino:cpu")
    folders = (folder_of(results, label) for label in labels)
    loaded = json.loads(lines_of_program(before + LOAD, reference, *folders, cwd=tmp_path)[-1])
    assert {label: torch for label, (_, _, _, torch) in loaded.items()} == dict.fromkeys(labels, False)
    assert all(error < TOLERANCES["fp32"] for error, *_ in loaded.values())


@pytest.mark.parametrize("label", INT8)
def test_an_int8_winner_is_loaded_without_its_data_and_its_model(int8_winners, reference, monkeypatch, label):
    monkeypatch.delattr(resolve, "load")
    with np.load(reference) as file, inferlens.load(int8_winners[label]) as fast:
        expected = file["expected"]
        error = np.linalg.norm(np.asarray(fast(file["image"])) - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 0.1, "not so exact as the model in fp32"


def exported(folder, name, around):
    """Files of a copy of a case, which are moved, and the copy is gone."""
    case = Path(shutil.copytree(folder, around / "case"))
    done = command("export", "--best", case.name, "--output", name, cwd=around)
    assert done.returncode == 0, done.stderr
    assert f"python {name}/run.py" in done.stderr
    shutil.rmtree(case)
    return Path(shutil.move(around / name, around / "elsewhere" / name))


@pytest.fixture(scope="module")
def files(results, int8_winners, tmp_path_factory):
    """Folders of files by backend and precision."""
    around = tmp_path_factory.mktemp("files")
    folders = {(label, "fp32"): folder_of(results, label) for label in BACKENDS}
    folders |= {(label, "int8"): folder for label, folder in int8_winners.items()}
    return {key: exported(folder, f"deploy{place}", around) for place, (key, folder) in enumerate(folders.items())}


@pytest.mark.parametrize("label", BACKENDS)
def test_files_name_what_they_need_in_the_versions_that_were_measured(files, results, label):
    script, needed = ((files[label, "fp32"] / name).read_text() for name in ("run.py", "requirements.txt"))
    assert "inferlens" not in script
    assert len(script.splitlines()) <= 30
    (record,) = load_records(folder_of(results, label))
    assert record.case.options_label == OPTIONS[label]
    libraries = record.environment.libraries
    own = {"onnxruntime:cpu": "onnxruntime", "openvino:cpu": "openvino"}.get(label, "torch")
    assert own in dict(line.split("==") for line in needed.split())
    assert all(libraries[name] == version for name, version in (line.split("==") for line in needed.split()))


@pytest.mark.parametrize("label", INT8)
def test_files_in_int8_are_the_quantized_model_alone(files, label):
    folder = files[label, "int8"]
    assert {path.name for path in folder.iterdir()} == {"run.py", "requirements.txt", *FILES[label]}
    assert ("torchao==" in (folder / "requirements.txt").read_text()) == (label == "torch_compile:default")


@pytest.mark.parametrize("label", BACKENDS)
def test_in_a_fresh_process_the_folder_of_a_winner_is_enough(in_fresh_process, label):
    error, inference, grad, _ = in_fresh_process[1][label]
    assert error < TOLERANCES["fp32"]
    assert (inference, grad) == (False, True), "PyTorch's modes are left as they were"


def test_files_run_without_this_library(files, in_fresh_process):
    for (label, precision), folder in files.items():
        low, high = (1e-4, 0.1) if precision == "int8" else (0, TOLERANCES["fp32"])
        assert low <= in_fresh_process[0][str(folder)] < high, (label, precision)


def test_inputs_by_position_and_by_name_and_outputs_as_the_model_has_them(nested):
    folders = (folder_of(nested, label) for label in ("pytorch", "onnxruntime:cpu"))
    with inferlens.load(next(folders)) as eager, inferlens.load(next(folders)) as ort:
        arrays = small.arrays(resolve.load(eager.record.case), seed=3)
        values, tokens = (torch.from_numpy(array) for array in arrays.values())
        own, (mixed, following) = eager(values, tokens=tokens)
        assert set(own) == {"scores", "mixed"}
        flat = ort(tokens=tokens, values=values)
        for left, right in zip((own["scores"], own["mixed"], mixed, following), flat, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)  # which are tensors, too
        assert all(isinstance(each, np.ndarray) for each in ort(**arrays))
        doubled = {**arrays, "values": arrays["values"].astype(np.float64)}
        torch.testing.assert_close(eager(**doubled), eager(**arrays))
        np.testing.assert_array_equal(ort(**doubled)[0], ort(**arrays)[0])


@pytest.mark.parametrize(("given", "words"), [
    (lambda x: ((x, x), {}), "2x3x16x16:float32 and 2x3x16x16:float32"), (lambda x: ((), {}), "none"),
    (lambda x: ((), {"imag": x}), "imag=2x3x16x16:float32"),
    (lambda x: ((x,), {"image": x}), "2x3x16x16:float32 and image=2x3x16x16:float32"),
    (lambda x: ((x[:1],), {}), "1x3x16x16:float32"), (lambda x: ((x.astype(np.int64),), {}), "2x3x16x16:int64"),
    (lambda x: ((x.tolist(),), {}), "a list"),
])  # fmt: skip
def test_wrong_inputs_are_said_with_what_was_expected(given, words, results):
    args, named = given(np.zeros((2, 3, 16, 16), np.float32))
    words = f"These inputs do not fit: {words}. Expected: image=2x3x16x16:float32."
    with inferlens.load(folder_of(results, "onnxruntime:cpu")) as fast, pytest.raises(InferlensError, match=words):
        fast(*args, **named)


@pytest.mark.parametrize("label", BACKENDS)
def test_outputs_are_the_callers_own(results, label):
    x, y = (np.full((2, 3, 16, 16), value, np.float32) for value in (1, 2))
    with inferlens.load(folder_of(results, label)) as fast:
        first = fast(x)
        kept = np.array(first)
        assert not np.array_equal(fast(y), kept)
        assert np.array_equal(first, kept)
        flipped = np.asarray(fast(x[..., ::-1]))
        np.testing.assert_allclose(flipped, kept, rtol=1e-5)
    refusal("was closed", fast, x)


def test_outputs_that_the_next_call_overwrites_are_for_those_who_ask(results):
    x, y = (np.full((2, 3, 16, 16), value, np.float32) for value in (1, 2))
    with inferlens.load(folder_of(results, "openvino:cpu"), copy=False) as fast:
        assert np.shares_memory(fast(x), fast(y))


class Positive(torch.nn.Module):
    """Where an input is above 0."""

    def forward(self, x):
        return torch.nonzero(x > 0).float()


def test_outputs_may_have_another_shape_in_each_call(tmp_path):
    measured(tmp_path, f"{Positive.__module__}:Positive", "onnxruntime:cpu", input="x=2x8")
    with inferlens.load(tmp_path) as fast:
        shapes = [fast(np.eye(2, 8, k=place, dtype=np.float32)).shape for place in (0, 7, 8, 0)]
    assert shapes == [(2, 2), (1, 2), (0, 2), (2, 2)]


def test_settings_hold_while_it_is_open(results):
    before, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        torch.set_num_threads(2)
        with torch.no_grad():
            fast = inferlens.load(folder_of(results, "pytorch"))
        assert torch.get_num_threads() == 1
        assert torch.equal(torch.get_rng_state(), state), "loading draws its weights without the caller's numbers"
        image = torch.ones(2, 3, 16, 16, requires_grad=True)
        assert not fast(image).requires_grad
        with torch.no_grad():
            fast.close()
            assert not torch.is_grad_enabled()
        assert torch.is_grad_enabled()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def other_version(record):
    libraries = {**record.environment.libraries, "onnxruntime": "1.0"}
    return {"environment": replace(record.environment, libraries=libraries)}


def other_weights(record):
    return {"artefacts": (), "model": replace(record.model, weights_sha256="0" * 64)}


def other_gpu(record):
    environment = replace(record.environment, gpus=(Gpu(name="NVIDIA H200"),))
    return {"case": replace(record.case, device="cuda", variant="cuda"), "environment": environment}


@pytest.mark.parametrize(("content", "fields", "words"), [
    (b"short", lambda _: {}, "model.onnx is missing, or not the file that was measured. Expected: [0-9]+ bytes"),
    (b"", lambda _: {}, "model.onnx is missing"), (None, other_version, "measured with onnxruntime 1.0 \\(here: "),
    (b"", other_weights, "has other weights than the model that was measured"),
    (None, other_gpu, "It was measured on NVIDIA H200; here is "),
])  # fmt: skip
def test_what_does_not_fit_is_refused(content, fields, words, one):
    changed(one, **fields(load_records(one)[0]))
    if content is not None:
        (one / "model.onnx").write_bytes(content) if content else (one / "model.onnx").unlink()
    refusal(f"{words}.*Try: rebuild=True", inferlens.load, one)


def test_a_model_is_prepared_anew_if_asked_and_its_outputs_are_compared(one, one_process, monkeypatch):
    changed(one, **other_weights(load_records(one)[0]))
    (one / "model.onnx").unlink()
    with inferlens.load(one, rebuild=True) as fast:
        assert fast(np.zeros((2, 3, 16, 16), np.float32)).shape == (2, 10)
    monkeypatch.setitem(TOLERANCES, "fp32", 1e-20)
    refusal("Prepared anew here, its outputs are wrong: relative L2", inferlens.load, one, rebuild=True)


@pytest.mark.parametrize(("fields", "words"), [
    ({"status": "failed", "reason": "it fell over."}, "did not run: it fell over. Try: "),
    ({"agreement": replace(WRONG, reason="they are off")}, "are wrong: they are off. Try: another case"),
])  # fmt: skip
def test_what_failed_or_was_wrong_is_refused_even_anew(fields, words, one):
    changed(one, **fields)
    for rebuild in (False, True):
        refusal(words, inferlens.load, one, rebuild=rebuild)


def test_a_module_that_was_handed_over_is_there_only_where_it_was_exported(tmp_path, one_process):
    module = torch.nn.Linear(4, 2)
    words = {**QUICK, "backend": "pytorch,onnxruntime:cpu", "output": tmp_path}
    records = inferlens.bench(module, torch.ones(1, 4), **words)
    assert [record.status for record in records] == ["ok", "ok"]
    with pytest.raises(InferlensError, match="was handed over by a program, so it cannot be loaded by its name"):
        inferlens.load(folder_of(tmp_path, "pytorch"))
    with inferlens.load(folder_of(tmp_path, "onnxruntime:cpu")) as fast:
        torch.testing.assert_close(fast(torch.ones(1, 4)), module(torch.ones(1, 4)).detach())


@pytest.fixture(scope="module")
def faked(tmp_path_factory):
    """Records of the fake backend, of which one is fastest."""
    output = tmp_path_factory.mktemp("faked")
    measured(output, "fake:demo", "fake:steady,fake:fast")
    return output / "demo"


def test_the_fastest_case_of_a_folder_is_loaded(faked, tmp_path):
    with inferlens.load(faked) as fast:
        assert fast.record.case.variant == "fast"
        (spec,) = fast.inputs
        assert str(fast) == f"<demo by {fast.record.case.label}: {spec}>"
        np.testing.assert_allclose(fast(np.ones(spec.shape, np.float32)), np.prod(spec.shape[1:]))
    done = command("export", "--best", str(faked), "-o", "out", cwd=tmp_path)
    assert "What fake:fast runs is in no file. Expected: a case of " in " ".join(done.stderr.split())
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    best = Path(shutil.copytree(folder_of(faked, "fake:steady"), tmp_path / "demo" / "best"))
    shutil.copytree(folder_of(faked, "fake:fast"), tmp_path / "demo" / "another")
    assert (best_case(tmp_path / "demo")[1], best_case(tmp_path / "demo" / "another")[0].case.variant) == (best, "fast")
    measured(tmp_path, "fake:demo", "fake:steady", batch=8)
    both = r"has a tuned winner \(batch 1\) and records of other inputs. .*/best for the winner"
    refusal(both, inferlens.load, tmp_path / "demo")
    (best / RECORD).unlink()
    refusal(r"in each of 2 comparisons .* Try: the folder of one case, such as ", inferlens.load, tmp_path / "demo")


def test_of_several_models_in_a_folder_none_is_taken(faked, tmp_path):
    shutil.copytree(folder_of(faked, "fake:fast"), tmp_path / "demo" / "best")
    measured(tmp_path, "fake:other", "fake:steady")
    message = rf"holds records of 2 models: fake:demo and fake:other\. Try: .*, such as {tmp_path}/demo/best"
    refusal(message, best_case, tmp_path)
    shutil.move(tmp_path / "other", tmp_path / "demo" / "measured")
    refusal(message, best_case, tmp_path / "demo")


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "Give either MODEL with --to"),
    (("--best", "here"), "Expected: MODEL --to FILE, or --best RESULTS --output FOLDER"),
    (("fake:demo", "--best", "here", "-o", "there"), "Give either MODEL with --to, or --best with --output"),
    (("--best", "here", "-o", "there"), "here does not exist"),
])  # fmt: skip
def test_export_says_what_it_takes(arguments, words, tmp_path):
    done = command("export", *arguments, cwd=tmp_path)
    assert (done.returncode, words in " ".join(done.stderr.split())) == (2, True)


def test_python_writes_the_same_files(one, tmp_path, monkeypatch):
    stay(monkeypatch)
    changed(one, model=replace(load_records(one)[0].model, weights="random, seed 0"))
    with pytest.warns(UserWarning, match="Its weights are random"), inferlens.load(one):
        pass
    folder = inferlens.export(one, tmp_path / "deploy")
    assert folder == tmp_path / "deploy"
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "requirements.txt", "run.py"]
    (folder / "run.py").write_text("mine")
    refusal("deploy is there already", inferlens.export, one, folder)
    assert (folder / "run.py").read_text() == "mine"


@pytest.mark.parametrize(("changed_run", "words"), [
    ("[output + 1 for output in own(*inputs)]", "The outputs of the script that was written are wrong: relative L2"),
    ("[output * float('nan') for output in own(*inputs)]", "are wrong: outputs are not finite"),
    ("own(*inputs) * 2", "are wrong: outputs have shapes"),
    ("1 / 0", "The script that was written fails: ZeroDivisionError"),
])  # fmt: skip
def test_a_wrong_script_is_not_left_behind(changed_run, words, one, tmp_path, monkeypatch):
    def script(*arguments):
        return f"{right(*arguments)}\n\nown = run\n\n\ndef run(*inputs):\n    return {changed_run}\n"

    right = OnnxRuntime.script
    monkeypatch.setattr(OnnxRuntime, "script", script)
    done = command("export", "--best", str(one), "-o", "deploy", cwd=tmp_path)
    assert (done.returncode, (tmp_path / "deploy").exists()) == (2, False)
    assert words in " ".join(done.stderr.split())


def test_a_script_for_a_gpu_converts_what_it_is_given(one, reference, tmp_path):
    """ONNX Runtime copies the bytes of an array whatever their type is; here on the CPU, which binds as a GPU does."""
    model = resolve.load(load_records(one)[0].case)
    case = small.case("onnxruntime:cuda", device="cuda", precision="fp16")
    backend, specs = small.backend("onnxruntime:cuda"), model.inputs
    assert isinstance(backend, Deployer)
    backend.deploy(model, case, small.preparation(tmp_path), tmp_path / "model.onnx")
    (tmp_path / "run.py").write_text(backend.script(case, "model.onnx", specs).replace('"cuda"', '"cpu"'))
    run = runpy.run_path(str(tmp_path / "run.py"))["run"]
    with np.load(reference) as file:
        error = np.linalg.norm(run(file["image"])[0] - file["expected"]) / np.linalg.norm(file["expected"])
    assert error < TOLERANCES["fp16"]


def test_an_int8_winner_takes_its_file_or_its_data_and_no_noise(int8_winners, tmp_path):
    refusal(r"There is no data '.*data\.npz'", inferlens.load, int8_winners["onnxruntime:cpu"], rebuild=True)
    folder = Path(shutil.copytree(int8_winners["onnxruntime:cpu"], tmp_path / "one"))
    (spoilt,) = (folder / "quantized").glob("*.onnx")
    spoilt.unlink()
    refusal(r"\.onnx is missing", inferlens.load, folder)
