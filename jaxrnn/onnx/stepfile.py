"""`StepFile`: the facts in the metadata of an exported file, so that people and programs can carry the state."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxrnn._files.messages import short_repr
from jaxrnn.steps.schemas import check, checked_spec, is_flag, is_positive, is_size, is_text, or_none
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepspec import Layout, OutputSpec, StateSpec, StepSpec, milliseconds
from jaxrnn.version import __version__

#: Kinds of files: a step with its state in and out, the flush after the last step, or a function without state.
STEP, FLUSH, FUNCTION = "step", "flush", "function"

#: Engines that need a special form of a file.
TARGETS = ("tract",)
#: The engine of LiteRT files, which are no ONNX files.
LITERT = "litert"

#: The key of the facts in the metadata of a file, and the prefix of keys of facts for simple programs.
METADATA = "jaxrnn"

#: Entries of a spec that are always the same in a file, and are not written.
_SETTLED = {"batch_symbol": None, "joined": False, "constants": [], "needs_params": False}


def is_rate(value: Any) -> bool:
    """Return True for a valid number of frames per second."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return bool(is_number and 0 < value < float("inf"))


_SCHEMA = {
    "jaxrnn": is_text,
    "kind": lambda kind: kind in (STEP, FLUSH, FUNCTION),
    "batch": or_none(lambda batch: is_text(batch) or is_positive(batch)),
    "inputs": [{"input": is_text}],
    "outputs": [{"output": or_none(is_text)}],
    "state": [{"input": is_text, "output": or_none(is_text)}],
    "valid": or_none(is_text),
    "counts": {},
    "files": {},
}
_OPTIONAL = {"frame_rate": is_rate, "target": is_text, "guard": is_flag}


@short_repr
@dataclass(frozen=True)
class StateNames:
    """The input and output of a file for an entry of the state."""

    input: str
    output: str | None  # None in a flush, after which the state ends


@short_repr
@dataclass(frozen=True)
class StepFile:
    """The facts about an exported file: the names of arrays, and their places in time.

    The keys of all mappings are names of the exported stepper. The values are names of the file, which differ only if
    the file cannot have the stepper's name.
    """

    kind: str  # "step", "flush" or "function"
    spec: StepSpec  # of the stepper with the file's arrays: the batch axis first, and no other open dimension
    #: The number of streams, or the name of the open number; None without a batch axis.
    batch: int | str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)  # besides the state
    #: Besides the state. A step lacks outputs that only a flush returns.
    outputs: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, StateNames] = field(default_factory=dict)
    #: The state before the first frame, with a batch of 1 if the number of streams is open; empty in a flush.
    first: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    valid: str | None = None  # a flush's input for the number of existing frames in its tail; None without a tail
    #: A flush's outputs for the number of existing frames, by output.
    counts: Mapping[str, str] = field(default_factory=dict)
    #: The files that belong together, relative to this file's folder: "step", "flush", "first_state".
    files: Mapping[str, str] = field(default_factory=dict)
    frame_rate: float | None = None  # input frames a second, if the exporter was given the rate
    target: str | None = None  # the engine that the file was written for; None for all engines
    #: In a file with a joined state, the entries of the stepper's state in each array, in order.
    parts: Mapping[str, tuple[StateSpec, ...]] = field(default_factory=dict)
    guard: bool = False  # True if the file takes NaN and infinities of its inputs for zeros

    def of_streams(self, count: int) -> StepFile:
        """Return the facts for a number of streams, if the number is open."""
        if not isinstance(self.batch, str):
            return self
        spec = self.spec.sized({self.batch: count})
        first = {each.name: np.broadcast_to(self.first[each.name], each.sizes) for each in spec.state if self.first}
        return dataclasses.replace(self, spec=spec, batch=count, first=first)

    def entries(self, name: str, array: Any) -> dict[str, Any]:
        """Return the entries of the stepper's state in an array of the file."""
        if name not in self.parts:
            return {name: array}
        parts = {part.name: part for part in self.parts[name]}
        return Layout(parts, vectors=dict.fromkeys(parts, name)).unpack({name: array})

    @property
    def look_ahead_ms(self) -> float | None:
        """Return the look-ahead in milliseconds, or None if the frame rate is unknown."""
        return None if self.frame_rate is None else milliseconds(self.spec.look_ahead, self.frame_rate)

    def delay_ms(self, output: OutputSpec) -> float | None:
        """Return the delay of an output in milliseconds, or None if the delay or the frame rate is unknown."""
        if self.frame_rate is None or output.delay is None or output.rate is None:
            return None
        return milliseconds(output.delay, self.frame_rate, output.rate)

    @property
    def first_inputs(self) -> dict[str, np.ndarray]:
        """Return the state before the first frame by the file's inputs, as an engine takes it with the first frame."""
        return {self.state[name].input: array for name, array in self.first.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the facts in JSON's types."""
        fields = self.spec.to_json()
        spec = {key: value for key, value in fields.items() if key not in _SETTLED}
        inputs = [{"input": self.inputs[each["name"]], **each} for each in fields["inputs"]]
        outputs = [{"output": self.outputs.get(each["name"]), **each} for each in fields["outputs"]]
        state = []
        for each in fields["state"]:
            name, names = each["name"], self.state[each["name"]]
            first = {"first": _array_to_json(self.first[name])} if name in self.first else {}
            settled = {key: value for key, value in each.items() if key != "time_axis"}
            own = self.parts.get(name, ())
            parts = [{"name": part.name, "kind": part.kind, "shape": list(part.sizes)} for part in own]
            listed = {"parts": parts} if parts else {}
            state.append({"input": names.input, "output": names.output, **settled, **listed, **first})
        return {
            "jaxrnn": __version__,
            "kind": self.kind,
            **spec,
            "batch": self.batch,
            "inputs": inputs,
            "outputs": outputs,
            "state": state,
            "valid": self.valid,
            "counts": dict(self.counts),
            "files": dict(self.files),
            **({} if self.frame_rate is None else {"frame_rate": self.frame_rate}),
            **({} if self.target is None else {"target": self.target}),
            **({"guard": True} if self.guard else {}),
        }

    @classmethod
    def from_json(cls, fields: Any) -> StepFile:
        """Return the facts that `to_json` described."""
        optional = {key: fields.get(key) if isinstance(fields, dict) else None for key in _OPTIONAL}
        for key, value in optional.items():
            if value is not None:
                check(value, _OPTIONAL[key], key)
                fields = _without(fields, key)
        check(fields, _SCHEMA, "")
        for key in ("counts", "files"):
            for name, value in fields[key].items():
                check(value, is_text, f"{key}.{name}")
        own = {"jaxrnn", "kind", "batch", "valid", "counts", "files"}
        arrays = {
            "inputs": [_without(each, "input") for each in fields["inputs"]],
            "outputs": [_without(each, "output") for each in fields["outputs"]],
            "state": [
                {**_without(each, "input", "output", "first", "parts"), "time_axis": None} for each in fields["state"]
            ],
        }
        spec = checked_spec({**_without(fields, *own), **_SETTLED, **arrays}, "the facts")
        outputs = (each for each, own in zip(spec.outputs, fields["outputs"], strict=True) if own["output"] is not None)
        for each in (*spec.inputs, *spec.state, *outputs):
            if each.shape is None or each.dtype is None or {*each.symbols} - {fields["batch"]}:
                raise ValueError(f"{each} has an open dimension, or no type")
        first = {
            each.name: _array_from_json(given["first"], each.sized({fields["batch"]: 1}))
            for each, given in zip(spec.state, fields["state"], strict=True)
            if "first" in given
        }
        if fields["kind"] == STEP and len(first) < len(spec.state):
            raise ValueError("an entry of the state has no first value")
        if fields["kind"] == STEP and any(each["output"] is None for each in fields["state"]):
            raise ValueError("an entry of the state has no output")
        return cls(
            fields["kind"],
            spec,
            fields["batch"],
            {each["name"]: each["input"] for each in fields["inputs"]},
            {each["name"]: each["output"] for each in fields["outputs"] if each["output"] is not None},
            {each["name"]: StateNames(each["input"], each["output"]) for each in fields["state"]},
            first,
            fields["valid"],
            dict(fields["counts"]),
            dict(fields["files"]),
            **{key: value for key, value in optional.items() if value is not None},
            parts={
                each.name: _joined_parts(each, given["parts"])
                for each, given in zip(spec.state, fields["state"], strict=True)
                if "parts" in given
            },
        )


def _joined_parts(array: StateSpec, fields: Any) -> tuple[StateSpec, ...]:
    """Return the entries in an array of a joined state, which have the dtype of the array."""
    check(fields, [{"name": is_text, "kind": is_text, "shape": [is_size]}], f"the parts of {array.name}")
    parts = [StateSpec(part["name"], array.dtype, tuple(part["shape"]), kind=part["kind"]) for part in fields]
    shape = array.shape or ()
    if shape[-1:] != (sum(math.prod(part.sizes) for part in parts),):
        raise ValueError(f"the parts of {array.name} do not add up to the {shape[-1:]} elements of the array")
    return tuple(parts)


def _without(fields: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in keys}


#: The most elements that are written as numbers; larger arrays are base64 of the bytes, in little-endian order.
READABLE = 4096

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _array_to_json(array: np.ndarray) -> Any:
    """Return a number if all elements are bit-identical, else nested lists, or base64 otherwise."""
    if not array.size:
        return 0
    first = array.reshape(-1)[:1]
    if array.tobytes() == first.tobytes() * array.size and _is_plain(first):
        return _number(first.item())
    if array.size <= READABLE and _is_plain(array):
        return _listed(array.tolist())
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{_parts(array.dtype)}")
    return {"base64": base64.b64encode(bits.astype(bits.dtype.newbyteorder("<")).tobytes()).decode()}


def _array_from_json(value: Any, spec: ArraySpec) -> np.ndarray:
    """Invert `_array_to_json`."""
    dtype = spec.dtype
    assert dtype is not None
    if isinstance(value, dict):
        try:
            data = base64.b64decode(value["base64"], validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise ValueError(f"the first value of {spec.name} is not base64") from error
        bits = np.frombuffer(data, np.dtype(f"u{_parts(dtype)}").newbyteorder("<"))
        array = bits.astype(bits.dtype.newbyteorder("=")).view(dtype)
        if array.size != math.prod(spec.sizes):
            raise ValueError(f"the first value of {spec} has {array.size} elements")
        return array.reshape(spec.sizes)
    try:
        plain = np.asarray(_unlisted(value))
        array = np.asarray(_unlisted(value), dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"the first value of {spec} is {value!r:.60}") from error
    if plain.dtype.kind not in "biuf" or (plain.ndim and plain.shape != spec.sizes):
        raise ValueError(f"the first value of {spec} is {value!r:.60}")
    return np.broadcast_to(array, spec.sizes)  # a number takes no memory for any declared shape


def _is_plain(array: np.ndarray) -> bool:
    """Return True if JSON's numbers hold all elements: no complex numbers, and no unusual NaN."""
    if array.dtype.kind in "biu":
        return True
    if array.dtype.kind == "c":
        return False
    with np.errstate(all="ignore"):
        numbers = np.array(array, np.float64)
        numbers[np.isnan(numbers)] = math.nan
        again = numbers.astype(array.dtype)
    return again.tobytes() == array.tobytes()


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _listed(value: Any) -> Any:
    return [_listed(each) for each in value] if isinstance(value, list) else _number(value)


def _unlisted(value: Any) -> Any:
    if isinstance(value, list):
        return [_unlisted(each) for each in value]
    return _NOT_FINITE[value] if isinstance(value, str) and value in _NOT_FINITE else value


def _parts(dtype: np.dtype) -> int:
    """Return the bytes of a number in an element; a complex element has two numbers."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
