"""Calibrations of engines' own kernels, fitted to the times of whole launches."""
