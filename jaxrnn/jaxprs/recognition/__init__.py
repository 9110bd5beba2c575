"""Recognition of written-out LSTM, GRU and RNN cells by data flow, so that they run as cells.

Names and the order of gates do not matter. `body` follows elements through moves and finds the pieces of the carry.
`algebra` normalises elementwise arithmetic to polynomials, and the inputs of gates to sums of products with fixed
matrices. `matching` arranges the sums by hidden units and knows the three cells. `parts` runs a cell as a part
of a schedule, and `jaxrnn.jaxprs.scanning` orders cells and loops in the schedule.
"""
