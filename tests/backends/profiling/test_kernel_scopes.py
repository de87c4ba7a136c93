"""Scopes of modules in a real trace, taken here on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from inferlens.backends.abilities import Launched  # noqa: E402
from inferlens.backends.profiling.kernel_scopes import SCOPE, module_scopes, origins_by_twin, origins_of, twin_of  # noqa: E402
from inferlens.backends.profiling.operator_runs import profiler  # noqa: E402
from inferlens.trace import LaunchLinks, read  # noqa: E402
from tests.backends import small  # noqa: E402
from tests.backends.profiling.kernel_samples import EAGER, GRAPH, runs  # noqa: E402


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


def scopes(module: torch.nn.Module, values: torch.Tensor, folder: Path) -> dict[str, list[str]]:
    """For each scope of a call the names of the scopes around it."""
    with torch.inference_mode(), module_scopes(module), profiler(on_gpu=False) as profile:
        module(values)
    profile.export_chrome_trace(str(folder / "trace.json"))
    trace = read(folder / "trace.json")
    parent = LaunchLinks(trace).parent
    found: dict[str, list[str]] = {}
    for place, row in enumerate(trace.scopes.row.tolist()):
        name = trace.name_of(row)
        if not name.startswith(SCOPE):
            continue
        around, above = [], int(parent[place])
        while above >= 0:
            around.append(trace.name_of(int(trace.scopes.row[above])).removeprefix(SCOPE))
            above = int(parent[above])
        found[name.removeprefix(SCOPE)] = around
    return found


def test_modules_are_scopes_in_each_other(tmp_path: Path) -> None:
    model = small.model().module
    assert model is not None
    found = scopes(model, torch.zeros(1, 3, 16, 16), tmp_path)
    assert found == {"": [], "convolution": [""], "norm": [""], "linear": [""]}
    assert not torch.nn.modules.module._global_forward_hooks, "hooks are there while runs are traced, and no longer"


def test_a_module_that_fails_leaves_no_scope_open(tmp_path: Path) -> None:
    assert scopes(Fragile(), torch.zeros(2, 8), tmp_path) == {"": [], "narrow": [""], "wide": [""]}


def test_a_scope_tells_any_name(tmp_path: Path) -> None:
    """The profiler writes names of its own accord, some of them not as they are."""
    names = ("a b", """"double" 'single'""", "lines\nand\ttabs", "<b>&lt;", "back\\slash/{é 層} 100 %41", "n" * 3000)
    model = torch.nn.Sequential()
    for name in names:
        model.add_module(name, torch.nn.Linear(4, 4))
    found = scopes(model, torch.zeros(1, 4), tmp_path)
    told = origins_of([Launched(name="k", around=(SCOPE, SCOPE + each)) for each in found], modules=9)
    assert [each.modules for each in told.of] == [(name,) for name in ("", *names)]


def test_the_innermost_module_is_the_origin() -> None:
    inner = Launched(name="k", around=(SCOPE, SCOPE + "a", "aten::add", SCOPE + "a.b", "aten::mul"))
    found = origins_of([inner, Launched(name="copy", around=("aten::copy_",))], modules=3)
    assert [each.modules for each in found.of] == [("a.b",), ()]
    assert found.absent["modules"].startswith("1 of 2")


def test_a_model_of_one_graph_has_no_modules_to_tell() -> None:
    found = origins_of([Launched(name="k", around=(SCOPE,))], modules=9)
    assert found.of[0].modules == ("",)
    assert "no modules" in found.absent["modules"]


def test_a_replay_has_the_modules_of_the_same_kernels_in_an_eager_call() -> None:
    eager = [event.launched for event in runs(EAGER)[0].events]
    bare = [Launched(name=each.name, launch="cudaGraphLaunch") for each in eager]
    replay = [Launched(name="Memcpy DtoD", kind="copy"), *bare]
    found = origins_by_twin(replay, eager, modules=68)
    assert found.of[0].modules == ()
    assert found.of[1:] == origins_of(eager, modules=68).of
    assert found.absent == {}


def test_a_replay_of_other_kernels_has_no_modules() -> None:
    eager = [event.launched for event in runs(EAGER)[0].events]
    others = [event.launched for event in runs(GRAPH)[0].events]
    for replay in (others, eager[::-1], eager[:-1]):
        found = origins_by_twin(replay, eager, modules=68)
        assert {each.modules for each in found.of} == {()}
        assert "not the same in the same order" in found.absent["modules"]


def test_the_twin_is_one_call_with_its_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU nothing is launched; the call is made, and its hooks are gone."""
    from inferlens.backends.profiling import kernel_runs, operator_runs

    monkeypatch.setattr(kernel_runs, "profiler", lambda **_: operator_runs.profiler(on_gpu=False))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    model = small.model().module
    assert model is not None
    called = []
    with torch.inference_mode():
        assert twin_of(model, lambda *feed: called.append(model(*feed)), (torch.zeros(1, 3, 16, 16),)) == []
    assert len(called) == 2, "one that the profiler sets itself up in, and one that is looked at"
    assert not torch.nn.modules.module._global_forward_hooks
