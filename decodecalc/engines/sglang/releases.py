"""Releases of SGLang on the package index that the policies here may be asked about, newest first.

Pre-releases are left out. A release that is missing here is newer than this list, or it does not exist.
"""

from __future__ import annotations

_NEWEST_FIRST = """
    0.5.23 0.5.22 0.5.21 0.5.20 0.5.19 0.5.18 0.5.17 0.5.16 0.5.15.post1 0.5.15 0.5.14 0.5.13.post1 0.5.13
    0.5.12.post1 0.5.12 0.5.11 0.5.10.post1 0.5.10 0.5.9 0.5.8.post1 0.5.8 0.5.7 0.5.6.post2 0.5.6.post1 0.5.6
    0.5.5.post3 0.5.5.post2 0.5.5.post1 0.5.5 0.5.4.post3 0.5.4.post2 0.5.4.post1 0.5.4 0.5.3.post3
"""
RELEASES = tuple(_NEWEST_FIRST.split())
