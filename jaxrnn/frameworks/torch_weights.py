"""Weights and attributes of a PyTorch module: read, replaced for a run, and restored."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from jaxrnn.frameworks.weights import quiet
from jaxrnn.jaxprs.held import Held

if TYPE_CHECKING:
    import torch


class _TorchTensors:
    """Tensors of PyTorch: storage, values and flags for gradients."""

    def __init__(self, *, are_weights: bool):
        self.are_weights = are_weights

    def read(self, array: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
        return array.data, array.detach().clone(), array.requires_grad

    def differs(self, array: torch.Tensor, contents: tuple[torch.Tensor, torch.Tensor, bool]) -> bool:
        data, value, requires_grad = contents
        is_same = array.data_ptr() == data.data_ptr() and array.shape == data.shape and _same(array, value)
        return not is_same or array.requires_grad != requires_grad

    def write(self, array: torch.Tensor, contents: tuple[torch.Tensor, torch.Tensor, bool]) -> None:
        import torch

        array.data, value, requires_grad = contents
        with torch.no_grad():
            if not _same(array, value):
                array.copy_(value)
        if array.requires_grad != requires_grad:
            array.requires_grad_(requires_grad)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if tensors have equal elements; NaN equals itself."""
    import torch

    return torch.equal(one, other) or array_of(one).tobytes() == array_of(other).tobytes()


@contextlib.contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[Held]:
    """Put a module into evaluation mode, and restore afterwards all that a run or an exporter may change.

    Attributes, modes, hooks, values of tensors, variables that the code of the module reads, and random generators are
    as before, also after an error. Yield the contents of the module.
    """
    import torch

    # A frozen module of TorchScript has no mode.
    modes = [(part, part.training) for part in module.modules() if hasattr(part, "training")]
    # The attributes of a compiled module are in C++, where `forward` cannot add any.
    parts = {name: part for name, part in module.named_modules() if not isinstance(part, torch.jit.ScriptModule)}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    kinds = {torch.nn.Parameter: _TorchTensors(are_weights=True), torch.Tensor: _TorchTensors(are_weights=False)}
    held = Held({**parts, **tensors}, (torch.nn.Module,), kinds)
    devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(sorted(devices, key=str)):
        try:
            evaluated(module)
            with quiet(logging.WARNING):
                yield held
        finally:
            held.restore()
            for part, mode in modes:
                if part.training != mode:
                    part.training = mode


def evaluated(module: torch.nn.Module) -> None:
    """Put a module into evaluation mode; a frozen module of TorchScript has no other."""
    if hasattr(module, "training"):
        module.eval()


@contextlib.contextmanager
def having(module: torch.nn.Module, weights: Mapping[str, Any]) -> Iterator[None]:
    """Give a module other weights for a run; the tensors of the module keep their values."""
    entries = entries_of(module)
    old = [(tensor, tensor.data) for name in weights for tensor in entries[name]]
    try:
        for name, array in weights.items():
            value = tensor_of(array)
            for tensor in entries[name]:
                tensor.data = value.to(tensor.device, tensor.dtype)
        yield
    finally:
        for tensor, data in old:
            tensor.data = data


def _owner_of(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str] | None:
    """Return the dict of buffers or attributes with a tensor that a part of the module keeps, and the key."""
    import torch

    owner, _, key = name.rpartition(".")
    part = dict(module.named_modules()).get(owner)
    if part is None or isinstance(part, torch.jit.ScriptModule):
        return None  # the attributes of a compiled module are in C++
    for entries in (part._buffers, vars(part)):
        if isinstance(entries.get(key), torch.Tensor):
            return entries, key
    return None


def entry_of(module: torch.nn.Module, name: str) -> Any:
    """Return a tensor that a part of a module keeps in a buffer or an attribute, or None."""
    found = _owner_of(module, name)
    return None if found is None else found[0][found[1]]


@contextlib.contextmanager
def keeping(module: torch.nn.Module, states: Mapping[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Put states in place of tensors that a module keeps; yield a list, to which the next states are added."""
    places = [_owner_of(module, name) for name in states]
    found = [place for place in places if place is not None]
    old, after = [entries[key] for entries, key in found], list[Any]()
    try:
        for (entries, key), value in zip(found, states.values(), strict=True):
            entries[key] = value.clone()
        yield after
        after += [entries[key] for entries, key in found]
    finally:
        for (entries, key), value in zip(found, old, strict=True):
            entries[key] = value


def entries_of(module: torch.nn.Module) -> dict[str, list[torch.Tensor]]:
    """Return the float entries of ``state_dict``: all objects that share a tensor, under the first name."""
    names: dict[tuple[Any, ...], str] = {}
    entries: dict[str, list[torch.Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            key = (tensor.data_ptr(), tuple(tensor.shape)) if tensor.numel() else (name,)
            entries.setdefault(names.setdefault(key, name), []).append(tensor)
    return entries


def weights_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the float entries of ``state_dict`` as arrays."""
    return {name: array_of(tensors[0]).copy() for name, tensors in entries_of(module).items()}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array of the same type, which may share memory."""
    import torch

    values = tensor.detach().cpu()
    is_bfloat16 = values.dtype == torch.bfloat16
    return values.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if is_bfloat16 else values.numpy()


def tensor_of(array: Any) -> torch.Tensor:
    """Return a copy of an array as a tensor of the same type."""
    import torch

    values = np.array(array)
    is_bfloat16 = values.dtype == ml_dtypes.bfloat16
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(values)
