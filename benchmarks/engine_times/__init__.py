"""Calibrations of engines' own kernels, fitted to times of whole launches (`python -m benchmarks.engine_times`)."""
