"""The result of quantizing a model to a file: its error against fp32, the error per layer, and the next commands."""

from __future__ import annotations

import shlex

from msgspec.structs import replace

from inferlens import units
from inferlens.record.builds import Quantization, QuantizedFile, quantization_name
from inferlens.spec.case import bare, kept_layers
from inferlens.spec.plan import bench_words, command
from inferlens.views.table import Column, Document, Line, Table, share

NAMED = 2  # layers in a sentence
MOST_LAYERS = 10  # in the table for people, those with the largest errors
FIELDS = ("layer", "operators", "multiply-adds", "error")  # fields of CSV
LAYERS = (
    Column("kinds", "operators", write=lambda kinds: ", ".join(kinds), numeric=False, keep=2),
    Column("share", "multiply-adds", write=share, keep=1),
    Column("error", "own error", write=units.error_size),
)


def quantization_document(
    quantization: Quantization, name: str = "", device: str = "", *, layers: bool = True
) -> Document:
    """Return the document of a quantization.

    ``name`` is the model's, ``device`` the default device; ``layers`` shows the error per layer.
    """
    name, device = name or bare(quantization.case.model), device or quantization.case.device

    def blocks(most: int = MOST_LAYERS) -> list[Table | str]:
        table = [_layers_table(quantization, most)] if layers and quantization.layers else []
        return [_attempts_table(quantization, name), *table, *_next_steps(quantization, name, device)]

    return Document(
        blocks,
        data=lambda: quantization,
        rows=lambda: (
            dict(zip(FIELDS, (layer.name, " ".join(layer.kinds), layer.share, layer.error), strict=True))
            for layer in quantization.layers
        ),
        fields=FIELDS,
        title=f"{name} in {quantization.case.precision}",
        tries=lambda _: map(blocks, range(MOST_LAYERS, 2, -1)),
    )


def _attempts_table(quantization: Quantization, name: str) -> Table:
    """Return fp32, full quantization and the best attempt, with the error of the worst output."""
    precision, best = quantization.case.precision, quantization.best
    columns = [
        *(Column(title, title) for title in (f"in {precision}", "error", "cosine")),
        Column("class kept", "class kept", keep=1),
        Column("accuracy", best.metric),
        *(Column(title, title) for title in ("drop", "size")),
    ]
    size = units.byte_count(quantization.size_before)
    lines = [Line("fp32", (units.percent(0), "", "", "", _accuracy(best, best.reference_accuracy), "", size))]
    attempts = [quantization.attempts[0], best] if best != quantization.attempts[0] else [best]
    for attempt in attempts:
        number = len(kept_layers(replace(quantization.case, keep=attempt.keep)))
        label = f"{precision}, {units.plural(number, 'layer')} kept" if number else precision
        size = units.byte_count(quantization.size) if attempt == best and quantization.path else ""
        worst = max(attempt.outputs, key=lambda output: output.rel_l2)
        top1 = "" if attempt.top1 is None else units.percent(attempt.top1)
        cosine = units.ABSENT if worst.cosine is None else f"{worst.cosine:.5f}"
        errors = (units.error_size(worst.rel_l2), cosine, top1, _accuracy(attempt, attempt.accuracy), _drop(attempt))
        lines.append(Line(label, (share(attempt.share), *errors, size)))
    noise = quantization.case.calibration == "random"
    data = "noise: accuracy meaningless" if noise else quantization.case.calibration
    where = f"{units.plural(quantization.samples, 'sample')} of {data}"
    if len(best.outputs) > 1:
        where += f" (the worst of {len(best.outputs)} outputs; --format json has all)"
    return Table(f"{name} by {quantization.case.backend_label}, against fp32 on {where}", "precision", columns, lines)


def _accuracy(attempt: QuantizedFile, value: float | None) -> str:
    return "" if value is None else units.score(value, share=attempt.accuracy_share)


def _drop(attempt: QuantizedFile) -> str:
    low, high = attempt.accuracy_drop_low, attempt.accuracy_drop_high
    return "" if attempt.accuracy_drop is None else units.drop(attempt.accuracy_drop, low, high)


def _layers_table(quantization: Quantization, most: int) -> Table:
    lines = [Line.from_row(layer.name, LAYERS, layer) for layer in quantization.layers[:most]]
    count = len(quantization.layers)
    more = f" ({len(lines)} of {count}; --format json has all)" if len(lines) < count else ""
    return Table(f"Error of the outputs where a layer alone is quantized{more}", "layer", LAYERS, lines)


def _next_steps(quantization: Quantization, name: str, device: str) -> list[str]:
    """Return the result of a limit, the file, and commands to go on."""
    best, case = quantization.best, replace(quantization.case, keep=quantization.best.keep)
    sentences = [_limit(quantization, best)] if quantization.limit else []
    words = bench_words(replace(case, model=name), device, [f"--precision fp32,{case.precision}"])
    if quantization.not_run:
        reason = quantization.not_run.rstrip(".")
        sentences.append(f"Not run by {case.backend_label}, as {reason}: {quantization.run_by} ran it.")
    if quantization.path:
        where = f" where {case.backend} runs" if quantization.not_run else ""
        run = shlex.join(["inferlens", "bench", quantization.path, "-b", case.backend])
        sentences.append(f"Wrote {quantization.path} in {units.duration(quantization.seconds)}. Run it{where}: {run}")
    if quantization.path and len(kept_layers(case)) <= NAMED:  # else the command is long
        sentences.append(f"Is it faster? {command('bench', words)}")
    return sentences


def _limit(quantization: Quantization, best: QuantizedFile) -> str:
    layers = list(kept_layers(replace(quantization.case, keep=best.keep)))
    more = [f"{len(layers) - NAMED} more"] if len(layers) > NAMED else []
    shown = units.listing([*layers[:NAMED], *more])
    attempts = units.plural(len(quantization.attempts), "attempt")
    if not quantization.path:
        value = _drop(best) if "accuracy" in quantization.limit else units.error_size(best.error)
        return (
            f"{quantization.limit} cannot be reached: the nearest of {attempts} has {value}, with "
            f"{units.plural(len(layers), 'layer')} kept. Nothing was written."
        )
    if not layers:
        return f"{quantization.limit} holds with all layers quantized."
    where = f" (best.keep in {quantization_name(quantization)})" if len(layers) > NAMED else ""
    return f"Layers kept for {quantization.limit}, found in {attempts}: {shown}{where}."
