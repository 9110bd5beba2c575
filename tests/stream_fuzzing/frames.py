"""Lines that work on frames alone, and those that bring two values together."""

from __future__ import annotations

from stream_fuzzing.vocabulary import SMALL
from stream_fuzzing.writing import Value, Writer

Line = tuple[str, int] | None


def unary(w: Writer) -> Line:
    v = w.pick("fi")
    if v is None:
        return None
    text = w.limited(v, in_order=False)
    forms = [f"-{text}", f"jnp.abs({text})", f"{text} * 2 + 1", f"lax.rem({text}, jnp.full((), 3, {text}.dtype))"]
    forms += [
        f"jnp.maximum({text}, 1)",
        f"jax.nn.relu({text})",
        f"jnp.sign({text})",
        f"lax.clamp({text}.dtype.type(-2), {text}, {text}.dtype.type(3))",
    ]
    return w.draw.choice(forms), 2 * SMALL + 1


def cast(w: Writer) -> Line:
    v = w.pick()
    if v is None:
        return None
    text = w.limited(v, in_order=False)
    return f"{text}.astype({w.draw.choice(['jnp.float32', 'jnp.int32', 'bool', 'jnp.int8', 'jnp.uint8'])})", 255


def whole(w: Writer) -> Line:
    """Arithmetic of whole numbers."""
    v = w.pick("i")
    if v is None:
        return None
    text = w.limited(v, in_order=False)
    return w.draw.choice([f"{text} % 3", f"{text} // 2", f"{text} & 5", f"{text} ^ 1", f"{text} << 1", f"~{text}"]), 20


def brought_together(w: Writer, a: Value, b: Value) -> tuple[str, str] | None:
    """Two streams cut to one length, and repeated to one rank."""
    texts = [w.limited(a), w.limited(b)]
    try:
        surplus = int(a.frames - b.frames)
    except Exception:
        return None
    if surplus:
        longer = 0 if surplus > 0 else 1
        surplus = abs(surplus)
        front = w.draw.choice([0, surplus, w.draw.randint(0, surplus)])
        cut = f"{front or ''}:{-(surplus - front) or ''}"
        texts[longer] = f"{texts[longer]}[{cut}]"
    if a.rest != b.rest:
        if a.rest and b.rest:
            # The sums of their elements have one shape.
            texts = [f"{text}.sum({tuple(range(1, 1 + len(v.rest)))})" for text, v in zip(texts, (a, b), strict=True)]
        else:
            bare = 0 if not a.rest else 1
            texts[bare] += f"[:{', None' * len((a.rest, b.rest)[1 - bare])}]"
    return texts[0], texts[1]


def binary(w: Writer) -> Line:
    a, b = w.pair("fi") or (None, None)
    pair = None if a is None or b is None else brought_together(w, a, b)
    if pair is None or a is None or b is None:
        return None
    one, other = pair
    if a.dtype != b.dtype:
        one, other = f"({one}).astype(jnp.float32)", f"({other}).astype(jnp.float32)"
    form = w.draw.choice(
        [
            "{} + {}",
            "{} - {}",
            "{} * {}",
            "jnp.maximum({}, {})",
            "jnp.minimum({}, {})",
            "{} + {}",
            "jnp.stack([{}, {}], -1)",
            "{} < {}",
            "{} >= {}",
            "{} == {}",
        ]
    )
    return form.format(one, other), (12 * SMALL) ** 2


def choice(w: Writer) -> Line:
    a, b = w.pair("fi") or (None, None)
    mask = w.pick("b")
    if a is None or b is None or mask is None:
        return None
    pair = brought_together(w, a, b)
    if pair is None or a.dtype != b.dtype:
        return None
    try:
        if a.frames != b.frames or int(mask.frames - a.frames) < 0:
            return None
    except Exception:
        return None
    surplus = int(mask.frames - a.frames)
    at = w.draw.choice([0, surplus])
    text = f"{mask.in_order}[{at or ''}:{-(surplus - at) or ''}]" if surplus else mask.in_order
    axes = f".any({tuple(range(1, 1 + len(mask.rest)))})" if mask.rest else ""
    rank = max(len(a.rest), len(b.rest)) if () in (a.rest, b.rest) or a.rest == b.rest else 0
    return f"jnp.where({text}{axes}[:{', None' * rank}], {pair[0]}, {pair[1]})", 12 * SMALL


def both(w: Writer) -> Line:
    a, b = w.pair("b") or (None, None)
    pair = None if a is None or b is None else brought_together(w, a, b)
    if pair is None or a is None or b is None or a.rest != b.rest:
        return None
    return f"{pair[0]} {w.draw.choice('&|^')} {pair[1]}", 1


def compared(w: Writer) -> Line:
    v = w.pick("fi")
    return v and (f"{v.name} {w.draw.choice(['>', '<=', '==', '!='])} {w.draw.randint(-1, 3)}", 1)


def channels(w: Writer) -> Line:
    """Inside a frame."""
    v = w.pick()
    if v is None or not v.rest:
        return None
    text = w.limited(v)
    if v.dtype == bool:
        return w.draw.choice([f"{text}.any(-1)", f"{text}.all(-1)", f"{text}[..., 0]", f"~{text}"]), 1
    forms = [
        f"{text}.sum(-1)",
        f"{text}.max(-1)",
        f"{text}[..., 0]",
        f"jnp.argmax({text}, -1)",
        f"jnp.sort({text}, -1)",
    ]
    forms += [
        f"{text}[..., ::-1]",
        f"jnp.cumsum({text}, -1)",
        f"jnp.concatenate([{text}, {text} * 2], -1)",
        f"{text}[..., None]",
    ]
    forms += [
        f"jnp.einsum('t...c,t...c->t...', {text}, {text})",
        f"jnp.moveaxis({text}, 0, -1)",
        f"jnp.moveaxis({text}, 0, 1)",
    ]
    if v.dtype == "f":
        forms += [f"{text} @ taps({w.draw.randrange(9)}, {v.rest[-1]}, 2)", f"across({text})"]
    return w.draw.choice(forms), 12 * SMALL**2


def layout(w: Writer) -> Line:
    """Other axes merged with time, and taken from it."""
    v = w.pick("fi")
    if v is None:
        return None
    text, wide = w.limited(v), "".join(f", {size}" for size in v.rest)
    forms = [
        f"{text}.reshape(-1)",
        f"jnp.repeat({text}, 2, axis=0)",
        f"jnp.stack([{text}, {text} * 2], 1).reshape(-1{wide})",
    ]
    forms += [
        f"jnp.stack([{text}, -{text}]).reshape(-1{wide}).reshape(2, -1{wide}).sum(0)",
        f"{text}.reshape(-1, 2{wide})",
    ]
    forms += [f"jnp.broadcast_to({text}, (2, *{text}.shape)).reshape(-1{wide}).reshape(2, -1{wide})[1]"]
    return w.draw.choice(forms), 2 * SMALL


def looked_up(w: Writer) -> Line:
    v = w.pick("i", rest=())
    return v and (f"TABLE[{w.limited(v)} % 7]", 5)


FRAMES = {
    unary: 6,
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
