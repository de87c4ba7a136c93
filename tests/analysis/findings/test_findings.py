"""The list of findings: its order, what it is of, what it says of evidence that is not there, and its page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

import inferlens
from inferlens.analysis.findings import RULES, evidence_of, findings, unseen
from inferlens.backends import BACKENDS
from inferlens.errors import InferlensError
from inferlens.record.layer_profile import Profile
from tests.analysis.findings.crafted import ON_GPU, kernel, launched, layer, layered, untouched, work
from tests.analysis.profile import samples
from tests.views.samples import case

PAGE = Path(__file__).parents[3] / "docs" / "findings.md"


def test_what_wins_most_comes_first_and_doubts_of_the_profile_before_all() -> None:
    of = layered(
        layer("conv", 6.0, "Conv2d"), layer("bn", 1.0, "BatchNorm2d"), layer("relu", 2.0, "ReLU"),
        layer("permute", 0.5, "Transpose"), msgspec.structs.replace(layer("lost", 3.0, "?"), modules=()),
    )  # fmt: skip
    named = [each.rule for each in findings(of, untouched(of, 4.0))]
    assert named == ["doubtful-profile", "unfused-chains", "batch-norm-not-folded", "reformats", "not-attributed"]
    assert named[1:] == [each.rule for each in findings(of)]


def test_levels_of_one_case_are_looked_at_together() -> None:
    layers, kernels = layered(layer("conv", 1.0), of=ON_GPU), launched(kernel("add", 2.0, 200))
    found = findings((layers, kernels), untouched(layers, 2.0))
    assert {each.rule for each in found} >= {"host-bound", "tiny-kernels"}
    with pytest.raises(InferlensError, match="one case"):
        findings((layers, layered(layer("conv", 1.0))))
    with pytest.raises(InferlensError, match="one case"):
        findings(())


def test_what_could_not_be_looked_at_is_said() -> None:
    of = layered(layer("conv", 1.0), of=ON_GPU)
    words = [each.partition(" (")[0] for each in unseen(evidence_of(of))]
    assert words == ["kernels", "floors", "untouched calls"]
    on_cpu = layered(layer("conv", 1.0), work=work(conv=1.0))
    assert [each.partition(" (")[0] for each in unseen(evidence_of(on_cpu, untouched(on_cpu, 1.0)))] == ["floors"]


@pytest.mark.parametrize("of", [samples.eager(), samples.fused(), samples.other(), samples.nasty()])
def test_every_claim_stands_on_numbers(of: Profile) -> None:
    for each in findings(of, samples.unprofiled(of, 6e-3)):
        assert each.evidence
        assert each.sentence.endswith((".", ")"))
        assert each.advice.endswith(".")
        assert each.seconds is None or 0 <= each.seconds <= (each.whole or 0)
        assert len(each.sentence) < 700


def test_profiles_without_anything_have_no_findings() -> None:
    assert findings(samples.failed(case())) == []
    assert findings(samples.profile(case(), [])) == []
    broken = samples.eager()
    assert broken.layers
    less = msgspec.structs.replace(broken.layers, whole=broken.layers.whole[:-1])
    assert findings(msgspec.structs.replace(broken, layers=less)) == []


def test_from_python() -> None:
    of = layered(layer("conv", 8.0), layer("bn", 2.0, "BatchNorm2d"))
    assert [each.rule for each in inferlens.findings(of)] == ["batch-norm-not-folded"]


# The page and the code


def test_the_page_has_every_rule_as_the_code_has_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^### `([\w-]+)`\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    assert [name for name, _ in sections] == [rule.name for rule in RULES]
    for rule, (_, body) in zip(RULES, sections, strict=True):
        written = {
            key: " ".join(said.split())
            for key, said in re.findall(r"^- (Needs|Speaks|Why|Silent|Try): (.+?)(?=^- |\Z)", body, re.M | re.S)
        }
        assert written.pop("Why"), rule.name
        assert written == {
            "Needs": f"{rule.needs}.",
            "Speaks": f"when {rule.speaks}.",
            "Silent": f"{rule.silent}.",
            "Try": rule.advice,
        }, rule.name


def test_every_rule_of_the_package_is_in_the_list() -> None:
    folder = Path(inferlens.__file__).parent / "insight" / "findings"
    made = [
        node.name
        for path in sorted(folder.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Call) and ast.unparse(each.func) == "rule" for each in node.decorator_list)
    ]
    assert sorted(made) == sorted(rule.name.replace("-", "_") for rule in RULES)


def test_what_findings_say_to_try_is_there_to_be_tried() -> None:
    """Every option that is set in a sentence, and every backend with a variant; ``test_cures`` has those asked for."""
    package = Path(inferlens.__file__).parent
    said = " ".join(
        node.value
        for path in (package / "cures.py", *sorted((package / "insight" / "findings").glob("*.py")))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    options = set(re.findall(r"\b(\w+)\.(\w+)=\w+", said))
    assert ("torchscript", "freeze") in options
    assert not re.search(r"\bBACKEND\.", said), "the backend's own name is known"
    for backend, option in options:
        assert option in BACKENDS.get(backend).options.__struct_fields__, f"{backend}.{option}"
    variants = re.findall(r"(torch_\w+|tensorrt|onnxruntime):([a-z-]+)", said)
    assert ("torch_compile", "reduce-overhead") in variants
    for backend, variant in variants:
        assert variant in BACKENDS.get(backend).variants, f"{backend}:{variant}"


def test_every_rule_has_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*_rules.py"))
    for rule in RULES:
        assert f'the("{rule.name}"' in tests or f'"{rule.name}", of' in tests, rule.name
        assert re.search(rf'not of_rule\(\s*"{rule.name}"', tests), f"{rule.name} is never silent"
