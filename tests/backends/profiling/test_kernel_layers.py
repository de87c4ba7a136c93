"""Engine layers beside kernels: one to one in real engines, jointly where nothing says which is which."""

from __future__ import annotations

import pytest

from inferlens.backends.profiling.kernel_layers import EngineLayer, aligned, joint, of_engine, origins_of
from tests.backends.profiling.kernel_samples import ENGINE, ENGINES, engine, kernels, runs


@pytest.mark.parametrize("name", ENGINES)
def test_layers_and_kernels_of_real_engines_are_one_to_one(name: str) -> None:
    layers = engine(name)
    for run in runs(name):
        launched = [event.launched for event in run.events]
        names = [launched[place].name for place in of_engine(launched)]
        pairs = aligned(names, layers)
        assert [layers_of[0] for layers_of in pairs] == [layer for layer in layers if layer.launches]
        assert joint(pairs) == ""
        for kernel, (layer, *_) in zip(names, pairs, strict=True):
            assert layer.kind != "kgen" or layer.tactic == kernel, (
                "a kernel of the compiler's own is named by its layer"
            )
            matrix = {"correlation": ("conv", "Corr"), "gemm": ("matMul", "Fc")}.get(layer.kind)
            assert matrix is None or matrix[0] in kernel


def test_what_the_framework_launched_is_not_the_engines() -> None:
    found = kernels(ENGINE)
    assert [each.layer for each in found.kernels if each.operator == "aten::copy_"] == [""]
    assert all(each.layer for each in found.kernels if each.operator != "aten::copy_")
    (last,) = [each for each in found.kernels if "layer4.1.conv2" in each.layer]
    assert "convFwd" in last.name


def layers_of(text: str) -> list[EngineLayer]:
    """``a b:k _c``: layer a; b, whose tactic is the kernel k; c, which launches nothing."""
    parts = [word.partition(":") for word in text.split()]
    return [
        EngineLayer(name=name.strip("_"), tactic=tactic, modules=(f"m.{name}",), launches=not name.startswith("_"))
        for name, _, tactic in parts
    ]


@pytest.mark.parametrize(
    ("kernels", "layers", "expected"),
    [
        ("x y z", "a b c", "a b c"),
        ("x y z", "a _w b c", "a b c"),
        ("x k y z", "a b:k c", "a b c c"),  # two kernels for the layer after the anchor
        ("x y k z", "a b:k c", "a a b c"),
        ("x k y", "a b c:k d", "a+b c d"),
        ("k k k", "a:k b:k c:k", "a b c"),
        ("k x k", "a:k b c d:k", "a b+c d"),
        ("k k", "a:k b c:k", "a c"),
        ("y x", "a:x b:y", "- a"),  # only one of two that are crossed can hold
        ("x y", "", "- -"),
        ("", "a b", ""),
        ("x y z", "a b", "a+b a+b a+b"),
    ],
)
def test_stretches_between_anchors(kernels: str, layers: str, expected: str) -> None:
    found = aligned(kernels.split(), layers_of(layers))
    said = ["+".join(layer.name for layer in each) or "-" for each in found]
    assert said == expected.split()


def test_a_joint_stretch_belongs_to_all_of_its_modules_and_is_counted() -> None:
    found = aligned(["x", "y", "k", "z"], layers_of("a b c d:k e"))
    origins = origins_of(found)
    assert origins[0].layer == origins[1].layer == "a + b + c"
    assert origins[0].modules == ("m.a", "m.b", "m.c")
    assert (origins[2].layer, origins[3].modules) == ("d", ("m.e",))
    assert joint(found).startswith("2 of 4 kernels")


def test_a_long_engine_is_laid_out_quickly() -> None:
    layers = [EngineLayer(name=str(index), tactic=f"k{index % 7}" if index % 3 else "") for index in range(3000)]
    names = [layer.tactic or "library" for layer in layers]
    assert [pair[0] for pair in aligned(names, layers)] == layers
