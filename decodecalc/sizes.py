"""How much is asked for, counted before any of it is built: one place for the limits of commands and their messages."""

from __future__ import annotations

from collections.abc import Sequence

from decodecalc.errors import InputError

MAX_SCENARIOS = 100_000
"""Decode steps of one command; a sweep streams more."""
MAX_PLANS = 2048
"""Plans of one command: steps x layer groups x engines. With its S_opt a plan takes up to 4 ms."""
MAX_PLANNED_REQUESTS = 2_500_000
"""Requests over all plans of one command. A plan holds each request's splits."""
MAX_RAGGED = 8192
"""Requests of one ragged step: more than any server runs at a time."""
RAGGED_WEIGHT = 8
"""What a request of a ragged step costs, in requests of a uniform one."""
MAX_ROWS = 200_000
"""Rows of one table, and ids of one list."""

STREAM = "use `decodecalc sweep`, which streams them"


def check_steps(batches: Sequence[int], contexts: int, q_lens: int) -> None:
    """InputError where the product of --batch, --context and --q-len is too much. batches: sizes; others: counts."""
    total = len(batches) * contexts * q_lens
    if total > MAX_SCENARIOS:
        raise InputError(f"{total} scenarios are more than {MAX_SCENARIOS}: {STREAM}")
    requests = sum(batches) * contexts * q_lens
    if requests > MAX_PLANNED_REQUESTS:
        raise InputError(
            f"--batch asks for {requests} requests over {total} scenarios, more than {MAX_PLANNED_REQUESTS}: {STREAM}"
        )


def check_ragged(requests: int) -> None:
    """InputError where one ragged step has too many requests."""
    if requests > MAX_RAGGED:
        raise InputError(f"--seq-lens has {requests} requests, more than {MAX_RAGGED}")


def check_plans(steps: int, requests: int, engines: int, ragged: bool) -> None:
    """InputError where the plans of a command are too much. requests: over all steps; engines: times layer groups."""
    plans = steps * engines
    if plans > MAX_PLANS:
        raise InputError(
            f"{plans} plans ({steps} steps x {engines} engines and layer groups) are more than {MAX_PLANS}: {STREAM}"
        )
    weighed = requests * engines * (RAGGED_WEIGHT if ragged else 1)
    if weighed > MAX_PLANNED_REQUESTS:
        raise InputError(
            f"{requests} requests x {engines} engines and layer groups are too much for one command: name fewer "
            f"engines or smaller batches, or {STREAM}"
        )


def check_rows(rows: int, what: str, remedy: str) -> None:
    """InputError where a table would be too long. what: what its rows are; remedy: how to ask for fewer."""
    if rows > MAX_ROWS:
        raise InputError(f"{rows} {what} are more than {MAX_ROWS}: {remedy}")
