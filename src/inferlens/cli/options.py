"""Arguments and options that mean the same in several commands, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferlens.views.table import FORMATS

if TYPE_CHECKING:
    from inferlens.analysis.ab_result import ABResult, ABSteps
    from inferlens.analysis.comparison import RecordComparison

_MODEL = "What to measure: a name (resnet18, timm:NAME, transformers:NAME, hub:REPO:NAME, inferlens:resnet34), \
package.module:factory, path/to/file.py:factory, a .onnx, .pt, .pt2, .engine, .ts or .ep file; several of them; or one \
plan file (.toml)."
_BACKENDS = (
    "Backends as name or name:variant, with commas; 'all' is every variant. [dim]Default: all that work here.[/dim]"
)
_PRECISIONS = "fp32, fp16, bf16, int8 or fp8, with commas. int8 and fp8 need a quantized ONNX file or --calibration. \
[dim]Default: that of the file, or else fp32.[/dim]"
_INPUT = "An input, such as NAME=1x3x224x224:float32, NAME=1x128:int64:0..1000, or NAME=1x32,1x128 for several shapes; \
NAME=1..16x3x224x224:opt=2 prepares for a range of sizes; repeatable."
_DIM = "Sizes of a dimension of all inputs by its name, such as sequence_length=32,128 or image_size=224; or a range: \
sequence_length=1..512:opt=128; repeatable."
_OPTION = "A backend's option, as BACKEND.OPTION=VALUE,VALUE; repeatable. See 'inferlens backends NAME'."
_PYTHON = "The interpreter of another virtual environment, such as old/bin/python; several of them, with commas."
_WEIGHTS = "Name or file of the weights. [dim]Default: random, from the seed.[/dim]"
_CALIBRATION = "Data for the inputs, and to calibrate int8 and fp8 with: a folder of images, an .npz file or \
package.module:factory. Noise (random) is enough to measure speed."
_KEEP = "Layers that stay in fp32, such as fp32:head,features.0: paths of modules or names of nodes; repeatable."
_ACCURACY = "Labeled data to compute the accuracy of each case and of fp32 with, as for --calibration; or \
package.module:evaluate, a function that takes infer."
_DEVICES = "GPUs to use at the same time, each for other cases: all, or cuda:0,cuda:1. [dim]Default: one.[/dim]"
_RAY = "Run on a Ray cluster: local (started on this machine), auto or HOST:PORT."
_ON = "Kinds of accelerators that measure all cases, such as H200, or H200:2,L4:1 to use two and one at a time. \
[dim]Default: the only kind there is.[/dim]"
_TRUST = "Open files that can run any code: pickles, compiled modules and version-compatible engines."
_ROTATE = "Feed calls from a set of inputs larger than the device's cache; throughput is not measured then."
_MAX_TIME = "Time limit of each series of samples and of the warm-up, which lasts 1 s at least."
_WARMUP = "Calls before the first sample. [dim]Default: until latencies are steady, 1 s at least.[/dim]"
_TIMEOUT = "Time limit of each case, such as 90s or 15m."
_REFERENCE = "The row to compute speed-ups against, such as 'onnxruntime:cpu fp32'. \
[dim]Default: the plainest row of the backend that outputs were checked against.[/dim]"


def _set_ranges(asked: bool) -> None:
    if asked:
        from inferlens.backends.profiling import nvtx_ranges

        nvtx_ranges.turn_on()


# What to run.
Models = Annotated[list[str], typer.Argument(help=_MODEL)]
Backends = Annotated[str | None, typer.Option("--backend", "-b", help=_BACKENDS)]
Precision = Annotated[str | None, typer.Option(help="fp32, fp16 or bf16.", show_default="fp32")]
Precisions = Annotated[str | None, typer.Option(help=_PRECISIONS)]
Batches = Annotated[str | None, typer.Option(help="Batch sizes, with commas. [dim]Default: the model's own.[/dim]")]
Threads = Annotated[str | None, typer.Option(help="CPU threads inside a call, with commas.")]
Pythons = Annotated[str | None, typer.Option(help=_PYTHON, show_default="this one")]
Options = Annotated[list[str] | None, typer.Option(help=_OPTION)]
Inputs = Annotated[list[str] | None, typer.Option(help=_INPUT)]
Dims = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=SIZE", help=_DIM)]
Rotate = Annotated[bool | None, typer.Option("--rotate", help=_ROTATE)]
Weights = Annotated[str | None, typer.Option(help=_WEIGHTS)]
Calibration = Annotated[str | None, typer.Option(help=_CALIBRATION)]
Keep = Annotated[list[str] | None, typer.Option(help=_KEEP)]
Accuracy = Annotated[str | None, typer.Option(help=_ACCURACY)]
Trust = Annotated[bool | None, typer.Option("--trust", help=_TRUST)]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Build again what was built before.")]
Nvtx = Annotated[
    bool, typer.Option("--nvtx", callback=_set_ranges, help="Set NVTX ranges around phases and series, for Nsight.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of weights and inputs.", show_default="0")]

# How long it may take.
MaxTime = Annotated[str | None, typer.Option(help=_MAX_TIME, show_default="2s")]
Warmup = Annotated[int | None, typer.Option(help=_WARMUP)]
Timeout = Annotated[str | None, typer.Option(help=_TIMEOUT, show_default="15m")]
_WAIT = "How long to wait for a quiet machine before measuring. [dim]Default: not at all.[/dim]"
Wait = Annotated[str | None, typer.Option(help=_WAIT)]
BuildTimeout = Annotated[str, typer.Option(help="Time limit, such as 90s or 1h.")]


# Where it runs.
def _where(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel="Where it runs", **more)


Devices = Annotated[str | None, _where(_DEVICES)]
Ray = Annotated[str | None, _where(_RAY, metavar="local|ADDRESS")]
On = Annotated[str | None, _where(_ON)]

# What to show, and how.
Records = Annotated[list[Path], typer.Argument(help="Folders with records, at any depth, or record files.")]
Profiles = Annotated[list[Path], typer.Argument(help="Folders with profiles, at any depth, or profile files.")]
Reference = Annotated[str | None, typer.Option(help=_REFERENCE)]
FORMAT = f"{', '.join(FORMATS)}."
Format = Annotated[str, typer.Option("--format", "-f", help=FORMAT)]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Bars = Annotated[bool, typer.Option("--bars", help="Draw the times as bars.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns.")]
Columns = Annotated[str | None, typer.Option(help="The columns to show, by title, with commas; 'help' lists all.")]
_ENDINGS = ".md, .csv, .json, .html, .pdf or .txt decides the format."
Output = Annotated[Path | None, typer.Option("--output", "-o", help=f"Write it to this file; {_ENDINGS}")]
# Of commands that measure, whose --output is the folder of the records: what is printed is written to a file too.
File = Annotated[Path | None, typer.Option("--file", "-o", help=f"Also write the table to this file; {_ENDINGS}")]
_FAIL_ON_BUSY = "Exit with code 5 instead of 0, 1 or 3 if other programs kept the machine busy."
FailOnBusy = Annotated[bool, typer.Option("--fail-on-busy", help=_FAIL_ON_BUSY)]
BUSY_CODE = 5
Top = Annotated[
    int | None,
    typer.Option(min=1, help="Rows of each comparison to show. [dim]Default: as many as fit on a screen.[/dim]"),
]


def exit_code(found: ABResult | ABSteps | RecordComparison, *, fail_on_busy: bool) -> int:
    """Return the exit code of a comparison, which a busy machine changes if that was asked for."""
    return BUSY_CODE if fail_on_busy and found.machine_load.busy and found.exit_code in (0, 1, 3) else found.exit_code
