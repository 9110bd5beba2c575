"""A model as a static attribute of a module: compared by identity, never copied, and pickled as its file."""

from __future__ import annotations

from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.model import Model


class ModelReference:
    """What a module's graph definition holds of its model.

    The module has its weights as parameters of its own: a copy of the module shares the model.
    """

    __slots__ = ("model",)

    def __init__(self, model: Model):
        if not isinstance(model, Model):
            raise InputError(f"expected a model as jaxrnn.load gives it, not {type(model).__name__}")
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelReference) and self.model is other.model

    def __hash__(self) -> int:
        return hash(self.model)

    def __copy__(self) -> ModelReference:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelReference:
        return self

    def __reduce__(self) -> tuple[type[ModelReference], tuple[Model]]:
        return ModelReference, (self.model,)

    def __repr__(self) -> str:
        return self.model.label
