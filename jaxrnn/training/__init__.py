"""Training: fine-tune an imported model, measure it, and read checkpoints."""

from jaxrnn.errors import TrainingError
from jaxrnn.training.callbacks import Callback, EarlyStopping, Running, StopTraining, logs
from jaxrnn.training.checkpoints import load_checkpoint
from jaxrnn.training.fit import Fitted, fit
from jaxrnn.training.optimizers import Optimizer
from jaxrnn.training.options import Checkpoints, Sequences, Validation
from jaxrnn.training.recordings import Mixtures
from jaxrnn.training.student import Student
from jaxrnn.training.validation import validate

__all__ = [
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "Fitted",
    "Mixtures",
    "Optimizer",
    "Running",
    "Sequences",
    "StopTraining",
    "Student",
    "TrainingError",
    "Validation",
    "fit",
    "load_checkpoint",
    "logs",
    "validate",
]
__dir__ = __all__.copy
