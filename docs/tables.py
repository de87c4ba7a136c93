"""Fills the documents' tables and draws their plots from what is stored: ``python docs/tables.py``.

What stands between ``<!-- $ inferlens WORDS -->`` and ``<!-- end -->`` is what that command prints in Markdown; what
``<!-- picture WORDS -->`` names is what ``inferlens WORDS`` draws. Some tables are no command's: ``against FOLDER
CASE`` has the speed-up against each case, ``quantized`` and ``accuracies FOLDER`` what int8 and fp8 do to latencies and
answers, ``loops FILE`` what ``python -m benchmarks.engine_loop`` kept, ``options BACKEND`` the options of a backend.
No number is typed.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferlens import load_records
from inferlens.backends import BACKENDS
from inferlens.cli import main as program
from inferlens.cli.backends import option_rows
from inferlens.stats.intervals import ends, median_interval
from inferlens.units import change, change_range, drop, milliseconds, percent, rate, ratio, ratio_range, significant
from inferlens.views.renderers import render
from inferlens.views.table import Column, Document, Line, Table

ROOT = Path(__file__).parent.parent
PAGES = tuple(path for path in sorted((ROOT / "docs").rglob("*.md")) if "<!-- end -->" in path.read_text("utf-8"))
BLOCK = re.compile(
    r"(<!-- (?P<kind>\$ inferlens|against|quantized|accuracies|loops|options) (?P<words>[^\n]+) -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.S,
)


def filled(page: str) -> str:
    """``page`` with every table made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{drawn(match['kind'], match['words'])}\n{match['end']}", page)


def drawn(kind: str, words: str) -> str:
    """What stands in one block."""
    if kind == "options":
        return options(words)
    if kind in TABLES:
        return markdown(TABLES[kind](*shlex.split(words)))
    return printed(*shlex.split(words), "--format", "markdown")


def printed(*words: str) -> str:
    """What ``inferlens`` prints for these words, run in the repository's folder."""
    out, before = io.StringIO(), (Path.cwd(), sys.argv)
    os.chdir(ROOT)
    sys.argv = ["inferlens", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            program.main()
    except SystemExit as error:
        if error.code:
            raise RuntimeError(shlex.join(sys.argv)) from error
    finally:
        os.chdir(before[0])
        sys.argv = before[1]
    return out.getvalue()


def read(*words: str) -> Any:
    """The JSON that ``inferlens`` prints for these words."""
    return json.loads(printed(*words, "--format", "json"))


def markdown(table: Table) -> str:
    """A table of ours as Markdown."""
    return render(Document(lambda: [table], dict), "markdown")


def columns(*titles: str, texts: int = 0) -> tuple[Column, ...]:
    """Columns with these titles, the first ``texts`` of them of words."""
    return tuple(Column(title, title, numeric=place >= texts) for place, title in enumerate(titles))


def against(folder: str, *references: str) -> Table:
    """Times, rate and the speed-up against each reference of the records under ``folder``, the fastest first."""
    found = [read("show", folder, "--reference", reference)["rows"] for reference in references]
    speedups = [{row["id"]: row for row in rows} for rows in found]
    lines = [
        Line(
            row["name"],
            (
                milliseconds(row["mean"]),
                milliseconds(row["median"]),
                rate(row["iterations_per_second"]),
                *(speedup(each[row["id"]]) for each in speedups),
            ),
        )
        for row in sorted(found[0], key=lambda row: row["median"] or math.inf)
    ]
    titles = ("mean (ms)", "median (ms)", "iterations (per s)", *(f"against {reference}" for reference in references))
    return Table("How many times as fast as each reference, by medians", "backend", columns(*titles), lines)


def quantized(*folders: str) -> Table:
    """Each backend's times as it is and quantized, of the records under each folder, and how many times as fast it is.

    Before it is quantized it is in fp32, or where that was not measured in fp16.
    """
    lines, befores = [], set()
    for folder in folders:
        every = read("show", folder)["rows"]
        before = "fp32" if any(row["precision"] == "fp32" for row in every) else "fp16"
        befores.add(before)
        for plain in [row for row in every if row["precision"] == before]:
            for row in read("show", folder, "--reference", plain["name"])["rows"]:
                if row["precision"] == before or row["backend"] != plain["backend"]:
                    continue
                name = f"{row['model'].rpartition(':')[2]}, {row['device_name']}"
                times = (milliseconds(plain["median"]), row["precision"], milliseconds(row["median"]))
                interval = ratio_range(row["speedup_low"], row["speedup_high"]) if row["agrees"] else ""
                label = f"{row['backend'].removesuffix(':default')} {row['options']}".strip()
                how = f"{speedup(row)} (partly)" if "(partly)" in row["name"] else speedup(row)
                lines.append(Line(name, (label, *times, how, interval)))
    (before,) = befores
    titles = ("backend", f"{before} (ms)", "to", "latency (ms)", f"against {before}", "interval (95 %)")
    return Table("What quantizing does to the latency", "model and machine", columns(*titles, texts=1), lines)


def accuracies(*folders: str) -> Table:
    """What the answers of the network under each folder are worth in fp32 and int8, and how far below fp32 they are."""
    rows, names = {}, list[str]()
    for folder in folders:
        for row in read("show", folder)["rows"]:
            rows[folder, row["precision"], row["backend"]] = row
            names += [row["backend"]] * (row["precision"] == "int8" and row["backend"] not in names)

    def worth(folder: str, backend: str) -> str:
        row = rows[folder, "int8", backend]
        return f"{percent(row['accuracy'])}, {drop(row['drop'], row['drop_low'], row['drop_high'])}"

    lines = []
    for folder in folders:
        plain = next(row for key, row in rows.items() if key[:2] == (folder, "fp32"))
        count = next(each.accuracy.count for each in load_records(ROOT / folder).records if each.accuracy)
        cells = (
            plain["metric"],
            str(count),
            percent(plain["accuracy"]),
            *(worth(folder, each) for each in sorted(names)),
        )
        lines.append(Line(plain["model"].rpartition(":")[2], cells))
    titles = ("right is", "samples", "fp32", *(f"int8 by {name}, drop" for name in sorted(names)))
    return Table("What answers are worth", "network", columns(*titles, texts=1), lines)


def speedup(row: dict[str, Any]) -> str:
    """How many times as fast as the reference, or why that is not said."""
    if not row["agrees"]:
        return "wrong" if row["agrees"] is False else row["status"]
    return "reference" if row["is_reference"] else ratio(row["speedup"])


def loops(file: str) -> Table:
    """What ``python -m benchmarks.engine_loop`` found, of the file it kept."""
    kept = json.loads((ROOT / file).read_text(encoding="utf-8"))
    lines = []
    for one in kept["rounds"]:
        apart = [ours / bare - 1 for bare, ours in zip(one["bare"], one["ours"], strict=True)]
        times = [significant(statistics.median(one[loop]) * 1e6, 4) for loop in ("bare", "ours")]
        differs = change(statistics.median(apart)), change_range(*ends(median_interval(apart)))
        lines.append(Line(one["model"].split(":")[-1], (one["precision"], str(one["batch"]), *times, *differs)))
    titles = ("precision", "batch", "bare loop (µs)", "inferlens (µs)", "difference", "interval (95 %)")
    return Table(kept["title"], "model", columns(*titles, texts=1), lines)


def options(backend: str) -> str:
    """Return the options of a backend as a Markdown table: name, values, default and description."""
    lines = ["| option | values | default | what it does |", "|---|---|---|---|"]
    for name, values, default, description in option_rows(BACKENDS.get(backend)):
        choices = ", ".join(f"`{value}`" for value in values.split("|")) if "|" in values else values
        lines.append(f"| `{backend}.{name}` | {choices} | {f'`{default}`' if default else ''} | {description} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[..., Table]] = {each.__name__: each for each in (against, quantized, accuracies, loops)}


def main() -> None:
    """Writes the pages and their pictures."""
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        for words in re.findall(r"<!-- picture (.+) -->", page):
            printed(*shlex.split(words))
        path.write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
