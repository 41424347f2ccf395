"""`decodecalc completion`: the line that makes a shell complete what is typed."""

from __future__ import annotations

import click

# What click's own completion takes: a variable of the program's name asks for the script of a shell.
VARIABLE = "_DECODECALC_COMPLETE"
FILES = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/completions/decodecalc.fish"}


@click.command("completion", epilog='Example:  eval "$(decodecalc completion bash)"')
@click.argument("shell", type=click.Choice(list(FILES)))
def command(shell: str) -> None:
    """Print the line that makes SHELL complete commands, options, models, GPUs, engines and codes.

    Run the line once to try it, or add it to the file that the comment names.
    """
    run = f"{VARIABLE}={shell}_source decodecalc"
    line = f"{run} | source" if shell == "fish" else f'eval "$({run})"'
    click.echo(f"# add this line to {FILES[shell]}\n{line}")
