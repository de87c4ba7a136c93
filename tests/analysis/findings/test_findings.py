"""The list of findings: its order, what it is of, what it says of absent evidence, its rules and its page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

import inferlens
from inferlens.analysis.findings import evidence_of, findings, rule, rules_of, unseen
from inferlens.analysis.findings.rule import found
from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Profile
from tests.analysis.findings.crafted import ON_GPU, kernel, launched, layer, layered, untouched, work
from tests.analysis.findings.test_rules import SILENT, SPEAKS
from tests.analysis.profile import samples
from tests.views.samples import case

PAGE = Path(__file__).parents[3] / "docs" / "findings.md"
PACKAGE = Path(inferlens.__file__).parent / "analysis" / "findings"


def test_what_wins_most_comes_first_and_doubts_of_the_profile_before_all() -> None:
    of = layered(
        layer("conv", 6.0, "Conv2d"), layer("bn", 1.0, "BatchNorm2d"), layer("relu", 2.0, "ReLU"),
        layer("permute", 0.5, "Transpose"), msgspec.structs.replace(layer("lost", 3.0, "?"), modules=()),
    )  # fmt: skip
    named = [each.code for each in findings(of, untouched(of, 4.0))]
    assert named == ["doubtful-profile", "unfused-chains", "batch-norm-not-folded", "reformats", "not-attributed"]
    assert named[1:] == [each.code for each in inferlens.findings(of)]


def test_levels_of_one_case_are_looked_at_together() -> None:
    layers, kernels = layered(layer("conv", 1.0), of=ON_GPU), launched(kernel("add", 2.0, 200))
    assert {each.code for each in findings((layers, kernels), untouched(layers, 2.0))} >= {"host-bound", "tiny-kernels"}
    for several in ((layers, layered(layer("conv", 1.0))), ()):
        with pytest.raises(InferlensError, match="one case"):
            findings(several)


def test_what_could_not_be_looked_at_is_said() -> None:
    of = layered(layer("conv", 1.0), of=ON_GPU)
    words = [each.partition(" (")[0] for each in unseen(evidence_of(of))]
    assert words == ["kernels", "floors", "unprofiled calls"]
    on_cpu = layered(layer("conv", 1.0), work=work(conv=1.0))
    assert [each.partition(" (")[0] for each in unseen(evidence_of(on_cpu, untouched(on_cpu, 1.0)))] == ["floors"]


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
    less = msgspec.structs.replace(broken.layers, whole=broken.layers.whole[:-1])
    for of in (samples.failed(case()), samples.profile(case(), []), msgspec.structs.replace(broken, layers=less)):
        assert findings(of) == []


# Templates and rules


def test_a_template_is_filled_from_numbers_and_names_are_only_text() -> None:
    made = found(
        "{layers:#layer} {layers:is|are} {times:two} as long: {run}, {bytes:bytes}, {name}.",
        {"layers": 2, "seconds": 2e-3, "bytes": 2**20}, share=0.25, times=1.234, name="{0} {seconds}",
    )  # fmt: skip
    assert made.sentence == "2 layers are 1.2 as long: 25 % of a profiled run (2.00 ms), 1.00 MiB, {0} {seconds}."
    assert made.numbers == {"layers": 2, "seconds": 2e-3, "bytes": 2**20}


def test_rules_are_found_by_themselves() -> None:
    made = [
        node.name
        for path in sorted((PACKAGE / "rules").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Call) and ast.unparse(each.func) == "rule" for each in node.decorator_list)
    ]
    every = [each for sort in ("record", "profile", "trace") for each in rules_of(sort)]
    assert len(made) == len(every)
    assert [len(rules_of(sort)) for sort in ("record", "profile", "trace")] == [11, 23, 10]
    added = rule("mine", of="profile", hint="This.")(lambda _: [found("There is one.")])
    assert [(each.code, each.hint) for each in added(None)] == [("mine", "This.")]


def test_the_page_and_the_tests_have_every_rule() -> None:
    codes = {each.code for each in rules_of("profile")}
    assert set(re.findall(r"^### `([\w-]+)`$", PAGE.read_text(encoding="utf-8"), re.M)) == codes
    assert {each[0] for each in SPEAKS} == {each[0] for each in SILENT} == codes
    traced = {each.code for each in rules_of("trace")}
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)) == traced


def test_no_rule_has_a_name_of_a_backend() -> None:
    names = re.compile(rf"\b({'|'.join(map(re.escape, BACKENDS.names()))})\b")
    for path in PACKAGE.rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert not [text for text in texts if isinstance(text, str) and names.search(text)], path
