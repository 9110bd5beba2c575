"""Weights and attributes of a PyTorch module: read, replaced for a run, and restored."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from jaxrnn.frameworks.weights import quiet

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and restore afterwards all that a run or an exporter may change.

    Attributes, modes, hooks, values of tensors and random generators are as before, also after an error.
    """
    import torch

    snapshots = [_Snapshot(part) for part in module.modules()]
    held = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    held |= {id(tensor): tensor for snapshot in snapshots for tensor in snapshot.tensors()}
    tensors = [(tensor, tensor.data, tensor.detach().clone(), tensor.requires_grad) for tensor in held.values()]
    devices = {tensor.device for tensor in held.values() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(sorted(devices, key=str)):
        try:
            module.eval()
            with quiet(logging.WARNING):
                yield
        finally:
            for snapshot in snapshots:
                snapshot.restore()
            with torch.no_grad():
                for tensor, data, value, requires_grad in tensors:
                    tensor.data = data
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)
                    if tensor.requires_grad != requires_grad:
                        tensor.requires_grad_(requires_grad)


def changes_of(module: torch.nn.Module) -> Callable[[], list[str]]:
    """Return a function that lists the attributes and buffers of a module that have changed since this call."""

    def now() -> dict[str, Any]:
        found: dict[str, Any] = {
            f"{prefix}.{key}" if prefix else key: (value, None)
            for prefix, part in module.named_modules()
            for key, value in vars(part).items()
        }
        return found | {name: (value, array_of(value).tobytes()) for name, value in module.named_buffers()}

    before = now()

    def changed() -> list[str]:
        missing = object(), None
        pairs = {name: (before.get(name, missing), value) for name, value in now().items()}
        return [name for name, (old, new) in pairs.items() if old[0] is not new[0] or old[1] != new[1]]

    return changed


class _Snapshot:
    """The attributes of a module, with the contents of attributes that are lists, dicts and sets."""

    def __init__(self, part: torch.nn.Module):
        import torch

        self.part, self.training = part, part.training
        # The attributes of a compiled module are in C++, where `forward` cannot add any.
        self.attributes = {} if isinstance(part, torch.jit.ScriptModule) else dict(vars(part))
        kinds = dict, OrderedDict, list, set
        self.contents = [(value, copy.copy(value)) for value in self.attributes.values() if type(value) in kinds]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors among the attributes."""
        import torch

        inner = (content.values() if isinstance(content, dict) else content for _, content in self.contents)
        for value in itertools.chain(self.attributes.values(), *inner):
            if isinstance(value, torch.Tensor):
                yield value

    def restore(self) -> None:
        """Set the attributes and contents to the objects of the snapshot."""
        for value, content in self.contents:
            value.clear()
            value.extend(content) if isinstance(value, list) else value.update(content)
        if self.attributes:
            now = vars(self.part)
            for name in now.keys() - self.attributes.keys():
                del now[name]
            now.update(self.attributes)
        if self.part.training != self.training:
            self.part.training = self.training


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
