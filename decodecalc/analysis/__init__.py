"""LaunchPlan -> numbers: coverage, key ranges, traffic, roofline, paging. No printing, no measuring.

One module per analysis, named after its function (`occupancy.occupancy`, `traffic.traffic`, …); the package itself
imports none of them, so that a command pays for what it uses. Users reach them as `decodecalc.occupancy` and so on.
"""
