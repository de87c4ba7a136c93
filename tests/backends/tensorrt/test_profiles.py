"""Optimization profiles as text, and the shapes they take."""

from __future__ import annotations

import pytest

from inferlens.backends.tensorrt.profiles import check_shapes, profiles, spread
from inferlens.errors import InferlensError, Unsupported
from inferlens.spec.case import TensorSpec

IMAGE = (TensorSpec("image", (2, 3, 8, 8)),)
TEXTS = (TensorSpec("ids", (1, 128), "int64"), TensorSpec("mask", (1, 128), "int64"))


def test_without_a_text_the_inputs_decide() -> None:
    assert profiles("", IMAGE) == ({"image": ((2, 3, 8, 8),) * 3},)
    ranged = (TensorSpec("x", (4, 8), least=(1, 8), best=(2, 8), most=(16, 8)),)
    assert profiles(" ", ranged) == ({"x": ((1, 8), (2, 8), (16, 8))},)


def test_one_input_needs_no_name_and_several_profiles_are_joined() -> None:
    found = profiles("1x3x8x8/2x3x8x8/16x3x8x8; 32x3x8x8", IMAGE)
    assert found == (
        {"image": ((1, 3, 8, 8), (2, 3, 8, 8), (16, 3, 8, 8))},
        {"image": ((32, 3, 8, 8),) * 3},
    )


def test_several_inputs_are_named_and_one_left_out_keeps_its_own() -> None:
    (found,) = profiles("ids=1x8/1x128/4x512 + mask=1x8/1x128/4x512", TEXTS)
    assert found["ids"] == found["mask"] == ((1, 8), (1, 128), (4, 512))
    (found,) = profiles("mask=1x8/1x128/4x512", TEXTS)
    assert found["ids"] == ((1, 128),) * 3
    assert list(found) == ["ids", "mask"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1x3x8x8/2x3x8x8", "is no profile"),
        ("1x3x0x8", "is no profile"),
        ("1x3", "another number of dimensions"),
        ("4x3x8x8/2x3x8x8/8x3x8x8", "do not grow"),
        ("imag=1x3x8x8", "no input 'imag'"),
        (";", "A profile in ';' is empty"),
        ("1x3x8x8;;2x3x8x8", "A profile in '1x3x8x8;;2x3x8x8' is empty"),
        ("1x3x8x8; ", "is empty"),
        ("1x3x8x8/1x3x8x8/3000000000x3x8x8", "goes up to 3000000000x3x8x8, which is too large"),
        ("1x3x8x8/1x3x8x8/2000000000x3x2000000000x8", "which is too large"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(InferlensError, match=message):
        profiles(text, IMAGE)


def test_several_inputs_must_be_named() -> None:
    with pytest.raises(InferlensError, match="which input"):
        profiles("1x8/1x128/4x512", TEXTS)


@pytest.mark.parametrize("text", ["", "mask=1x8/1x128/4x512"])
def test_an_input_whose_sizes_are_free_needs_a_profile(text: str) -> None:
    """As the inputs of a network are that was parsed."""
    parsed = (TensorSpec("ids", (-1, 128), "int64"), TensorSpec("mask", (1, 128), "int64"))
    with pytest.raises(InferlensError, match=r"Sizes of the input 'ids' are free \(\?x128\)") as raised:
        profiles(text, parsed)
    assert "MIN/OPT/MAX" in raised.value.expected
    assert len(profiles("ids=1x128/2x128/4x128", parsed)) == 1


@pytest.mark.parametrize("text", ["", "imag=2x8", "image Error=1x8+a=1x8/2x8", "a=1x8"])
def test_a_name_of_the_file_makes_no_line_of_ours(text: str) -> None:
    free = (TensorSpec("image\nError: fake", (-1, 8)), TensorSpec("a", (1, 8)))
    with pytest.raises(InferlensError) as raised:
        profiles(text, free)
    assert "\n" not in str(raised.value)
    fixed = (TensorSpec("image\nError: fake", (2, 8)),)
    with pytest.raises(InferlensError, match="takes image Error: fake from 1x8 to 1x8, not 2x8") as raised:
        check_shapes(profiles("1x8", fixed), 0, fixed)


def test_the_profile_that_runs_must_take_the_shape() -> None:
    both = profiles("1x3x8x8/1x3x8x8/1x3x8x8;2x3x8x8/2x3x8x8/8x3x8x8", IMAGE)
    check_shapes(both, 1, IMAGE)
    with pytest.raises(Unsupported, match="not 2x3x8x8") as raised:
        check_shapes(both, 0, IMAGE)
    assert raised.value.hint == "--option tensorrt.profile=1"
    with pytest.raises(Unsupported, match="no profile 2: the engine has 2"):
        check_shapes(both, 2, IMAGE)


def test_the_graph_is_made_for_all_profiles_together() -> None:
    (spec,) = spread(IMAGE, profiles("1x3x8x8/2x3x8x8/4x3x8x8;8x3x8x8/8x3x8x8/16x3x8x8", IMAGE))
    assert spec.shape == (2, 3, 8, 8)
    assert spec.profile == ((1, 3, 8, 8), (2, 3, 8, 8), (16, 3, 8, 8))
    assert spread(IMAGE, profiles("", IMAGE)) == IMAGE
