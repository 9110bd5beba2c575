"""Profiles of compiled models: time by ONNX node or by region of the program, and the peaks of the machine."""

from __future__ import annotations

from jaxrnn.profiling.models import profile_model, profile_stepper
from jaxrnn.profiling.peaks import Peaks, measure_peaks
from jaxrnn.profiling.recording import profile
from jaxrnn.profiling.results import LowPrecision, OutputDifference, Profile, Region, Row

__all__ = [
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
