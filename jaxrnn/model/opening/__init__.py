"""Opening of axes that a file fixes: the axis gets a name, and constants that follow from its length are computed.

`open_axes` makes an ordinary file with an open dimension of a file with a fixed length. `formulas` has the sizes that
follow from the length, `places` the numbers that may follow from it, `search` decides them, and `writing` writes and
compares the result.
"""
