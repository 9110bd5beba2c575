"""Lines that work on frames alone, and those that bring two values together.

A kind of line picks its operands and gives an expression, and what none of its elements is larger than; None where
there is nothing to pick.
"""

from __future__ import annotations

import jax
from jax.extend.core import InconclusiveDimensionOperation

from stream_fuzzing.vocabulary import SMALL, TYPES, WHOLE
from stream_fuzzing.writing import Value, Writer

Line = tuple[str, int] | None

#: Casts to unsigned integers wrap around.
LARGE = 1 << 32


def unary(w: Writer) -> Line:
    v = w.pick("fi")
    if v is None:
        return None
    text, most = w.limited(v, in_order=False), w.most(v)
    forms = [(f"-{text}", most), (f"jnp.abs({text})", most), (f"{text} * 2 + 1", 2 * most + 1)]
    forms += [(f"lax.rem({text}, jnp.full((), 3, {text}.dtype))", 2), (f"jnp.sign({text})", 1)]
    forms += [(f"jnp.maximum({text}, 1)", most), (f"jax.nn.relu({text})", most), (f"jnp.clip({text}, -2, 3)", 3)]
    return w.draw.choice(forms)


def cast(w: Writer) -> Line:
    v = w.pick()
    if v is None:
        return None
    text, most = w.limited(v, in_order=False), max(1, w.most(v))
    if w.draw.random() < 0.5:
        return f"{text}.astype({w.draw.choice(['jnp.float32', 'jnp.int32', 'bool', 'jnp.int8'])})", most
    return through(w, text, "float32"), LARGE


def through(w: Writer, text: str, last: str) -> str:
    """A value cast to two types of all, and then to one in which all operations exist.

    From signed to unsigned integers to floats is left out: XLA drops the middle of this chain behind a float.
    """
    first, second = w.draw.choice(TYPES), w.draw.choice(TYPES)
    last = w.draw.choice([*WHOLE, last, last])
    if second.startswith("uint") and last not in WHOLE:
        second = second[1:]
    return f"{text}.astype('{first}').astype('{second}').astype('{last}')"


def whole(w: Writer) -> Line:
    """Arithmetic of whole numbers."""
    v = w.pick("i")
    if v is None:
        return None
    text, most = w.limited(v, in_order=False), w.most(v)
    forms = [(f"{text} % 3", 2), (f"{text} // 2", most), (f"{text} & 5", 5), (f"{text} ^ 1", most + 1)]
    return w.draw.choice([*forms, (f"{text} << 1", 2 * most), (f"~{text}", most + 1)])


def length_apart(a: Value, b: Value) -> int | None:
    """How many frames more the first value has, for every length; None where that differs."""
    try:
        return int(a.frames - b.frames)
    except (TypeError, jax.errors.JAXTypeError, InconclusiveDimensionOperation):
        return None


def cut_to(w: Writer, text: str, surplus: int) -> str:
    """An expression with so many frames less, in front or behind or on both sides."""
    if surplus == 0:
        return text
    front = w.draw.choice([0, surplus, w.draw.randint(0, surplus)])
    return f"{text}[{front or ''}:{-(surplus - front) or ''}]"


def together(w: Writer, a: Value, b: Value) -> tuple[str, str] | None:
    """Two streams cut to one length."""
    apart = length_apart(a, b)
    if apart is None:
        return None
    return cut_to(w, w.limited(a), max(apart, 0)), cut_to(w, w.limited(b), max(-apart, 0))


def alike(w: Writer, a: Value, b: Value) -> tuple[str, str, int] | None:
    """Two streams cut to one length, with frames of shapes that go together, and what is larger than neither."""
    pair = together(w, a, b)
    if pair is None:
        return None
    texts, most = list(pair), max(w.most(a), w.most(b))
    if a.rest != b.rest and a.rest and b.rest:
        # The sums of their elements have one shape.
        texts = [f"{text}.sum({tuple(range(1, 1 + len(v.rest)))})" for text, v in zip(texts, (a, b), strict=True)]
        most *= 12
    elif a.rest != b.rest:
        bare = 0 if not a.rest else 1
        texts[bare] += f"[:{', None' * len((a.rest, b.rest)[1 - bare])}]"
    if a.dtype != b.dtype:
        texts = [f"({text}).astype(jnp.float32)" for text in texts]
    return texts[0], texts[1], most


def binary(w: Writer) -> Line:
    pair = w.pair("fi")
    texts = pair and alike(w, *pair)
    if not texts:
        return None
    *operands, most = texts
    forms = [("{} + {}", 2 * most), ("{} + {}", 2 * most), ("{} - {}", 2 * most), ("{} * {}", most**2)]
    forms += [("jnp.maximum({}, {})", most), ("jnp.minimum({}, {})", most), ("jnp.stack([{}, {}], -1)", most)]
    form, bound = w.draw.choice([*forms, ("{} < {}", 1), ("{} >= {}", 1), ("{} == {}", 1)])
    return form.format(*operands), bound


def choice(w: Writer) -> Line:
    pair, mask = w.pair("fi"), w.pick("b")
    if pair is None or mask is None or pair[0].rest != pair[1].rest or length_apart(*pair) != 0:
        return None
    one, other, most = alike(w, *pair) or ("", "", 0)
    surplus = length_apart(mask, pair[0])
    if surplus is None or surplus < 0:
        return None
    each = f".any({tuple(range(1, 1 + len(mask.rest)))})" if mask.rest else ""
    wide = f"[:{', None' * len(pair[0].rest)}]" if pair[0].rest else ""
    return f"jnp.where({cut_to(w, mask.in_order, surplus)}{each}{wide}, {one}, {other})", most


def both(w: Writer) -> Line:
    pair = w.pair("b")
    texts = pair and pair[0].rest == pair[1].rest and together(w, *pair)
    return (f"{texts[0]} {w.draw.choice('&|^')} {texts[1]}", 1) if texts else None


def compared(w: Writer) -> Line:
    v = w.pick("fi")
    return v and (f"{v.name} {w.draw.choice(['>', '<=', '==', '!='])} {w.draw.randint(-1, 3)}", 1)


def channels(w: Writer) -> Line:
    """Inside a frame."""
    v = w.pick()
    if v is None or not v.rest:
        return None
    text, most = w.limited(v), w.most(v)
    if v.dtype == bool:
        return w.draw.choice([f"{text}.any(-1)", f"{text}.all(-1)", f"{text}[..., 0]", f"~{text}"]), 1
    forms = [(f"{text}.max(-1)", most), (f"{text}[..., 0]", most), (f"jnp.argmax({text}, -1)", 12)]
    forms += [(f"jnp.sort({text}, -1)", most), (f"{text}[..., ::-1]", most), (f"{text}[..., None]", most)]
    forms += [(f"{text}.sum(-1)", 12 * most), (f"jnp.cumsum({text}, -1)", 12 * most)]
    forms += [(f"jnp.concatenate([{text}, {text} * 2], -1)", 2 * most)]
    forms += [(f"jnp.einsum('t...c,t...c->t...', {text}, {text})", 12 * most**2)]
    forms += [(f"jnp.moveaxis({text}, 0, -1)", most), (f"jnp.moveaxis({text}, 0, 1)", most)]
    if v.dtype.kind == "f":
        forms += [(f"{text} @ taps({w.draw.randrange(9)}, {v.rest[-1]}, 2)", 24 * most), (f"across({text})", SMALL)]
    return w.draw.choice(forms)


def layout(w: Writer) -> Line:
    """Other axes merged with time, and taken from it."""
    v = w.pick("fi")
    if v is None:
        return None
    text, wide = w.limited(v), "".join(f", {size}" for size in v.rest)
    forms = [f"{text}.reshape(-1)", f"jnp.repeat({text}, 2, axis=0)", f"{text}.reshape(-1, 2{wide})"]
    forms += [f"jnp.stack([{text}, -{text}], 1).reshape(-1{wide})"]
    forms += [f"jnp.stack([{text}, -{text}]).reshape(-1{wide}).reshape(2, -1{wide}).max(0)"]
    forms += [f"jnp.broadcast_to({text}, (2, *{text}.shape)).reshape(-1{wide}).reshape(2, -1{wide})[1]"]
    return w.draw.choice(forms), w.most(v)


def looked_up(w: Writer) -> Line:
    v = w.pick("i", rest=())
    return v and (f"TABLE[{w.limited(v)} % 7]", 4)


FRAMES = {
    unary: 5,
    cast: 3,
    whole: 2,
    binary: 16,
    choice: 5,
    both: 3,
    compared: 4,
    channels: 6,
    layout: 2,
    looked_up: 1,
}
