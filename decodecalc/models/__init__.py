"""Models: what a Hugging Face configuration says about decode attention, and a zoo of well-known ones.

Importing this package parses no data: the zoo is read when a name is first asked for.
"""

from decodecalc.models.load import load_model
from decodecalc.models.model import LayerGroup, Model, RankModel
from decodecalc.models.zoo import ZooEntry, zoo_entries, zoo_names

__all__ = ["LayerGroup", "Model", "RankModel", "ZooEntry", "load_model", "zoo_entries", "zoo_names"]
