"""The command line: one small module per command; a command's docstring is its help.

Tables and data go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 nothing could be
measured, 2 bad input, 130 interrupted, 141 nobody reads the output any more. ``compare`` and ``ab`` have codes of
their own, in their help.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer

import inferlens
from inferlens.cli.ab import ab
from inferlens.cli.backends import backends
from inferlens.cli.bench import bench
from inferlens.cli.build import build
from inferlens.cli.compare import compare
from inferlens.cli.doctor import doctor
from inferlens.cli.export import export
from inferlens.cli.findings import findings
from inferlens.cli.graph import graph
from inferlens.cli.kernels import kernels
from inferlens.cli.layers import layers
from inferlens.cli.modules import modules
from inferlens.cli.partition import partition
from inferlens.cli.plot import plot
from inferlens.cli.profile import profile
from inferlens.cli.roofline import roofline
from inferlens.cli.show import show
from inferlens.cli.trace import trace
from inferlens.errors import InferlensError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (bench, ab, show, compare, plot, profile, findings, modules, layers, kernels, trace, roofline, graph,
                build, export, partition, doctor, backends):  # fmt: skip
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        print(f"inferlens {inferlens.__version__}")
        raise typer.Exit


@app.callback()
def _inferlens(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Which way of running your deep-learning model is fastest on your hardware, and where the time goes."""


def main() -> None:
    """Runs a command; an error a user can act on is one message and exit code 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except InferlensError as error:
        sys.stderr.write(f"Error: {error.what}\n")
        if error.expected:
            sys.stderr.write(f"  Expected: {error.expected}\n")
        if error.cure:
            sys.stderr.write(f"  Try: {error.cure}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
