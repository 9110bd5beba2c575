"""Where every element of the results of a jaxpr comes from: which element of which input, and on which way.

`codes` encodes how an element came from an input, and `follow` evaluates a jaxpr on them. What is computed from unknown
values alone, such as parameters, has no elements; what is known before the jaxpr runs is computed, so that masks and
index arithmetic fold.
"""

from jaxrnn.jaxprs.origins.flows import DataFlow, Flow, Site, union
from jaxrnn.jaxprs.origins.following import Following

__all__ = ["DataFlow", "Flow", "Following", "Site", "union"]
