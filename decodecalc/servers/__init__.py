"""Which decode-attention backend a server of a version chooses for a layer, and what that imposes."""

from __future__ import annotations

from decodecalc.servers.layers import architecture_of, question_of, resolve_layers, settings_of_model
from decodecalc.servers.libraries import Libraries, libraries_of
from decodecalc.servers.question import Layer, MlaDims, Question, SglangSettings, VllmSettings
from decodecalc.servers.registry import SERVERS, resolve
from decodecalc.servers.resolution import BackendCandidate, Reason, Resolution, ServerRefusal

__all__ = [
    "SERVERS",
    "BackendCandidate",
    "Layer",
    "Libraries",
    "MlaDims",
    "Question",
    "Reason",
    "Resolution",
    "ServerRefusal",
    "SglangSettings",
    "VllmSettings",
    "architecture_of",
    "libraries_of",
    "question_of",
    "resolve",
    "resolve_layers",
    "settings_of_model",
]
