"""Which decode-attention backend a server of a version chooses for a layer, and what that imposes."""

from __future__ import annotations

from decodecalc.servers.question import Layer, MlaDims, Question, SglangSettings, VllmSettings
from decodecalc.servers.resolution import Candidate, Reason, Refusal, Resolution
from decodecalc.servers.resolve import SERVERS, resolve

__all__ = [
    "SERVERS",
    "Candidate",
    "Layer",
    "MlaDims",
    "Question",
    "Reason",
    "Refusal",
    "Resolution",
    "SglangSettings",
    "VllmSettings",
    "resolve",
]
