"""What quantizing a model to a file gave: what it is worth beside fp32, what its layers lose, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec.structs import replace

from inferlens import units
from inferlens.record.quantization import Quantization, Written, name_of
from inferlens.spec.case import bare
from inferlens.spec.keep import kept
from inferlens.spec.plan import bench_words, command
from inferlens.views.renderers.terminal import fitting
from inferlens.views.table import Column, Document, Line, Screen, Table, share

NAMED = 2  # layers in a sentence
LEAST = 3  # layers in the table on a screen


def _exact(value: float | None) -> str:
    """A share close to one."""
    return "–" if value is None else f"{value:.5f}"


LAYERS = (
    Column("kinds", "operators", write=lambda kinds: ", ".join(kinds), numeric=False, keep=2),
    Column("share", "multiply-adds", write=share, keep=1),
    Column("error", "own error", write=units.error_size),
)


def document(found: Quantization, name: str = "", device: str = "", *, layers: bool = True) -> Document:
    """All of it; ``name`` is the model's as it was asked for, ``device`` what cases run on if nobody says.

    ``layers``: whether people are shown what each layer loses, if that is known.
    """
    name, device = name or bare(found.case.model), device or found.case.device
    shown = len(found.layers) if layers else 0

    def blocks(rows: int, outputs: int | None = None, *, brief: bool = False) -> Sequence[Table | str]:
        return [
            _compared(found, name, outputs),
            *([_layers(found, rows)] if rows else []),
            *_next(found, name, device, brief=brief),
        ]

    def fitted(screen: Screen) -> Sequence[Table | str]:
        """As much as fits: fewer layers, then the worst outputs alone, then no command as long as its layers."""
        lines, most = screen.lines, len(found.best.outputs)
        few = range(min(shown, lines), min(shown, LEAST) - 1, -1)
        fewer = [*((rows, None) for rows in few), *((few[-1], outputs) for outputs in range(min(most, lines), 0, -1))]
        tries = (blocks(*item, brief=brief) for brief in (False, True) for item in fewer)
        return fitting(tries, screen) or blocks(few[-1], 1, brief=True)

    return Document(
        lambda: blocks(shown),
        screen=fitted,
        data=lambda: found,
        csv=lambda: (
            ["layer", "operators", "multiply-adds", "error"],
            [[layer.name, " ".join(layer.kinds), layer.share, layer.error] for layer in found.layers],
        ),
        title=f"{name} in {found.case.precision}",
    )


def _compared(found: Quantization, name: str, most: int | None) -> Table:
    """fp32, all layers quantized, and what was written, a row for each output, or for so many of the worst."""
    precision, best = found.case.precision, found.best
    columns = (
        Column("", f"in {precision}"),
        Column("", "error"),
        Column("", "cosine"),
        Column("", "class kept", keep=1),
        Column("", best.metric),
        Column("", "drop" if best.metric else ""),
        Column("", "size"),
    )
    size = units.byte_count(found.size_before)
    lines = [Line("fp32", (units.percent(0), "", "", "", _accuracy(best, best.reference_accuracy), "", size))]
    tried = [found.attempts[0], best] if best != found.attempts[0] else [best]
    for attempt in tried:
        number = len(kept(replace(found.case, keep=attempt.keep)))
        label = f"{precision}, {units.plural(number, 'layer')} kept" if number else precision
        size = units.byte_count(found.size) if attempt == best and found.path else ""
        outputs = sorted(enumerate(attempt.outputs), key=lambda pair: -pair[1].rel_l2)[:most]
        for row, (place, output_error) in enumerate(sorted(outputs, key=lambda pair: pair[0])):
            worth = (_percent(attempt.top1), _accuracy(attempt, attempt.accuracy), _drop(attempt))
            first = (share(attempt.share), *worth, size) if row == 0 else ("",) * 5
            cells = (first[0], units.error_size(output_error.rel_l2), _exact(output_error.cosine), *first[1:])
            lines.append(Line(label if len(attempt.outputs) == 1 else f"{label}, output {place}", cells))
    noise = found.case.calibration == "random"
    data = "noise: accuracy meaningless" if noise else found.case.calibration
    where = f"{units.plural(found.samples, 'sample')} of {data}"
    if most is not None and most < len(best.outputs):
        where += f" (the worst of {len(best.outputs)} outputs; --format json has all)"
    return Table(f"{name} by {found.case.backend_label}, against fp32 on {where}", "precision", columns, lines)


def _accuracy(attempt: Written, value: float | None) -> str:
    return "" if value is None else units.score(value, share=attempt.accuracy_share)


def _drop(attempt: Written) -> str:
    low, high = attempt.accuracy_drop_low, attempt.accuracy_drop_high
    return "" if attempt.accuracy_drop is None else units.drop(attempt.accuracy_drop, low, high)


def _percent(value: float | None) -> str:
    return "" if value is None else units.percent(value)


def _layers(found: Quantization, rows: int) -> Table:
    lines = [Line.of(layer.name, LAYERS, layer) for layer in found.layers[:rows]]
    more = f" ({len(lines)} of {len(found.layers)}; --format json has all)" if len(lines) < len(found.layers) else ""
    return Table(f"Error of the outputs where a layer alone is quantized{more}", "layer", LAYERS, lines)


def _next(found: Quantization, name: str, device: str, *, brief: bool) -> list[str]:
    """What came of a limit, where the file is, and the commands that go on: ``brief``: without the layers that stay."""
    best, case = found.best, replace(found.case, keep=found.best.keep)
    said = []
    if found.limit:
        said.append(_limit(found, best, brief=brief))
    words = bench_words(replace(case, model=name), device, [f"--precision fp32,{case.precision}"])
    if found.not_run:
        said.append(f"Not run by {case.backend_label}, as {found.not_run.rstrip('.')}: {found.run_by} ran it.")
    if found.path:
        where = f" where {case.backend} runs" if found.not_run else ""
        run = shlex.join(["inferlens", "bench", found.path, "-b", case.backend])
        said.append(f"Wrote {found.path} in {units.duration(found.seconds)}. Run it{where}: {run}")
    if found.path and not brief:
        said.append(f"Is it faster? {command('bench', words)}")
    return said


def _limit(found: Quantization, best: Written, *, brief: bool) -> str:
    layers = list(kept(replace(found.case, keep=best.keep)))
    named = layers[:NAMED]
    shown = units.listing([*named, *([f"{len(layers) - len(named)} more"] if len(layers) > len(named) else [])])
    tried = units.plural(len(found.attempts), "attempt")
    if not found.path:
        value = _drop(best) if "accuracy" in found.limit else units.error_size(best.error)
        return (
            f"{found.limit} cannot be reached: the nearest of {tried} has {value}, with "
            f"{units.plural(len(layers), 'layer')} kept. Nothing was written."
        )
    if not layers:
        return f"{found.limit} holds with all layers quantized."
    if brief:
        number = units.plural(len(layers), "layer")
        return f"The --keep of {number} for {found.limit} ({tried}): best.keep in {name_of(found)}."
    return f"Layers kept for {found.limit}, found in {tried}: {shown}."
