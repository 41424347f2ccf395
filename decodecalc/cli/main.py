"""The command group. A command's module is imported when the command is used, so that start-up stays quick."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any, TextIO

import click

from decodecalc._version import __version__
from decodecalc.errors import DecodecalcError
from decodecalc.files import watching_inputs

# Command -> (module under decodecalc.cli, one-line help shown without importing it).
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "Say what a serve command runs, how fast it is, what fits and what to change."),
    "grid": ("grid", "Show the launch: path, grid, live blocks, SM coverage, splits, gates."),
    "segments": ("segments", "List the key range of every split, request by request."),
    "merge": ("merge", "Compare the bytes of the partial states with the bytes of the KV cache."),
    "roofline": ("roofline", "Show FLOP, bytes and arithmetic intensity, and how memory-bound they are."),
    "paging": ("paging", "Show block tables, page lookups and the page sizes that engines refuse."),
    "explain": ("explain", "Explain one layer of one decode step, from inputs to bytes, step by step."),
    "predict": ("predict", "Predict how long the attention takes, with an interval."),
    "choose": ("choose", "Find the fastest split count, and what each engine's own rule costs."),
    "kv": ("kv", "Count the bytes of the KV cache and the sequences that fit on a GPU."),
    "step": ("step", "Compare attention with the least time of the rest of a decode step."),
    "sweep": ("sweep", "Write up to millions of scenarios to CSV, Parquet or JSON lines."),
    "plot": ("plot", "Draw figures: occupancy, splits, segments, waves, roofline, latency, …"),
    "calibrate": ("calibrate", "Measure the time model's parameters on this GPU."),
    "verify": ("verify", "Check every prediction on the GPU of this machine."),
    "audit": ("audit", "Compare a profiler trace of a real engine with the predictions."),
    "report": ("report", "Join and compare verification reports."),
    "models": ("models", "List the known models, or one model's attention layers."),
    "gpus": ("gpus", "List the known GPUs, or one GPU's fields with their sources."),
    "engines": ("engines", "List the known engines, or one engine's rule, versions and options."),
    "glossary": ("glossary", "Explain a heading of a table, a word, or the code of a gate."),
    "completion": ("completion", "Print the line that makes the shell complete commands and names."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"decodecalc.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Commands that begin like this; their modules are not imported for it."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; commands: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {args[0][:40]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  decodecalc grid --model llama3-8b --tp 8",
)
@click.version_option(__version__, prog_name="decodecalc")
@click.option("--debug", is_flag=True, help="Show the traceback when an error occurs.")
def cli(debug: bool) -> None:
    """Compute which decode-attention kernel an LLM server launches on a GPU, and how long it takes.

    Only `verify` and `calibrate` need a GPU.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its code (0 done, 1 a check failed, 2 bad input, 3 something is missing)."""
    argv = list(sys.argv[1:] if args is None else args)
    # --debug is accepted anywhere: it is what people add to a command that just failed.
    debug = "--debug" in argv
    argv = [a for a in argv if a != "--debug"]
    if sys.stderr is None:  # the caller closed it: there is nobody to tell
        sys.stderr = _nowhere()
    if sys.stdout is None:
        if not any(a in ("-o", "--output", "--report") or a.startswith(("--output=", "--report=")) for a in argv):
            _say("standard output is closed: give --output FILE, or open it")
            sys.exit(2)
        sys.stdout = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal's encoding cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    code = run(argv, debug)
    sys.exit(code or _flushed())


def run(argv: list[str], debug: bool = False) -> int:
    """The exit code of one invocation."""
    try:
        from decodecalc.cli.output import Invocation

        with watching_inputs():
            result = cli.main(argv, prog_name="decodecalc", standalone_mode=False, obj=Invocation(argv))
    except (click.exceptions.Exit, SystemExit) as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # click's own way of ending when the reader went away
            return _reader_went_away()
        code = stop.exit_code if isinstance(stop, click.exceptions.Exit) else stop.code
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later; earlier ones print it themselves
            click.echo(error.format_message())
            return 0
        if debug:
            raise
        _say(error.format_message(), getattr(error, "ctx", None))
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except DecodecalcError as error:
        if debug:
            raise
        _say(str(error))
        return error.exit_code
    except BrokenPipeError:
        return _reader_went_away()
    except OSError as error:
        if debug:
            raise
        _say(f"the system refused to read or write: {error}")
        return 2
    except (RecursionError, MemoryError) as error:
        if debug:
            raise
        if isinstance(error, RecursionError):
            _say("the input nests too deeply")
            return 2
        _say("out of memory; ask for fewer scenarios at once")
        return 2
    except Exception as error:
        if debug:
            raise
        _say(f"internal error ({type(error).__name__}: {error}); please report it with the output of --debug")
        return 1
    return result if isinstance(result, int) else 0


def _nowhere() -> TextIO:
    """A stream whose text is thrown away."""
    return open(os.devnull, "w", encoding="utf-8")


def _reader_went_away() -> int:
    """`| head` has read enough: nothing to say, and the interpreter's own flush must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _flushed() -> int:
    """The exit code after what was printed has left the process: 0, or 2 where the system did not take it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return _reader_went_away()
    except (OSError, ValueError) as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _say(f"cannot write to standard output: {getattr(error, 'strerror', None) or error}")
        return 2
    return 0


def _say(message: str, ctx: click.Context | None = None) -> None:
    from decodecalc.safetext import plain

    lines = [plain(line) for line in message.splitlines()[:3]]
    click.echo("error: " + "\n".join(lines)[:1000], err=True)
    if ctx is not None and ctx.command_path != "decodecalc":
        click.echo(f"see `{ctx.command_path} --help`", err=True)
