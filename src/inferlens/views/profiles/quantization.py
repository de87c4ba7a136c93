"""The result of quantizing a model to a file: its error against fp32, the error per layer, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from inferlens import units
from inferlens.record.builds import Quantization, QuantizedFile, quantization_name
from inferlens.spec.case import bare, kept_layers
from inferlens.spec.plan import bench_words, command
from inferlens.views.table import Column, Document, Line, Screen, Table, share

NAMED = 2  # layers in a sentence
LEAST = 3  # layers in the table on a screen


FIELDS = ("layer", "operators", "multiply-adds", "error")  # of CSV
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
    shown = len(quantization.layers) if layers else 0

    def blocks(rows: int, outputs: int | None = None, *, brief: bool = False) -> Sequence[Table | str]:
        return [
            _attempts_table(quantization, name, outputs),
            *([_layers(quantization, rows)] if rows else []),
            *_next_steps(quantization, name, device, brief=brief),
        ]

    def tries(screen: Screen) -> Iterable[Sequence[Table | str]]:
        """Reduce layers, then outputs, then drop the long command."""
        lines, most = screen.lines, len(quantization.best.outputs)
        few = range(min(shown, lines), min(shown, LEAST) - 1, -1)
        fewer = [*((rows, None) for rows in few), *((few[-1], outputs) for outputs in range(min(most, lines), 0, -1))]
        return (blocks(*item, brief=brief) for brief in (False, True) for item in fewer)

    return Document(
        lambda: blocks(shown),
        tries=tries,
        data=lambda: quantization,
        rows=lambda: (
            dict(zip(FIELDS, (layer.name, " ".join(layer.kinds), layer.share, layer.error), strict=True))
            for layer in quantization.layers
        ),
        fields=FIELDS,
        title=f"{name} in {quantization.case.precision}",
    )


def _attempts_table(quantization: Quantization, name: str, most: int | None) -> Table:
    """Return fp32, full quantization and the best attempt, one row per output or for the worst ``most``."""
    precision, best = quantization.case.precision, quantization.best
    titles = (f"in {precision}", "error", "cosine", "class kept", best.metric, "drop" if best.metric else "", "size")
    columns = [Column("", title, keep=int(title == "class kept")) for title in titles]
    size = units.byte_count(quantization.size_before)
    lines = [Line("fp32", (units.percent(0), "", "", "", _accuracy(best, best.reference_accuracy), "", size))]
    attempts = [quantization.attempts[0], best] if best != quantization.attempts[0] else [best]
    for attempt in attempts:
        number = len(kept_layers(replace(quantization.case, keep=attempt.keep)))
        label = f"{precision}, {units.plural(number, 'layer')} kept" if number else precision
        size = units.byte_count(quantization.size) if attempt == best and quantization.path else ""
        outputs = sorted(enumerate(attempt.outputs), key=lambda pair: -pair[1].rel_l2)[:most]
        for row, (place, output_error) in enumerate(sorted(outputs, key=lambda pair: pair[0])):
            top1 = "" if attempt.top1 is None else units.percent(attempt.top1)
            worth = (top1, _accuracy(attempt, attempt.accuracy), _drop(attempt))
            first = (share(attempt.share), *worth, size) if row == 0 else ("",) * 5
            cosine = units.ABSENT if output_error.cosine is None else f"{output_error.cosine:.5f}"
            cells = (first[0], units.error_size(output_error.rel_l2), cosine, *first[1:])
            lines.append(Line(label if len(attempt.outputs) == 1 else f"{label}, output {place}", cells))
    noise = quantization.case.calibration == "random"
    data = "noise: accuracy meaningless" if noise else quantization.case.calibration
    where = f"{units.plural(quantization.samples, 'sample')} of {data}"
    if most is not None and most < len(best.outputs):
        where += f" (the worst of {len(best.outputs)} outputs; --format json has all)"
    return Table(f"{name} by {quantization.case.backend_label}, against fp32 on {where}", "precision", columns, lines)


def _accuracy(attempt: QuantizedFile, value: float | None) -> str:
    return "" if value is None else units.score(value, share=attempt.accuracy_share)


def _drop(attempt: QuantizedFile) -> str:
    low, high = attempt.accuracy_drop_low, attempt.accuracy_drop_high
    return "" if attempt.accuracy_drop is None else units.drop(attempt.accuracy_drop, low, high)


def _layers(quantization: Quantization, rows: int) -> Table:
    lines = [Line.from_row(layer.name, LAYERS, layer) for layer in quantization.layers[:rows]]
    count = len(quantization.layers)
    more = f" ({len(lines)} of {count}; --format json has all)" if len(lines) < count else ""
    return Table(f"Error of the outputs where a layer alone is quantized{more}", "layer", LAYERS, lines)


def _next_steps(quantization: Quantization, name: str, device: str, *, brief: bool) -> list[str]:
    """Return the result of a limit, the file, and commands to go on; ``brief`` omits the kept layers."""
    best, case = quantization.best, replace(quantization.case, keep=quantization.best.keep)
    sentences = []
    if quantization.limit:
        sentences.append(_limit(quantization, best, brief=brief))
    words = bench_words(replace(case, model=name), device, [f"--precision fp32,{case.precision}"])
    if quantization.not_run:
        sentences.append(
            f"Not run by {case.backend_label}, as {quantization.not_run.rstrip('.')}: {quantization.run_by} ran it."
        )
    if quantization.path:
        where = f" where {case.backend} runs" if quantization.not_run else ""
        run = shlex.join(["inferlens", "bench", quantization.path, "-b", case.backend])
        sentences.append(f"Wrote {quantization.path} in {units.duration(quantization.seconds)}. Run it{where}: {run}")
    if quantization.path and not brief:
        sentences.append(f"Is it faster? {command('bench', words)}")
    return sentences


def _limit(quantization: Quantization, best: QuantizedFile, *, brief: bool) -> str:
    layers = list(kept_layers(replace(quantization.case, keep=best.keep)))
    named = layers[:NAMED]
    shown = units.listing([*named, *([f"{len(layers) - len(named)} more"] if len(layers) > len(named) else [])])
    attempts = units.plural(len(quantization.attempts), "attempt")
    if not quantization.path:
        value = _drop(best) if "accuracy" in quantization.limit else units.error_size(best.error)
        return (
            f"{quantization.limit} cannot be reached: the nearest of {attempts} has {value}, with "
            f"{units.plural(len(layers), 'layer')} kept. Nothing was written."
        )
    if not layers:
        return f"{quantization.limit} holds with all layers quantized."
    if brief:
        number = units.plural(len(layers), "layer")
        name = quantization_name(quantization)
        return f"The --keep of {number} for {quantization.limit} ({attempts}): best.keep in {name}."
    return f"Layers kept for {quantization.limit}, found in {attempts}: {shown}."
