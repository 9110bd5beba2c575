"""Recognition of written-out LSTM, GRU and RNN cells by data flow, so that they run as cells.

Names and the order of gates do not matter. `body` follows elements through moves and finds the pieces of the carry.
`algebra` normalises elementwise arithmetic to polynomials, and the inputs of gates to sums of products with fixed
matrices. `matching` arranges the sums by hidden units and knows the three cells. `plan` orders cells and loops in a
schedule, and `parts` runs the schedule.
"""

from __future__ import annotations

from jaxrnn.jaxprs.recognition.parts import RecognisedCell
from jaxrnn.jaxprs.recognition.plan import schedule_of_cells

__all__ = ["RecognisedCell", "schedule_of_cells"]
