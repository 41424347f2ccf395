"""Serve commands as people type them, read into what a server is asked to do.

One small table a server says which flags change decode attention or the memory beside it; every other flag is listed
as ignored.
"""

from __future__ import annotations

from decodecalc.servers.commands.command import Command
from decodecalc.servers.commands.facts import Facts, facts_of
from decodecalc.servers.commands.read import read_command

__all__ = ["Command", "Facts", "facts_of", "read_command"]
