"""LSTM, GRU and RNN cells that are written out in a step, recognised by data flow and run as the cells they are.

Names and the order of gates do not matter. Positions (`positions`) see through everything that moves elements;
polynomials (`algebra`) see through the ways in which gates are written; what enters a gate is a sum of products with
fixed matrices and of known addends (`affine`), seen as rows of hidden units (`grid`). `matching` knows the three
cells. `plan` orders cells and the loops around the rest in a schedule, and `parts` runs them.
"""

from __future__ import annotations

from jaxrnn.jaxprs.recognition.parts import RecognisedCell
from jaxrnn.jaxprs.recognition.plan import schedule_of_cells

__all__ = ["RecognisedCell", "schedule_of_cells"]
