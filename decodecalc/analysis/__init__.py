"""LaunchPlan -> numbers: coverage, key ranges, traffic, roofline, paging. No printing, no measuring."""

from decodecalc.analysis.occupancy import Occupancy, first_split_change, occupancy
from decodecalc.analysis.paging import Paging, expand_page_ids, paging
from decodecalc.analysis.roofline import Roofline, TileWork, roofline
from decodecalc.analysis.segments import Segment, segments
from decodecalc.analysis.traffic import Traffic, traffic

__all__ = [
    "Occupancy",
    "Paging",
    "Roofline",
    "Segment",
    "TileWork",
    "Traffic",
    "expand_page_ids",
    "first_split_change",
    "occupancy",
    "paging",
    "roofline",
    "segments",
    "traffic",
]
