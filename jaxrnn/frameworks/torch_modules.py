"""PyTorch modules as models, and tuned weights back in the module."""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError, JaxrnnError, ModelError, optional_package
from jaxrnn.frameworks.agreement import (
    check_agreement,
    check_stream,
    output_shapes,
    parsed,
    repeats,
    resized,
    sizes_of,
)
from jaxrnn.frameworks.loops import roll_loops
from jaxrnn.frameworks.torch_weights import (
    array_of,
    entries_of,
    entry_of,
    evaluated,
    having,
    keeping,
    tensor_of,
    unchanged,
    weights_of,
)
from jaxrnn.frameworks.weights import (
    check_after,
    check_constants,
    check_names,
    check_other_weights,
    check_states,
    check_weights,
    declare_shapes,
    lost_weights,
    marked,
    rename_values,
    restored,
    state_weights,
)
from jaxrnn.jaxprs.held import Held
from jaxrnn.model import Model
from jaxrnn.model.loading import load

if TYPE_CHECKING:
    import torch

    Tensors = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
#: An axis, or an axis with the name of the dimension.
Axis = int | tuple[int, str]

_EXAMPLE = "example must be a tensor, a tuple of tensors and of lists of tensors, or these by name of the argument"
#: The frames with which loops over frames are unrolled: few, and a number that other sizes of a module seldom are. A
#: module that pads its input to whole blocks takes that branch, too.
_TURNS = 11
#: Words of the failure of a file that is right for a single length.
_FIXED = "fixed axis|runs and the file fails|the shape is"
#: Words of a failure, and advice.
_ADVICE = {
    _FIXED: (
        "a length or batch that Python reads, as in `torch.zeros(2, 8)`, is fixed in the file. A loop over frames, "
        "`for t in range(x.shape[1])`, becomes a loop of the file if each turn does the same with frame t, and outputs "
        "are collected in a list, `outputs.append(y)`, `torch.stack(outputs, 1)`. In code that is not yours, call the "
        "cell of the package from such a loop in a module of your own, or compile the part from outside: "
        "`network.cell = torch.jit.script(network.cell)` names the line that TorchScript refuses"
    ),
    "dynamo: the exporter fixed": (
        "the newer exporter fixes the length of the second nn.LSTM or nn.GRU of a process: export in a new process"
    ),
}


def from_torch(
    module: torch.nn.Module,
    example: Tensors,
    *,
    time: Axis | Mapping[str, Axis] | None = None,
    batch: int | Mapping[str, int] | None = None,
    outputs: Sequence[str] | None = None,
    exporter: str = "auto",
    shortest: int | None = None,
    constants: Sequence[str] = (),
    verify: bool = False,
    **options: Any,
) -> Model:
    """Export a PyTorch module in memory, load the file, and compare the model with the module.

    The module is exported in evaluation mode, with open dimensions for time and batch. `Model.params` contains the
    float entries of ``module.state_dict()`` under the same names and in the same layout. The model must agree with the
    module at the sizes of the example, at twice, 5 and 17 times these sizes, at these sizes plus 1, and at size 1, and
    for other weights, and so must its stream over time, unless `Model.stream` refuses the model. Sizes that the module
    does not support are skipped. Each run and each export starts from the current contents of the module, such as the
    tables that earlier calls have filled.

    Example::

        model = jaxrnn.from_torch(denoiser, torch.randn(2, 8, 20), time=2)
        streamed = model.stream("time", pulse=4)

    Args:
        module: the module; weights, attributes, modes and gradients are unchanged afterwards, also after an error.
        example: a tensor, a tuple of the positional arguments of ``forward``, or a dict of keyword arguments. The
            tensors of an argument that is a list or tuple, such as a state ``(h, c)``, are inputs ``state_0``,
            ``state_1``.
        time: the time axis of the first input, or the time axes by input: ``{"x": 1}``. The dimension is called
            ``time``; ``{"x": (1, "T"), "y": (1, "4*T")}`` sets the names and relates inputs at several rates. By
            default, time is not an open dimension.
        batch: the batch axis of all inputs, or the batch axes by input; ``{}`` keeps the batch of the example. By
            default, axis 0 of the first input (axis 1 if time is axis 0), and the axis of the same size in each other
            input.
        outputs: names of the outputs. By default, the keys if ``forward`` returns a dict, or ``output``,
            ``output_1``, ...
        exporter: ``"script"`` for TorchScript, ``"dynamo"`` for ``torch.export``, or ``"auto"``: TorchScript, and the
            other exporter if that fails or differs. Loops over frames in Python, which the exporter unrolls, become
            loops of the file if all turns are equal; otherwise TorchScript compiles the parts of the module that it
            can.
        shortest: the smallest size of the time dimensions that is compared. By default 1, or the smallest size from
            which on the file agrees, up to the size of the example; a warning reports a size above 1.
        constants: names of trainable weights that may be constants of the file, because the module reads them as
            numbers. A different trainable weight that is a constant of the file is an error.
        verify: True to compare the model at all sizes above. By default, doubled sizes are left out if the module runs
            at the sizes plus 1, and 5 times the sizes if the file runs at 17 times; this takes a quarter less time.
        options: other arguments of `jaxrnn.load`, such as ``state``.

    Raises:
        InputError: the example, an axis or a name does not fit the module, or two calls on equal inputs differ.
        ModelError: no exporter writes a file that agrees with the module; the message lists the differences.
        MissingPackageError: PyTorch, or onnxscript for the newer exporter, is not installed.
    """
    with optional_package("torch", "from_torch", "torch"):
        import torch
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, not {type(module).__name__}")
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise InputError(f"{type(module).__name__} has lazy parameters without a shape; call the module once before")
    if exporter not in ("auto", "script", "dynamo"):
        raise InputError(f"exporter must be 'auto', 'script' or 'dynamo', not {exporter!r}")
    with unchanged(module) as held:
        call = _Call(module, example, held).with_states()
        axes = _axes(call.arrays, time, {} if batch is None and call.states else batch)
        call = call.enlarged(axes)
        names = call.output_names(outputs)
        shapes, failures = output_shapes(call.run, call.arrays, axes), []
        weights = {name: array for name, array in weights_of(module).items() if name not in call.states}
        check_names(constants, weights, type(module).__name__)
        trainable = {name for name, tensors in entries_of(module).items() if tensors[0].requires_grad}
        given = {key: value for key, value in options.items() if key not in ("dims", "static")}
        kinds = {"auto": ("script", "loops", "compiled", "dynamo"), "script": ("script", "loops", "compiled")}
        for kind in kinds.get(exporter, (exporter,)):
            if kind in ("loops", "compiled") and not re.search(_FIXED, failures[0]):
                continue
            try:
                exported = call.with_turns(axes) if kind == "loops" else call
                exported.renew()
                export = _exporter("script" if kind == "loops" else kind, exported, axes, names)
                proto = export()
                if lost := lost_weights(proto, weights):
                    marks = marked({name: weights[name] for name in lost})
                    exported.renew()
                    with having(module, marks):
                        proto = restored(proto, export(), weights, marks)
                # `torch.jit.freeze` separates compiled layers from the weights, which the module then ignores.
                copies = [name for name in lost_weights(proto, weights) if np.unique(weights[name]).size > 1]
                if kind == "loops":
                    roll_loops(proto)
                state_weights(proto, weights)
                declare_shapes(proto, shapes)
                model, plain = load(proto, **options), load(proto, **given)
                _check_open(plain, axes)
                checked = check_agreement(plain, call.run, call.arrays, axes, "PyTorch", held, shortest, verify)
                found = check_other_weights(plain, call.run, weights, call.arrays, "PyTorch")
                check_constants(sorted({*found, *copies}), trainable, constants)
                check_stream(plain, call.run, call.arrays, axes, "PyTorch", checked.shortest)
            except (InputError, ModelError) as error:
                failures.append(f"{kind}: {error}")
            except JaxrnnError:
                raise
            except Exception as error:  # the exporters raise errors of many types
                failures.append(f"{kind}: {type(error).__name__}: {_reason(error)}")
            else:
                break
        else:
            advice = [text for words, text in _ADVICE.items() if any(re.search(words, each) for each in failures)]
            if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
                advice.append(
                    "torch.jit.freeze and torch.onnx.export separate the layers of a compiled module from its weights: "
                    "compile or load the module again before the import"
                )
            changed = [part for part in module.modules() if torch.nn.utils.parametrize.is_parametrized(part)]
            if changed:
                first: Any = changed[0]
                advice.append(
                    f"a parametrization of PyTorch computes {next(iter(first.parametrizations))} of "
                    f"{type(first).__bases__[0].__name__} in each call; write its present value into the layer before "
                    "the import: `torch.nn.utils.parametrize.remove_parametrizations(layer, "
                    f"{next(iter(first.parametrizations))!r})`"
                )
            problem = f"no exporter of PyTorch writes a file that agrees with {_label(module)}:"
            raise ModelError("\n".join([problem, *failures, *advice]))
    model.label = _label(module)
    _EXAMPLES[model] = call.example([*call.arguments.values()]), call.states
    check_states(model, {name: f"{name}_next" for name in call.states}, options.get("state"))
    if not hasattr(module, "training"):
        warnings.warn(
            f"{model.label} is a frozen module, whose weights are constants: the model has no parameters. To train, "
            "import the module that was given to `torch.jit.freeze`",
            UserWarning,
            stacklevel=2,
        )
    checked.report(model.label, "PyTorch", [name for name in found if name not in constants])
    return model


def to_torch(params: Mapping[str, Any], module: torch.nn.Module, *, model: Model | None = None) -> None:
    """Copy the parameters of a model of `from_torch` back to the module.

    Example::

        fitted = fit(model, draw, loss, steps=1000)
        jaxrnn.to_torch(fitted.params, denoiser, model=model)

    Args:
        params: a dict of NumPy or JAX arrays, as in `Model.params`.
        module: the module; devices and element types do not change.
        model: the model of these parameters. If given, the module runs on random inputs with the new weights and must
            agree with the model.

    Raises:
        InputError: a name or a shape does not fit the module. The module is unchanged.
        ModelError: the module with the new weights differs from the model. The module is unchanged.
    """
    with optional_package("torch", "to_torch", "torch"):
        import torch
    _, states = _EXAMPLES.get(model, (None, ())) if model is not None else (None, ())
    entries = {name: tensors for name, tensors in entries_of(module).items() if name not in states}
    expected = {name: tuple(tensors[0].shape) for name, tensors in entries.items()}
    arrays = check_weights(params, expected, type(module).__name__, model)
    if model is not None:
        with unchanged(module) as held:
            check_after(
                model,
                params,
                lambda inputs: _Call(module, *_example_of(model, module, inputs, held)).run(inputs, arrays),
                "PyTorch",
            )
    with torch.no_grad():
        for name, array in arrays.items():
            entries[name][0].copy_(tensor_of(array))


class _Call:
    """A module with example arguments, as a function of a dict of arrays.

    Each run and each export starts from the first contents of the module: no run reads the cache of another run.
    """

    def __init__(self, module: torch.nn.Module, example: Any, held: Held, states: Sequence[str] = ()):

        by_name = isinstance(example, Mapping)
        values = list(example.values() if isinstance(example, Mapping) else _sequence(example))
        names = [str(name) for name in example] if isinstance(example, Mapping) else _names(module, len(values))
        #: The arguments as the example nests these, and the tensors inside.
        self.nested = dict(zip(names, values, strict=True))
        self.arguments = {
            name: value.detach().clone() for each in map(_inside, names, values) for name, value in each.items()
        }
        if not self.arguments:
            raise InputError(_EXAMPLE)
        #: Names of the tensors that the module keeps from call to call, which are further inputs and outputs.
        self.states = tuple(states)
        self.arguments |= {name: entry_of(module, name).detach().clone() for name in states}
        self.arrays = {name: array_of(value).copy() for name, value in self.arguments.items()}
        self.module, self.by_name, self.held = module, by_name, held
        self.renew()
        result, _ = self._result([value.clone() for value in self.arguments.values()])
        self.keys = [str(key) for key in result] if isinstance(result, Mapping) else None
        #: The module, or a module around it if `forward` takes keywords or `*arguments`, or returns a dict.
        variadic = inspect.Parameter.VAR_POSITIONAL in _parameters(module).values()
        is_plain = not by_name and not self.keys and not variadic and [*self.arguments] == names
        self.target = module if is_plain else _flat(self)

    def run(self, arrays: Mapping[str, Any], weights: Mapping[str, np.ndarray] = MappingProxyType({})) -> list[Any]:
        """Run the module on arrays, with other weights if given; return the outputs in the order of the file."""
        self.renew()
        return self.run_again(arrays, weights)

    def run_again(
        self, arrays: Mapping[str, Any], weights: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> list[Any]:
        """Run the module with the contents that earlier runs have left."""
        moved = [tensor_of(arrays[name]).to(old.device) for name, old in self.arguments.items()]
        with having(self.module, weights):
            return [array_of(value).copy() for value in _leaves(self._result(moved))]

    def renew(self) -> None:
        """Restore the first contents of the module."""
        self.held.restore()
        evaluated(self.module)

    def with_states(self) -> _Call:
        """Take the tensors that the module keeps from call to call as states.

        Raises:
            InputError: outputs depend on earlier calls, but not by buffers or attributes that are zero at first.
        """
        self.run(self.arrays)  # the first run may fill caches
        changed = self.held.changes()
        if repeats(self.run_again, self.arrays):
            return self
        changed = list(dict.fromkeys([*changed, *self.held.changes()]))
        self.renew()
        starts = {name: entry_of(self.module, name) for name in changed}
        problem = f"{_label(self.module)} returns other outputs when it is called again with the same example: "
        if not changed:
            raise InputError(f"{problem}the module draws random numbers; leave these out in evaluation mode")
        other = [name for name, start in starts.items() if start is None]
        filled = [name for name, start in starts.items() if start is not None and start.count_nonzero()]
        if other or filled:
            what = "is not a buffer or a tensor of a module that Python runs" if other else "is not zero at first"
            raise InputError(
                f"{problem}the module keeps a state in {', '.join(changed)}, and {(other or filled)[0]} {what}. Keep "
                "states in buffers that are zero at first, `self.register_buffer('h', torch.zeros(1, 8))`, or pass "
                "a state to `forward` as an argument, and return the next state"
            )
        found = _Call(self.module, self.example([*self.arguments.values()]), self.held, changed)
        if not repeats(found.run_again, found.arrays):
            raise InputError(f"{problem}not only by the states {', '.join(changed)}")
        return found

    def enlarged(self, axes: Mapping[str, Mapping[int, str]]) -> _Call:
        """Enlarge open dimensions of size 1, which exporters would fix, if the module accepts larger sizes."""
        sizes = sizes_of(self.arrays, axes)
        if 1 not in sizes.values():
            return self
        return self._resized(axes, {symbol: max(size, 2) for symbol, size in sizes.items()})

    def with_turns(self, axes: Mapping[str, Mapping[int, str]]) -> _Call:
        """Change lengths to `_TURNS`, so that few turns of a loop over frames show the loop, if the module allows."""
        sizes = sizes_of(self.arrays, axes)
        return self._resized(axes, {symbol: size if symbol == "batch" else _TURNS for symbol, size in sizes.items()})

    def _resized(self, axes: Mapping[str, Mapping[int, str]], sizes: Mapping[str, int]) -> _Call:
        arrays = resized(self.arrays, axes, sizes)
        tensors = [tensor_of(array).to(self.arguments[name].device) for name, array in arrays.items()]
        try:
            return _Call(self.module, self.example(tensors), self.held, self.states)
        except Exception:  # modules refuse sizes with errors of any type
            return self

    def output_names(self, names: Sequence[str] | None) -> list[str]:
        """Return the names of the outputs: the given names, the keys of a dict, or numbered names."""
        count = len(self.run(self.arrays)) - len(self.states)
        if names is None:
            names = self.keys or ["output", *(f"output_{index}" for index in range(1, count))]
        if len(names) != count or len({*names, *self.arguments}) != count + len(self.arguments):
            raise InputError(f"outputs must be {count} names that differ from each other and from the inputs")
        return [*names, *(f"{name}_next" for name in self.states)]

    def example(self, values: Sequence[torch.Tensor]) -> Any:
        """Nest tensors as the example does: a list of arguments, or arguments by name."""
        left = iter(values)
        nested = {name: _like(value, left) for name, value in self.nested.items()}
        return nested if self.by_name else [*nested.values()]

    def _result(self, values: Sequence[torch.Tensor]) -> Any:
        import torch

        with torch.no_grad():
            return self.called(self.module, values)

    def called(self, module: torch.nn.Module, values: Sequence[torch.Tensor]) -> Any:
        """Call a module with tensors as arguments and states; return the result and the next states."""
        given = self.example(values)
        with keeping(module, dict(zip(self.states, values[len(values) - len(self.states) :], strict=True))) as after:
            result = module(**given) if self.by_name else module(*given)
        return result, after


def _inside(name: str, value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors in an argument by name: the entries of a list or tuple are numbered."""
    import torch

    if isinstance(value, torch.Tensor):
        return {name: value}
    if not isinstance(value, (list, tuple)):
        raise InputError(_EXAMPLE)
    parts = (_inside(f"{name}_{index}", each) for index, each in enumerate(value))
    return {key: tensor for part in parts for key, tensor in part.items()}


def _like(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return the next tensors, nested like an argument."""
    if isinstance(value, (list, tuple)):
        parts = [_like(each, tensors) for each in value]
        return parts if isinstance(value, list) else tuple(parts)
    return next(tensors)


def _flat(call: _Call) -> torch.nn.Module:
    """Return a module that takes tensors in order and returns a tuple of tensors."""
    import torch

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = call.module

        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(_leaves(call.called(self.module, values)))

    return Flat().eval()


def _reason(error: Exception) -> str:
    """Return the cause in the message of an exporter, without graphs, lists of next steps and invitations to report."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))  # colours
    text = text.partition("[Caused by")[0].partition(" Please feel free")[0]
    summary = text.partition("## Exception summary")[2].strip()
    lines = [line.strip() for line in (summary or text).splitlines() if line.strip()]
    return (" ".join(lines[:2]) if summary else lines[0] if lines else "")[:400]


def _leaves(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result in order; None is an output that the module leaves out."""
    import torch

    if result is None or isinstance(result, torch.Tensor):
        return [] if result is None else [result]
    if not isinstance(result, (Mapping, tuple, list)):
        raise InputError(f"`forward` returns a value of type {type(result).__name__}; return tensors, tuples or dicts")
    parts = result.values() if isinstance(result, Mapping) else result
    return [leaf for part in parts for leaf in _leaves(part)]


def _parameters(module: torch.nn.Module) -> dict[str, Any]:
    """Return the parameters of ``forward`` by name and kind; TorchScript has a schema in place of a signature."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        schema: Any = getattr(module.forward, "schema", None)
        return {each.name: inspect.Parameter.POSITIONAL_OR_KEYWORD for each in schema.arguments[1:]}
    return {each.name: each.kind for each in inspect.signature(module.forward).parameters.values()}


def _label(module: torch.nn.Module) -> str:
    """Return the name of the class of a module, also of a module of TorchScript."""
    return str(getattr(module, "original_name", type(module).__name__))


def _sequence(example: Any) -> Sequence[Any]:
    return example if isinstance(example, (tuple, list)) else [example]


def _names(module: torch.nn.Module, count: int) -> list[str]:
    """Return the names of the first positional parameters of ``forward``."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY
    names = [name for name, kind in _parameters(module).items() if kind in kinds][:count]
    return names + [f"input_{index}" for index in range(len(names), count)]


def _axes(
    arrays: Mapping[str, np.ndarray],
    time: Axis | Mapping[str, Axis] | None,
    batch: int | Mapping[str, int] | None,
) -> dict[str, dict[int, str]]:
    """Return the names of the open dimensions by input and axis."""
    first = next(iter(arrays))
    times = {} if time is None else time if isinstance(time, Mapping) else {first: time}
    named = {name: axis if isinstance(axis, tuple) else (axis, "time") for name, axis in times.items()}
    axes: dict[str, dict[int, str]] = {name: {} for name in arrays}

    def open_axis(name: str, axis: int, symbol: str) -> None:
        if name not in arrays:
            raise InputError(f"there is no input {name!r}{near(name, arrays)}; the inputs are: {', '.join(arrays)}")
        if not isinstance(axis, int) or not -arrays[name].ndim <= axis < arrays[name].ndim:
            raise InputError(f"input {name!r} of shape {arrays[name].shape} has no axis {axis}")
        if axes[name].setdefault(axis % arrays[name].ndim, symbol) != symbol:
            raise InputError(
                f"axis {axis} of input {name!r} cannot be both {symbol} and {axes[name][axis]}; give `batch`"
            )

    for name, (axis, symbol) in named.items():
        open_axis(name, axis, symbol)
    if isinstance(batch, Mapping) or batch is not None:
        batches = batch if isinstance(batch, Mapping) else dict.fromkeys(arrays, batch)
    else:
        batches = _batch_axes(arrays, {name: {*each} for name, each in axes.items()})
    for name, axis in batches.items():
        open_axis(name, axis, "batch")
    return axes


def _batch_axes(arrays: Mapping[str, np.ndarray], times: Mapping[str, set[int]]) -> dict[str, int]:
    """Take the first axis of the first input that is not time as the batch, and find axes of that size elsewhere."""
    (first, array), *others = arrays.items()
    free = [axis for axis in range(array.ndim) if axis not in times[first]]
    if not free or array.ndim < 2:
        return {}
    found = {first: free[0]}
    size = array.shape[free[0]]
    for name, other in others:
        equal = [axis for axis, length in enumerate(other.shape) if length == size and axis not in times[name]]
        if len(equal) > 1:
            raise InputError(
                f"input {name!r} of shape {other.shape} has {len(equal)} axes of size {size}, the batch of {first!r}; "
                f"say which axis is the batch: `batch={{{first!r}: {free[0]}, {name!r}: {equal[0]}}}`, or use an "
                "example with a batch of another size"
            )
        if equal:
            found[name] = equal[0]
    return found


def _exporter(
    kind: str, call: _Call, axes: Mapping[str, Mapping[int, str]], names: Sequence[str]
) -> Callable[[], onnx.ModelProto]:
    """Return a function that exports the module with the current weights."""
    import torch

    arguments = tuple(call.arguments.values())
    common = {"input_names": list(call.arguments), "output_names": list(names), "verbose": False}

    def named(proto: onnx.ModelProto) -> onnx.ModelProto:
        if call.target is not call.module:
            kept = [tensor for tensor in proto.graph.initializer if tensor.name[len("module.") :] not in call.states]
            del proto.graph.initializer[:]
            proto.graph.initializer.extend(kept)
            inner = [name for name in call.module.state_dict() if name not in call.states]
            rename_values(proto, {f"module.{name}": name for name in inner})
        return proto

    if kind != "dynamo":
        dynamic = {name: dict(each) for name, each in axes.items() if each}

        def scripted() -> onnx.ModelProto:
            buffer: Any = io.BytesIO()
            # Without the option of the inputs, equal weights become a single initializer.
            kept: Any = {"dynamo": False, "do_constant_folding": False, "keep_initializers_as_inputs": True}
            kept["dynamic_axes"] = dynamic
            with _exportable(call.module), contextlib.redirect_stdout(io.StringIO()):
                target: Any = _compiled(call.target, arguments) if kind == "compiled" else call.target
                if any(isinstance(part, torch.jit.ScriptModule) for part in target.modules()):
                    if not isinstance(target, torch.jit.ScriptModule):  # the exporter traces no compiled part
                        target = torch.jit.trace(target, arguments, check_trace=False)
                    # The exporter separates the weights of a compiled layer from those that the module has.
                    target = copy.deepcopy(target)
                torch.onnx.export(target, arguments, buffer, **kept, **common)
            return named(onnx.load_from_string(buffer.getvalue()))

        return scripted
    with optional_package("onnxscript", "PyTorch's newer exporter", "torch"):
        import onnxscript as onnxscript

    def dimension(symbol: str) -> Any:
        factor, base = parsed(symbol)
        return factor * torch.export.Dim(base) if factor > 1 else torch.export.Dim(base)

    shapes: Any = tuple({axis: dimension(symbol) for axis, symbol in axes[name].items()} for name in call.arguments)
    shapes = (shapes,) if call.target is not call.module else shapes

    def exported() -> onnx.ModelProto:
        program = torch.onnx.export(
            call.target, arguments, dynamo=True, optimize=False, dynamic_shapes=shapes, **common
        )
        if program is None:
            raise ModelError("the exporter returned no program")
        return named(program.model_proto)

    return exported


def _compiled(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    """Return a module traced with the parts compiled that TorchScript can compile, so that their loops stay loops."""
    import torch

    replaced: list[tuple[Any, str, torch.nn.Module]] = []

    def compile_parts(owner: Any) -> None:
        for name, part in list(owner.named_children()):
            try:
                compiled = None if type(part).__module__.startswith("torch.nn.") else torch.jit.script(part)
            except Exception:  # TorchScript refuses Python code with errors of any type
                compiled = None
            if compiled is None:
                compile_parts(part)
            else:
                replaced.append((owner, name, part))
                owner._modules[name] = compiled

    holder = torch.nn.ModuleList([module])
    try:
        compile_parts(holder)
        if not replaced:
            raise ModelError("TorchScript compiles no part of the module")
        return torch.jit.trace(module, arguments, check_trace=False) if holder[0] is module else holder[0]
    finally:
        for owner, name, part in replaced:
            owner._modules[name] = part


@contextlib.contextmanager
def _exportable(module: torch.nn.Module) -> Iterator[None]:
    """Replace layers that the TorchScript exporter refuses by operations that the exporter supports."""
    import torch

    # A fused encoder layer has no ONNX operator.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    # TorchScript prints the graph of a failed export.
    internals: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    log = getattr(internals, "_jit_onnx_log", None)
    from jaxrnn.frameworks.torch_complex import RealForms

    internals._jit_onnx_log = lambda *_: None
    layers = [part for part in module.modules() if isinstance(part, torch.nn.LSTM) and part.proj_size]
    projected = [part for part in layers if "forward" not in vars(part)]
    hooks: list[Any] = []
    try:
        for part in projected:
            part.forward = _projected_lstm(part)
        with RealForms() as forms:
            if not isinstance(module, torch.jit.ScriptModule):
                hooks.append(module.register_forward_hook(lambda *call: forms.writes.read(call[-1])))
            yield
    finally:
        for hook in hooks:
            hook.remove()
        torch.backends.mha.set_fastpath_enabled(fused)
        internals._jit_onnx_log = log
        for part in projected:
            del part.forward


def _projected_lstm(layer: torch.nn.LSTM) -> Callable[..., Any]:
    """Return a function equal to ``layer.forward`` of a layer with projections, which the exporter refuses.

    The exporter keeps the loop over frames.
    """
    import torch

    @torch.jit.script
    def run(
        x: torch.Tensor,
        h: torch.Tensor,
        c: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        bias: torch.Tensor,
        w_hr: torch.Tensor,
        backwards: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs: list[torch.Tensor] = []
        gates = torch.matmul(x, w_ih.t()) + bias
        if backwards:
            gates = gates.flip(0)
        for index in range(gates.size(0)):
            i, f, g, o = (gates[index] + torch.matmul(h, w_hh.t())).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.matmul(torch.sigmoid(o) * torch.tanh(c), w_hr.t())
            outputs.append(h)
        y = torch.stack(outputs)
        if backwards:
            y = y.flip(0)
        return y, h, c

    def forward(x: torch.Tensor, hx: tuple[torch.Tensor, torch.Tensor] | None = None) -> Any:
        single = x.dim() == 2
        frames = x.unsqueeze(1) if single else x.transpose(0, 1) if layer.batch_first else x
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        if hx is None:
            h0 = frames.new_zeros(count, frames.shape[1], layer.proj_size)
            c0 = frames.new_zeros(count, frames.shape[1], layer.hidden_size)
        else:
            h0, c0 = (state.unsqueeze(1) if single else state for state in hx)
        hidden, cells = [], []
        for index in range(layer.num_layers):
            ends = []
            for backwards in (False, True)[: 1 + layer.bidirectional]:
                suffix = f"l{index}" + ("_reverse" if backwards else "")
                w_ih, w_hh = getattr(layer, f"weight_ih_{suffix}"), getattr(layer, f"weight_hh_{suffix}")
                bias = w_ih.new_zeros(w_ih.shape[0])
                if layer.bias:
                    bias = getattr(layer, f"bias_ih_{suffix}") + getattr(layer, f"bias_hh_{suffix}")
                place = len(hidden)
                w_hr = getattr(layer, f"weight_hr_{suffix}")
                y, h, c = run(frames, h0[place], c0[place], w_ih, w_hh, bias, w_hr, backwards)
                ends.append(y)
                hidden.append(h)
                cells.append(c)
            frames = torch.cat(ends, 2)
        last = torch.stack(hidden), torch.stack(cells)
        if single:
            return frames.squeeze(1), tuple(state.squeeze(1) for state in last)
        return frames.transpose(0, 1) if layer.batch_first else frames, last

    return forward


def _check_open(model: Model, axes: Mapping[str, Mapping[int, str]]) -> None:
    shapes = {info.name: info.shape or () for info in model.inputs}
    for name, each in axes.items():
        if each and name not in shapes:
            raise ModelError(f"the file has no input {name!r}, because the module does not use it")
        for axis, symbol in each.items():
            if isinstance(shapes[name][axis], int):
                raise ModelError(f"the exporter fixed axis {axis} ({symbol}) of input {name!r} at {shapes[name][axis]}")


#: The examples of models, which say how the arguments of a module are nested, and names of states in the module.
_EXAMPLES: WeakKeyDictionary[Model, tuple[Any, tuple[str, ...]]] = WeakKeyDictionary()


def _example_of(
    model: Model, module: torch.nn.Module, inputs: Mapping[str, Any], held: Held
) -> tuple[Any, Held, tuple[str, ...]]:
    """Return inputs as arguments of ``forward``: as the example of the model, by keyword, or in order."""
    example, states = _EXAMPLES.get(model, (None, ()))
    tensors = {name: tensor_of(array) for name, array in inputs.items() if name not in states}
    if example is not None:
        left, by_name = iter(tensors.values()), isinstance(example, Mapping)
        if by_name:
            return {name: _like(each, left) for name, each in example.items()}, held, states
        return [_like(each, left) for each in example], held, states
    return tensors if tensors.keys() <= _parameters(module).keys() else [*tensors.values()], held, states
