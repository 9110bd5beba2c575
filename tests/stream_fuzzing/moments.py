"""Lines that move along time, remember it, or sum it up."""

from __future__ import annotations

from stream_fuzzing.frames import Line, brought_together
from stream_fuzzing.vocabulary import SMALL
from stream_fuzzing.writing import Writer


def _count(w: Writer) -> int:
    return w.draw.choice([1, 1, 1, 2, 3])


def cut(w: Writer) -> Line:
    v = w.pick()
    if v is None:
        return None
    k = _count(w)
    text = v.in_order
    forms = [
        f"{text}[{k}:]",
        f"{text}[:-{k}]",
        f"{text}[{k}:-1]",
        f"{text}[{w.draw.randrange(2)}::{w.draw.choice([2, 2, 3])}]",
    ]
    if v.axis == 0 and v.dtype != bool:
        forms += [f"jnp.diff({w.limited(v)}, axis=0)", f"differences({w.limited(v)})"]
    forms += [f"lax.slice_in_dim({v.name}, {k}, {v.name}.shape[{v.axis}], axis={v.axis})"]
    return w.draw.choice(forms), max(v.bound, 2 * SMALL)


def padded(w: Writer) -> Line:
    v = w.pick("fi")
    if v is None:
        return None
    text, k, rest = w.limited(v), _count(w), [(0, 0)] * len(v.rest)
    low, high = w.draw.randint(-2, 3), w.draw.randint(-2, 3)
    forms = [
        f"ahead({text}, {k}, {w.draw.randint(0, 2)})",
        f"before({text}, {k}, {w.draw.randint(0, 2)})",
        f"ahead({text}, 1)",
    ]
    forms += [f"jnp.pad({text}, {[(max(low, 0), max(high, 0)), *rest]}, constant_values=2)"]
    forms += [
        f"lax.pad({text}, {text}.dtype.type(3), {[(low, high, w.draw.choice([0, 0, 1])), *[(0, 0, 0)] * len(v.rest)]})"
    ]
    whole = f"jnp.full(({k}, *{text}.shape[1:]), 7, {text}.dtype)"
    forms += [
        f"jnp.concatenate([{whole}, {text}])",
        f"jnp.concatenate([{text}, {whole}])",
        f"jnp.concatenate([{whole}, {text}, {whole} - 3])",
    ]
    return w.draw.choice(forms), SMALL


def windows(w: Writer) -> Line:
    v = w.pick("f" if w.draw.random() < 0.7 else "i")
    if v is None:
        return None
    text = w.limited(v)
    length, stride = w.draw.randint(2, 3), w.draw.choice([1, 1, 1, 2, 3])
    pad = w.draw.choice([(0, 0), (length - 1, 0), (0, length - 1), (w.draw.randint(-1, 4), w.draw.randint(-1, 4))])
    if w.draw.random() < 0.4 or v.dtype != "f":
        return f"pool({text}, lax.{w.draw.choice(['max', 'min', 'add'])}, {length}, {stride}, {pad})", 3 * SMALL
    if len(v.rest) != 1:
        return None
    seed = w.draw.randrange(9)
    if w.draw.random() < 0.2:
        return f"depthwise({text}, {seed}, {length}, {pad})", 6 * SMALL
    spacing = w.draw.choice([1, 1, 1, 1, 2])
    out, dilation = w.draw.randint(1, 3), w.draw.choice([1, 1, 2])
    return f"conv({text}, {seed}, {length}, {out}, {pad}, {stride}, {dilation}, {spacing})", 6 * v.rest[0] * SMALL


def totals(w: Writer) -> Line:
    v = w.pick("fi")
    if v is None:
        return None
    text, name = w.limited(v), w.draw.choice(["sum", "max", "min"])
    if w.draw.random() < 0.15:
        return f"jnp.cumprod(jnp.sign({text}), 0)", 1
    return f"lax.cum{name}({w.limited(v, in_order=False)}, {v.axis})", 100 * SMALL


def loops(w: Writer) -> Line:
    v = w.pick("f")
    if v is None:
        return None
    text = w.limited(v)
    forms = [f"leaky({text})", f"repeated({text})"]
    if len(v.rest) == 1:
        pad = w.draw.choice([(2, 0), (1, 1), (0, 2)])
        forms += [
            f"layered({text}, {pad})",
            f"remembering({text})",
            f"counted({text})",
            f"jax.checkpoint(lambda v: ahead(leaky(v)[1], 1))({text})",
        ]
    forms += [
        f"either({w.draw.choice(['True', 'False', 'x.dtype == bool'])}, {text})",
        f"either(jnp.float32({w.draw.randrange(2)}) > 0, {text})",
    ]
    return w.draw.choice(forms), 4 * SMALL


def together(w: Writer) -> Line:
    """Two streams through one operation along time."""
    a, b = w.pair("f") or (None, None)
    if a is None or b is None or (a.rest and b.rest and a.rest != b.rest):
        return None
    pair = brought_together(w, a, b)
    if pair is None:
        return None
    rank = max(len(a.rest), len(b.rest))
    forms = ["paired({}, {})", "joined({}, {})"] if a.rest == b.rest else []
    letters = ["tcd"[: 1 + len(v.rest)] for v in (a, b)]
    if a.rest == b.rest == (2,):
        forms += ["jnp.einsum('tc,td->cd', {}, {})", "jnp.einsum('tc,td->tcd', {}, {})"]
    if a.rest == b.rest or () in (a.rest, b.rest):
        pair = tuple(
            text.split("[:, None")[0] if text.endswith(("[:, None]", "[:, None, None]")) else text for text in pair
        )
        forms += [
            f"jnp.einsum('{letters[0]},{letters[1]}->{'cd'[:rank]}', {{}}, {{}})",
            f"jnp.einsum('{letters[0]},{letters[1]}->{'tcd'[: rank + 1]}', {{}}, {{}})",
        ]
    return (w.draw.choice(forms).format(*pair), 24 * SMALL**2) if forms else None


def positions(w: Writer) -> Line:
    v = w.pick()
    if v is None:
        return None
    place, k = f"jnp.arange({v.name}.shape[{v.axis}])", _count(w)
    forms = [
        f"{place} < {k}",
        f"{place} >= {k}",
        f"{place} % 3 == 1",
        f"{place} == {k}",
        f"{place} * 2 + 1",
        f"{place} % 7",
        f"{k} - {place} > 0",
    ]
    forms += [
        f"{place} < {v.name}.shape[{v.axis}] - {k}",
        f"{place} == {v.name}.shape[{v.axis}] - 1",
        f"jnp.where({place} < {k}, 3, {place} * 0)",
    ]
    forms += [f"{place}.astype(jnp.uint8)", f"lax.iota(jnp.uint8, {v.name}.shape[{v.axis}])"]
    return w.draw.choice(forms), 100


def by_number(w: Writer) -> Line:
    """Frames looked up by numbers that count on."""
    v = w.pick("fi")
    if v is None:
        return None
    text, k = w.limited(v), _count(w)
    size = f"{text}.shape[0]"
    forms = [
        f"{text}[jnp.arange({size} - {k}) + {w.draw.randint(0, k)}]",
        f"{text}[jnp.arange({size} // 2) * 2]",
        f"{text}[jnp.arange({size} // 2) + {k}]",
    ]
    forms += [
        f"{text}[jnp.arange({size} - 2)[:, None] + jnp.arange(3)].sum(1)",
        f"jnp.take({text}, jnp.arange({size}) // 2, 0)",
    ]
    return w.draw.choice(forms), 3 * SMALL


def ended(w: Writer) -> Line:
    """Values known at the end."""
    v = w.pick()
    if v is None:
        return None
    text = w.limited(v)
    if v.dtype == bool:
        return f"{text}.{w.draw.choice(['any', 'all', 'sum'])}(0)", 40
    k = w.draw.randint(0, 2)
    forms = [f"{text}.sum(0)", f"{text}.max(0)", f"{text}.min()", f"{text}.sum()", f"jnp.sign({text}).prod(0)"]
    forms += [
        f"{text}[{k}]",
        f"{text}[-{k + 1}]",
        f"{text}[{k}]",
        f"{text}[-{k + 1}]",
        f"{text}[jnp.array([{k}, 0])]",
        f"{text}[:{k + 1}]",
        f"{text}[-{k + 1}:]",
    ]
    forms += [f"({text} > 1).any(0)", f"({text} > -3).all()"]
    return w.draw.choice(forms), 40 * SMALL


def after_the_end(w: Writer) -> Line:
    """Arithmetic on values known at the end."""
    a, b = w.pair("fi", moving=False) or (None, None)
    if a is None or b is None:
        return None
    one, other = w.limited(a), w.limited(b)
    if a.shape != b.shape:
        one, other = f"{one}.sum()", f"{other}.sum()"
    if a.dtype != b.dtype:
        one, other = f"{one}.astype(jnp.float32)", f"{other}.astype(jnp.float32)"
    return w.draw.choice(["{} + {}", "{} * {}", "jnp.where({} > {}, 1, 2)"]).format(one, other), (12 * SMALL) ** 2


def fed_back(w: Writer) -> Line:
    """A frame with a number, or what is known at the end, used along the stream."""
    v, e = w.pick("f"), w.pick("f", moving=False)
    if v is None:
        return None
    text = w.limited(v)
    if e is None or e.shape != v.rest or w.draw.random() < 0.7:
        first = f"{text}[{w.draw.randint(0, 2)}]"
        forms = [
            f"{text} - {first}",
            f"jnp.concatenate([{first}[None], {text}])",
            f"jnp.where({first}.sum() > 0, {text}, 1)",
        ]
        forms += [
            f"lax.scan(lambda c, f: (small(c - f), c), {first}, {text})",
            f"jnp.concatenate([{text}, {text}[-1:]])",
        ]
        return w.draw.choice(forms), 2 * SMALL
    end = w.limited(e)
    forms = [f"{text} - {end}", f"jnp.concatenate([{text}, {end}[None]])", f"jnp.concatenate([{end}[None], {text}])"]
    return w.draw.choice(forms), 2 * SMALL


def backwards(w: Writer) -> Line:
    v = w.pick("f")
    return v and (w.draw.choice([f"{v.in_order}[::-1]", f"lax.cumsum({w.limited(v)}, 0, reverse=True)"]), 50 * SMALL)


MOMENTS = {
    cut: 16,
    padded: 8,
    windows: 10,
    totals: 4,
    loops: 6,
    together: 6,
    positions: 5,
    by_number: 3,
    ended: 5,
    after_the_end: 2,
    fed_back: 2,
    backwards: 0.05,
}
