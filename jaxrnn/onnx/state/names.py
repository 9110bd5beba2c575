"""What the names of inputs and outputs say: which two belong together, and whether an input is state or data."""

from __future__ import annotations

import re

#: Words that only tell an input from an output.
_SIDES = {"in", "input", "inputs", "out", "output", "outputs", "arg", "args", "onnx", "tensor"}
#: Words that say when a value is meant, not which, unless nothing else is said.
_WHEN = {
    *("init", "initial", "old", "past", "prev", "previous", "cur", "current"),
    *("new", "next", "present", "updated", "update", "final", "last"),
}
#: The same as letters, which may mean another thing.
_LETTERS = {"i", "t", "o", "n"}
#: PyTorch's names of final states.
_FINAL = {"hn": "h", "cn": "c"}

#: Words of values that a step gets back as it gave them.
_STATE = {
    *(
        "h",
        "c",
        "s",
        "hx",
        "cx",
        "state",
        "states",
        "hidden",
        "cell",
        "carry",
        "memory",
        "mem",
        "cache",
        "buffer",
        "buf",
    ),
    *(
        "ring",
        "context",
        "ctx",
        "attention",
        "attn",
        "alignment",
        "alignments",
        "weights",
        "cumulative",
        "sum",
        "counter",
    ),
    *("past", "prev", "previous", "last", "old"),
}
#: Words of what goes through a model.
_DATA = {
    *("x", "q", "k", "v", "query", "key", "value", "token", "tokens", "ids", "text", "label", "labels", "mask"),
    *("audio", "mic", "mix", "noisy", "ref", "wave", "waveform", "signal", "samples", "frame", "frames", "image"),
    *("spec", "spectrum", "spectrogram", "mag", "magnitude", "phase", "feat", "feats", "feature", "features", "mel"),
}


def _parts(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    found: list[str] = [word.lower() for word in re.findall(r"[A-Za-z]+|\d+", spaced)]
    return [_FINAL.get(word, word) for word in found]


def words(name: str) -> tuple[str, ...]:
    """The words of a name that say what it is: ``hidden_state_out`` gives hidden and state; ``stateN`` gives state."""
    said = [word for word in _parts(name) if word not in _SIDES]
    for little in (_WHEN | _LETTERS, _WHEN, set()):  # "n" and "last" may be all that a name says
        left = tuple(word for word in said if word not in little)
        if not all(word.isdigit() for word in left):
            return left
    return ()


def affinity(first: str, second: str) -> int:
    """2 if two names say the same but for their direction, 1 if they also differ in numbers, else 0."""
    one, other = words(first), words(second)
    if one and one == other:
        return 2
    plain = [[word for word in each if not word.isdigit()] for each in (one, other)]
    return int(bool(plain[0]) and plain[0] == plain[1])


def says_data(name: str) -> bool:
    """Whether a name is one of what goes through a model: a word for that, or the input of something."""
    said = words(name)
    input_of = "input" in _parts(name) and bool(said)
    return (input_of or bool(_DATA.intersection(said))) and not says_state(name)


def says_state(name: str) -> bool:
    """Whether a name is one of what a step keeps."""
    return bool(_STATE.intersection(_parts(name)))


def says_nothing(name: str) -> bool:
    """Whether a name has no word: a number, or a letter that stands for nothing in particular."""
    return not any(len(word) > 1 and not word.isdigit() for word in words(name)) and not says_data(name)
