"""Releases of FlashInfer on the package index that the policies here may be asked about, newest first.

Pre-releases are left out. A release that is missing here is newer than this list, or it does not exist.
"""

from __future__ import annotations

_NEWEST_FIRST = """
    0.7.4 0.7.2.post1 0.7.2 0.7.1 0.7.0.post1 0.7.0 0.6.18.post1 0.6.18 0.6.17 0.6.16.post4 0.6.16.post3
    0.6.16.post2 0.6.16.post1 0.6.16 0.6.15.post1 0.6.15 0.6.14 0.6.13 0.6.12 0.6.11.post3 0.6.11.post2 0.6.11.post1
    0.6.11 0.6.10.post1 0.6.10 0.6.9 0.6.8.post1 0.6.8 0.6.7.post3 0.6.7.post2 0.6.7.post1 0.6.7 0.6.6 0.6.5 0.6.4
    0.6.3 0.6.2 0.6.1 0.6.0 0.5.3 0.5.2 0.5.1 0.5.0 0.4.1 0.4.0 0.3.1.post1 0.3.1 0.3.0.post1 0.3.0 0.2.14.post1
    0.2.14 0.2.13 0.2.12 0.2.11.post3 0.2.11.post2 0.2.11.post1 0.2.11 0.2.10 0.2.9 0.2.8 0.2.7.post1 0.2.7
    0.2.6.post1 0.2.6 0.2.5 0.2.4 0.2.3 0.2.2.post1 0.2.2 0.2.1.post2 0.2.1.post1 0.2.1
"""
RELEASES = tuple(_NEWEST_FIRST.split())
