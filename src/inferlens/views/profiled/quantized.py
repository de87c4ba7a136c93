"""What quantizing a model to a file gave: what it is worth beside fp32, what its layers lose, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec.structs import replace

from inferlens import units
from inferlens.record.quantization import Quantization, Written
from inferlens.spec.keep import kept
from inferlens.spec.plan import bench_words
from inferlens.views.table import Column, Document, Line, Table, share

ROWS = 7  # layers on a screen
NAMED = 6  # layers in a sentence


def _exact(value: float | None) -> str:
    """A share close to one."""
    return "–" if value is None else f"{value:.5f}"


LAYERS = (
    Column("kinds", "operators", write=lambda kinds: ", ".join(kinds), numeric=False, keep=2),
    Column("share", "multiply-adds", write=share, keep=1),
    Column("error", "own error", write=units.error_size),
)


def document(found: Quantization, name: str, device: str, *, layers: bool = True) -> Document:
    """All of it.

    Args:
        found: what came of it.
        name: the model's, as it was asked for.
        device: what cases run on there if nobody says.
        layers: whether people are shown what each layer loses, if that is known.
    """

    def blocks(rows: int | None = None) -> Sequence[Table | str]:
        return [
            _compared(found, name),
            *([_layers(found, rows)] if found.layers and layers else []),
            *_next(found, name, device),
        ]

    return Document(
        blocks,
        screen=lambda: blocks(ROWS),
        data=lambda: {"schema": "inferlens.quantization/1", **{key: getattr(found, key) for key in _FIELDS}},
        csv=lambda: (
            ["layer", "operators", "multiply-adds", "error"],
            [[each.name, " ".join(each.kinds), each.share, each.error] for each in found.layers],
        ),
        title=f"{name} in {found.case.precision}",
    )


_FIELDS = Quantization.__struct_fields__


def _compared(found: Quantization, name: str) -> Table:
    """fp32, all layers quantized, and what was written, a row each."""
    precision, best = found.case.precision, found.best
    columns = (
        Column("", f"in {precision}"),
        Column("", "error"),
        Column("", "cosine"),
        Column("", "class kept", keep=1),
        Column("", best.metric),
        Column("", "size"),
    )
    size = units.byte_count(found.size_before)
    lines = [Line("fp32", (units.percent(0), "", "", "", _percent(best.reference_accuracy), size))]
    tried = [found.attempts[0], best] if best != found.attempts[0] else [best]
    for attempt in tried:
        number = len(kept(replace(found.case, keep=attempt.keep)))
        label = f"{precision}, {units.plural(number, 'layer')} kept" if number else precision
        size = units.byte_count(found.size) if attempt == best and found.path else ""
        for place, each in enumerate(attempt.outputs):
            more = (share(attempt.share), _percent(attempt.top1), _percent(attempt.accuracy), size)
            first = more if place == 0 else ("", "", "", "")
            cells = (first[0], units.error_size(each.rel_l2), _exact(each.cosine), *first[1:])
            lines.append(Line(label if len(attempt.outputs) == 1 else f"{label}, output {place}", cells))
    where = f"{units.plural(found.samples, 'sample')} of {found.case.calibration}"
    return Table(f"{name} by {found.case.backend_label}, against fp32 on {where}", "precision", columns, lines)


def _percent(value: float | None) -> str:
    return "" if value is None else units.percent(value)


def _layers(found: Quantization, rows: int | None) -> Table:
    lines = [Line.of(each.name, LAYERS, each) for each in found.layers[:rows]]
    more = f" ({len(lines)} of {len(found.layers)}; --format json has all)" if len(lines) < len(found.layers) else ""
    return Table(f"Error of the outputs where a layer alone is quantized{more}", "layer", LAYERS, lines)


def _next(found: Quantization, name: str, device: str) -> list[str]:
    """What came of a limit, where the file is, and the commands that go on."""
    best, case = found.best, replace(found.case, keep=found.best.keep)
    said = []
    if found.limit:
        said.append(_limit(found, best))
    words = bench_words(replace(case, model=name), device, [f"--precision fp32,{case.precision}"])
    if found.not_run:
        said.append(
            f"Not run by {case.backend_label}: {found.not_run.rstrip('.')}. Errors are those of {found.run_by}, "
            "operator by operator."
        )
    if found.path:
        where = f" where {case.backend} runs" if found.not_run else ""
        run = shlex.join(["inferlens", "bench", found.path, "-b", case.backend])
        said.append(f"Wrote {found.path} in {units.duration(found.seconds)}. Run it{where}: {run}")
        said.append(f"Is it faster? {shlex.join(['inferlens', 'bench', *words])}")
    return said


def _limit(found: Quantization, best: Written) -> str:
    layers = list(kept(replace(found.case, keep=best.keep)))
    shown = units.listing(layers[:NAMED]) + (f" and {len(layers) - NAMED} more" if len(layers) > NAMED else "")
    tried = units.plural(len(found.attempts), "attempt")
    if not found.path:
        value = best.accuracy_drop if "accuracy" in found.limit else best.error
        return (
            f"{found.limit} cannot be reached: the nearest of {tried} has {units.error_size(value)}, with "
            f"{units.plural(len(layers), 'layer')} kept. Nothing was written."
        )
    if not layers:
        return f"{found.limit} holds with all layers quantized."
    return f"Layers kept for {found.limit}, found in {tried}: {shown}. The same again: --keep {best.keep}"
