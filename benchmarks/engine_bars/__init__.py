"""The bars for engines' own kernels, measured on steps that nobody chose (`python -m benchmarks.engine_bars`)."""
