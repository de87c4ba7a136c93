"""Which modules kernels came from: by scopes in a trace, and by the same kernels of another call that tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inferlens.backends.abilities import KernelOrigins, Launched, Origin  # noqa: E402
from inferlens.backends.profiling import traced_runs  # noqa: E402
from inferlens.backends.profiling.kernel_origins import (  # noqa: E402
    SCOPE,
    MatchedKernel,
    eager_kernels,
    match,
    module_scopes,
    origins_by_eager_call,
    origins_by_match,
    origins_by_scope,
)
from inferlens.backends.profiling.operator_layers import kernels_beneath  # noqa: E402
from inferlens.backends.profiling.traced_runs import TracedEvent, TracedOperator, one_run  # noqa: E402
from inferlens.backends.torch_compile.layers import InductorNames  # noqa: E402
from inferlens.backends.torch_compile.provenance import GRAPH, CodeCall  # noqa: E402
from tests.backends import small  # noqa: E402
from tests.backends.profiling.kernel_samples import EAGER, runs  # noqa: E402
from tests.backends.profiling.kernel_samples import GRAPH as GRAPH_TRACE  # noqa: E402
from tests.backends.profiling.layered import ODD, Attention, Fused, model, prepared  # noqa: E402
from tests.backends.torch_compile.test_layers import Breaking  # noqa: E402

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
    known = origins_by_scope([Launched(name="k", around=(SCOPE, each)) for each in scopes], modules=9)
    assert [each.modules for each in known.of] == [(name,) for name in inside]
    assert not torch.nn.modules.module._global_forward_hooks, "hooks are there while runs are traced, and no longer"


def test_the_innermost_module_is_the_origin() -> None:
    inner = Launched(name="k", around=(SCOPE, SCOPE + "a", "aten::add", SCOPE + "a.b", "aten::mul"))
    found = origins_by_scope([inner, Launched(name="copy", around=("aten::copy_",))], modules=3)
    assert [each.modules for each in found.of] == [("a.b",), ()]
    assert found.absent["modules"].startswith("1 of 2")
    found = origins_by_scope([Launched(name="k", around=(SCOPE,))], modules=9)
    assert found.of[0].modules == ("",)
    assert "no modules" in found.absent["modules"]


def test_a_replay_has_the_modules_of_the_same_kernels_in_an_eager_call() -> None:
    eager = [event.launched for event in runs(EAGER)[0].events]
    bare = [Launched(name=each.name, launch="cudaGraphLaunch") for each in eager]
    known = origins_by_eager_call(bare, eager, modules=68)
    assert known.of == origins_by_scope(eager, modules=68).of
    others = [event.launched for event in runs(GRAPH_TRACE)[0].events]
    known = origins_by_eager_call(others, eager, modules=68)
    assert not any(each.modules for each in known.of)
    assert "not the same" in known.absent["modules"]


def test_an_eager_call_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = traced_runs.profiler
    monkeypatch.setattr(traced_runs, "profiler", lambda **_: real(on_gpu=False))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    module = small.model().module
    assert eager_kernels(module, module, [torch.zeros(1, 3, 16, 16)]) == []


def launched(*names: str) -> list[Launched]:
    return [Launched(name=name, kind=kind_of(name)) for name in names]


def kind_of(name: str) -> str:
    return {"Memcpy": "copy", "Memset": "fill"}.get(name.partition(" ")[0], "kernel")


def test_the_same_in_the_same_order_match() -> None:
    there = [MatchedKernel("k", origin=A), MatchedKernel("k", origin=B), MatchedKernel("Memset (Device)", "fill", A)]
    assert match(launched("k", "k", "Memset (Device)"), there) == (A, B, A)
    assert match(launched("k", "Memset (Device)", "k"), there) == (A, Origin(), B), "fills are elsewhere in a graph"
    assert match(launched("Memcpy DtoD", "inputs", "k", "k"), there) == (Origin(), Origin(), A, B)


@pytest.mark.parametrize("names", [("k",), ("k", "k", "k"), ("other", "another"), ()])
def test_others_do_not(names: tuple[str, ...]) -> None:
    there = [MatchedKernel("k", origin=A), MatchedKernel("k", origin=B)]
    found = origins_by_match(launched(*names), there, {}, "Do this.")
    assert found.of == (Origin(),) * len(names)
    assert f"launched {len(names)} kernels" in found.absent["modules"]
    assert ("number 1 is 'k' there, 'other' here" in found.absent["modules"]) == ("other" in names)
    assert origins_by_match(launched("k"), [], {"modules": "it failed"}).absent == {"modules": "it failed"}


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
            CodeCall(name, name, (f"{graph}.{module}",))
            for name, module in zip(("convolution", RELU) * 2, "abcd", strict=True)
        ]
        for graph in "xy"
    ]
    compiler: Any = SimpleNamespace(graphs=graphs, knows=True)
    return InductorNames(compiler)


def test_a_librarys_kernels_are_of_its_call() -> None:
    kernels, absent = kernels_beneath(compiled(), names())
    assert [(each.name, *each.origin.modules) for each in kernels] == [
        *((name, "x.a") for name in CONVOLUTION), (RELU, "x.b"), *((name, "x.c") for name in CONVOLUTION),
        (RELU, "x.d"), ("cos",),
        *((name, "y.a") for name in CONVOLUTION), (RELU, "y.b"), *((name, "y.c") for name in CONVOLUTION),
        (RELU, "y.d"),
    ]  # fmt: skip
    assert [each.origin.layer for each in kernels[:5]] == ["0/convolution"] * 3 + [f"0/{RELU}", "0/convolution #2"]
    assert list(absent) == ["modules"]
    assert absent["modules"].startswith("not known for 1 of 17")


def test_calls_that_cannot_be_told_apart_are_not_known() -> None:
    kernels, absent = kernels_beneath(compiled(calls=1), names())
    assert not any(each.origin.modules for each in kernels)
    assert absent["modules"].startswith("not known for 9 of 9")
    assert absent["calls"].startswith("8 of 8")


def test_kernels_are_in_the_order_in_which_the_gpu_ran_them() -> None:
    inner = TracedOperator("aten::mm", kernels=[event("first", 1)])
    outer = TracedOperator("aten::matmul", kernels=[event("second", 2)], inside=[inner])
    other = TracedOperator("aten::copy_", kernels=[event("Memcpy DtoD (Device -> Device)", 0)])
    kernels, _ = kernels_beneath(TracedOperator("run", inside=[outer, other]), names())
    assert [(each.name, each.kind, each.origin.layer) for each in kernels] == [
        ("Memcpy DtoD (Device -> Device)", "copy", "aten::copy_"), ("first", "kernel", "aten::matmul"),
        ("second", "kernel", "aten::matmul"),
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
        found = runner.origins(launched("Memcpy DtoD", *(each.name for each in runner._matched[0])))
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
    assert all(origin.layer for origin in found), found


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
