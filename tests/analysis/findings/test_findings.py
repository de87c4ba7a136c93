"""The list of findings: its order, what it is of, what it says of absent evidence, its rules and its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import inferlens
from inferlens.analysis.findings import evidence_of, findings, unseen
from inferlens.analysis.findings.rule import found, rule, rules_of
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Profile
from tests.analysis.findings.crafted import ON_GPU, kernel, launched, layer, layered, unprofiled, work
from tests.analysis.findings.test_rules import SILENT, SPEAKS
from tests.analysis.profile import samples
from tests.views.samples import case

PAGE = Path(__file__).parents[3] / "docs" / "findings.md"
PACKAGE = Path(inferlens.__file__).parent / "analysis" / "findings"


def test_what_wins_most_comes_first_and_doubts_of_the_profile_before_all() -> None:
    of = layered(
        layer("conv", 6.0, "Conv2d"), layer("bn", 1.0, "BatchNorm2d"), layer("relu", 2.0, "ReLU"),
        layer("permute", 0.5, "Transpose"),
    )  # fmt: skip
    named = [each.code for each in findings(of, unprofiled(of, 4.0))]
    assert named == ["doubtful-profile", "unfused-chains", "batch-norm-not-folded", "reformats"]
    assert named[1:] == [each.code for each in inferlens.findings(of)]


def test_levels_of_one_case_are_looked_at_together() -> None:
    layers, kernels = layered(layer("conv", 1.0), of=ON_GPU), launched(kernel("add", 2.0, 200))
    codes = {each.code for each in findings((layers, kernels), unprofiled(layers, 2.0))}
    assert codes >= {"host-bound", "tiny-kernels"}
    for several in ((layers, layered(layer("conv", 1.0))), ()):
        with pytest.raises(InferlensError, match="one case"):
            findings(several)


def test_what_could_not_be_looked_at_is_said() -> None:
    of = layered(layer("conv", 1.0), of=ON_GPU)
    words = [each.partition(" (")[0] for each in unseen(evidence_of(of))]
    assert words == ["kernels", "floors", "unprofiled calls"]
    on_cpu = layered(layer("conv", 1.0), work=work(conv=1.0))
    assert [each.partition(" (")[0] for each in unseen(evidence_of(on_cpu, unprofiled(on_cpu, 1.0)))] == ["floors"]


@pytest.mark.parametrize("of", [samples.eager(), samples.fused(), samples.other(), samples.nasty()])
def test_every_claim_stands_on_numbers(of: Profile) -> None:
    for each in findings(of, samples.unprofiled(of, 6e-3)):
        assert each.numbers
        assert each.hint.endswith(".")
        assert each.seconds is None or 0 <= each.seconds <= (each.whole or 0)
        assert len(each.sentence) < 700


def test_profiles_without_anything_have_no_findings() -> None:
    broken = samples.eager()
    assert broken.layers
    less = replace(broken.layers, whole=broken.layers.whole[:-1])
    for of in (samples.failed(case()), samples.profile(case(), []), replace(broken, layers=less)):
        assert findings(of) == []


def test_a_template_is_filled_from_numbers_and_names_are_only_text() -> None:
    made = found(
        "{layers:#layer} {layers:is|are} {times:two} as long: {seconds:duration}, {bytes:bytes} {name}.",
        {"layers": 2, "seconds": 2e-3, "bytes": 2**20}, times=1.234, name="{0} {seconds}",
    )  # fmt: skip
    assert made.sentence == "2 layers are 1.2 as long: 2.00 ms, 1.00 MiB {0} {seconds}."
    assert made.numbers == {"layers": 2, "seconds": 2e-3, "bytes": 2**20}


def test_rules_are_found_by_themselves_and_are_in_the_page_and_the_tests() -> None:
    made = sum(path.read_text().count("\n@rule(") for path in (PACKAGE / "rules").glob("*.py"))
    every = {id(each): each for sort in ("record", "profile", "trace") for each in rules_of(sort)}
    assert made == len(every)
    added = rule("mine", of="profile", hint="This.")(lambda _: [found("There is one.")])
    assert [(each.code, each.hint) for each in added(None)] == [("mine", "This.")]
    page = PAGE.read_text(encoding="utf-8")
    codes = {each.code for each in rules_of("profile")}
    assert set(re.findall(r"^### `([\w-]+)`$", page, re.M)) == codes
    assert {each[0] for each in SPEAKS} == {each[0] for each in SILENT} == codes
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.M)) == {each.code for each in rules_of("trace")}
