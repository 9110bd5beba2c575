"""Names of inputs and outputs: which pair by convention, and which suggest data or state."""

from __future__ import annotations

import math
import re

#: Words that only distinguish an input from an output.
_SIDES = {"in", "input", "inputs", "out", "output", "outputs", "arg", "args", "onnx", "tensor"}
#: Words for the time of a value, which identify a value only if the name has no other words.
_WHEN = {
    *("init", "initial", "old", "past", "prev", "previous", "cur", "current"),
    *("new", "next", "present", "updated", "update", "final", "last"),
}
#: Letters for the same, which may have other meanings.
_LETTERS = {"i", "t", "o", "n"}
#: The state that a name of one word means: PyTorch's final states, and sides without a separator, such as ``hout``.
_ONE_WORD = {"hn": "h", "cn": "c"} | {f"{state}{side}": state for state in "hc" for side in ("in", "out")}
#: A prefix of outputs: ``r_att_cache`` is the returned ``att_cache``.
_RETURNED = "r"

#: Words for values that a step returns and takes back.
_STATE = set(
    """
    h c s hx cx state states hidden cell carry memory mem cache cached buffer buf ring context ctx attention attn
    alignment alignments weights cumulative sum counter past prev previous last old
    """.split()  # noqa: SIM905
)
#: Words for data that goes through a model.
_DATA = set(
    """
    x y q k v query key value token tokens ids text label labels mask audio mic mix noisy ref wave waveform signal
    samples sample frame frames image spec spectrum spectrogram mag magnitude phase feat feats feature features mel
    inp obs observation far cond condition speaker style
    """.split()  # noqa: SIM905
)
#: Words for results that no next call takes.
_RESULTS = set(
    """
    logits logit prob probs probability probabilities score scores pred prediction enhanced
    """.split()  # noqa: SIM905
)
#: Words of names that exporters take from operators.
_OPERATORS = set(
    """
    identity gather add mul concat squeeze transpose slice reshape val getitem tf op layer stack functional model
    statefulpartitionedcall partitionedcall
    """.split()  # noqa: SIM905
)


def _parts(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    parts: list[str] = [word.lower() for word in re.findall(r"[^\W\d_]+|\d+", spaced)]
    if parts[1:3] == ["key", "values"] and parts[0] in _WHEN and len(parts) > 3:
        del parts[1:3]  # ``past_key_values.0.key`` pairs with ``present.0.key``
    if parts[:1] == [_RETURNED] and any(len(part) > 1 for part in parts[1:]):
        del parts[0]
    return [_ONE_WORD.get(part, part) for part in parts]


def words(name: str) -> tuple[str, ...]:
    """Return the words that identify a value: hidden and state of ``hidden_state_out``, state of ``stateN``."""
    parts = [word for word in _parts(name) if word not in _SIDES]
    for ignored in (_WHEN | _LETTERS, _WHEN, set()):  # a name may be only "n" or "last"
        identifying = tuple(word for word in parts if word not in ignored)
        if not all(word.isdigit() for word in identifying):
            return identifying
    return ()


def affinity(first: str, second: str) -> int:
    """Return 2 if two names pair by convention, 1 if a name has all words of the other except for numbers, else 0.

    Names pair if their words are equal without words for the side or the time of a value: ``h`` and ``h_out``,
    ``past_key`` and ``present_key``, PyTorch's ``h0`` and ``hn``.
    """
    one, other = words(first), words(second)
    if one and one == other:
        return 2
    if one[-1:] == ("0",) and one[:-1] == other and second.endswith("n"):
        return 2
    plain = [{word for word in each if not word.isdigit()} for each in (one, other)]
    return int(all(plain) and (plain[0] <= plain[1] or plain[1] <= plain[0]))


def _shared(first: str, second: str) -> tuple[list[str], list[str], list[str]]:
    """Return the parts that two names share, also as the beginning or the end of a longer word, and the other parts."""
    shared, own, others = list[str](), list[str](), _parts(second)
    for part in _parts(first):
        alike = (each for each in others if each == part or (len(part) > 2 and each.startswith(part)))
        found = next(alike, None) or next((each for each in others if len(part) > 2 and each.endswith(part)), None)
        if found is None:
            own.append(part)
        else:
            others.remove(found)
            shared.append(part)
    return shared, own, others


def distance(first: str, second: str) -> float:
    """Return the number of parts that only one of two names has; infinite if the names share no word."""
    shared, own, others = _shared(first, second)
    ignored = _SIDES | _WHEN | _LETTERS | _OPERATORS
    return len(own) + len(others) if any(part.isalpha() and part not in ignored for part in shared) else math.inf


def continues(first: str, second: str) -> bool:
    """Return True if a name has all parts of another name, and other words than words for data.

    This works in any language: ``zustand_neu`` continues ``zustand``.
    """
    shared, own, others = _shared(first, second)
    return _is_wordy(shared) and not own and not _DATA.intersection(others)


def resembles(first: str, second: str) -> bool:
    """Return True if a name continues another name, or differs in one word, as ``neu_puffer`` and ``alt_puffer``."""
    shared, own, others = _shared(first, second)
    is_like = _is_wordy(shared) and len(own) == 1 == len(others) and not {*own, *others} & (_DATA | _SIDES)
    return (is_like and not any(part.isdigit() for part in (*own, *others))) or continues(first, second)


def _is_wordy(parts: list[str]) -> bool:
    return any(len(part) > 1 and part.isalpha() and part not in _OPERATORS for part in parts)


def says_data(name: str) -> bool:
    """Return True if a name has a word for data and no word for state, or only words for inputs and outputs."""
    return bool(_DATA.intersection(words(name)) or {*_parts(name)} <= _SIDES) and not says_state(name)


def says_state(name: str) -> bool:
    """Return True if a name has a word for state."""
    return bool(_STATE.intersection(_parts(name)))


def says_result(name: str) -> bool:
    """Return True if a name has a word for a result and no word for state."""
    return bool(_RESULTS.intersection(words(name))) and not says_state(name)


def says_nothing(name: str) -> bool:
    """Return True if a name has only numbers, letters without a meaning, and exporters' operator names."""
    wordy = any(len(word) > 1 and not word.isdigit() and word not in _OPERATORS for word in words(name))
    return not wordy and not says_data(name)
