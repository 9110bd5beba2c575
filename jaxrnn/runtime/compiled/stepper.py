"""`CompiledStepper`, a compiled file as a `Stepper`, and `load_compiled`, which reads the file."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import bytes_of, describe, first_line
from jaxrnn._jax.context import default_device, exact_types, placed
from jaxrnn.errors import InputError, JaxrnnError, LimitError, ModelError, UnsupportedError
from jaxrnn.runtime.compiled.format import Archive, load_function, read
from jaxrnn.runtime.compiled.native import BATCHED, CodeError, arguments_of, differences, function_of, structs_of
from jaxrnn.steps.recordings import recording_specs, scan_steps
from jaxrnn.steps.specs import Arrays, bind, taken
from jaxrnn.steps.stepper import ExportForm, Flushed, State, nothing_left, whole_pulse
from jaxrnn.steps.stepspec import StepSpec, batch_note, in_batch

#: The status of an error of XLA if the program is wrong, or needs a kernel that this platform does not have.
_OF_PROGRAM = re.compile("INVALID_ARGUMENT|NOT_FOUND|UNIMPLEMENTED")


def load_compiled(path: str | os.PathLike[str], *, native: bool = False) -> CompiledStepper:
    """Read a file that `save_compiled` wrote. Neither ONNX nor a trace of the model is needed.

    The digest in a file detects damage, but is not a signature. Run compiled files only from sources that you trust, as
    you would run a program. Machine code needs the most trust: JAX compiles the portable part of a file, but machine
    code runs unchecked, with all rights of the process.

    Example::

        jaxrnn.save_compiled(model, "denoiser.jaxrnn", dims={"time": 1})
        run = jaxrnn.Runner(jaxrnn.load_compiled("denoiser.jaxrnn"))

    Args:
        path: the path of the file.
        native: run the machine code in the file. If the file has no code for this machine, a `UserWarning` names the
            reason, and JAX compiles the portable functions. Calls without machine code, such as a scan, are always
            compiled. By default the machine code is not read.

    Raises:
        ModelError: the file is missing, damaged, inconsistent, or not a compiled file; or a function calls code of the
            host, or was written by an incompatible version of JAX (with ``native``, at the first call of the function).
            The first call also raises this error if the function was compiled for a different platform.
    """
    found = read(path, native)
    if native and found.native is None:
        warnings.warn(
            f"{os.fspath(path)} holds no machine code, so JAX compiles the functions: write the file with native=True",
            stacklevel=2,
        )
    stepper = CompiledStepper(found)
    if not native:  # a start with machine code does not wait for functions that may not be needed
        for name in found.functions:
            stepper.exported(name)
    return stepper


class CompiledStepper:
    """A stepper from a compiled file: pure functions `init`, `step`, `scan` and `flush`.

    The functions handle a single stream or a batch of any size; under ``jax.vmap``, the functions of a batch run.
    The functions have no derivatives. If the file has machine code for a call, the machine code runs; otherwise JAX
    compiles the portable function. Threads can call the functions at the same time.

    Attributes:
        spec: the spec of the stepper.
        params: the parameters.
        native: the names of the functions that run as machine code, with the number of streams as suffix; empty unless
            `load_compiled` was called with ``native=True``.
    """

    def __init__(self, archive: Archive):
        self.spec = archive.spec
        self._archive = archive
        self._exported: dict[str, jax.export.Exported] = {}
        self._loaded: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}
        self._ready: dict[Any, Any] = {}
        self._code = {} if archive.native is None else dict(archive.native.code)
        if archive.native is not None and (changes := differences(archive.native.made)):
            self._code = {}
            # The stack level of the line that loads the file.
            self._tell(f"is for another machine or installation: {'; '.join(changes)}", stacklevel=4)

    def __repr__(self) -> str:
        return f"CompiledStepper({self.spec.summary})"

    @functools.cached_property
    def params(self) -> tuple[jax.Array, ...]:
        """The parameters. If a function is called with these parameters or with None, the parameters are constants.

        Work that depends only on parameters is then done once, and steps are much faster.
        """
        with exact_types(), jax.ensure_compile_time_eval():
            return tuple(placed(array) for array in self._archive.params)

    @property
    def native(self) -> tuple[str, ...]:
        """The names of the functions with usable machine code."""
        return tuple(self._code)

    def ready(self, name: str, device: Any = None) -> Callable[..., Any] | None:
        """Return a function as machine code that contains the parameters, or None if the file lacks this code.

        Args:
            name: the name of the function; for several streams, with the number of streams as suffix.
            device: the device of all arrays; by default JAX's default device at the first call.
        """
        key = name, device
        if key not in self._ready and name in self._code and self._archive.native is not None:
            results = structs_of(self._archive.native.results[name])
            place = default_device() if device is None else device
            try:
                self._ready[key] = function_of(self._code[name], arguments_of(self.spec, name), results, place)
            except CodeError as error:
                del self._code[name]
                self._tell(f"cannot be used for {name!r}: {first_line(error, 300)}")
        return self._ready.get(key)

    @property
    def fingerprint(self) -> str:
        """The digest of the file."""
        return self._archive.digest

    def __copy__(self) -> CompiledStepper:
        return self  # the object is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledStepper:
        return self

    def __reduce__(self) -> tuple[Callable[..., CompiledStepper], tuple[Any, ...]]:
        return type(self), (self._archive,)

    def init(self, batch: int | None = None, *, params: Sequence[Any] | None = None, constants: Any = None) -> State:
        """Return the state before the first frame, as in `Stepper.init`.

        Args:
            batch: the number of streams; by default one stream without a batch axis.
            params: as in `step`.
            constants: the inputs in ``spec.constants``.

        Raises:
            InputError: constants are needed and missing, or do not fit.
            LimitError: the state does not fit the memory.
        """
        with exact_types():
            if self._archive.start is None:
                state = self._call("init", params, self._constants(constants))
                if batch is None or any(isinstance(array, Tracer) for array in state.values()):
                    return in_batch(self.spec, state, batch)
            else:
                sizes = {} if self.spec.batch_symbol is None else {self.spec.batch_symbol: 1}
                state = {
                    each.name: np.broadcast_to(array, each.sized(sizes).sizes)
                    for each, array in zip(self.spec.carried, self._archive.start, strict=True)
                }
            # With NumPy, because JAX would compile a program, which takes longer than the step.
            arrays = in_batch(self.spec, {name: np.asarray(array) for name, array in state.items()}, batch)
            try:
                return {name: placed(array) for name, array in arrays.items()}
            except (MemoryError, jax.errors.JaxRuntimeError) as error:  # a small file can declare a large state
                size = bytes_of(sum(array.nbytes for array in arrays.values()))
                raise LimitError(f"{self.spec.label}: the state takes {size}: {first_line(error)}") from error

    def _constants(self, constants: Any) -> dict[str, Any]:
        specs = [spec for spec in self.spec.inputs if spec.name in self.spec.constants]
        arrays = {name: array for name, array in (constants or {}).items() if array is not None}
        if any(spec.name not in arrays for spec in specs):
            raise InputError(
                f"the state before the first frame depends on constants: call `init(constants=...)` with "
                f"{', '.join(self.spec.constants)}"
            )
        return bind(specs, {spec.name: arrays[spec.name] for spec in specs}, convert=taken)

    def step(self, params: Sequence[Any] | None, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        """Run one step.

        Args:
            params: parameters like the attribute, or None to use the parameters of the file, which is faster.
            state: the state from `init` or the last step.
            inputs: a dict of arrays with one frame or pulse.

        Returns:
            The outputs, with None in place of outputs of the flush, and the state after the step.

        Raises:
            InputError: an input does not fit.
            StateError: the state does not fit.
        """
        with exact_types():
            lead, spec = self._of_batch(state)
            arrays = spec.bind(inputs, lead, taken)
            outputs, after = self._call(f"step{BATCHED}" if lead else "step", params, dict(state), arrays)
        at_end = {output.name: None for output in self.spec.outputs if output.at_end}
        return {**outputs, **at_end}, after

    def scan(self, params: Sequence[Any] | None, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        """Run many steps in one call: whole pulses of a stream, else frames stacked along a first axis.

        Args:
            params: as in `step`.
            state: as in `step`.
            inputs: a dict of arrays with the frames of a recording.

        Raises:
            InputError: an input does not fit.
            StateError: the state does not fit.
        """
        with exact_types():
            lead, spec = self._of_batch(state)
            arrays = bind(recording_specs(spec, "frames", lead), inputs, note=batch_note(lead))
            if "scan" not in self._archive.functions:
                scan = functools.partial(scan_steps, self.spec, functools.partial(self.step, params))
                return (jax.vmap(scan) if lead and self.spec.streams else scan)(dict(state), arrays)
            if not lead:
                return self._call("scan", params, dict(state), arrays)
            swapped = {name: jnp.moveaxis(array, 0, 1) for name, array in arrays.items()}
            outputs, after = self._call(f"scan{BATCHED}", params, dict(state), swapped)
            return {name: jnp.moveaxis(array, 0, 1) for name, array in outputs.items()}, after

    def flush(
        self, params: Sequence[Any] | None, state: State, tail: Arrays | None = None, valid: Any = None
    ) -> Flushed:
        """Return the frames that are left at the end of a recording, as in `Stepper.flush`.

        Args:
            params: as in `step`.
            state: the state after the last step.
            tail: a dict of input frames that do not fill a pulse, with any padding up to a pulse.
            valid: the number of existing frames in the tail, for a batch also an array of numbers; can be traced. By
                default, all frames of the tail.

        Raises:
            InputError: the tail does not fit.
            StateError: the state does not fit.
        """
        with exact_types():
            lead, spec = self._of_batch(state)
            if "flush" not in self._archive.functions:
                return nothing_left(self.spec, tail, valid)
            arrays, existing = whole_pulse(spec, tail, valid, lead, taken)
            if isinstance(existing, jax.Array):
                existing = jnp.broadcast_to(existing.astype(jnp.int32), lead)
            else:
                existing = np.broadcast_to(np.asarray(existing, np.int32), lead)
            name = f"flush{BATCHED}" if lead else "flush"
            outputs, counts = self._call(name, params, dict(state), arrays or {}, existing)
        return Flushed(outputs, {name: counts.get(name) for name in outputs})

    def _of_batch(self, state: State) -> tuple[tuple[Any, ...], StepSpec]:
        """Return the leading batch axis of a state, and the spec with the batch of the state in the batch dimension."""
        symbol, lead = self.spec.batch_symbol, self.spec.lead(state)
        batch = None if symbol is None else self.spec.batch(state)
        return lead, self.spec if symbol is None or batch is None else self.spec.sized({symbol: 1 if lead else batch})

    def _export_form(self) -> ExportForm:
        raise UnsupportedError(
            "a compiled file contains XLA programs, which cannot be written as ONNX: export the model or stream that "
            "was compiled"
        )

    def _tell(self, what: str, stacklevel: int = 2) -> None:
        warnings.warn(
            f"{self.spec.label}: the machine code of the compiled file {what}. JAX compiles the functions from the "
            "portable part instead, with equal results",
            stacklevel=stacklevel,
        )

    def _call(self, name: str, params: Sequence[Any] | None, *arguments: Any) -> Any:
        with exact_types():
            if params is vars(self).get("params"):
                params = None  # the parameters of the file
            if params is None and (ready := self._ready_for(name, arguments)) is not None:
                # JAX compiles calls with other shapes, or on other devices.
                with contextlib.suppress(TypeError, ValueError):
                    return ready(*arguments)
            function = self.portable(name)
            if params is not None:
                params = self._checked(params)
            if params is None and name not in self._bound:
                self._bound[name] = jax.jit(functools.partial(function, list(self.params)))
            try:
                return self._bound[name](*arguments) if params is None else function(params, *arguments)
            except JaxrnnError:
                raise
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                # The arguments agree with the manifest, so the file is wrong.
                if isinstance(error, jax.errors.JaxRuntimeError) and not _OF_PROGRAM.search(str(error)):
                    raise  # an error of the machine, such as a lack of memory
                raise self._unusable(name, error) from error

    def _checked(self, params: Any) -> list[Any]:
        """Return a list of parameters after a check against the parameters of the file."""
        own = self._archive.params
        if not isinstance(params, (list, tuple)) or len(params) != len(own):
            kind = f"{len(params)} array(s)" if isinstance(params, (list, tuple)) else f"a {type(params).__name__}"
            raise InputError(
                f"{self.spec.label}: parameters of a compiled file are a list of {len(own)} array(s), like its "
                f"attribute params, not {kind}; None stands for the parameters in the file"
            )
        for place, (each, want) in enumerate(zip(params, own, strict=True)):
            if describe(each) != describe(want):
                raise InputError(f"{self.spec.label}: params[{place}] must be {describe(want)}, not {describe(each)}")
        return list(params)

    def _ready_for(self, name: str, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
        """Return the machine code for a call, or None if the file lacks this code or the call is traced."""
        if not self._code or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments)):
            return None
        streams = None if name == "init" else self.spec.batch(arguments[0])
        of_one = streams is None or (streams == 1 and not name.endswith(BATCHED))
        return self.ready(name if of_one else f"{name}_{streams}")

    def portable(self, name: str) -> Callable[..., Any]:
        """Return a function of the file for JAX to compile; the first argument is the list of parameters.

        Raises:
            ModelError: the function cannot be read, or was compiled for a different platform.
        """
        if name not in self._loaded:
            exported = self.exported(name)
            here = jax.export.default_export_platform()
            if here not in exported.platforms:
                made = ", ".join(exported.platforms)
                raise ModelError(
                    f"{self.spec.label} was compiled for {made}, but JAX runs on {here} here; compile it for {here}"
                )
            call = exported.call
            if not name.endswith(BATCHED) and name + BATCHED in self._archive.functions:
                call = _mappable(call, lambda *arguments: self.portable(name + BATCHED)(*arguments))
            self._loaded[name] = jax.jit(call)
        return self._loaded[name]

    def exported(self, name: str) -> jax.export.Exported:
        """Return a function of the file as JAX serialised it, after a check of the operations.

        Raises:
            ModelError: the function cannot be read, does not fit the manifest, or calls code of the host.
        """
        if name not in self._exported:
            try:
                self._exported[name] = load_function(self._archive, name)
            except ValueError as error:
                raise self._unusable(name, error) from error
        return self._exported[name]

    def _unusable(self, name: str, error: Exception) -> ModelError:
        said = f"{self.spec.label}: the function {name!r} of the compiled file cannot be used: {first_line(error, 300)}"
        if not isinstance(error, ModelError):
            said += (
                f". It was compiled with JAX {self._archive.jax}, and this is JAX {jax.__version__}: compile it again "
                "with this version, or upgrade JAX"
            )
        return ModelError(said)


def _mappable(one: Callable[..., Any], many: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a single stream that ``jax.vmap`` replaces by the function of many streams."""
    mapped = jax.custom_batching.custom_vmap(one)

    @mapped.def_vmap
    def _rule(size: int, batched: Any, params: Any, *arguments: Any) -> tuple[Any, Any]:
        if any(jax.tree.leaves(batched[0])):
            raise InputError("a compiled file has one set of parameters: map only over state and inputs")
        whole = jax.tree.map(
            lambda array, is_batched: array if is_batched else jnp.broadcast_to(array, (size, *array.shape)),
            arguments,
            tuple(batched[1:]),
        )
        results = many(params, *whole)
        return results, jax.tree.map(lambda _: True, results)

    return mapped
