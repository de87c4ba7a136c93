"""Tables of two axes: what is compared with what, words where there is no time, and the sentences beneath."""

from msgspec.structs import replace

from inferlens.record.record import Accuracy, Agreement, Environment, Gpu
from inferlens.views.chart import points_chart
from inferlens.views.crosstab import crosstab_document
from inferlens.views.picture import THEMES
from inferlens.views.renderers import render
from inferlens.views.rows import rows
from tests.snapshots import screens_test
from tests.views.samples import RIGHT, WRONG, case, failure, ran, record

LOSSY = Agreement(reference="pytorch fp32", rel_l2=0.02, tolerance=0.1, agrees=True)
OF = {"fp32": RIGHT, "int8": LOSSY}
CARD = Environment(cpu="AMD EPYC 9654", cpu_threads=16, gpus=(Gpu(name="NVIDIA H200"),))


def quantized():
    """Two runtimes in two precisions, a third one that is wrong in int8, and a fourth that cannot quantize."""
    speeds = {("pytorch", "fp32"): 20, ("pytorch", "int8"): 16, ("openvino", "fp32"): 15, ("openvino", "int8"): 5}
    records = []
    for (name, precision), seconds in speeds.items():
        records += ran(case(name, precision=precision), seconds * 1e-3, agreement=OF[precision])
    records += ran(case("torch_compile:default"), 30e-3) + ran(case("torchscript:trace"), 25e-3)
    records += ran(case("torch_compile:default", precision="int8"), 4.44e-3, agreement=WRONG)
    return [*records, failure(case("torchscript:trace", precision="int8"), "unsupported")]


def shown(records, axis, format="table", **how) -> str:
    return render(crosstab_document(records, axis), format, **how)


def rated():
    """The same, evaluated on 100 samples: int8 misses five that fp32 hits."""
    for one in quantized():
        hits = (1.0,) * (95 if one.case.precision == "int8" else 100) + (0.0,) * (5 * (one.case.precision == "int8"))
        about = {"data": "a", "metric": "top-1", "count": 100, "reference": "pytorch fp32"}
        accuracy = Accuracy(**about, values=hits, reference_values=(1.0,) * 100)
        yield replace(one, accuracy=accuracy if one.status == "ok" else None)


def test_what_a_precision_costs_is_its_drop_in_accuracy_where_that_was_measured():
    drawn = points_chart(rows(list(rated())), "accuracy", THEMES["light"])
    assert '"accuracy": 95.0' in str(drawn).replace("'", '"')


def noisy():
    own = ran(case(precision="int8", calibration="random"), 30e-3)
    return [replace(record, facts={"quantized_share": 1.0}) for record in own]


BATCHES = [*ran(case(batch=1), 10e-3), *ran(case(batch=8), 20e-3)]
FEW = [record(case(precision=precision), samples=(0.02,) * 3, agreement=OF[precision]) for precision in OF]
QUANTIZED = case("openvino", model="onnx:a.int8.onnx", precision="int8")
FILES = [*ran(case("openvino", model="onnx:a.onnx"), 9e-3), *ran(QUANTIZED, 3e-3)]
MODELS = [*ran(case(model="torchvision:alexnet"), 9e-3), *ran(case(model="torchvision:resnet18"), 3e-3)]
ENVIRONMENTS = [one for name, seconds in (("old", 10e-3), ("new", 20e-3))
                for one in ran(case("openvino", python=f"/envs/{name}/bin/python"), seconds)]  # fmt: skip
test_screen = screens_test("crosstab", {
    "precisions": lambda: shown(quantized(), "precision"),
    "precisions, markdown": lambda: shown(quantized(), "precision", "markdown"),
    "accuracy": lambda: shown(list(rated()), "precision"),
    "noise": lambda: shown([*ran(case(), 20e-3), *noisy()], "precision"),
    "batches": lambda: shown(BATCHES, "batch"),
    "few samples": lambda: shown(FEW, "precision"),
    "a quantized file": lambda: shown(FILES, "model"),
    "models": lambda: shown(MODELS, "model"),
    "machines": lambda: shown(machines(), "machine"),
    "machines of one model": lambda: shown(machines()[: len(machines()) // 2], "machine"),
    "environments": lambda: shown(ENVIRONMENTS, "python"),
})  # fmt: skip


def machines():
    """Two models on two machines, on one of which the fastest way is wrong."""
    there = {"environment": CARD}
    records = []
    for model, factor in (("torchvision:resnet18", 1), ("torchvision:resnet50", 3)):
        of = {"model": model}
        records += ran(case(**of), 20e-3 * factor) + ran(case("openvino", **of), 10e-3 * factor)
        records += ran(case(**of), 8e-3 * factor, **there)
        records += ran(case(device="cuda", **of), 1e-3 * factor, agreement=WRONG, **there)
        records += ran(case("tensorrt", device="cuda", **of), 2e-3 * factor, **there)
    return records


def test_many_models_fit_on_a_screen():
    cases = [case(model=f"timm:m{number}", precision=of) for number in range(40) for of in ("fp32", "int8")]
    records = [record for one in cases for record in ran(one, 1e-3, processes=1)]
    text = shown(records, "precision")
    assert (len(text.splitlines()) <= 24, "more rows" in text) == (True, True)
