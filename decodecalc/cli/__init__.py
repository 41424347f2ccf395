"""The command line. `main` turns every expected error into one or two lines and an exit code."""

from decodecalc.cli.main import main

__all__ = ["main"]
