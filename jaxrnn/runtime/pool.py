"""Many live streams through one stepper, with joint arrays of states and a single call for all waiting streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import check_word
from jaxrnn._jax.context import check_process, exact_types, on_device, on_host, placed, program
from jaxrnn.errors import InputError, NonFiniteError, StateError, check_count
from jaxrnn.runtime.runner import Live, check_same_state
from jaxrnn.runtime.waiting import Waiting
from jaxrnn.steps.finite import ON_NONFINITE, OnNonFinite, Watch, is_float, mark_of
from jaxrnn.steps.live import moved_state, moving_state
from jaxrnn.steps.specs import Arrays
from jaxrnn.steps.stepper import Bound, State, Stepper

Step = Callable[[Any, Any], tuple[Any, Any]]


class _Loaded(NamedTuple):
    """The compiled functions of a pool, and a first state, which is that of all streams if no input determines it."""

    stream: Bound
    first: State
    functions: Mapping[str, Callable[..., Any]]
    watch: Watch | None

    @property
    def fresh(self) -> State | None:
        """The first state of all streams; None if an input determines it."""
        return None if self.stream.spec.constants else self.first

    def blank(self, capacity: int, first: State | None = None) -> Any:
        """Return the states of all slots: a first state, with a leading axis even for a capacity of 1."""
        given = self.first if first is None else first
        return jax.tree.map(lambda x: placed(np.broadcast_to(np.asarray(x), (capacity, *x.shape))), given)


class _Open(NamedTuple):
    """An open stream: the slot in the pool, and the first state with its constants."""

    slot: int
    constants: Arrays | None
    start: State
    resets: int = 0


class _Streams(NamedTuple):
    """The streams of a pool between two calls."""

    loaded: _Loaded
    open: Mapping[int, _Open]
    free: tuple[int, ...]
    following: int  # the id of the next stream
    states: Any  # the states of all slots, with a leading axis; None before the first run
    starts: Mapping[int, State]  # the states of the slots whose streams have not run yet
    waiting: Waiting

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self.waiting.capacity

    def begun(self, entry: _Open) -> _Streams:
        """Return the streams with a slot at its first state, and without waiting frames."""
        return self._replace(starts={**self.starts, entry.slot: entry.start}, waiting=self.waiting.without(entry.slot))

    def state_of(self, entry: _Open) -> dict[str, np.ndarray]:
        """Return the state of a stream on the host."""
        start = self.starts.get(entry.slot)
        return _on_host(self.loaded.functions["take"](self.states, np.int32(entry.slot)) if start is None else start)


class StreamPool:
    """A pool of concurrent streams. A pool owns the states of the streams and is not a pure function.

    The outputs of a stream never depend on other streams: on the same device, the outputs are bit-identical to the
    outputs of a pool without other streams. A call that raises leaves the pool unchanged, also if a step fails while it
    runs, or if Ctrl-C interrupts it: after an interrupted run, all frames wait again.

    Threads can share a pool: calls run in sequence. A copy is a second pool with the same streams, which continue from
    the same states. A pickle contains the stepper, the parameters, the states and the waiting frames.

    Example::

        pool = jaxrnn.StreamPool(offline.stream(pulse=4), offline.params, capacity=64)
        caller = pool.open()
        pool.push(caller, {"input": pulse})
        outputs = pool.run()[caller]
        rest = pool.flush(caller, {"input": last}, valid=3)

    Args:
        stepper: a model with external state, a streamed function, a compiled file, or a custom `Stepper`.
        params: the parameters, plain or packed; packed parameters are faster for a model in steps. The parameters are
            constants of the compiled functions. None means the parameters of the stepper.
        capacity: the largest number of open streams. Each run computes all of these streams.
        allow_nan: True to accept a state with NaN in `open`.
        on_nonfinite: what a run does with a stream whose outputs or state have NaN or infinities, as in
            `jaxrnn.Runner`; other streams are not affected. ``"keep"``: the stream goes on. ``"reset"``: the outputs of
            the stream are zeros, and its next frame begins a new stream. ``"raise"``: the run raises NonFiniteError
            with the ids of such streams, and the pool stays as before the run.
        warm: what to compile while the pool is made: True for the run and the flush, if all sizes of the inputs are
            known; a dict of inputs, as of `push`, for these sizes; False to compile at the first run.

    Raises:
        StateError: the model forgets its state, so it has no steps; stream the model with `Model.stream`. Or the
            process is a fork of a process that has used JAX.
        InputError: the capacity is not a positive integer, the parameters do not fit, or the object is not a stepper
            with named arrays.
    """

    def __init__(
        self,
        stepper: Stepper,
        params: Any,
        capacity: int,
        *,
        allow_nan: bool = False,
        on_nonfinite: OnNonFinite = "keep",
        warm: bool | Arrays = True,
    ):
        check_process()
        capacity = check_count(_CAPACITY, capacity)
        check_word("on_nonfinite", on_nonfinite, ON_NONFINITE)
        self._stepper, self._allow_nan, self._warm = stepper, allow_nan, warm
        self._on_nonfinite: OnNonFinite = on_nonfinite
        bound, free = Bound(stepper, params), tuple(reversed(range(capacity)))
        if warm is True and all(each.shape is not None and not each.symbols for each in bound.spec.inputs):
            warm = {each.name: np.zeros(each.sizes, each.dtype) for each in bound.spec.inputs}
        waiting = Waiting.of(bound.spec, capacity, None if isinstance(warm, bool) else warm)
        streams = _Streams(self._loaded(bound, capacity), {}, free, 0, None, {}, waiting)
        self._live = Live(streams._replace(loaded=self._warmed(streams, bound)))

    @property
    def capacity(self) -> int:
        """The largest number of open streams, which `grow` changes."""
        return self._live.value.capacity

    def __repr__(self) -> str:
        streams = self._live.value
        return f"StreamPool({streams.loaded.stream.spec.summary}, {len(streams.open)} of {self.capacity} streams open)"

    def __getstate__(self) -> dict[str, Any]:
        check_process()
        streams = self._live.value
        arguments = {"stepper": self._stepper, "params": streams.loaded.stream.given, "capacity": self.capacity}
        arguments |= {"allow_nan": self._allow_nan, "warm": self._warm, "on_nonfinite": self._on_nonfinite}
        streams = streams._replace(loaded=None)
        streams.waiting.join()
        return on_host({"arguments": arguments, "streams": tuple(streams)})

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = on_device(state)
        self.__init__(**state["arguments"])
        self._live = Live(_Streams(*state["streams"])._replace(loaded=self._live.value.loaded))

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._live.value.open)

    @property
    def params(self) -> Any:
        """The parameters, which can be assigned between two runs: the next run has the new parameters.

        The rules of `Runner.params` apply. The first assignment after a run compiles. After a reset, a stream has
        the first state for the new parameters.
        """
        return self._live.value.loaded.stream.params

    @params.setter
    def params(self, params: Any) -> None:
        check_process()
        before, constant = self._live.value, Bound(self._stepper, params)
        try:
            # Before the sizes are known, nothing is compiled that could be kept.
            stream = constant if before.waiting.zeros is None else before.loaded.stream.exchanged(params)
            loaded = self._warmed(before, stream)
        except jax.errors.JAXTypeError:  # a stepper that needs the numbers while it is traced
            loaded = self._warmed(before, constant)

        def replaced(now: _Streams) -> tuple[None, _Streams]:
            opened, starts = {}, dict(now.starts)
            for stream, entry in now.open.items():
                opened[stream] = entry._replace(start=_first(loaded, entry.constants))
                check_same_state(entry.start, opened[stream].start)
                begun = starts.get(entry.slot, {})
                if begun and all(
                    np.array_equal(begun[name], first, equal_nan=is_float(begun[name]))
                    for name, first in entry.start.items()
                ):
                    starts[entry.slot] = opened[stream].start  # which is not a moved state
            fitting = loaded if now.capacity == before.capacity else self._loaded(loaded.stream, now.capacity)
            return None, now._replace(loaded=fitting, open=opened, starts=starts)

        return self._live.change(replaced)

    def _loaded(self, bound: Bound, capacity: int) -> _Loaded:
        return _loaded(bound, capacity, watched=self._on_nonfinite != "keep")

    def _warmed(self, now: _Streams, bound: Bound) -> _Loaded:
        """Return functions that are compiled for the slots of a pool, if the sizes of the frames are known."""
        loaded = self._loaded(bound, now.capacity)
        for entry in now.open.values():
            check_same_state(entry.start, _first(loaded, entry.constants))
        if now.waiting.zeros is not None:
            with exact_types():
                states = loaded.blank(now.capacity) if now.states is None else now.states
                loaded.functions["run"](states, now.waiting.pulses(), np.zeros(now.capacity, bool))
                loaded.functions["clear"](loaded.blank(now.capacity), loaded.first, np.int32(0))
                loaded.stream.warm_up_flush(_on_host(loaded.functions["take"](states, np.int32(0))), now.waiting.zeros)
        return loaded

    def grow(self, capacity: int) -> None:
        """Make room for more streams. Open streams, their ids, their states and their waiting frames stay.

        A larger pool compiles a run again, in the calling thread, while other threads use the pool as it was; then the
        states are copied. Each later run computes all slots, so grow by factors, and not by single streams.

        Args:
            capacity: the new largest number of open streams, which cannot shrink.
        """
        capacity = check_count(_CAPACITY, capacity)
        before = self._live.value
        loaded = self._warmed(_grown(before, capacity), before.loaded.stream)

        def replaced(now: _Streams) -> tuple[None, _Streams]:
            fitting = loaded if now.loaded is before.loaded else self._loaded(now.loaded.stream, capacity)
            return None, _grown(now, capacity)._replace(loaded=fitting)

        return self._live.change(replaced)

    def open(self, constants: Arrays | None = None, *, state: Arrays | None = None) -> int:
        """Begin a stream with a new state, or continue a stream, and return the id. A pool never uses an id twice.

        Args:
            constants: the inputs without a time axis on which the state before the first frame depends, as in
                `Stepper.init`. A stream that continues needs these for `reset` and `flush`.
            state: the state of a stream, from the method `state` or from `Runner.state`. Waiting frames wait again.

        Raises:
            StateError: the pool is full. Or the state does not fit, has NaN, or belongs to a different network.
            InputError: constants are needed and missing, or do not fit.
        """

        def opened(now: _Streams) -> tuple[int, _Streams]:
            if not now.free:
                raise StateError(f"all {now.capacity} streams are open; close one, or make the pool larger with `grow`")
            start = _first(now.loaded, constants)
            given = None if constants is None else {name: np.array(value) for name, value in constants.items()}
            entry = _Open(now.free[-1], given, start)
            after = now._replace(
                open={**now.open, now.following: entry}, free=now.free[:-1], following=now.following + 1
            )
            after = after.begun(entry)
            return now.following, after if state is None else _continued(after, entry, state, self._allow_nan)

        return self._live.change(opened)

    def push(self, stream: int, frame: Arrays) -> None:
        """Queue inputs of a stream, a dict without a batch: a frame of a model, or any number of frames of a stream.

        Frames of a stream are cut into pulses; frames that do not fill a pulse are kept for the next call, or for
        `flush`. Blocks of a size that does not divide the pulse, or the reverse, come out later than the delay of the
        stream (`StepSpec.block_delay`). Call `run` until no pulse waits.

        Raises:
            StateError: the stream is not open.
            InputError: the frames do not fit the stepper, or differ in shape from earlier frames in the pool.
        """

        def queued(now: _Streams) -> tuple[None, _Streams]:
            return None, now._replace(waiting=now.waiting.pushed_to(_find(now, stream).slot, frame))

        return self._live.change(queued)

    def push_many(self, streams: Sequence[int], blocks: Arrays) -> None:
        """Queue inputs of many streams, as `push` of each: a dict of arrays with a leading axis, a row for each stream.

        Pulses of equal sizes are checked and copied once, which is faster than a `push` of each. If a row does not fit,
        nothing is queued.

        Raises:
            StateError: a stream is not open, or is named twice.
            InputError: the rows do not fit the stepper, or are not as many as the streams.
        """
        if not isinstance(streams, Iterable):
            raise InputError(f"streams must be the ids of streams, a row of each block for each, not {streams!r}")

        def queued(now: _Streams) -> tuple[None, _Streams]:
            return None, now._replace(
                waiting=now.waiting.pushed_to_many([_find(now, each).slot for each in streams], blocks)
            )

        return self._live.change(queued)

    def run(self) -> dict[int, dict[str, np.ndarray]]:
        """Run one step of each stream with a waiting frame, in a single call; other streams do not change.

        Returns:
            For each stream a dict of outputs, as NumPy arrays with the shapes of a single stream. Results for the whole
            recording come from `flush`.

        Raises:
            NonFiniteError: ``on_nonfinite`` is ``"raise"``, and some streams are not finite. All frames wait again:
                reset or close ``error.streams``, and run again.
        """
        return self._live.change(self._stepped)

    def resets(self, stream: int) -> int:
        """Return the number of steps after which the stream started again, because of ``on_nonfinite="reset"``."""
        return _find(self._live.value, stream).resets

    def _stepped(self, now: _Streams) -> tuple[dict[int, dict[str, np.ndarray]], _Streams]:
        active = now.waiting.active
        if not active.any():
            return {}, now
        arrays, waiting = now.waiting.run(active)
        runs = active.tolist()
        slots = {stream: entry.slot for stream, entry in now.open.items() if runs[entry.slot]}
        with exact_types():
            # The states are not donated: a step that fails or is interrupted would lose them.
            outputs, states = now.loaded.functions["run"](self._begun_states(now), arrays, active)
            host = {name: np.asarray(value) for name, value in outputs.items()}
            jax.block_until_ready(states)  # a step that fails can have no outputs
        lost = self._lost(now, host, states, slots)
        results = {stream: {name: value[slot].copy() for name, value in host.items()} for stream, slot in slots.items()}
        after = now._replace(states=states, starts={}, waiting=waiting)
        if not lost:
            return results, after
        for stream in lost:
            results[stream] = {name: np.zeros_like(value) for name, value in results[stream].items()}
        begun = {stream: now.open[stream]._replace(resets=now.open[stream].resets + 1) for stream in lost}
        return results, after._replace(
            open={**now.open, **begun}, starts={entry.slot: entry.start for entry in begun.values()}
        )

    def _lost(self, now: _Streams, host: dict[str, np.ndarray], states: Any, slots: Mapping[int, int]) -> list[int]:
        """Remove an output that is only a mark; return the streams that must start again, or raise NonFiniteError."""
        watch = now.loaded.watch
        if watch is None:
            return []
        name = mark_of(host)
        first = host[name].reshape(now.capacity, -1)[:, 0]
        host.pop("", None)
        is_lost = first != first
        if not is_lost.any():
            return []
        lost = [stream for stream, slot in slots.items() if is_lost[slot]]

        def places_in(stream: int) -> list[str]:
            slot = slots[stream]
            judge = Watch(now.loaded.stream.spec, now.open[stream].start) if watch.apart else watch
            with exact_types():
                state = now.loaded.functions["take"](states, np.int32(slot))
                return judge.places({name: value[slot] for name, value in host.items()}, state)

        if watch.apart:
            lost = [stream for stream in lost if places_in(stream)]
        if not lost or self._on_nonfinite == "reset":
            return lost
        places = places_in(lost[0])
        error = NonFiniteError(
            f"{now.loaded.stream.spec.label}: a run gave NaN or infinities in stream(s) {', '.join(map(str, lost))}: "
            f"in {', '.join(places)} of stream {lost[0]}. A frame had such values, or the arithmetic overflowed. The "
            "pool is as before the run: `reset` or `close` these streams and run again, or let these start again "
            'with `on_nonfinite="reset"`, or accept such values with `on_nonfinite="keep"`'
        )
        error.streams = tuple(lost)
        raise error

    def _begun_states(self, now: _Streams) -> Any:
        """Return the states of all slots, with the first states of the streams that begin."""
        states, first = now.states, None
        if states is None:
            first = next(iter(now.starts.values()))
            states = now.loaded.blank(now.capacity, first)
        elif now.starts:
            # A copy, because clearing overwrites the states.
            states = jax.tree.map(lambda x: jax.device_put(x, x.sharding, may_alias=False), states)
        for slot, start in now.starts.items():
            if start is not first:
                states = now.loaded.functions["clear"](states, start, np.int32(slot))
        return states

    def flush(self, stream: int, tail: Arrays | None = None, valid: int | None = None) -> dict[str, np.ndarray]:
        """Return the rest of a recording that has ended, and give the stream a new state; other streams do not change.

        The outputs of all runs, followed by the rest and without the first `StepSpec.delay` frames, equal the output
        for the whole recording. A model in steps has no rest.

        Args:
            stream: the id of a stream without waiting frames.
            tail: a dict of input frames that do not fill a pulse, with any padding up to a pulse. The frames follow
                frames of `push` that did not fill a pulse.
            valid: the number of existing frames in the tail; by default all.

        Returns:
            A dict of outputs: the remaining frames along the time axis, and results for the whole recording.

        Raises:
            StateError: the stream is not open, or has pulses that wait for `run`.
            InputError: the tail does not fit the stepper or the frames that wait, or the constraints of the stream do
                not allow a recording of this length; the stream then stays as it was.
        """

        def flushed(now: _Streams) -> tuple[dict[str, np.ndarray], _Streams]:
            entry = _find(now, stream)
            if count := now.waiting.count(entry.slot):
                raise StateError(f"{count} frame(s) of stream {stream} wait: call run until no frame waits")
            with exact_types():
                end = now.waiting.ended(entry.slot, tail, valid)
                return now.loaded.stream.rest(now.state_of(entry), *end), now.begun(entry)

        return self._live.change(flushed)

    def reset(self, stream: int) -> None:
        """Give a stream a new state, and drop the waiting frames of the stream."""

        def restarted(now: _Streams) -> tuple[None, _Streams]:
            return None, now.begun(_find(now, stream))

        return self._live.change(restarted)

    def close(self, stream: int) -> None:
        """End a stream, and free the slot."""

        def closed(now: _Streams) -> tuple[None, _Streams]:
            after, entry = now.begun(_find(now, stream)), now.open[stream]
            starts = {slot: start for slot, start in now.starts.items() if slot != entry.slot}
            kept = {name: each for name, each in now.open.items() if name != stream}
            return None, after._replace(open=kept, free=(*now.free, entry.slot), starts=starts)

        return self._live.change(closed)

    def state(self, stream: int) -> dict[str, np.ndarray]:
        """Return a copy of the state of a stream: a dict of NumPy arrays by the names in `StepSpec.state`.

        The rules of `Runner.state` apply. ``jaxrnn.waiting/NAME`` has the pulses of an input that wait for `run`, and
        ``jaxrnn.part/NAME`` frames that do not fill a pulse.
        The stream continues with ``open(state=...)`` of a different pool.
        """
        check_process()

        def copied(now: _Streams) -> tuple[dict[str, np.ndarray], _Streams]:
            entry, spec = _find(now, stream), now.loaded.stream.spec
            now.waiting.join()
            with exact_types():
                return moving_state(spec, spec.entries(now.state_of(entry)), *now.waiting.kept(entry.slot)), now

        return self._live.change(copied)


_CAPACITY = "capacity, the largest number of open streams,"


def _loaded(stream: Bound, capacity: int, *, watched: bool) -> _Loaded:
    """Return the functions of a pool of this capacity, with marks of steps that are not finite if ``watched``."""
    first = _placed(stream.start(stream.example_constants()))
    # Constants of a stream can give it a first state that is not finite, so streams are judged one by one.
    watch = Watch(stream.spec, first, apart=bool(stream.spec.constants)) if watched else None

    def run_of(bound: Bound) -> Callable[..., Any]:
        def marked(state: Any, inputs: Any) -> tuple[Any, Any]:
            outputs, after = bound.step(state, inputs)
            return (outputs if watch is None else watch.marked(outputs, after, after.values())), after

        return slot_functions(marked)["run"]

    functions = {
        "run": stream.jitted(("pool", watch and (watch.infinite, watch.free)), run_of, packed=True),
        "take": program(_take),
        "clear": program(_clear, donate_argnums=0),
    }
    for name in functions.keys() - ({"run"} if watched else ()):  # machine code has no marks
        functions[name] = stream.ready(f"pool_{name}_{capacity}") or functions[name]
    return _Loaded(stream, first, functions, watch)


def _grown(now: _Streams, capacity: int) -> _Streams:
    """Return the streams of a pool with more slots."""
    more = capacity - now.capacity
    if more < 0:
        raise InputError(f"the pool has a capacity of {now.capacity}, and a pool does not shrink to {capacity}")

    def longer(array: Any) -> jax.Array:
        return placed(np.pad(np.asarray(array), [(0, more), *[(0, 0)] * (array.ndim - 1)], "edge"))

    with exact_types():
        states = jax.tree.map(longer, now.states)
    return now._replace(
        free=(*reversed(range(now.capacity, capacity)), *now.free),
        states=states,
        waiting=now.waiting.grown(capacity),
    )


def _continued(now: _Streams, entry: _Open, state: Arrays, allow_nan: bool) -> _Streams:
    """Return the streams with a moved state in a slot, and the frames that waited."""
    with exact_types():
        moved, waiting = moved_state(now.loaded.stream.spec, _on_host(entry.start), state, allow_nan=allow_nan)
    now = now._replace(starts={**now.starts, entry.slot: _placed(moved)})
    for block in waiting:
        now = now._replace(waiting=now.waiting.pushed_to(entry.slot, block))
    return now


def _first(loaded: _Loaded, constants: Arrays | None) -> State:
    """Return the first state of a stream."""
    if constants is None and loaded.fresh is not None:
        return loaded.fresh
    with exact_types():
        return _placed(loaded.stream.start(constants))


def _placed(state: State) -> State:
    with exact_types():
        return {name: placed(array) for name, array in state.items()}


def _on_host(state: State) -> dict[str, np.ndarray]:
    """Return a state as NumPy arrays, which are cut into entries without a program."""
    return {name: np.asarray(array) for name, array in state.items()}


def _find(streams: _Streams, stream: int) -> _Open:
    is_id = isinstance(stream, int | np.integer) and not isinstance(stream, bool)  # True and 1.0 are equal to 1
    if not is_id or stream not in streams.open:
        raise StateError(f"stream {stream!r} is not open; open streams: {', '.join(map(str, streams.open)) or 'none'}")
    return streams.open[stream]


#: The functions of `slot_functions` that may overwrite the first argument.
DONATING = ("clear",)


def slot_functions(step: Step) -> dict[str, Callable[..., Any]]:
    """Return functions of the states of all streams in a pool, from a step of a single stream.

    - ``run(states, frames, active) -> (outputs, states)`` runs a step of each active stream.
    - ``take(states, slot) -> state`` returns the state in a slot.
    - ``clear(states, state, slot) -> states`` replaces the state in a slot.
    """

    def run(states: Any, frames: Arrays, active: jax.Array) -> tuple[Any, Any]:
        outputs, new = jax.vmap(step)(states, frames)

        def choose(after: jax.Array, before: jax.Array) -> jax.Array:
            return jnp.where(active.reshape((-1,) + (1,) * (after.ndim - 1)), after, before)

        return outputs, jax.tree.map(choose, new, states)

    return {"run": run, "take": _take, "clear": _clear}


# Functions of the module, because JAX would compile new functions again.
def _take(states: Any, slot: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[slot], states)


def _clear(states: Any, state: Any, slot: jax.Array) -> Any:
    return jax.tree.map(lambda x, fresh: x.at[slot].set(fresh), states, state)
