"""decodecalc: what a decode-attention launch looks like on a GPU, how long it takes, and proof of both."""

from decodecalc._version import __version__

__all__ = ["__version__"]
