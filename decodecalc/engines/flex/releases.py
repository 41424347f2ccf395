"""Releases of PyTorch on the package index that the policies here may be asked about, newest first.

Pre-releases are left out. A release that is missing here is newer than this list, or it does not exist.
"""

from __future__ import annotations

_NEWEST_FIRST = """
    2.15.0 2.14.1 2.14.0 2.13.0 2.12.1 2.12.0 2.11.0 2.10.0 2.9.1 2.9.0 2.8.0 2.7.1 2.7.0 2.6.0
"""
RELEASES = tuple(_NEWEST_FIRST.split())
