"""Training: fine-tuning an imported model, measuring it, and reading what a training wrote."""

from jaxrnn.errors import TrainingError
from jaxrnn.training.fit import fit
from jaxrnn.training.fitted import Fitted
from jaxrnn.training.loading import load_checkpoint
from jaxrnn.training.optimizers import Optimizer
from jaxrnn.training.options import Checkpoints, Sequences, Validation
from jaxrnn.training.validation import validate

__all__ = [
    "Checkpoints",
    "Fitted",
    "Optimizer",
    "Sequences",
    "TrainingError",
    "Validation",
    "fit",
    "load_checkpoint",
    "validate",
]
