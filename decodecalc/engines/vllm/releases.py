"""Releases of vLLM on the package index that the policies here may be asked about, newest first.

Pre-releases are left out. A release that is missing here is newer than this list, or it does not exist.
"""

from __future__ import annotations

_NEWEST_FIRST = """
    0.33.0 0.32.0 0.31.0 0.30.0 0.29.0 0.28.0 0.27.1 0.27.0 0.26.0 0.25.1 0.25.0 0.24.0 0.23.0 0.22.1 0.22.0 0.21.0
    0.20.2 0.20.1 0.20.0 0.19.1 0.19.0 0.18.1 0.18.0 0.17.1 0.17.0 0.16.0 0.15.1 0.15.0 0.14.1 0.14.0 0.13.0 0.12.0
    0.11.2 0.11.1 0.11.0 0.10.2 0.10.1.1 0.10.1 0.10.0 0.9.2 0.9.1 0.9.0.1 0.9.0 0.8.5.post1 0.8.5 0.8.4 0.8.3 0.8.2
    0.8.1 0.8.0 0.7.3 0.7.2 0.7.1 0.7.0 0.6.6.post1 0.6.6 0.6.5 0.6.4.post1 0.6.4 0.6.3.post1 0.6.3 0.6.2
    0.6.1.post2 0.6.1.post1 0.6.1 0.6.0 0.5.5 0.5.4 0.5.3.post1 0.5.3 0.5.2 0.5.1 0.5.0.post1 0.5.0 0.4.3 0.4.2
    0.4.1 0.4.0.post1 0.4.0 0.3.3 0.3.2 0.3.1 0.3.0 0.2.7 0.2.6 0.2.5 0.2.4 0.2.3 0.2.2
"""
RELEASES = tuple(_NEWEST_FIRST.split())
