"""Ranges of sizes, from what is asked for to what an exporter is told; static shapes where a backend knows no other."""

import dataclasses

import pytest
import torch
from msgspec.structs import replace

from inferlens.backends.pytorch.runner import dynamic_sizes, example_feed, export_dimensions
from inferlens.execution.tasks import BenchmarkJob, BenchmarkResult, Reference, _warn_of_lower_precision
from inferlens.record.record import Agreement
from inferlens.spec.case import Budget, TensorSpec, with_batch
from tests.backends import small
from tests.commands import launch

IMAGE = TensorSpec.parse("image=1..4x3x16x16:opt=2")


class Pair(torch.nn.Module):
    """Two inputs that must be of one length, and of which one has a width of its own."""

    def forward(self, a, b):
        return a + b.sum(-1, keepdim=True)


def test_sizes_of_one_place_and_range_are_one_size():
    a, b = TensorSpec.parse("a=1..8x4"), TensorSpec.parse("b=1..8x2..6")
    assert dynamic_sizes(a)[0] == dynamic_sizes(b)[0]
    assert (set(dynamic_sizes(a)), len(set(dynamic_sizes(b).values()))) == ({0}, 2)
    assert dynamic_sizes(TensorSpec("a", (8, 4))) == dynamic_sizes(TensorSpec("t", ())) == {}
    assert export_dimensions(Pair(), (TensorSpec("a", (2, 4)), TensorSpec("b", (2, 3)))) is None


def test_an_exported_program_takes_every_size_in_range_and_none_above():
    specs = (TensorSpec.parse("a=1..8x4"), TensorSpec.parse("b=1..8x2..6"))
    feed = tuple(torch.ones(spec.profile[2]) for spec in specs)
    program = torch.export.export(Pair(), feed, dynamic_shapes=export_dimensions(Pair(), specs), strict=False).module()
    for rows, width in ((1, 2), (8, 6), (3, 5)):
        assert program(torch.ones(rows, 4), torch.ones(rows, width)).tolist() == [[1.0 + width] * 4] * rows
    for rows, width in ((9, 2), (1, 7)):
        with pytest.raises(Exception, match=r"(?i)guard|constraint|expected|must"):
            program(torch.ones(rows, 4), torch.ones(rows, width))


def test_a_range_is_traced_at_its_largest_shape_in_the_precision_asked_for():
    model = dataclasses.replace(small.model(), inputs=with_batch((IMAGE,), 1))
    (tensor,) = example_feed(model, small.case("pytorch", precision="bf16"))
    assert (tuple(tensor.shape), tensor.dtype) == ((4, 3, 16, 16), torch.bfloat16)
    (tensor,) = example_feed(model, small.case("pytorch", precision="bf16"), "fp32")
    assert tensor.dtype == torch.float32
    (tensor,) = example_feed(small.model(batch=2), small.case("pytorch"))
    assert tuple(tensor.shape) == (2, 3, 16, 16)


@pytest.mark.parametrize(
    ("label", "text", "told"),
    [
        ("openvino:cpu", "image=1..4x3x16x16", True), ("openvino:cpu", "image=4x3x16x16", False),
        ("pytorch", "image=1..4x3x16x16", False),
    ],
)  # fmt: skip
def test_a_backend_of_one_shape_says_that_the_range_means_nothing_to_it(label, text, told, tmp_path):
    case = replace(small.case(label, batch=2, threads=1), model="factory:tests.backends.small:Convolution")
    small.skip_unless_runs(case, "module")
    job = BenchmarkJob(
        case=replace(case, inputs=(TensorSpec.parse(text),)), budget=Budget(warmup=1, iterations=2),
        folder=str(tmp_path), cache=str(tmp_path), reference=Reference(name="none", missing="no reference"),
    )  # fmt: skip
    answer = launch("benchmark", job, BenchmarkResult, timeout=0.0).result
    assert (answer.status, answer.model.inputs[0].shape) == ("ok", (2, 3, 16, 16))
    assert ("static-shape" in [warning.code for warning in answer.warnings]) == told


@pytest.mark.parametrize(
    ("error", "fields", "told"),
    [
        (5e-4, {}, True), (1e-4, {}, False), (5e-4, {"precision": "fp16"}, False),
        (5e-4, {"options": {"tf32": True}}, False), (None, {}, False),
    ],
)  # fmt: skip
def test_fp32_that_is_none_is_told(error, fields, told, preparation):
    agreement = Agreement(reference="pytorch fp32", rel_l2=error, tolerance=2e-2, agrees=error is not None or None)
    _warn_of_lower_precision(agreement, small.case("tensorrt:rtx", device="cuda", **fields), preparation)
    assert [warning.code for warning in preparation.warnings] == ["lower-precision"] * told
