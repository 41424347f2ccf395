"""Malformed and extreme input for every door of the project; `python -m benchmarks.fuzz --help` says how it is run."""
