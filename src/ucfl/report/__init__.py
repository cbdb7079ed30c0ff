"""What people look at: figures in a journal's column, one interactive page, the terminal."""

from ucfl.report.export import EXPORTS
from ucfl.report.figures import DOUBLE, SINGLE, check_suffix, save
from ucfl.report.gallery import FIGURES, Look
from ucfl.report.page import page
from ucfl.report.story import compose, gather, tell
from ucfl.report.watching import follow

__all__ = [
    "DOUBLE",
    "EXPORTS",
    "FIGURES",
    "SINGLE",
    "Look",
    "check_suffix",
    "compose",
    "follow",
    "gather",
    "page",
    "save",
    "tell",
]
