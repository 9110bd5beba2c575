"""Profiles of compiled models: time by ONNX node or by region of the program, and the peaks of the machine."""

from __future__ import annotations

from jaxrnn.profiling.hlo import Cost
from jaxrnn.profiling.measure import profile
from jaxrnn.profiling.models import profile_model, profile_stepper
from jaxrnn.profiling.results import LowPrecision, OutputDifference, Profile, Region, Row
from jaxrnn.profiling.timing import Peaks, measure_peaks

__all__ = [
    "Cost",
    "LowPrecision",
    "OutputDifference",
    "Peaks",
    "Profile",
    "Region",
    "Row",
    "measure_peaks",
    "profile",
    "profile_model",
    "profile_stepper",
]
__dir__ = __all__.copy
