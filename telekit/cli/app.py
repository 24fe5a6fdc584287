"""The application: its commands, and what becomes of errors."""

from __future__ import annotations

import io
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from telekit.cli.accuracy import compare
from telekit.cli.catalog import clusters, count, models
from telekit.cli.communication import comm, fit_links
from telekit.cli.diagnosis import diagnose
from telekit.cli.experts import dispatch
from telekit.cli.fusion import fuse
from telekit.cli.jobs import estimate, plan
from telekit.cli.losses import compare_loss
from telekit.cli.output import harmless
from telekit.cli.packing import pack
from telekit.cli.pipelines import balance, pipeline
from telekit.cli.validation import validate
from telekit.errors import TelekitError

app = typer.Typer(
    name="telekit",
    help="The infrastructure that trains Mixture-of-Experts models, in numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run a command; every refusal becomes exit 2 and one message."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows another
    try:
        app(standalone_mode=True)
    except TelekitError as error:
        print("\n".join(map(harmless, f"telekit: {error}".splitlines())), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("telekit: stopped", file=sys.stderr)
        sys.exit(130)
    except OSError as error:  # a disk that is full, a file that may not be written
        print(harmless(f"telekit: {error}"), file=sys.stderr)
        sys.exit(2)
    except Exception:  # exit 1, Python's own, would say that the answer is a negative verdict
        traceback.print_exc()
        print("telekit: this is an error of telekit, not of its input", file=sys.stderr)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        from telekit import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Keep the option that needs no command."""


@app.command()
def lab(
    directory: Annotated[Path | None, typer.Option("--dir", help="Folder for the notebooks.")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address only.")] = False,
    port: Annotated[int | None, typer.Option(help="Port of the server.")] = None,
) -> None:
    """Open JupyterLab on the chapter index."""
    from telekit.ui.lab import launch

    raise typer.Exit(
        launch(directory, browser=not no_browser, port=port, say=lambda text: print(text, file=sys.stderr))
    )


for command in (
    models,
    clusters,
    count,
    estimate,
    plan,
    balance,
    pipeline,
    comm,
    fit_links,
    pack,
    dispatch,
    fuse,
    compare,
    compare_loss,
    validate,
    diagnose,
):
    app.command()(command)
