"""The two files that scripts around TensorRT read, from a profile of an engine of AlexNet's first layers."""

import json

import msgspec

from inferlens.record.store import INFORMATION, LATENCY, engine_files, save_profile
from tests.analysis.profiles import eager, failed, layer, profile
from tests.views.samples import case

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


def read(folder, name):
    return json.loads((folder / name).read_text())


def test_milliseconds_of_every_run_and_what_the_inspector_says(tmp_path):
    for details, layers in ((True, INSPECTED), (False, [REFORMAT, CONVOLUTION])):
        save_profile(tmp_path, engine(details=details))
        times = {REFORMAT: [0.038912, 0.021504, 0.009216], CONVOLUTION: [0.038912, 0.031744, 0.026624]}
        assert read(tmp_path, LATENCY) == times
        assert read(tmp_path, INFORMATION) == {"Layers": layers, "Bindings": BINDINGS}


def test_layers_of_one_name_keep_a_number_for_every_run():
    profile, name = engine(), 'same "name"\n<b>'
    same = tuple(msgspec.structs.replace(item, name=name) for item in profile.layers.layers)
    files = engine_files(msgspec.structs.replace(profile, layers=msgspec.structs.replace(profile.layers, layers=same)))
    assert {name: len(times) for name, times in json.loads(files[LATENCY]).items()} == {name: 3, f"{name} #2": 3}


def test_what_is_no_engine_has_no_such_files_and_leaves_none_of_an_earlier_one(tmp_path):
    save_profile(tmp_path, engine())
    save_profile(tmp_path, failed(case("tensorrt", device="cuda")))
    save_profile(tmp_path, eager())
    assert [path.name for path in tmp_path.iterdir()] == ["profile-layer.json"]
    assert engine_files(eager()) == {}
