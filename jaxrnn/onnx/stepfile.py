"""`StepFile`: what an exported file says of itself, so that a person and a program can carry its state."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn.steps.schemas import check, checked_spec, is_positive, is_text, text_or_none
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepspec import OutputSpec, StepSpec, milliseconds
from jaxrnn.version import __version__

#: What a file is: a step with its state in and out, the flush after the last step, or a function without state.
STEP, FLUSH, FUNCTION = "step", "flush", "function"

#: The key of the facts in the metadata of a file; the keys of a few facts for simple programs begin with it.
METADATA = "jaxrnn"

#: What the facts of a file leave out: nothing of it is open in a file.
_SETTLED = {"batch_symbol": None, "joined": False, "constants": [], "needs_params": False}


def is_rate(value: Any) -> bool:
    """Return True for a valid number of frames per second."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


_SCHEMA = {
    "jaxrnn": is_text,
    "kind": lambda kind: kind in (STEP, FLUSH, FUNCTION),
    "batch": lambda size: size is None or is_positive(size),
    "inputs": [{"input": is_text}],
    "outputs": [{"output": text_or_none}],
    "state": [{"input": is_text, "output": text_or_none}],
    "valid": text_or_none,
    "counts": {},
    "files": {},
}


@brief
@dataclass(frozen=True)
class StateNames:
    """Where an entry of the state goes in and comes out.

    Attributes:
        input: the file's input.
        output: the file's output; None in a flush, after which there is no state.
    """

    input: str
    output: str | None


@brief
@dataclass(frozen=True)
class StepFile:
    """The facts about an exported file: its arrays by name, and its place in time.

    The keys of all mappings are names of the stepper that was exported. The values are those of the file, which differ
    only where the file could not have the stepper's.

    Attributes:
        kind: ``"step"``, ``"flush"`` or ``"function"``.
        spec: that of the stepper, with its arrays as the file has them: the batch in front, no dimension open.
        batch: how many streams the file is for; None for one without a batch axis.
        inputs: the file's inputs besides the state.
        outputs: the file's outputs besides the state. A step lacks those that only a flush gives.
        state: where every entry of the state goes in and comes out.
        first: every entry of the state before the first frame; empty in a flush.
        valid: a flush's input for the number of frames of its tail that exist, ``int32``; None where it has no tail.
        counts: a flush's outputs for the number of frames that exist, by the output that has them, ``int32``.
        files: where the files are that belong together, from the folder of this one on: ``"step"``, ``"flush"``,
            ``"first_state"``.
        frame_rate: input frames a second, where the exporter was told.
    """

    kind: str
    spec: StepSpec
    batch: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, StateNames] = field(default_factory=dict)
    first: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    valid: str | None = None
    counts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    frame_rate: float | None = None

    @property
    def look_ahead_ms(self) -> float | None:
        """Return the look-ahead in milliseconds, or None if the frame rate is unknown."""
        return None if self.frame_rate is None else milliseconds(self.spec.look_ahead, self.frame_rate)

    def delay_ms(self, output: OutputSpec) -> float | None:
        """The delay of an output in milliseconds, where it and the frame rate are known."""
        if self.frame_rate is None or output.delay is None or output.rate is None:
            return None
        return milliseconds(output.delay, self.frame_rate, output.rate)

    @property
    def first_inputs(self) -> dict[str, np.ndarray]:
        """The state before the first frame by the file's inputs: what an engine takes with the first frame."""
        return {self.state[name].input: array for name, array in self.first.items()}

    def to_json(self) -> dict[str, Any]:
        """The facts in JSON's types."""
        fields = self.spec.to_json()
        spec = {key: value for key, value in fields.items() if key not in _SETTLED}
        inputs = [{"input": self.inputs[each["name"]], **each} for each in fields["inputs"]]
        outputs = [{"output": self.outputs.get(each["name"]), **each} for each in fields["outputs"]]
        state = []
        for each in fields["state"]:
            name, names = each["name"], self.state[each["name"]]
            first = {"first": to_json(self.first[name])} if name in self.first else {}
            settled = {key: value for key, value in each.items() if key != "time_axis"}
            state.append({"input": names.input, "output": names.output, **settled, **first})
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
        }

    @classmethod
    def from_json(cls, fields: Any) -> StepFile:
        """The facts that `to_json` described.

        Raises:
            ValueError: something is missing, unknown, or of another type.
        """
        frame_rate = fields.get("frame_rate") if isinstance(fields, dict) else None
        if frame_rate is not None:
            check(frame_rate, is_rate, "frame_rate")
            fields = _without(fields, "frame_rate")
        check(fields, _SCHEMA, "")
        for key in ("counts", "files"):
            for name, value in fields[key].items():
                check(value, is_text, f"{key}.{name}")
        own = {"jaxrnn", "kind", "batch", "valid", "counts", "files"}
        arrays = {
            "inputs": [_without(each, "input") for each in fields["inputs"]],
            "outputs": [_without(each, "output") for each in fields["outputs"]],
            "state": [{**_without(each, "input", "output", "first"), "time_axis": None} for each in fields["state"]],
        }
        spec = checked_spec({**_without(fields, *own), **_SETTLED, **arrays}, "the facts")
        outputs = (each for each, own in zip(spec.outputs, fields["outputs"], strict=True) if own["output"] is not None)
        for each in (*spec.inputs, *spec.state, *outputs):
            if each.shape is None or each.dtype is None or each.symbols:
                raise ValueError(f"{each} has an open dimension, or no type")
        first = {
            each.name: from_json(given["first"], each)
            for each, given in zip(spec.state, fields["state"], strict=True)
            if "first" in given
        }
        if fields["kind"] == STEP and len(first) < len(spec.state):
            raise ValueError("an entry of the state has no first value")
        if fields["kind"] == STEP and any(each["output"] is None for each in fields["state"]):
            raise ValueError("an entry of the state does not come out")
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
            frame_rate,
        )


def _without(fields: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in keys}


#: The most elements that are written as numbers; the bytes of more are base64, in little-endian order.
READABLE = 4096

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(array: np.ndarray) -> Any:
    """A number where all elements are the same to the last bit, nested lists of them, or the elements as base64."""
    if not array.size:
        return 0
    first = array.reshape(-1)[:1]
    if array.tobytes() == first.tobytes() * array.size and _is_plain(first):
        return _number(first.item())
    if array.size <= READABLE and _is_plain(array):
        return _listed(array.tolist())
    return {"base64": base64.b64encode(_little_endian(array)).decode()}


def from_json(value: Any, spec: ArraySpec) -> np.ndarray:
    """The elements that `to_json` described.

    Args:
        value: as it gave it.
        spec: of the array.

    Raises:
        ValueError: it is not of that type and shape.
    """
    dtype = spec.dtype
    assert dtype is not None
    if isinstance(value, dict):
        try:
            data = base64.b64decode(value["base64"], validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise ValueError(f"the first value of {spec.name} is no base64") from error
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
    return np.broadcast_to(array, spec.sizes)  # a number takes no memory, whatever shape the file says


def _is_plain(array: np.ndarray) -> bool:
    """Whether JSON's numbers say all of it: no complex numbers, and of NaNs only the usual one."""
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
    """The bytes of a number in an element, of which a complex one has two."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _little_endian(array: np.ndarray) -> bytes:
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{_parts(array.dtype)}")
    return bits.astype(bits.dtype.newbyteorder("<")).tobytes()
