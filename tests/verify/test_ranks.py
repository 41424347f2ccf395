"""Processes started by torchrun."""

from __future__ import annotations

import pytest

from decodecalc.errors import InputError
from decodecalc.verify.session.ranks import Ranks


def test_one_process_without_torchruns_variables():
    assert Ranks.from_environment({}) == Ranks(0, 1, 0)
    assert Ranks.from_environment({"RANK": "3"}) == Ranks(0, 1, 0)
    assert Ranks().gather("mine") == ["mine"]


def test_rank_world_and_local_rank():
    ranks = Ranks.from_environment({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
    assert ranks == Ranks(5, 8, 1)
    assert not ranks.is_first


@pytest.mark.parametrize("env", [{"RANK": "a", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}])
def test_variables_that_make_no_sense_are_refused(env):
    with pytest.raises(InputError, match="RANK"):
        Ranks.from_environment(env)
