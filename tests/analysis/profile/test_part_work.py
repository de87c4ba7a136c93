"""The work of the kernels of real profiles, against what can be worked out by hand from shapes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from inferlens.analysis.roofline import Floor, Roofline, roofline
from inferlens.record.store import load_profiles

EXAMPLES = Path(__file__).parents[3] / "examples" / "h200"
HALF = 2  # bytes of an element
TOKENS, WIDTH, WIDE = 32 * 197, 768, 3072  # of a ViT-B/16 at batch 32
LAYER = "encoder.layers.encoder_layer_3"


@cache
def floors(folder: str) -> dict[str, Roofline]:
    """By backend, the floors of the profiles in a folder that has batch 1 and batch 32: those of batch 32."""
    profiles = load_profiles([EXAMPLES / folder]).profiles
    found = {profile.case.backend: roofline(profile) for profile in profiles if profile.case.batch == 32}
    return {name: item for name, item in found.items() if isinstance(item, Roofline)}


def rows(of: Roofline, *modules: str, name: str = "") -> list[Floor]:
    return [row for row in of.rows if row.modules == modules and re.search(name, row.name)]


@pytest.mark.parametrize("backend", ["pytorch", "torch_compile", "tensorrt", "torch_tensorrt"])
def test_products_of_a_vision_transformer(backend: str) -> None:
    """Each computes what it computes, reads its inputs and weights, and writes its outputs; of every backend alike."""
    of = floors("kernels/vit_b_16")[backend]
    first, attention, last = (row for row in rows(of, f"{LAYER}.self_attention") if row.flops)
    assert first.flops == 2 * TOKENS * WIDTH * 3 * WIDTH
    assert first.bytes == HALF * (TOKENS * WIDTH + 3 * WIDTH * (WIDTH + 1) + TOKENS * 3 * WIDTH) - 3 * WIDTH * HALF
    assert attention.flops == 2 * 2 * 32 * 197 * 197 * WIDTH
    assert attention.bytes == HALF * 4 * TOKENS * WIDTH
    assert last.flops == 2 * TOKENS * WIDTH * WIDTH
    assert last.bytes == HALF * (TOKENS * WIDTH + WIDTH * (WIDTH + 1) + TOKENS * WIDTH)
    (wide,) = [row for row in of.rows if row.flops and f"{LAYER}.mlp.0" in row.modules]
    assert wide.flops == 2 * TOKENS * WIDTH * WIDE
    assert wide.bytes == HALF * (TOKENS * WIDTH + WIDE * (WIDTH + 1) + TOKENS * WIDE)
    (patches,) = [row for row in rows(of, "conv_proj") if row.flops]
    assert patches.flops == 2 * 32 * 14 * 14 * WIDTH * 3 * 16 * 16
    assert patches.bytes == HALF * (32 * 3 * 224 * 224 + WIDTH * (3 * 16 * 16 + 1) + 32 * WIDTH * 14 * 14)
    assert patches.distance == pytest.approx(patches.time / (patches.flops / of.rate), rel=1e-6)  # type: ignore[operator]


def test_pointwise_kernels_move_what_they_read_and_write() -> None:
    compiled, eager = (floors("kernels/vit_b_16")[name] for name in ("torch_compile", "pytorch"))
    (gelu,) = rows(compiled, f"{LAYER}.mlp.0", f"{LAYER}.mlp.1")
    assert (gelu.flops, gelu.bytes) == (0, HALF * 2 * TOKENS * WIDE)
    for norm in (rows(eager, f"{LAYER}.ln_1"), rows(eager, f"{LAYER}.ln_2")):
        assert [floor.bytes for floor in norm] == [HALF * (2 * TOKENS * WIDTH + 2 * WIDTH)]
    assert [row.bytes for row in rows(eager, LAYER)] == [HALF * 3 * TOKENS * WIDTH] * 2  # both additions
    # What Inductor computes anew in several kernels nobody can divide.
    assert all(row.floor is None for row in compiled.rows if "conv_proj" in row.modules and len(row.modules) > 1)


def test_calls_of_one_activation_have_their_own_sizes() -> None:
    of = floors("kernels/resnet50")["pytorch"]
    narrow, wide = (HALF * 2 * 32 * channels * 56 * 56 for channels in (64, 256))
    assert [row.bytes for row in rows(of, "layer1.1.relu")] == [narrow, narrow, wide]
    fused = floors("kernels/resnet50")["tensorrt"]
    (last,) = rows(fused, "layer1.1.conv3", "layer1.1.bn3", "layer1.1", "layer1.1.relu")
    norm = 4 * 256  # what folding leaves of a batch norm's parameters is not known: they count as they are
    assert last.bytes == HALF * (32 * 64 * 56 * 56 + 64 * 256 + norm + 2 * 32 * 256 * 56 * 56)


@pytest.mark.parametrize("model", ["bert", "mobilenet_v2", "resnet50", "vit_b_16"])
def test_of_all_kernels(model: str) -> None:
    flops = {"bert": 7.1515e11, "mobilenet_v2": 1.9250e10, "resnet50": 2.6170e11, "vit_b_16": 1.1241e12}
    assert len(floors(f"kernels/{model}")) == 4
    for backend, of in floors(f"kernels/{model}").items():
        known = [row for row in of.rows if row.floor is not None]
        assert all(floor.floor <= floor.time for floor in known), backend  # type: ignore[operator]
        assert sum(floor.time for floor in known) > 0.8 * sum(row.time for row in of.rows), backend
        total = sum(floor.flops or 0.0 for floor in known)
        assert total == pytest.approx(flops[model], rel=2e-3), backend
        pointwise = re.compile(r"triton_(?:poi|red|per)|elementwise_kernel|layer_norm|__myl_|Memset|nchwTo")
        assert not [floor.name for floor in known if floor.kernels == 1 and pointwise.match(floor.name) and floor.flops]


def test_by_module_all_that_one_module_launched_is_its_own() -> None:
    (profile,) = load_profiles([EXAMPLES / "kernels/vit_b_16/pytorch-fp16-b32-cuda"]).profiles
    of = roofline(profile, by="module")
    assert isinstance(of, Roofline)
    (attention,) = rows(of, f"{LAYER}.self_attention")
    assert attention.flops == 2 * TOKENS * WIDTH * 4 * WIDTH + 2 * 2 * 32 * 197 * 197 * WIDTH
    assert (len(of.rows), of.unplaced) == (5 + 12 * 7, ())
