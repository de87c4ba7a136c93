"""One suite for every backend and variant, on the CPU. A new backend adds its labels to ``REAL``."""

import dataclasses
import gc
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import psutil
import pytest
import torch

from inferlens.backends.availability import has_gpu
from inferlens.backends.base import ON_CUDA, TOLERANCES
from inferlens.errors import Unsupported
from inferlens.spec.case import PRECISIONS, QUANTIZED
from tests.backends import small
from tests.refusals import refusal

REAL = (
    "pytorch", "torchscript:trace", "torchscript:script", "torch_compile:default", "onnxruntime:cpu", "openvino:cpu",
)  # fmt: skip
# Options that change what is computed, and how; not those that only say where, or of what type.
CHANGED = (
    ("pytorch", "fuse channels_last"), ("torchscript:trace", "freeze"), ("torchscript:trace", "channels_last"),
    ("torchscript:trace", "optimize_for_inference"), ("torchscript:script", "freeze"),
    ("torchscript:script", "channels_last"), ("torchscript:script", "optimize_for_inference"),
    ("torch_compile:default", "freezing channels_last conv_1x1_as_mm"),
)  # fmt: skip
NAMES = tuple(dict.fromkeys(label.partition(":")[0] for label in (*REAL, "tensorrt", "torch_tensorrt", "fake")))


@pytest.fixture(autouse=True)
def skip_absent(request):
    """Skip tests of backends that this machine lacks; the tests of capabilities always run."""
    label = request.node.callspec.params.get("label") if hasattr(request.node, "callspec") else None
    if label is not None:
        small.skip_unless_runs(small.case(label), "module")


@pytest.mark.parametrize("name", NAMES)
def test_capabilities_are_well_formed(name):
    backend = small.backend(name)
    able = backend.capabilities()
    assert (backend.name, bool(backend.summary)) == (name, True)
    for support in able.supports:
        assert support.device in ("cpu", "cuda")
        assert support.precisions
        assert set(support.precisions) <= {*PRECISIONS, *QUANTIZED}
    for absence in able.absent:
        assert absence.variant in ("", *backend.variants)
        assert absence.device in ("", "cpu", "cuda")
        assert all((absence.reason, absence.hint))
    assert all(key.split("/")[-1] in (*PRECISIONS, *QUANTIZED) and why for key, why in able.limits.items())
    assert not able.supports or name == "fake" or all(able.libraries.values())
    known = [(support.variant, support.device) for support in able.supports]
    assert len(set(known)) == len(known)
    labels = [f"{name}:{variant}" for variant in backend.variants]
    assert all(backend.tolerance(small.case(label)) > 0 for label in labels), "needs no library and no model"
    runs = {variant for variant, _ in known}
    assert runs <= set(backend.variants)
    assert all(variant in runs or any(a.variant in ("", variant) for a in able.absent) for variant in backend.variants)


@pytest.mark.parametrize("name", NAMES)
def test_options_are_described_and_unknown_ones_rejected_with_a_suggestion(name):
    backend = small.backend(name)
    schema = msgspec.json.schema(backend.options)["$defs"][backend.options.__name__]
    assert all(option.get("description") and "default" in option for option in schema["properties"].values())
    option = msgspec.structs.fields(backend.options)[0].name
    case = small.case(name, options={f"{option}x": True})
    refusal(f"no option '{option}x'.*did you mean {option}", backend.parse_options, case)


@pytest.mark.parametrize("name", NAMES)
def test_recommended_options_are_effective_on_their_device(name):
    backend = small.backend(name)
    ways = []
    for one in backend.recommended:
        case = small.case(f"{name}:{one.variant}".rstrip(":"), device=one.device, options=one.options)
        ways += [(one, msgspec.structs.replace(case, precision=item)) for item in one.precisions or PRECISIONS]
    for one, way in ways:
        assert one.variant in backend.variants
        assert backend.effective(way) == way, "an option is at its default, or the variant is another one there"
        assert one.device == "cuda" or not {*ON_CUDA} & {*one.options}
        assert one.fits(way, convolutional=one.convolutional is not False)
    for _, way in ways:  # no two are the same for one model
        for convolutional in (False, True):
            same = [case for one, case in ways if case == way and one.fits(way, convolutional=convolutional)]
            assert len(same) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_knobs_turn_options_of_the_backend_away_from_their_defaults(name):
    backend = small.backend(name)
    fields = {field.name: field.default for field in msgspec.structs.fields(backend.options)}
    for knob in backend.knobs:
        assert {knob.name, *knob.needs, *knob.excludes} <= fields.keys()
        assert set(knob.variants) <= set(backend.variants)
        assert set(knob.devices) <= {"cpu", "cuda"}
        assert set(knob.precisions) <= {*PRECISIONS, *QUANTIZED}
        assert 0 < len(knob.values) == len({*knob.values, fields[knob.name]}) - 1
        for value in knob.values:
            parsed = backend.parse_options(small.case(name, options={knob.name: value}))
            assert getattr(parsed, knob.name) == value


@pytest.mark.parametrize("label", REAL)
def test_outputs_are_right_and_stay_so(label, preparation):
    model = small.model()
    threads = torch.get_num_threads()
    runner = small.backend(label).prepare(model, small.case(label, threads=1), preparation)
    small.stays_right(runner, model, TOLERANCES["fp32"])
    assert not runner.clock.asynchronous
    assert (preparation.facts["threads"], torch.get_num_threads()) == (1, threads)
    assert "build" in {phase.name for phase in preparation.phases}
    assert not preparation.warnings


@pytest.mark.parametrize(("label", "changed"), CHANGED)
def test_options_leave_outputs_right(label, changed, preparation):
    model = small.model(batch=2)
    case = small.case(label, threads=1, batch=2, options=dict.fromkeys(changed.split(), True))
    with warnings.catch_warnings():
        warnings.simplefilter("error" if "torchscript" in label else "ignore")  # about which a user could do nothing
        runner = small.backend(label).prepare(model, case, preparation)
        small.stays_right(runner, model, TOLERANCES["fp32"], entries=1)
    assert not preparation.warnings


@pytest.mark.parametrize(("label", "option"), [
    ("pytorch", "tf32"), ("pytorch", "cudnn_benchmark"), ("torch_compile:default", "cudnn_benchmark"),
    ("torch_compile:default", "coordinate_descent_tuning"),
])  # fmt: skip
def test_options_of_a_gpu_are_warned_of_on_the_cpu(label, option, preparation):
    small.backend(label).prepare(small.model(), small.case(label, options={option: True}), preparation)
    (warning,) = preparation.warnings
    assert (warning.code, option in warning.message) == ("no-effect", True)


@pytest.mark.parametrize("label", REAL)
def test_two_inputs_and_nested_outputs(label, preparation):
    model = small.model(small.TwoInputs, batch=3)
    runner = small.backend(label).prepare(model, small.case(label, batch=3), preparation)
    small.flattens(runner, model, TOLERANCES["fp32"])


@pytest.mark.parametrize(("label", "precision"), [
    (label, precision) for label in REAL for precision in ("fp16", "bf16")
    if (label, precision) != ("torch_compile:default", "fp16")  # one compilation is enough
])  # fmt: skip
def test_lower_precisions_agree_or_are_refused(label, precision, preparation):
    backend = small.backend(label)
    model = small.model(batch=3)
    inputs = small.arrays(model)
    expected = small.eager(model, inputs)
    case = small.case(label, precision=precision, batch=3)
    refusal = backend.capabilities().refusal(case, small.info("module"))
    if refusal:
        assert ": " in refusal.what, "refused without a reason"
        return
    got = small.run(model, case, preparation, inputs)
    assert 0 < small.error(got, expected) < backend.tolerance(case)
    assert got[0].dtype == np.float32


@pytest.mark.parametrize("label", [label for label in REAL if "compile" not in label])  # which places as PyTorch does
def test_inference_leaks_no_memory(label, preparation):
    spec = msgspec.structs.replace(small.CONVOLUTION[0], shape=(16, 3, 64, 64))
    model = dataclasses.replace(small.model(), inputs=(spec,))
    inputs = {"image": np.zeros(spec.shape, np.float32)}
    process = psutil.Process()
    with small.backend(label).prepare(model, small.case(label), preparation) as runner:
        feed = runner.place(inputs)
        for _ in range(20):
            runner.infer(feed)
        gc.collect()
        before = process.memory_info().rss
        for _ in range(100):
            runner.infer(feed)
        assert process.memory_info().rss - before < 20 * 2**20  # one call's activations alone are 2 MiB


@pytest.mark.parametrize("label", ["pytorch", "torchscript:trace"])
def test_exported_programs_run(label, preparation):
    model = small.model()
    small.agrees(small.as_program(model), small.case(label), preparation, model)


@pytest.mark.parametrize("name", NAMES)
def test_missing_library_is_an_answer(name, monkeypatch):
    libraries = "torch onnxruntime openvino onnx onnxscript tensorrt tensorrt_rtx torch_tensorrt"
    for library in libraries.split():
        monkeypatch.setitem(sys.modules, library, None)
    able = small.backend(name).capabilities()
    if name == "fake":
        assert able.available
        return
    assert not able.available
    assert {absence.variant for absence in able.absent} in ({""}, set(small.backend(name).variants))
    if has_gpu() or "tensorrt" not in name:
        assert "is not installed" in able.absent[0].reason
        assert able.absent[0].hint.startswith("pip install ")
    assert isinstance(able.refusal(small.case(name), small.info("module")), Unsupported)


@pytest.mark.parametrize("label", REAL)
def test_threads_get_the_outputs_of_their_feeds(label, preparation):
    model = small.model(batch=2)
    runner = small.backend(label).prepare(model, small.case(label, threads=1), preparation)
    if label.startswith("torch_compile"):
        assert runner.thread_caller() is None, "what is compiled as it is called is not called by several threads"
        return
    with runner:
        feeds = [small.arrays(model, seed=seed) for seed in range(4)]
        right = [small.eager(small.model(batch=2), feed) for feed in feeds]
        callers = [runner.thread_caller() for _ in feeds]
        placed = [runner.place(feed) for feed in feeds]

        def work(index):
            call = callers[index]
            return max(small.error(runner.collect(call(placed[index])), right[index]) for _ in range(50))

        with ThreadPoolExecutor(len(feeds)) as pool:
            assert max(pool.map(work, range(len(feeds)))) < 1e-5
