"""Which modules kernels came from: by scopes in a trace, and by the same kernels of another call that tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")

from inferlens.backends.abilities import KernelOrigins, Launched, Origin  # noqa: E402
from inferlens.backends.profiling import traced_runs  # noqa: E402
from inferlens.backends.profiling.kernel_runs import (  # noqa: E402
    SCOPE,
    MatchedKernels,
    eager_kernels,
    module_scopes,
    origins_by_match,
    origins_by_scope,
)
from inferlens.backends.profiling.operator_layers import NamedLayer, kernels_beneath  # noqa: E402
from inferlens.backends.profiling.traced_runs import TracedEvent, TracedOperator, one_run  # noqa: E402
from inferlens.backends.torch_compile import backend as torch_compile  # noqa: E402
from inferlens.backends.torch_compile.layers import GRAPH, InductorNames  # noqa: E402
from tests.backends import small  # noqa: E402
from tests.backends.profiling.layered import ODD, Breaking, Fused, model, prepared  # noqa: E402

A, B = Origin("one", ("a",)), Origin("two", ("b",))
RELU = "triton_poi_fused_convolution_relu_0"
CONVOLUTION = ("nchwToNhwcKernel", "sm90_xmma_fprop_implicit_gemm", "nhwcToNchwKernel")
NAMES = ("a b", """"double" 'single'""", "lines\nand\ttabs", "<b>&lt;", "back\\slash/{é 層} 100 %41", "n" * 3000)


class Fragile(torch.nn.Module):
    """Calls a module that fails, and goes on with another."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = torch.nn.Linear(3, 4), torch.nn.Linear(8, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        try:
            return self.narrow(values)  # type: ignore[no-any-return]
        except RuntimeError:
            return self.wide(values)  # type: ignore[no-any-return]


def oddly_named() -> torch.nn.Module:
    made = torch.nn.Sequential()
    for name in NAMES:
        made.add_module(name, torch.nn.Linear(4, 4))
    return made


@pytest.mark.parametrize(
    ("kind", "shape", "inside"),
    [
        (lambda: small.model().module, (1, 3, 16, 16), ("convolution", "norm", "linear")),
        (Fragile, (2, 8), ("narrow", "wide")),  # one that fails leaves no scope open
        (oddly_named, (1, 4), NAMES),  # the profiler writes names of its own accord, some of them not as they are
    ],
)
def test_modules_are_scopes_in_each_other(kind: Callable[[], Any], shape: tuple[int, ...], inside: Any) -> None:
    module = kind()
    runner = SimpleNamespace(infer=module, synchronize=lambda: None)
    with torch.inference_mode():
        root = one_run(runner, torch.zeros(*shape), on_gpu=False, scopes=module_scopes(module)).root
    (outer,) = [each for each in root.inside if each.name == SCOPE]
    scopes = [each.name for each in outer.inside if each.name.startswith(SCOPE)]
    known = origins_by_scope([Launched(name="k", around=(SCOPE, each)) for each in scopes])
    assert [each.modules for each in known.of] == [(name,) for name in inside]
    assert not torch.nn.modules.module._global_forward_hooks, "hooks are there while runs are traced, and no longer"


def test_the_innermost_module_is_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Launched(name="k", around=(SCOPE, SCOPE + "a", "aten::add", SCOPE + "a.b", "aten::mul"))
    copy, outer = Launched(name="copy", around=("aten::copy_",)), Launched(name="k", around=(SCOPE,))
    found = origins_by_scope([inner, copy, outer])
    assert [each.modules for each in found.of] == [("a.b",), (), ("",)]
    assert "1 of 3" in found.absent["modules"]
    real, module = traced_runs.profiler, small.model().module
    monkeypatch.setattr(traced_runs, "profiler", lambda **_: real(on_gpu=False))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert eager_kernels(module, module, [torch.zeros(1, 3, 16, 16)]) == MatchedKernels([])


def launched(*names: str) -> list[Launched]:
    kinds = {"Memcpy": "copy", "Memset": "fill"}
    return [Launched(name=name, kind=kinds.get(name.partition(" ")[0], "kernel")) for name in names]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("k", "Memset (Device)", "k"), (A, Origin(), B)),
        (("Memcpy DtoD", "inputs", "k", "k"), (Origin(), Origin(), A, B)),
        (("k",), None),
        (("k", "k", "k"), None),
        (("other", "another"), None),
        ((), None),
    ],
)
def test_the_same_kernels_in_the_same_order_match(names: tuple[str, ...], expected: Any) -> None:
    found = origins_by_match(launched(*names), MatchedKernels([("k", A), ("k", B)]))
    assert found.of == (expected or (Origin(),) * len(names))
    assert ("not the same in the same order" in found.absent.get("modules", "")) == (expected is None)


def test_what_tells_nothing_says_why() -> None:
    assert origins_by_match(launched("k"), MatchedKernels([], {"modules": "it failed"})).absent == {
        "modules": "it failed"
    }


def event(name: str, begin: int) -> TracedEvent:
    return TracedEvent(launched=launched(name)[0], begin=begin, time=1)


def compiled(calls: int = 2) -> TracedOperator:
    """A run of Inductor's code on a GPU: in each graph convolutions, each of three kernels, and a kernel of Triton."""
    time = iter(range(100))

    def kernels(*names: str) -> list[TracedEvent]:
        return [event(name, next(time)) for name in names]

    def graph(number: int) -> TracedOperator:
        inside = []
        for _ in range(calls):
            library = TracedOperator("aten::cudnn_convolution", kernels=kernels(*CONVOLUTION))
            inside += [
                TracedOperator("aten::convolution", inside=[TracedOperator("aten::_convolution", inside=[library])]),
                TracedOperator(RELU, kernels=kernels(RELU)),
            ]
        return TracedOperator(
            f"{GRAPH}{number}", inside=[TracedOperator("## Call CompiledFxGraph f ##", inside=inside)]
        )

    return TracedOperator("run", inside=[graph(0), TracedOperator("aten::cos", kernels=kernels("cos")), graph(1)])


def names() -> InductorNames:
    graphs = [
        [
            NamedLayer(name, name, (f"{graph}.{module}",))
            for name, module in zip(("convolution", RELU) * 2, "abcd", strict=True)
        ]
        for graph in "xy"
    ]
    compiler: Any = SimpleNamespace(graphs=graphs, knows=True)
    return InductorNames(compiler)


def test_a_librarys_kernels_are_of_its_call() -> None:
    found = kernels_beneath(compiled(), names())
    assert [(name, *origin.modules) for name, origin in found.kernels] == [
        *((name, "x.a") for name in CONVOLUTION), (RELU, "x.b"), *((name, "x.c") for name in CONVOLUTION),
        (RELU, "x.d"), ("cos",),
        *((name, "y.a") for name in CONVOLUTION), (RELU, "y.b"), *((name, "y.c") for name in CONVOLUTION),
        (RELU, "y.d"),
    ]  # fmt: skip
    layers = [origin.layer for _, origin in found.kernels[:5]]
    assert layers == ["0/convolution"] * 3 + [f"0/{RELU}", "0/convolution #2"]
    assert found.absent["modules"].startswith("not known for 1 of 17")
    found = kernels_beneath(compiled(calls=1), names())
    assert not any(origin.modules for _, origin in found.kernels)
    assert found.absent["modules"].startswith("not known for 9 of 9")
    assert found.absent["calls"].startswith("8 of 8")


def test_kernels_are_in_the_order_in_which_the_gpu_ran_them() -> None:
    inner = TracedOperator("aten::mm", kernels=[event("first", 1)])
    outer = TracedOperator("aten::matmul", kernels=[event("second", 2)], inside=[inner])
    other = TracedOperator("aten::copy_", kernels=[event("Memcpy DtoD (Device -> Device)", 0)])
    found = kernels_beneath(TracedOperator("run", inside=[outer, other]), names())
    assert [(name, origin.layer) for name, origin in found.kernels] == [
        ("first", "aten::matmul"), ("second", "aten::matmul"),
    ]  # fmt: skip


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that runs two kernels for every operator that calls no other."""
    real_runs, real_profiler = traced_runs.traced_runs, traced_runs.profiler

    def with_kernels(trace: Any) -> Any:
        found = real_runs(trace)
        for operator in (each for run in found for each in run.root.every()):
            if not operator.inside and ("::" in operator.name or "cpp_" in operator.name):
                operator.kernels = [event(f"{operator.name} {part}", int(operator.begin * 1e9)) for part in "ab"]
        return found

    monkeypatch.setattr(traced_runs, "traced_runs", with_kernels)
    monkeypatch.setattr(traced_runs, "profiler", lambda on_gpu, **more: real_profiler(on_gpu=False, **more))
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
        found = runner.origins(launched("Memcpy DtoD", *(name for name, _ in runner._matched.kernels)))
        assert not found.absent
        assert found.of[0] == Origin()
    return list(found.of[1:])


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("kind", [Fused, Breaking])
@pytest.mark.usefixtures("pretended")
def test_inductor(kind: Callable[[], Any], graphs: bool, tmp_path: Path) -> None:
    """With CUDA graphs the model is compiled once more, without; here nothing else differs."""
    network = model(kind, *((1, 4, 32) if kind is Breaking else ()))
    found = origins("torch_compile:default", network, tmp_path, graphs=graphs)
    assert all(origin.layer and origin.modules for origin in found)
    assert found[0] == found[1], "both of an operator's kernels"
    paths = {path for origin in found for path in origin.modules}
    assert paths >= ({f"{ODD}.0", f"{ODD}.1", f"{ODD}.2", "last"} if kind is Fused else {"first", "second"})


@pytest.mark.parametrize("way", ["", "freeze"])
@pytest.mark.usefixtures("pretended")
def test_torchscript(way: str, tmp_path: Path) -> None:
    found = origins("torchscript:trace", model(Fused), tmp_path, **({way: True} if way else {}))
    assert {f"{ODD}.0", "last"} <= {path for origin in found for path in origin.modules}
    assert all(origin.layer and origin.modules for origin in found)


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
        monkeypatch.setattr(torch_compile, "Compiler", Mock(side_effect=RuntimeError("out of memory")))
        for _ in range(2):
            found = runner.origins(launched("k"))
            assert found.of == (Origin(),)
            assert "out of memory" in found.absent["modules"]
