"""Engines' own kernels: found where they are installed, called on a step's tensors, held against their policies."""
