"""The screen of ``inferlens quantize``: whatever came of it fits, and says the most important."""

import pytest

from inferlens.record.builds import LayerError, OutputError, Quantization, QuantizedFile
from inferlens.spec.case import Case
from inferlens.views.profiles.quantization import quantization_document
from inferlens.views.renderers import render
from inferlens.views.table import SCREEN


def made(layers: int, kept: int, outputs: int, *, reached: bool = True, elsewhere: bool = False) -> Quantization:
    names = [f"encoder.layers.{number}.attention.output" for number in range(max(layers, kept))]
    errors = tuple(OutputError(0.001 * (number + 1), 0.999) for number in range(outputs))
    best = QuantizedFile(keep=f"fp32:{','.join(names[:kept])}" if kept else "", share=0.5, outputs=errors, top1=0.9)
    first = QuantizedFile(keep="", share=1.0, outputs=(*errors[:-1], OutputError(0.5, 0.9)), top1=0.1)
    case = Case(model="onnx:model.onnx", backend="onnxruntime", variant="cpu", precision="int8", calibration="data")
    return Quantization(
        path="model.int8.onnx" * reached, case=case, best=best, samples=64, size_before=10**6, size=10**5, seconds=3.0,
        layers=tuple(LayerError(name, ("Conv",), 1 / layers, 0.1) for name in names[:layers]), limit="error=0.01",
        attempts=(first, best), run_by="onnxruntime:cpu", not_run="no NVIDIA driver shows a GPU" * elsewhere,
    )  # fmt: skip


@pytest.mark.parametrize("kept", [0, 2, 80])
@pytest.mark.parametrize("outputs", [1, 40])
@pytest.mark.parametrize("reached", [True, False])
def test_what_came_of_it_is_one_screen(kept, outputs, reached):
    quantization = made(90, kept, outputs, reached=reached, elsewhere=True)
    shown = render(quantization_document(quantization, "model.onnx", "cpu", layers=False), width=SCREEN.width)
    assert len(shown.splitlines()) <= SCREEN.lines
    assert max(map(len, shown.splitlines())) <= SCREEN.width
    assert ("inferlens bench model.int8.onnx" in shown) == reached
    assert ("fp32:encoder" in shown) == (reached and kept == 2)
    assert ("best.keep in quantized-int8-onnxruntime.json" in shown) == (reached and kept == 80)
    assert "Not run by" in shown
    assert "0.50" in shown  # the worst output of the first attempt


def test_ten_layers_with_the_largest_errors_are_shown_or_as_many_as_fit():
    few, long = (quantization_document(made(90, kept, 1), "model.onnx", "cpu") for kept in (0, 2))
    shown, written = render(few, width=SCREEN.width), render(few, "markdown")
    fewer = render(long, width=SCREEN.width).count(" Conv ")
    assert 3 <= fewer < shown.count(" Conv ") <= written.count(" Conv ") == 10
    assert len(shown.splitlines()) <= SCREEN.lines
    assert "(10 of 90; --format json has all)" in written
