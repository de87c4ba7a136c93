"""The commands as one program: each is a function with its options, and its docstring is its help."""

from __future__ import annotations

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
