"""Training: fine-tuning an imported model, evaluating it, and reading what a training wrote."""

from jaxrnn.errors import TrainingError
from jaxrnn.training.evaluate import evaluate
from jaxrnn.training.fit import fit
from jaxrnn.training.fitted import Fitted
from jaxrnn.training.loading import load_checkpoint

__all__ = ["Fitted", "TrainingError", "evaluate", "fit", "load_checkpoint"]


def __dir__() -> list[str]:
    return sorted(__all__)
