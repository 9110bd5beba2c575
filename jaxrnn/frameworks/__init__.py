"""PyTorch and Keras: modules as models, and tuned weights back in the modules."""

from jaxrnn.frameworks.keras_models import from_keras as from_keras
from jaxrnn.frameworks.keras_models import to_keras as to_keras
from jaxrnn.frameworks.torch_modules import from_torch as from_torch
from jaxrnn.frameworks.torch_modules import to_torch as to_torch

__all__ = ["from_keras", "from_torch", "to_keras", "to_torch"]
