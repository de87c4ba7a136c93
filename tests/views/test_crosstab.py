"""Tables of two axes: what is compared with what, words where there is no time, and the sentences beneath."""

import re

import msgspec
import pytest

from inferlens.errors import InferlensError
from inferlens.record.record import Accuracy, Agreement, Environment, Gpu
from inferlens.views.chart import points_chart
from inferlens.views.crosstab import crosstab_document, crosstabs
from inferlens.views.picture import THEMES
from inferlens.views.records import records_document
from inferlens.views.renderers import render
from inferlens.views.rows import rows
from tests.analysis.comparison_sides import ran, saved
from tests.commands import inferlens
from tests.views.samples import RIGHT, WRONG, case, failure, record

LOSSY = Agreement(reference="pytorch fp32", rel_l2=0.02, tolerance=0.1, agrees=True)
OF = {"fp32": RIGHT, "int8": LOSSY}
CARD = Environment(cpu="AMD EPYC 9654", cpu_threads=16, gpus=(Gpu(name="NVIDIA H200"),))


def quantized():
    """Two runtimes in two precisions, a third one that is wrong in int8, and a fourth that cannot quantize."""
    speeds = {("pytorch", "fp32"): 20, ("pytorch", "int8"): 16, ("openvino", "fp32"): 15, ("openvino", "int8"): 5}
    records = []
    for (name, precision), seconds in speeds.items():
        records += ran(case(name, precision=precision), seconds * 1e-3, agreement=OF[precision])
    records += ran(case("torch_compile:default"), 30e-3) + ran(case("torchscript:trace"), 25e-3)
    records += ran(case("torch_compile:default", precision="int8"), 4.44e-3, agreement=WRONG)
    return [*records, failure(case("torchscript:trace", precision="int8"), "unsupported")]


def lines_of(records, axis, **how):
    (table,) = crosstabs(records, axis, **how)
    return {line.name: line.cells for line in table.lines}


def shown(records, axis, format="table", **how) -> str:
    return render(crosstab_document(records, axis), format, **how)


def test_few_samples_are_marked_and_the_table_is_named_where_precisions_raced():
    few = [record(case(precision=precision), samples=(0.02,) * 3, agreement=OF[precision]) for precision in OF]
    assert re.search(r"^pytorch .*  few samples *$", shown(few, "precision"), re.M)
    assert "few samples: There are 3 samples only." in shown(few, "precision")
    assert "inferlens show here --by precision" in render(records_document(few, where="here"))


def test_each_way_is_compared_with_its_first_precision_and_the_interval_is_known():
    found = lines_of(quantized(), "precision")
    cell = found["openvino"]["int8"]
    assert (cell.speedup, cell.row.error) == (pytest.approx(3.0), 0.02)
    assert 2.9 < cell.low <= cell.high < 3.1
    assert found["pytorch"]["int8"].speedup == pytest.approx(1.25)
    assert found["pytorch"]["fp32"].speedup is None
    assert next(iter(found)) == "openvino"  # the fastest first


def rated():
    """The same, evaluated on 100 samples: int8 misses five that fp32 hits."""
    for one in quantized():
        hits = (1.0,) * (95 if one.case.precision == "int8" else 100) + (0.0,) * (5 * (one.case.precision == "int8"))
        about = {"data": "a", "metric": "top-1", "count": 100, "reference": "pytorch fp32"}
        accuracy = Accuracy(**about, values=hits, reference_values=(1.0,) * 100)
        yield msgspec.structs.replace(one, accuracy=accuracy if one.status == "ok" else None)


def test_what_a_precision_costs_is_its_drop_in_accuracy_where_that_was_measured():
    text = shown(list(rated()), "precision")
    assert "drop" in text
    assert "error" not in text
    assert text.count("5.0 % ±") >= 2
    drawn = points_chart(rows(list(rated())), "accuracy", THEMES["light"])
    assert '"accuracy": 95.0' in str(drawn).replace("'", '"')


def test_what_is_wrong_or_did_not_run_is_a_word_and_has_no_speedup():
    found = lines_of(quantized(), "precision")
    assert [found[name]["int8"].word for name in ("torch_compile:default", "torchscript:trace")] == [
        "wrong", "unsupported",
    ]  # fmt: skip
    assert found["torch_compile:default"]["int8"].speedup is None
    text = shown(quantized(), "precision")
    assert "Why unsupported and wrong: inferlens show RESULTS --view notes" in text
    assert "4.44" not in text  # the time of what is wrong


def noisy(**words):
    own = ran(case(precision="int8", calibration="random", **words), 30e-3)
    return [msgspec.structs.replace(record, facts={"quantized_share": 1.0}) for record in own]


@pytest.mark.parametrize(("records", "said"), [
    ([*ran(case(), 20e-3), *noisy()], True),
    ([*ran(case(), 40e-3), *noisy()], False),  # the answer says it
    ([*ran(case(), 40e-3), *noisy(), *ran(case(batch=8), 40e-3), *noisy(batch=8)], True),  # there are two answers
])  # fmt: skip
def test_noise_is_said_where_the_answer_does_not_say_it(records, said):
    text = shown(records, "precision")
    assert ("Calibrated with noise, accuracy meaningless: int8." in text) == said
    assert said or "accuracy meaningless" in text.splitlines()[2]


def test_two_sentences_tell_the_precision_from_the_runtime():
    (table,) = crosstabs(quantized(), "precision")
    of_precision, of_runtime = (re.sub(r" ±0.0\d", "", sentence) for sentence in table.sentences)
    assert of_precision.startswith("int8 against fp32: 3.00x")
    assert of_precision.endswith("1.25x in pytorch, wrong in torch_compile:default.")
    assert of_runtime.startswith("openvino against pytorch: 1.33x")
    assert "3.20x" in of_runtime


def test_of_batch_sizes_the_time_of_one_item_counts():
    records = [*ran(case(batch=1), 10e-3), *ran(case(batch=8), 20e-3)]
    assert lines_of(records, "batch")["pytorch"][8].speedup == pytest.approx(4.0)
    assert "batch 8 against batch 1, for one item: 4.00x ±0.01 in pytorch" in shown(records, "batch")
    slower = shown([*ran(case(batch=1), 10e-3), *ran(case(batch=8), 101.6e-3)], "batch")
    assert "batch 8 against batch 1, for one item: 1.27x ±" in slower
    assert slower.count(" slower") == 2


def test_environments_stand_beside_each_other_by_their_short_names():
    cases = [case("openvino", python=f"/envs/{name}/bin/python") for name in ("old", "new")]
    records = [record for item, seconds in zip(cases, (10e-3, 20e-3), strict=True) for record in ran(item, seconds)]
    (table,) = crosstabs(records, "python")
    ((cells),) = (line.cells for line in table.lines)
    assert [*table.names.values()] == ["old", "new"]
    assert cells[cases[1].python].speedup == pytest.approx(0.5)


def test_machines_are_never_compared_and_of_several_models_the_fastest_right_way_is_shown():
    there = {"environment": CARD}
    records = []
    for model, factor in (("torchvision:resnet18", 1), ("torchvision:resnet50", 3)):
        of = {"model": model}
        records += ran(case(**of), 20e-3 * factor) + ran(case("openvino", **of), 10e-3 * factor)
        records += ran(case(**of), 8e-3 * factor, **there)
        records += ran(case(device="cuda", **of), 1e-3 * factor, agreement=WRONG, **there)
        records += ran(case("tensorrt", device="cuda", **of), 2e-3 * factor, **there)
    found = lines_of(records, "machine")
    assert list(found) == ["resnet18", "resnet50"]
    here, other = found["resnet50"].values()
    assert [(cell.row.backend, round(cell.speedup, 3)) for cell in (here, other)] == [
        ("openvino", 2.0), ("tensorrt", 4.0),
    ]  # fmt: skip
    alone = [record for record in records if record.case.model == "torchvision:resnet18"]
    assert list(lines_of(alone, "machine")) == ["resnet18"]
    text = shown(records, "machine")
    assert "NVIDIA H200" in " ".join(text.split())
    assert " against " not in text


def test_a_file_and_the_same_quantized_stand_in_one_line():
    quantized = case("openvino", model="onnx:a.int8.onnx", precision="int8")
    records = [*ran(case("openvino", model="onnx:a.onnx"), 9e-3), *ran(quantized, 3e-3)]
    text = shown(records, "model")
    assert "a.int8.onnx against a.onnx: 3.00x" in text
    assert "compared with its own reference" in " ".join(text.split())


def test_two_models_are_shown_beside_each_other_and_not_compared():
    records = [*ran(case(model="torchvision:alexnet"), 9e-3), *ran(case(model="torchvision:resnet18"), 3e-3)]
    text = shown(records, "model")
    assert "9.00" in text
    assert "vs alexnet" not in text
    assert "against" not in text


def test_every_format_has_the_cells():
    assert "| openvino | 15.0 | 5.00 |" in shown(quantized(), "precision", "markdown").replace("**", "")
    assert "<table" in shown(quantized(), "precision", "html")


def test_the_command_says_what_may_be_asked_for(tmp_path):
    saved(tmp_path / "results", quantized())
    done = inferlens("show", "results", "--by", "precision", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("resnet18 ")
    assert max(map(len, done.stdout.splitlines())) <= 100
    for words, item in (
        (("--by", "batch"), "something that differs: precision and backend"),
        (("--by", "colour"), "There is no axis 'colour'"),
        (("--by", "precision", "--runs", "all"), "--by without --runs all"),
    ):
        refused = inferlens("show", "results", *words, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert item in " ".join(refused.stderr.split())


def test_many_models_fit_on_a_screen():
    records = []
    for number in range(40):
        for precision in ("fp32", "int8"):
            records += ran(case(model=f"timm:model{number}", precision=precision), 1e-3, processes=1)
    text = shown(records, "precision")
    assert len(text.splitlines()) <= 24
    assert "more rows" in text
    with pytest.raises(InferlensError, match="nothing to show by threads"):
        crosstabs(records, "threads")
