"""The answer of each comparison: a winner with those that may be as fast, or the likeliest."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
import typer
from msgspec.structs import replace

from inferlens.cli.commands import app
from inferlens.record.machine import Marks
from inferlens.record.record import IN_TURNS, Environment, ModelFacts, Record
from inferlens.spec.case import Budget, TensorSpec
from inferlens.spec.plan import words_of
from inferlens.views.answer import answers
from inferlens.views.records import document
from inferlens.views.rows import rows
from inferlens.views.table import Screen, render

from .samples import WRONG, case, failure, on_busy_machine, record, shown


def rounds(count: int, of: dict[str, float], spread: float = 0.004, seed: int = 1, batch: int = 1, **fields):
    """Records of a race: each case once by itself, then in rounds; processes differ by ``spread``, rounds by 5 %."""
    generator = np.random.default_rng(seed)
    found = []
    for turn in range(count + 1):
        wave = generator.normal(0, 0.05)
        for place, (backend, seconds) in enumerate(of.items()):
            median = seconds * float(np.exp(wave + generator.normal(0, spread)))
            samples = tuple(median * (1 + 1e-4 * (step % 7 - 3)) for step in range(60))
            created = f"2026-05-04T10:{turn:02d}:{place:02d}Z"
            name = f"{backend}-{batch}-{turn}"
            of_it = case(backend, batch=batch)
            found.append(record(of_it, samples=samples, repeat=turn, created=created, id=name, **fields))
    return found


def open_race(**fields):
    """Records of two ways whose processes differ so much that three rounds decide nothing."""
    return rounds(3, {"pytorch": 16.4e-3, "openvino": 16e-3}, spread=0.08, **fields)


def told(*records, reference=None):
    return [str(answer) for answer in answers(rows(records, reference))]


def test_a_winner_is_told_with_its_interval_against_the_reference_and_the_next():
    (answer,) = answers(rows(rounds(6, {"pytorch": 25e-3, "openvino": 16e-3, "onnxruntime": 17.3e-3})))
    assert (answer.head, answer.who.split()[0], answer.decide) == ("FASTEST", "openvino", "")
    assert answer.than.startswith("1.5")
    assert "x onnxruntime (1.0" in answer.rival


def test_that_nothing_is_known_of_the_speed_is_not_called_wrong():
    marks = Marks(count=9, discarded=tuple(range(9)))
    assert told(record(samples=(0.01,) * 9, marks=marks)) == ["NONE  No way has samples that can be used."]
    assert told(record(samples=(0.01,) * 9, agreement=WRONG))[0].startswith("NONE  No way ran with right outputs.")
    repeats = [record(case(), run="a"), failure(case(), run="a", repeat=1)]
    assert told(*repeats) == ["NONE  No way ran in each of its processes."]


def test_equals_are_told_together():
    found = rows(rounds(16, {"pytorch": 25e-3, "openvino": 16e-3, "onnxruntime": 16.01e-3}, spread=0.002))
    (answer,) = answers(found)
    assert (answer.head, answer.who, answer.rival) == ("FASTEST", "openvino  15.9 ms", "as fast: onnxruntime 15.9 ms")
    assert {row.backend for row in found if row.fastest} == {"openvino", "onnxruntime"}


@pytest.mark.parametrize(("tail", "said"), [(3.0, True), (1.05, False)])
def test_another_way_with_a_shorter_p95_is_named(tail, said):
    """One call in ten of the fastest takes longer."""
    fast = tuple(10e-3 * (tail if place % 10 == 0 else 1.0) * (1 + 1e-3 * (place % 7)) for place in range(400))
    even = tuple(12e-3 * (1 + 1e-3 * (place % 7)) for place in range(400))
    screen = render(document([record(case("pytorch"), samples=fast), record(case("openvino:cpu"), samples=even)]))
    assert ("Shortest p95: openvino:cpu, 12.1 ms (pytorch 30.1 ms)." in screen) is said


def test_what_was_calibrated_with_noise_says_so_among_equals():
    noise = {"openvino": {"precision": "int8", "calibration": "random"}}
    race = rounds(16, {"pytorch": 25e-3, "openvino": 16e-3, "onnxruntime": 16.01e-3}, spread=0.002)
    made = [
        replace(item, case=replace(item.case, **noise[item.case.backend]), facts={"quantized_share": 1.0})
        if item.case.backend in noise
        else item
        for item in race
    ]
    (answer,) = answers(rows(made))
    assert answer.head == "FASTEST"
    assert f"{answer.who} {answer.rival}".count("accuracy meaningless") == 1


def test_the_likeliest_is_told_with_its_probability_and_what_decides_it():
    (answer,) = answers(rows(open_race()))
    assert answer.head == "LIKELY FASTEST"
    assert answer.rival == "94 % sure: pytorch 16.6 ms may be faster"
    assert answer.decide.startswith("inferlens ab resnet18 openvino pytorch")


def test_two_rounds_are_enough_for_a_verdict():
    race = [record for record in rounds(2, {"pytorch": 32e-3, "openvino": 16e-3}) if record.repeat]
    (answer,) = told(*[replace(item, repeats=2) for item in race])
    assert answer.startswith("FASTEST  openvino")


def test_all_that_may_be_faster_are_named():
    race = rounds(4, {"pytorch": 16.02e-3, "openvino": 16e-3, "onnxruntime": 16.01e-3}, spread=0.03, seed=2)
    (answer,) = answers(rows(race))
    assert re.fullmatch(r"8\d % sure: onnxruntime 16.4 ms and openvino 16.6 ms may be faster", answer.rival)
    assert "To decide between the first two: inferlens ab resnet18 " in answer.lines[1]


def test_of_several_batch_sizes_each_answer_is_a_line_with_the_reference_and_what_is_open_has_its_command():
    of = {"pytorch": 30e-3, "openvino": 16e-3, "onnxruntime": 16.2e-3}
    text = shown([*rounds(3, of, spread=0.08), *rounds(3, of, spread=0.08, seed=3, batch=32)])
    said = [line for line in text.splitlines() if line.startswith("batch ")]
    assert len(said) == 2
    assert all("x pytorch" in line and len(line) <= 100 for line in said)
    assert "To decide batch " in text
    assert "inferlens ab resnet18 " in text


def test_a_reference_of_few_samples_is_marked_in_the_headline():
    made = [record(case(), samples=(0.4,) * 3), record(case("openvino"), samples=(0.001,) * 100)]
    (answer,) = answers(rows(made))
    assert "400x pytorch (few samples)" in str(answer)


def test_one_command_decides_all_that_is_open():
    once = [record(case(name, batch=batch), median=median) for name, median in (("pytorch", 20e-3), ("openvino", 19e-3))
            for batch in (1, 32)]  # fmt: skip
    text = " ".join(shown(once).replace("\\\n", "").split())
    command = "inferlens bench resnet18 --backend openvino,pytorch --precision fp32 --batch 1,32 --thorough"
    assert f"To decide all 2: {command}" in text
    short = document(once).fitted(Screen(lines=4, width=100))
    assert any("1 table: inferlens show RESULTS --top " in str(block) for block in short)


def test_marks_in_rows_are_explained_beneath_in_two_lines_at_most():
    noise = case("openvino", precision="int8", calibration="random")
    made = [record(case(), samples=(0.02,) * 100), record(noise, samples=(0.01,) * 100)]
    made[1] = replace(made[1], facts={"quantized_share": 1.0})
    text = shown(made)
    row = next(line for line in text.splitlines() if line.startswith(" 1 "))
    assert "accuracy meaningless" in row
    assert "accuracy meaningless: Calibrated with noise" in text
    assert "Give real data to --calibration." in text


def test_a_busy_machine_is_told_once_beneath_a_table_and_not_in_its_rows():
    race = [on_busy_machine(item) for item in rounds(4, {"pytorch": 20e-3, "openvino": 16e-3})]
    text = shown(race)
    assert "FASTEST  openvino" in text
    assert text.count("Other programs used 1.0 of 2 CPUs. This is the answer for the machine as busy as it was.") == 1
    assert "disturbed" not in text
    data = json.loads(shown(race, "json"))
    assert data["machine_load"] == {"busy": True, "other_cpus": 1.0, "cpus": 2, "gpu_share": None, "steal": 0.0}


def test_the_name_of_a_row_says_that_it_is_quantized_in_part():
    made = record(case("openvino", precision="int8"), samples=(0.01, 0.02) * 100, facts={"quantized_share": 0})
    (row,) = rows([made])
    assert row.name == "openvino int8 (partly)"
    assert "openvino (partly)" in shown([made, record(case("openvino"), samples=(0.01, 0.02) * 100)])


def test_the_command_that_decides_has_all_words_of_the_plan() -> None:
    spec = TensorSpec.parse("ids=1..4x128:int64:0..30522:opt=2x128")
    fields = {"inputs": (spec, TensorSpec("mask", (1, 128), "int64")), "weights": "my weights.pth", "seed": 3}
    cases = [case("pytorch", options={"channels_last": True}, **fields), case("openvino", threads=2, **fields)]
    budget = Budget(threshold=0.01, level=0.9, iterations=60, warmup=2, timeout=90.0)
    race = rounds(3, {"pytorch": 16.4e-3, "openvino": 16e-3}, spread=0.15, budget=budget)
    (answer,) = answers(rows([replace(item, case=cases[item.case.backend == "openvino"]) for item in race]))
    name, *said = shlex.split(answer.decide)[1:]
    command = typer.main.get_command(app).get_command(None, name)
    context = command.make_context(name, said)
    told = {key: value for key, value in context.params.items() if value not in (None, [], False, ())}
    sides = [told.pop(side) for side in "ab"]
    assert (told["weights"], told["seed"]) == ("my weights.pth", "3")
    assert {words_of(side, ["pytorch", "openvino"])["backend"] for side in sides} == {"pytorch", "openvino"}
    assert TensorSpec.parse_all(told["input"]) == (fields["inputs"],)
    assert (told["threshold"], told["level"]) == ("1%", "90%")
    assert (told["iterations"], told["warmup"], told["timeout"]) == ("60", "2", "90s")


def test_commands_of_a_run_elsewhere_keep_what_they_measure_there() -> None:
    race = open_race()
    text = render(document(race, where="other place/resnet18", into="other place"), "markdown").replace("\\", "")
    commands = [line for line in text.splitlines() if re.search("inferlens (ab|profile) ", line)]
    assert len(commands) == 2
    assert all("--output 'other place'" in line for line in commands)
    assert "inferlens show 'other place/resnet18' --plot chart.svg" in text
    assert "inferlens show one 'and two' --plot chart.svg" in render(
        document(race, where=["one", "and two"]), "markdown"
    )


def measured_once(seconds):
    return [record(case(), samples=(seconds,) * 100), record(case("openvino"), samples=(0.01,) * 100)]


def test_what_was_measured_once_says_so_unless_it_is_far_apart():
    answer, _ = answers(rows(measured_once(0.02)))[0].lines
    assert answer == (
        "LIKELY FASTEST  openvino  10.0 ms  2.00x pytorch, 91 % sure, measured once: pytorch 20.0 ms may be faster"
    )
    assert told(*measured_once(0.03)) == ["FASTEST  openvino  10.0 ms  3.00x pytorch"]


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([failure(case()), failure(case("openvino"))], "No way ran."),
        ([record(case(), agreement=WRONG)], "No way ran with right outputs."),
    ],
)
def test_where_none_ran_it_is_said(records, says):
    assert says in told(*records)[0]


def test_machines_and_batches_have_their_own_answers():
    elsewhere = record(case("openvino"), samples=(0.01,) * 100, environment=Environment(cpu="AMD EPYC 9654"))
    here = [record(case(batch=batch), samples=(0.02 * batch,) * 100) for batch in (1, 8)]
    assert [answer.where for answer in answers(rows([*here, elsewhere]))] == [
        "resnet18, Intel Xeon Platinum 8480C, batch 1", "resnet18, Intel Xeon Platinum 8480C, batch 8",
        "resnet18, AMD EPYC 9654, batch 1",
    ]  # fmt: skip


def test_of_several_batch_sizes_it_says_where_throughput_stops_growing():
    records = [
        record(case(batch=batch), median=0.01 * batch, rate=rate) for batch, rate in ((1, 90), (8, 50), (32, 12.6))
    ]
    slower = record(case(batch=32), median=0.32, rate=12)
    assert "Throughput hardly grows after batch 8: 400 items a second, 403 at batch 32." in shown(records)
    assert "Throughput stops growing at batch 8: 400 items a second." in shown([*records[:2], slower])


def test_of_several_sizes_it_says_by_how_much_the_time_grows() -> None:
    records = [sized(length, median) for length, median in ((32, 0.01), (64, 0.02), (256, 0.16))]
    assert [answer.where for answer in answers(rows(records))] == [f"sequence_length {size}" for size in (32, 64, 256)]
    said = "From sequence_length 32 to 256 (8.00x) the fastest takes 16.0x the time, most steeply from 64 to 256."
    assert said in shown(records, width=120)


def sized(length: int, median: float) -> Record:
    """A record of rows of token numbers, without names for its dimensions."""
    facts = ModelFacts(name="bert", inputs=(TensorSpec("ids", (1, length), "int64"),))
    inputs = () if length == 32 else facts.inputs  # the model's own length is one of them
    return record(case(inputs=inputs), samples=(median,) * 100, model=facts)


def test_answers_alone_say_the_precision_and_the_reference() -> None:
    models = [f"torchvision:resnet{number}" for number in range(30)]
    both = [(case(), 0.02), (case("openvino"), 0.01)]
    made = [
        record(replace(of, model=model), samples=(seconds,) * 100, id=f"{model} {of.backend}")
        for model in models
        for of, seconds in both
    ]
    assert "resnet0: likely fastest openvino fp32 10.0 ms, 2.00x pytorch fp32" in shown(made)


def test_all_rows_are_shown_where_they_fit_though_little_be_said_of_them() -> None:
    ways = {"pytorch": 0.02, "openvino": 0.019}
    made = [
        record(case(name, batch=batch), samples=(seconds * batch,) * 100, rate=50.0, id=f"{name} {batch}")
        for batch in (1, 8, 32)
        for name, seconds in ways.items()
    ]
    found = render(document(made, where="results/resnet18"))
    assert len(re.findall(r"^ *(?:\d )? *(?:pytorch|openvino) +(?:1|8|32) ", found, re.M)) == 6
    assert len(found.splitlines()) <= 24


def test_a_higher_terminal_shows_more_rows() -> None:
    made = [record(case(threads=count), samples=(0.01 * count,) * 100, id=f"{count}") for count in range(1, 31)]
    low, high = (render(document(made), lines=lines) for lines in (24, 60))
    assert len(low.splitlines()) <= 24
    assert "pytorch 29 threads" in high
    assert "more rows" in low
    assert "more rows" not in high


def test_rows_that_are_left_out_are_named_with_their_reasons() -> None:
    noise = replace(WRONG, reason="relative L2 error 0.52 is above 0.0001")
    made = [record(case(threads=count), samples=(0.01 * count,) * 100, id=f"{count}") for count in range(1, 4)]
    made += [record(case(precision="int8", threads=count), agreement=noise, id=f"8 {count}") for count in (1, 2, 3)]
    reason = "OpenVINO has no operator for this layer, and none that could be put together from the others here."
    made += [failure(case("openvino"), "unsupported", reason)]
    text = " ".join(render(document(made, top=3)).split())
    assert "int8: wrong in 3 of 3: relative L2 error 0.52 is above 0.0001." in text
    assert f"openvino: unsupported: {reason}" in text


def test_a_way_that_ran_alone_is_not_called_the_fastest() -> None:
    found = told(record(case(), samples=(0.02,) * 100), failure(case("openvino")))
    assert found[0].startswith("THE ONLY WAY THAT RAN RIGHT  pytorch  20.0 ms")


def test_where_only_the_first_of_each_batch_is_shown_it_says_so() -> None:
    every = [(batch, threads) for batch in (1, 8, 16, 32) for threads in range(1, 9)]
    made = [
        record(case(batch=batch, threads=threads), samples=(0.01 * batch / threads,) * 100, id=f"{batch} {threads}")
        for batch, threads in every
    ]
    assert "Only the first row of each comparison is shown. 28 more rows: --top 8" in render(document(made, top=1))


def test_rates_of_a_busy_machine_have_an_answer_and_stand_in_the_table():
    ways = {"pytorch": 50.0, "openvino": 80.0}
    first = [record(case(name), median=None, rate=rate) for name, rate in ways.items()]
    held = [
        replace(item, id=f"{item.id}-{turn}", repeat=turn, facts={IN_TURNS: "another"})
        for turn in range(1, 5)
        for item in first
    ]
    busy = [on_busy_machine(item) for item in [*first, *held]]
    every = [replace(item, marks=None, window_marks=item.marks) for item in busy]
    text = shown(every)
    assert "NONE" not in text
    assert "openvino" in text.splitlines()[2]
    assert re.search(r"1 openvino +8\d\.\d ", text), "the rate of the fastest third of windows"
