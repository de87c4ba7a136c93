"""Ranges of sizes, as exporters get them, and warnings of backends that only run static shapes."""

import pytest
import torch
from msgspec.structs import replace

from inferlens.backends.pytorch.runner import export_dimensions
from inferlens.execution.tasks import BenchmarkJob, BenchmarkResult, Reference, _warn_of_lower_precision
from inferlens.record.record import Agreement
from inferlens.spec.case import Budget, TensorSpec
from tests.backends import small
from tests.commands import launch


class Pair(torch.nn.Module):
    """Two inputs of one length; the second has another width."""

    def forward(self, a, b):
        return a + b.sum(-1, keepdim=True)


def test_an_exported_program_takes_every_size_in_range_and_none_above():
    specs = (TensorSpec.parse("a=1..8x4"), TensorSpec.parse("b=1..8x2..6"))
    feed = tuple(torch.ones(spec.profile[2]) for spec in specs)
    program = torch.export.export(Pair(), feed, dynamic_shapes=export_dimensions(Pair(), specs), strict=False).module()
    for rows, width in ((1, 2), (8, 6), (3, 5)):
        assert program(torch.ones(rows, 4), torch.ones(rows, width)).tolist() == [[1.0 + width] * 4] * rows
    with pytest.raises(Exception, match=r"(?i)guard|constraint|expected|must"):
        program(torch.ones(9, 4), torch.ones(9, 2))
    assert export_dimensions(Pair(), (TensorSpec("a", (2, 4)), TensorSpec("b", (2, 3)))) is None


@pytest.mark.parametrize(("label", "text", "warned"), [
    ("openvino:cpu", "image=1..4x3x16x16", True), ("openvino:cpu", "image=4x3x16x16", False),
    ("pytorch", "image=1..4x3x16x16", False),
])  # fmt: skip
def test_a_backend_with_static_shapes_warns_of_a_range(label, text, warned, tmp_path):
    case = replace(small.case(label, batch=2, threads=1), model="factory:tests.backends.small:Convolution")
    small.skip_unless_runs(case, "module")
    job = BenchmarkJob(
        case=replace(case, inputs=(TensorSpec.parse(text),)), budget=Budget(warmup=1, iterations=2),
        folder=str(tmp_path), cache=str(tmp_path), reference=Reference(name="none", missing="no reference"),
    )  # fmt: skip
    answer = launch("benchmark", job, BenchmarkResult, timeout=0.0).result
    assert (answer.status, answer.model.inputs[0].shape) == ("ok", (2, 3, 16, 16))
    assert ("static-shape" in [warning.code for warning in answer.warnings]) == warned


@pytest.mark.parametrize(("error", "fields", "warned"), [
    (5e-4, {}, True), (1e-4, {}, False), (5e-4, {"precision": "fp16"}, False),
    (5e-4, {"options": {"tf32": True}}, False), (None, {}, False),
])  # fmt: skip
def test_fp32_with_a_lower_precision_is_warned_of(error, fields, warned, preparation):
    agreement = Agreement(reference="pytorch fp32", rel_l2=error, tolerance=2e-2, agrees=error is not None or None)
    _warn_of_lower_precision(agreement, small.case("tensorrt:rtx", device="cuda", **fields), preparation)
    assert [warning.code for warning in preparation.warnings] == ["lower-precision"] * warned
