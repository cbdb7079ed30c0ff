"""The paper's tables and figures, cell by cell, measured beside printed."""

from ucfl.paper.cells import Cell, Entry, Store
from ucfl.paper.claims import Claim, claims
from ucfl.paper.items import EMBEDDED, ITEMS, PAPER, Form, Item, find, in_order
from ucfl.paper.page import Page, make_page
from ucfl.paper.reproduce import Measured, Survey, run_cells, survey

__all__ = [
    "EMBEDDED",
    "ITEMS",
    "PAPER",
    "Cell",
    "Claim",
    "Entry",
    "Form",
    "Item",
    "Measured",
    "Page",
    "Store",
    "Survey",
    "claims",
    "find",
    "in_order",
    "make_page",
    "run_cells",
    "survey",
]
