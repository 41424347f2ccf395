"""Which decode steps are timed: drawn at random from layers that people serve, in an order of which every beginning is
a fair sample."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

from decodecalc.batch import Batch
from decodecalc.calibrate.own.family import TimedEngine
from decodecalc.calibrate.own.timing import OwnCall, ProbeStep
from decodecalc.geometry import Geometry
from decodecalc.kvcache import KvCache

SHORTEST, LONGEST, MOST_REQUESTS = 96, 180_000, 200
LEAST_BYTES, MOST_BYTES = 2e5, 3e9  # of a layer's keys and values: less is all launch, more takes too long
RAGGED_SHARE, RAGGED_SPREAD, LEAST_KEYS = 0.4, 2.5, 16
# The first steps of every layer and cache: one block that walks far, all SMs at work on little, several waves.
CORNERS = ((1, 16_384), (64, 512), (1, 512), (132, 1024))
CORNER_VISITS = 3  # of so many visits of a layer, one is of a corner
RAGGED_SHARE_TIMED = 0.65  # more than servers see, because ragged steps say more of a schedule
OTHER_CACHES = 3  # of so many steps, one is of another cache than the first
OTHER_Q_LENS = 6  # of so many steps, one has several query tokens a request
SETTINGS_A_STEP = 3


def random_batch(rng: random.Random, geo: Geometry, kv: KvCache, ragged: float = RAGGED_SHARE) -> Batch:
    """Requests and lengths: both by their logarithm, the batch small more often. ragged: the share of the batches of
    several requests whose lengths differ."""
    while True:
        power = rng.choice((0.3, 1.0, 1.0))
        size = max(1, round(math.exp(rng.uniform(0, math.log(MOST_REQUESTS))) ** power))
        longest = round(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST))))
        lens = [longest] * size
        if size > 1 and rng.random() < ragged:
            lens = [max(LEAST_KEYS, round(longest * math.exp(rng.uniform(-RAGGED_SPREAD, 0)))) for _ in range(size)]
        if LEAST_BYTES < sum(lens) * kv.bytes_per_key(geo) < MOST_BYTES:
            return Batch(lens)


def steps_of(subject: TimedEngine, seed: int = 0) -> Iterator[tuple[ProbeStep, Sequence[OwnCall]]]:
    """Steps without end, each with the launches that are timed on it: layer after layer, the corners of each first."""
    rng = random.Random(seed)
    turn = 0
    while True:
        for geo in subject.layers:
            kv = subject.caches[0]
            if len(subject.caches) > 1 and turn % OTHER_CACHES == OTHER_CACHES - 1:
                kv = subject.caches[1 + turn // OTHER_CACHES % (len(subject.caches) - 1)]
            visit = turn // len(subject.layers)
            batch = random_batch(rng, geo, kv, RAGGED_SHARE_TIMED)
            if visit % CORNER_VISITS == 0 and visit // CORNER_VISITS < len(CORNERS):
                corner = Batch.uniform(*CORNERS[visit // CORNER_VISITS])
                if LEAST_BYTES < corner.size * corner.max_seq_len * kv.bytes_per_key(geo) < MOST_BYTES:
                    batch = corner
            if len(subject.q_lens) > 1 and turn % OTHER_Q_LENS == OTHER_Q_LENS - 1:
                batch = Batch(batch.seq_lens, rng.choice(subject.q_lens[1:]))
            turn += 1
            yield ProbeStep(geometry=geo, batch=batch, kv=kv), tuple(_calls(subject, rng))


def _calls(subject: TimedEngine, rng: random.Random) -> Iterator[OwnCall]:
    """What the engine does by itself, and some of its settings."""
    for mode in subject.modes:
        yield OwnCall(engine=subject.engine, options=mode.options, mode=mode.name, default=True)
        for more in rng.sample(mode.settings, min(SETTINGS_A_STEP, len(mode.settings))):
            yield OwnCall(engine=subject.engine, options={**mode.options, **more}, mode=mode.name)
