"""From a case's label back to the words of a plan."""

from __future__ import annotations

import pytest

from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError
from inferlens.spec.case import Case
from inferlens.spec.words import words_of

NAMES = BACKENDS.names()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pytorch", {}),
        ("onnxruntime:cpu fp16", {"precision": "fp16"}),
        ("pytorch fp16, batch=8, cuda", {"precision": "fp16", "batch": "8", "device": "cuda"}),
        ("pytorch batch 8 4 threads depth 2", {"batch": "8", "threads": "4", "depth": "2"}),
        ("pytorch 1 thread", {"threads": "1"}),
        ("pytorch host io cold rotating", {"io": "host", "cold": True, "rotate": True}),
        ("pytorch threads=1 device=cpu io=host", {"threads": "1", "device": "cpu", "io": "host"}),
        ("fake latency=2 fake.per_item=0.5", {"option": {"fake.latency": "2", "fake.per_item": "0.5"}}),
        ("fake 'trouble=memory error'", {"option": {"fake.trouble": "memory error"}}),
        ("fake input=x=1x3x8x8 weights=w.pth seed=3", {"input": "x=1x3x8x8", "weights": "w.pth", "seed": "3"}),
    ],
)
def test_texts_and_what_they_mean(text, words) -> None:
    assert words_of(text, NAMES) == {"backend": text.split()[0], "option": {}, **words}


def test_a_label_is_understood() -> None:
    case = Case(
        model="fake:demo", backend="fake", variant="noisy", precision="fp16", batch=8, threads=4, io="host", cold=True,
        rotate=True, depth=2, options={"latency": 2.5, "trouble": "none"},
    )  # fmt: skip
    assert words_of(case.label, NAMES) == {
        "backend": "fake:noisy", "precision": "fp16", "batch": "8", "device": "cpu", "threads": "4", "io": "host",
        "cold": True, "rotate": True, "depth": "2", "option": {"fake.latency": "2.5", "fake.trouble": "none"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing"),
        (" , ", "nothing"),
        ("fp16 pytorch", "no backend 'fp16'"),
        ("pytorhc", "no backend"),
        ("pytorch fp61", "'fp61' is no word"),
        ("pytorch batch", "'batch' is no word"),
        ("pytorch 4", "'4' is no word"),
        ("pytorch batch=", "no word"),
        ("pytorch fp16 fp32", "precision twice"),
        ("fake latency=1 fake.latency=2", "latency twice"),
        ("fake 'trouble=none", "quotation mark"),
    ],
)
def test_what_means_nothing_is_refused(text, said) -> None:
    with pytest.raises(InferlensError, match=said):
        words_of(text, NAMES)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(InferlensError) as raised:
        words_of("pytorch fp61", NAMES)
    assert "fp16" in raised.value.hint
