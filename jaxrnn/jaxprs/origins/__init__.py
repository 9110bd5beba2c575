"""Tracing of each element of a jaxpr's results back to its source, an input element.

`flows` encodes the origin of an element, and `Following` evaluates a jaxpr on codes. Values that only depend on
parameters have no codes. Constants are computed, so that masks and index arithmetic fold.
"""

from jaxrnn.jaxprs.origins.flows import DataFlow, Flow, Site, union
from jaxrnn.jaxprs.origins.following import Following

__all__ = ["DataFlow", "Flow", "Following", "Site", "union"]
