"""The protocol of a pure step: specs of arrays, specs of steps, and steppers."""

from __future__ import annotations

from jaxrnn.steps.live import DropDelay
from jaxrnn.steps.specs import ArraySpec, Dimension
from jaxrnn.steps.stepper import Flushed, State, Stepper, nothing_left, whole_pulse
from jaxrnn.steps.stepspec import OutputSpec, StateSpec, StepSpec, in_batch

__all__ = [
    "ArraySpec",
    "Dimension",
    "DropDelay",
    "Flushed",
    "OutputSpec",
    "State",
    "StateSpec",
    "StepSpec",
    "Stepper",
    "in_batch",
    "nothing_left",
    "whole_pulse",
]
__dir__ = __all__.copy
