"""A single live stream with little overhead around each step, for a microphone rather than a server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxrnn._files.messages import check_word, describe
from jaxrnn._jax.context import check_process, exact_types, on_device, on_host, own_transfers
from jaxrnn.errors import InputError, NonFiniteError, StateError
from jaxrnn.steps.finite import ON_NONFINITE, OnNonFinite
from jaxrnn.steps.live import moved_state, moving_state
from jaxrnn.steps.numpy_step import Feed, NumpyStep
from jaxrnn.steps.specs import Arrays, ArraySpec, bind, taken
from jaxrnn.steps.stepper import Bound, State, Stepper

_UNCHANGED = contextlib.nullcontext()
#: The step of a stream, the packed state, and the number of resets because of NaN or infinities.
_Now: TypeAlias = tuple[NumpyStep, Any, int]


class Live:
    """The value of a live object, which calls replace in turn.

    A call that returns has replaced the value, and a call that raises has not, whatever is raised: an interrupt from
    the keyboard can arrive between any two instructions.
    """

    def __init__(self, value: Any):
        self._turn = threading.RLock()
        self.value: Any = value

    def change(self, function: Callable[..., tuple[Any, Any]], *arguments: Any) -> Any:
        """Call ``result, value = function(value, *arguments)``, keep the new value, and return the result."""
        check_process()
        before = after = None
        try:
            with self._turn:
                before = self.value
                result, after = function(before, *arguments)
                if self.value is not before:
                    raise StateError(
                        "a signal handler or a callback called the same stream or pool in the middle of this call, "
                        "which therefore had no effect: call again"
                    )
                self.value = after
            return result
        except BaseException:
            # The interrupt may have arrived after the assignment, as when the lock is released.
            with self._turn:
                if self.value is after:
                    self.value = before
            raise


class Runner:
    """A live stream with NumPy inputs and outputs. A runner owns the state and is not a pure function.

    The parameters are constants of the compiled step. If the stepper is a compiled file with machine code, the runner
    uses the machine code and does not compile.

    Example::

        run = jaxrnn.Runner(offline.stream(pulse=4), offline.params)
        for pulse in microphone:
            outputs = run({"input": pulse})
        rest = run.flush()

    Threads can share a runner: calls run in sequence, each a whole step. A call that raises leaves the stream
    unchanged, also if Ctrl-C interrupts it. A copy is a second stream that continues from the same state. A pickle
    contains the stepper, the parameters and the state.

    On CPU, steps run in the calling thread, which is faster than JAX's default.

    Args:
        stepper: a model with external state, a streamed function, a compiled file, or a custom `Stepper`.
        params: the parameters, plain or packed; by default the parameters of the stepper.
        constants: the inputs without a time axis on which the state before the first frame depends.
        allow_nan: True to accept an assigned state with NaN.
        on_nonfinite: what a step does if its outputs or the state after the step have NaN or infinities. ``"keep"``:
            go on, so that the stream equals the model for the whole recording. ``"raise"``: raise NonFiniteError, and
            leave the stream as before the step. ``"reset"``: return zeros for the step, and begin a new stream with
            the next step. An entry of the state that has infinities before the first frame, such as a running maximum,
            may have infinities, and the outputs beside such an entry too; the same holds for an entry with NaN. The
            check takes about a microsecond, and several for machine code.

    Raises:
        StateError: the model forgets its state, so it has no steps; stream the model with `Model.stream`. Or the
            process is a fork of a process that has used JAX.
        InputError: the parameters do not fit, or the object is not a stepper with named arrays.
    """

    def __init__(
        self,
        stepper: Stepper,
        params: Any = None,
        constants: Arrays | None = None,
        *,
        allow_nan: bool = False,
        on_nonfinite: OnNonFinite = "keep",
    ):
        check_process()
        check_word("on_nonfinite", on_nonfinite, ON_NONFINITE)
        self._stepper, self._constants, self._allow_nan = stepper, constants, allow_nan
        self._on_nonfinite = on_nonfinite
        loaded = NumpyStep(Bound(stepper, params), constants, watched=on_nonfinite != "keep")
        self._inputs = loaded.spec.inputs
        # 64-bit types need a context, and entering a context takes time.
        self._wide = any(each.is_wide for each in (*self._inputs, *loaded.spec.state))
        #: Set in the turn of a call.
        self._feed: Feed | None = None
        with exact_types():
            self._live = Live((loaded, loaded.begin(), 0))

    def __repr__(self) -> str:
        return f"Runner({self._live.value[0].spec.summary})"

    def __copy__(self) -> Runner:
        result = object.__new__(Runner)
        # The copy shares the compiled step and the state, because arrays of a state are never overwritten.
        vars(result).update(vars(self), _live=Live(self._live.value), _feed=None)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Runner:
        return self.__copy__()

    def __getstate__(self) -> dict[str, Any]:
        check_process()
        loaded, state, resets = self._live.value
        arguments = {"stepper": self._stepper, "params": loaded.bound.given, "constants": self._constants}
        arguments |= {"allow_nan": self._allow_nan, "on_nonfinite": self._on_nonfinite}
        return {"arguments": on_host(arguments), "state": loaded.unpack(state), "resets": resets}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**on_device(state["arguments"]))
        loaded = self._live.value[0]
        with exact_types():
            self._live = Live((loaded, loaded.pack(state["state"]), state["resets"]))

    @property
    def params(self) -> Any:
        """The parameters, which can be assigned between two steps: the next step has the new parameters.

        New parameters have the names, shapes and dtypes of the old parameters, plain or packed; the state does not
        change. After a reset, the state is the first state for the new parameters. The first assignment compiles a step
        that takes the parameters as arguments, before the exchange, while other threads continue with the old
        parameters. Later assignments of such arrays do not compile. A step that takes arguments is somewhat slower.
        Parameters that do not fit raise InputError or StateError, and the old parameters stay.
        """
        return self._live.value[0].bound.params

    @params.setter
    def params(self, params: Any) -> None:
        check_process()
        before: NumpyStep = self._live.value[0]
        try:
            new = self._warmed(before, before.bound.exchanged(params))
        except jax.errors.JAXTypeError:  # a stepper that needs the numbers while it is traced
            new = self._warmed(before, Bound(self._stepper, params))

        def replaced(now: _Now) -> tuple[None, _Now]:
            loaded, state, resets = now
            with exact_types():
                return None, (new, new.pack(loaded.unpack(state)), resets)

        return self._live.change(replaced)

    def _warmed(self, before: NumpyStep, bound: Bound) -> NumpyStep:
        """Return a step that is compiled, if the sizes of the inputs are known."""
        new = NumpyStep(bound, self._constants, watched=self._on_nonfinite != "keep")
        check_same_state(before.start, new.start)
        if all(each.shape is not None and not each.symbols for each in self._inputs):
            zeros = {each.name: np.zeros(each.sizes, each.dtype) for each in self._inputs}
            with contextlib.suppress(NonFiniteError):
                # Other threads use the feed of the stream.
                self._stepped(_begun((new, None, 0)), new.feed(zeros)(zeros))
            with exact_types():
                new.bound.warm_up_flush(new.start, zeros)
        return new

    def reset(self) -> None:
        """Begin a new stream."""
        return self._live.change(lambda now: (None, _begun(now)))

    @property
    def resets(self) -> int:
        """The number of steps after which the stream started again, because of ``on_nonfinite="reset"``."""
        return self._live.value[2]

    def __call__(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run one step.

        Args:
            inputs: a dict of the arrays of one step, without a batch. NumPy arrays of the declared dtypes are fastest;
                other values are converted.

        Returns:
            A dict of outputs, which are read-only views of a new buffer.

        Raises:
            InputError: an input is missing or unknown, or has a wrong dtype or shape. The stream does not change.
            NonFiniteError: ``on_nonfinite`` is ``"raise"``, and the step is not finite. The stream does not change.
        """
        return self._live.change(self._fed, inputs)

    def _fed(self, now: _Now, inputs: Arrays) -> tuple[Mapping[str, np.ndarray], _Now]:
        feed = self._feed
        given = None if feed is None or type(inputs) is not dict else feed(inputs)
        if given is None:
            arrays = host_arrays(self._inputs, inputs)
            self._feed = feed = now[0].feed(arrays)
            given = feed(arrays)
        try:
            return self._stepped(now, given)
        except NonFiniteError as error:
            if self._on_nonfinite == "raise":
                raise
            loaded, state, resets = _begun(now)
            return error.outputs, (loaded, state, resets + 1)

    def _stepped(self, now: _Now, inputs: Any) -> tuple[dict[str, np.ndarray], _Now]:
        loaded, state, resets = now
        # A context such as `exact_types` takes as long as a step of a small network: enter contexts only if needed.
        if not self._wide:
            try:
                outputs, after = loaded(state, inputs)
                return outputs, (loaded, after, resets)
            except jax.errors.JaxRuntimeError as error:
                if "transfer" not in str(error):
                    raise
        with own_transfers(), jax.enable_x64(True) if self._wide else _UNCHANGED:
            outputs, after = loaded(state, inputs)
            return outputs, (loaded, after, resets)

    def flush(self, tail: Arrays | None = None, valid: int | None = None) -> dict[str, np.ndarray]:
        """Return the rest of the recording as a dict of outputs, and begin a new stream.

        The rest consists of the frames that the delay kept back, and of results for the whole recording. A model in
        steps has no rest. A flush may return NaN and infinities for any ``on_nonfinite``.

        Args:
            tail: input frames that do not fill a pulse.
            valid: the number of existing frames in the tail; by default all.

        Raises:
            InputError: the tail does not fit the stepper, or the constraints of the stream do not allow a recording of
                this length; the stream then stays as it was.
        """

        def flushed(now: _Now) -> tuple[dict[str, np.ndarray], _Now]:
            loaded, state, _ = now
            with exact_types():
                return loaded.rest(state, tail, valid), _begun(now)

        return self._live.change(flushed)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The state after the last step, which can be assigned: a dict of NumPy arrays by the names in ``spec.state``.

        The entry ``jaxrnn.network`` identifies the network. The stream continues in a different runner or pool, also in
        a different process, with a new pulse or new parameters: ``other.state = run.state``. ``np.savez`` saves
        the dict, and an assignment takes the arrays of ``np.load``, or lists from a JSON file.

        Raises:
            StateError: an assigned entry is missing, unknown, or has the wrong shape or dtype, or NaN without
                ``allow_nan``. Or the state belongs to a different network, or has frames that wait in a pool.
        """
        check_process()
        loaded, state, _ = self._live.value
        with exact_types():
            return moving_state(loaded.spec, loaded.entries(state))

    @state.setter
    def state(self, state: Arrays) -> None:
        def replaced(now: _Now) -> tuple[None, _Now]:
            loaded, _, resets = now
            with exact_types():
                moved, waiting = moved_state(loaded.spec, loaded.start, state, allow_nan=self._allow_nan)
                if waiting:
                    raise StateError(f"frames of {', '.join(waiting[0])} wait in the state, which only a pool takes")
                return None, (loaded, loaded.pack(moved), resets)

        return self._live.change(replaced)


def _begun(now: _Now) -> _Now:
    loaded, _, resets = now
    with exact_types():
        return loaded, loaded.begin(), resets


def check_same_state(before: State, after: State) -> None:
    """Check that the state before the first frame has the same entries with other parameters."""
    described = [{name: describe(array) for name, array in each.items()} for each in (before, after)]
    if described[0] != described[1]:
        name = next(name for name in {**before, **after} if described[0].get(name) != described[1].get(name))
        had, has = (each.get(name, "missing") for each in described)
        raise StateError(
            f"the state {name!r} is {had}, and with these parameters {has}, so that the stream cannot go on: make a "
            "new one"
        )


def host_arrays(specs: Sequence[ArraySpec], inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the inputs as host arrays of the declared dtypes."""
    with exact_types():
        return {name: host_array(value) for name, value in bind(specs, inputs, convert=taken).items()}


def host_array(value: Any) -> np.ndarray:
    """Return a value as a host array; raise InputError for a value that JAX traces."""
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError as error:
        raise InputError(
            "a Runner or StreamPool takes arrays, and got a value that JAX traces, as inside of jax.jit or jax.vmap: "
            "call stepper.step(params, state, inputs) there"
        ) from error
