"""Profiler exports against plans: readers, recognition of kernels, pairing, inference, exact claims.

`audit.audit_traces(paths, candidates.Known(...))` is the whole of it; `readers.read_trace` reads one file.
"""
