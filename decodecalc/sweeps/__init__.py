"""Sweeps over the product of models, GPUs, engines, batches and contexts, streamed in constant memory.

`decodecalc.sweep(...)` yields chunks of columns; the command writes them as CSV, JSON lines or Parquet.
"""

from decodecalc.sweeps.axes import Axes, Family, families
from decodecalc.sweeps.columns import COLUMNS, Chunk
from decodecalc.sweeps.run import sweep

__all__ = ["COLUMNS", "Axes", "Chunk", "Family", "families", "sweep"]
