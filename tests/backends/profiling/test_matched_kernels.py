"""Kernels of compiled code: held against those of one call that is looked at, which tells what launched them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inferlens.backends.abilities import KernelOrigins, Launched, Origin  # noqa: E402
from inferlens.backends.profiling import operator_runs  # noqa: E402
from inferlens.backends.profiling.matched_kernels import Twin, kind_of, origins_by_twins, paired, twins_of  # noqa: E402
from inferlens.backends.profiling.operator_runs import Kernel, Operator  # noqa: E402
from inferlens.backends.torch_compile import layers as inductor_layers  # noqa: E402
from inferlens.backends.torch_compile.provenance import GRAPH, Made  # noqa: E402
from tests.backends import small  # noqa: E402
from tests.backends.profiling.layered import ODD, Attention, Fused, model, prepared  # noqa: E402
from tests.backends.torch_compile.test_layers import Breaking  # noqa: E402

A, B = Origin("one", ("a",)), Origin("two", ("b",))
RELU = "triton_poi_fused_convolution_relu_0"
CONVOLUTION = ("nchwToNhwcKernel", "sm90_xmma_fprop_implicit_gemm", "nhwcToNchwKernel")


def launched(*names: str) -> list[Launched]:
    return [Launched(name=name, kind=kind_of(name)) for name in names]


def test_the_same_in_the_same_order_are_twins() -> None:
    twins = [Twin("k", origin=A), Twin("k", origin=B), Twin("Memset (Device)", "fill", A)]
    assert paired(launched("k", "k", "Memset (Device)"), twins) == (A, B, A)
    assert paired(launched("k", "Memset (Device)", "k"), twins) == (A, Origin(), B), "fills are elsewhere in a graph"
    assert paired(launched("Memcpy DtoD", "inputs", "k", "k"), twins) == (Origin(), Origin(), A, B)


@pytest.mark.parametrize("names", [("k",), ("k", "k", "k"), ("other", "another"), ()])
def test_others_are_not(names: tuple[str, ...]) -> None:
    twins = [Twin("k", origin=A), Twin("k", origin=B)]
    assert paired(launched(*names), twins) is None
    found = origins_by_twins(launched(*names), twins, {}, "Do this.")
    assert found.of == (Origin(),) * len(names)
    assert f"launched {len(names)} kernels" in found.absent["modules"]
    assert found.absent["modules"].endswith("Do this.")
    assert ("number 1 is 'k' there, 'other' here" in found.absent["modules"]) == ("other" in names)


def test_a_call_that_told_nothing_says_why() -> None:
    found = origins_by_twins(launched("k"), [], {"modules": "it failed"})
    assert found.of == (Origin(),)
    assert found.absent == {"modules": "it failed"}


def test_kernels_are_in_the_order_in_which_the_gpu_ran_them() -> None:
    inner = Operator("aten::mm", kernels=[Kernel("first", 1.0, 1.0)])
    outer = Operator("aten::matmul", kernels=[Kernel("second", 2.0, 1.0)], inside=[inner])
    other = Operator("aten::copy_", kernels=[Kernel("Memcpy DtoD (Device -> Device)", 0.5, 1.0)])
    assert twins_of([(outer, A), (other, B)]) == [
        Twin("Memcpy DtoD (Device -> Device)", "copy", B), Twin("first", origin=A), Twin("second", origin=A),
    ]  # fmt: skip


def compiled(calls: int = 2) -> Operator:
    """A run of Inductor's code on a GPU: in each graph convolutions, each of three kernels, and a kernel of Triton."""
    time = iter(range(100))

    def kernels(*names: str) -> list[Kernel]:
        return [Kernel(name, next(time), 1.0) for name in names]

    def graph(number: int) -> Operator:
        inside = []
        for _ in range(calls):
            library = Operator("aten::cudnn_convolution", kernels=kernels(*CONVOLUTION))
            inside += [
                Operator("aten::convolution", inside=[Operator("aten::_convolution", inside=[library])]),
                Operator(RELU, kernels=kernels(RELU)),
            ]
        return Operator(f"{GRAPH}{number}", inside=[Operator("## Call CompiledFxGraph f ##", inside=inside)])

    return Operator("run", inside=[graph(0), Operator("aten::cos", kernels=kernels("cos")), graph(1)])


def graphs() -> list[list[Made]]:
    def call(name: str, module: str) -> Made:
        return Made(name, name, extern=name == "convolution", modules=(module,))

    return [
        [call("convolution", f"{graph}.a"), call(RELU, f"{graph}.b"), call("convolution", f"{graph}.c"),
         call(RELU, f"{graph}.d")]
        for graph in "xy"
    ]  # fmt: skip


def test_a_librarys_kernels_are_of_its_call() -> None:
    twins, absent = inductor_layers.told(compiled(), graphs(), knows=True)
    assert [(twin.name, *twin.origin.modules) for twin in twins] == [
        *((name, "x.a") for name in CONVOLUTION), (RELU, "x.b"), *((name, "x.c") for name in CONVOLUTION),
        (RELU, "x.d"), ("cos",),
        *((name, "y.a") for name in CONVOLUTION), (RELU, "y.b"), *((name, "y.c") for name in CONVOLUTION),
        (RELU, "y.d"),
    ]  # fmt: skip
    assert [twin.origin.layer for twin in twins[:4]] == ["0/convolution"] * 3 + [f"0/{RELU}"]
    assert twins[4].origin.layer == "0/convolution #2"
    assert absent == {"modules": inductor_layers.UNKNOWN_KERNELS.format(1, 17)}


def test_calls_that_cannot_be_told_apart_are_not_known() -> None:
    twins, absent = inductor_layers.told(compiled(calls=1), graphs(), knows=True)
    assert not any(twin.origin.modules for twin in twins)
    assert absent == {
        "modules": inductor_layers.UNKNOWN_KERNELS.format(9, 9), "calls": inductor_layers.UNSEEN.format(8, 8),
    }  # fmt: skip


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that runs two kernels for every operator that calls no other."""
    real_roots, real_profiler = operator_runs.roots, operator_runs.profiler

    def roots(events: Any) -> list[Operator]:
        def fill(operator: Operator) -> None:
            for each in operator.inside:
                fill(each)
            if not operator.inside and ("::" in operator.name or "cpp_" in operator.name):
                operator.kernels = [Kernel(f"{operator.name} {part}", operator.begin, 1e-6) for part in "ab"]

        found = real_roots(events)
        for each in found:
            fill(each)
        return found

    def profiler(*, on_gpu: bool, **more: Any) -> Any:
        assert on_gpu
        return real_profiler(on_gpu=False, **more)

    monkeypatch.setattr(operator_runs, "roots", roots)
    monkeypatch.setattr(operator_runs, "profiler", profiler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def origins(label: str, network: Any, folder: Path, *, graphs: bool = False, **options: Any) -> list[Origin]:
    """Of what the model pretends to launch, and of what copies its inputs before."""
    case = small.case(label, threads=1, options=options)
    runner: Any = small.backend(label).prepare(network, case, prepared(folder, level="kernel"))
    assert isinstance(runner, KernelOrigins)
    if graphs:
        runner._graphs = True
    with runner:
        feed = runner.place(small.arrays(network))
        for _ in range(3):
            runner.infer(feed)
        assert runner.origins(launched("other")).absent["modules"]
        twins = runner._twins[0]
        names = [twin.name for twin in twins]
        found = runner.origins(launched("Memcpy DtoD", *names))
        assert not found.absent
        assert found.of[0] == Origin()
    return list(found.of[1:])


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", [Fused, Attention, Breaking])
@pytest.mark.usefixtures("pretended")
def test_inductor(kind: Callable[[], Any], graphs: bool, tmp_path: Path) -> None:
    """With CUDA graphs the model is compiled once more, without; here nothing else differs."""
    network = model(kind, *((1, 4, 32) if kind is Breaking else ()))
    found = origins("torch_compile:default", network, tmp_path, graphs=graphs)
    assert all(origin.layer and origin.modules for origin in found)
    assert found[0] == found[1], "both of an operator's kernels"
    paths = {path for origin in found for path in origin.modules}
    least = {Fused: {f"{ODD}.0", f"{ODD}.1", f"{ODD}.2", "last"}, Attention: {"stem", "attention", "norm"}}
    assert least.get(kind, {"first", "second"}) <= paths


@pytest.mark.parametrize("way", ["", "freeze", "optimize_for_inference"])
@pytest.mark.usefixtures("pretended")
def test_torchscript(way: str, tmp_path: Path) -> None:
    found = origins("torchscript:trace", model(Fused), tmp_path, **({way: True} if way else {}))
    known = [origin for origin in found if origin.modules]
    assert len(known) >= 0.5 * len(found), "but for what changes the layout of memory"
    assert {f"{ODD}.0", "last"} <= {path for origin in known for path in origin.modules}
    assert all(origin.layer for origin in found)


@pytest.mark.usefixtures("pretended")
def test_a_second_compilation_that_fails_leaves_kernels_without_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = model(Fused)
    case = small.case("torch_compile:default")
    runner: Any = small.backend("torch_compile:default").prepare(network, case, prepared(tmp_path, level="kernel"))
    runner._graphs = True
    with runner:
        assert runner._compiler is None, "what is traced is compiled as ever"
        monkeypatch.setattr(runner, "_telling", lambda _: (_ for _ in ()).throw(RuntimeError("out of memory")))
        for _ in range(2):
            found = runner.origins(launched("k"))
            assert found.of == (Origin(),)
            assert "out of memory" in found.absent["modules"]
            assert "--level layer" in found.absent["modules"]
