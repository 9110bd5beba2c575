"""Lines that move along time, remember it, or sum it up."""

from __future__ import annotations

from stream_fuzzing.frames import LARGE, Line, cut_to, through, together
from stream_fuzzing.vocabulary import FLOATS, SMALL, TYPES, WHOLE
from stream_fuzzing.writing import Writer

#: More frames than any recording has, the rate tripled.
FRAMES = 1000


def cut(w: Writer) -> Line:
    v = w.pick()
    if v is None:
        return None
    k, text = w.draw.choice([1, 1, 1, 2, 3]), v.in_order
    forms = [f"{text}[{k}:]", f"{text}[:-{k}]", f"{text}[{k}:-1]", f"{text}[:-{k}]", f"{text}[{k}:]"]
    forms += [f"{text}[{w.draw.randrange(2)}::{w.draw.choice([2, 2, 3])}]"]
    forms += [f"lax.slice_in_dim({v.name}, {k}, {v.name}.shape[{v.axis}], axis={v.axis})"]
    if v.dtype == bool or w.draw.random() < 0.7:
        return w.draw.choice(forms), v.bound
    return f"{w.draw.choice(['differences({})', 'jnp.diff({}, axis=0)'])}".format(w.limited(v)), 2 * w.most(v)


def around(w: Writer) -> Line:
    """A stream beside its own past and future, cut to one length: what delays one array for several reasons."""
    v = w.values[0] if w.draw.random() < 0.5 else w.pick("fi")
    if v is None:
        return None
    text, most, k = w.limited(v), w.most(v), w.draw.choice([1, 1, 1, 2])
    views = [(text, 0), (f"{text}[{k}:]", k), (f"{text}[:-{k}]", k), (f"ahead({text}, {k})", 0)] * 2
    views += [(f"before({text}, {k})", 0), (f"{text}[1:-{k}]", 1 + k), (f"pool({text}, lax.max, 2, 1, (0, 0))", 1)]
    (one, less), (other, fewer) = w.draw.sample(views, 2)
    one, other = cut_to(w, one, max(fewer - less, 0)), cut_to(w, other, max(less - fewer, 0))
    letters = "tcd"[: 1 + len(v.rest)]
    forms = [("{} + {}", 2 * most), ("{} - {}", 2 * most), ("{} * {}", most**2), ("{} < {}", 1)]
    forms += [(f"jnp.einsum('{letters},{letters}->{letters[1:]}', {{}}, {{}})", FRAMES * most**2)]
    form, bound = w.draw.choice(forms)
    return form.format(one, other), bound


def padded(w: Writer) -> Line:
    v = w.pick("fi")
    if v is None:
        return None
    text, k, rest = w.limited(v), w.draw.choice([1, 1, 2, 3]), [(0, 0)] * len(v.rest)
    low, high, between = w.draw.randint(-2, 3), w.draw.randint(-2, 3), w.draw.choice([0, 0, 1])
    filler = f"jnp.full(({k}, *{text}.shape[1:]), 7, {text}.dtype)"
    forms = [f"ahead({text}, {k}, {w.draw.randint(0, 2)})", f"before({text}, {k}, {w.draw.randint(0, 2)})"]
    mode, ends = w.draw.choice(["edge", "reflect", "symmetric"]), (w.draw.randint(0, 3), w.draw.randint(0, 3))
    forms += [f"ahead({text}, 1)", f"jnp.pad({text}, {[ends, *rest]}, mode={mode!r})"]
    forms += [f"jnp.pad({text}, {[(max(low, 0), max(high, 0)), *rest]}, constant_values=2)"]
    edges = [(low, high, between), *[(0, 0, 0)] * len(v.rest)]
    forms += [f"lax.pad({text}, {text}.dtype.type(3), {edges})", f"jnp.concatenate([{filler}, {text}])"]
    forms += [f"jnp.concatenate([{text}, {filler}])", f"jnp.concatenate([{filler}, {text}, {filler} - 3])"]
    return w.draw.choice(forms), max(7, w.most(v))


def deltas(w: Writer) -> Line:
    """Differences of slices of a padded array, as delta features are."""
    v = w.pick("fi")
    if v is None:
        return None
    mode, k = w.draw.choice(["edge", "reflect", "symmetric", "constant"]), w.draw.choice([1, 1, 2, 3])
    return f"delta({w.limited(v)}, {k}, {mode!r})", 2 * w.most(v)


def rolled(w: Writer) -> Line:
    """Frames that a roll or a concatenation moves to the other end, mostly cut off or overwritten there."""
    v = w.pick("fi")
    if v is None or w.least == 1:  # XLA fails for some slices of a single frame
        return None
    text, k, wide = w.limited(v), w.draw.choice([1, 1, 1, 2]), "".join([", None"] * len(v.rest))
    places = f"jnp.arange({text}.shape[0])[:{wide}]"
    whole = w.draw.choice([f"jnp.roll({text}, {k}, 0)", f"jnp.concatenate([{text}[-{k}:], {text}[:-{k}]])"])
    whole = w.draw.choice([whole, whole, f"jnp.abs({whole})", f"jax.nn.relu({whole})", f"({whole} + {text})"])
    forms = [f"{whole}[{k}:]", f"{whole}.at[:{k}].set(3)", f"{whole}.at[jnp.arange({k})].set(2)"]
    forms += [f"jnp.where({places} < {k}, {text}, {whole})", f"jnp.where({places} >= {k}, {whole}, 2)"]
    forms += [f"jnp.where(({places} % 7 >= {k}) | ({places} > 6), {whole}, 1 - {text})", f"{whole}[{k}:-1]"]
    forms += [f"jnp.roll({text}, -{k}, 0)", f"jnp.roll({text}, -{k}, 0)[:-{k}]"]
    if w.draw.random() < 0.1:  # of these, some output reads a frame of the end
        forms = [
            whole,
            f"{whole}.at[{k}].set(3)",
            f"jnp.where({places} == {k}, 3, {whole})",
            f"{whole} * ({places} > 0)",
        ]
    return w.draw.choice(forms), 2 * w.most(v)


def branched(w: Writer) -> Line:
    """A branch on a length, which constraints may decide; any other branch must be refused."""
    v = w.pick("fi")
    if v is None:
        return None
    text, n, k = w.limited(v), f"{v.name}.shape[{v.axis}]", w.draw.choice([1, 1, 2, 3, 9, 13])
    answers = [f"{n} == {k}", f"{n} != {k}", f"{n} in ({k}, {k + 1})", f"{n} // 8 == {k}", f"{n} % 2 == {k % 2}"]
    answers += [f"{v.name}.size == {k}", f"{n} * 2 == {2 * k + 1}", f"{n} - {n} // 2 * 2 - {n} % 2 == 0"]
    return f"{text} if {w.draw.choice(answers)} else 1 - {text}", w.most(v) + 1


def windows(w: Writer) -> Line:
    v = w.pick("f" if w.draw.random() < 0.7 else "i")
    if v is None:
        return None
    text, most = w.limited(v), w.most(v)
    length, stride = w.draw.randint(2, 3), w.draw.choice([1, 1, 1, 2, 3])
    free = w.draw.randint(-1, 4), w.draw.randint(-1, 4)
    pad = w.draw.choice([(0, 0), (length - 1, 0), (0, length - 1), free])
    if w.draw.random() < 0.4 or v.dtype.kind != "f":
        return f"pool({text}, lax.{w.draw.choice(['max', 'min', 'add'])}, {length}, {stride}, {pad})", 3 * most
    if len(v.rest) != 1:
        return None
    seed = w.draw.randrange(9)
    if w.draw.random() < 0.2:
        return f"depthwise({text}, {seed}, {length}, {pad})", 6 * most
    spacing, out, dilation = w.draw.choice([1, 1, 1, 1, 2]), w.draw.randint(1, 3), w.draw.choice([1, 1, 2])
    numbers = f"{w.draw.choice([1, length])}, {out}, {pad}, {stride}, {dilation}, {spacing}"
    return f"conv({text}, {seed}, {numbers})", 6 * v.rest[0] * most


def totals(w: Writer) -> Line:
    v = w.pick("fi")
    if v is None:
        return None
    if w.draw.random() < 0.15:
        return f"jnp.cumprod(jnp.sign({w.limited(v)}), 0)", 1
    if w.draw.random() < 0.25:
        return f"linear({w.limited(v, in_order=False)}, {v.axis})", FRAMES * w.most(v)
    name = w.draw.choice(["sum", "max", "min"])
    return f"lax.cum{name}({w.limited(v, in_order=False)}, {v.axis})", FRAMES * w.most(v)


def faster(w: Writer) -> Line:
    """More frames than the input has, of which each sees later frames and sums up earlier frames."""
    v = w.pick("fi")
    if v is None:
        return None
    k, rate = w.draw.choice([1, 1, 2, 3]), w.draw.choice([2, 3])
    text, most = f"jnp.repeat({w.limited(v)}, {rate}, axis=0)", w.most(v)
    moved = ["ahead({}, {})", "ahead({}, {})", "{}[{}:]", "before({}, {})", "ahead({}, {})[::2]"]
    text = w.draw.choice(moved).format(text, k)
    forms = [(text, most), (f"lax.cummax({text}, 0)", most), (f"pool({text}, lax.add, 2, 1, (0, 1))", 2 * most)]
    sums = [(f"lax.cumsum({text}, 0)", rate * FRAMES * most), (f"leaky({text})[1]", 2 * FRAMES * most)]
    return w.draw.choice([*forms, *sums[:1] * 3, sums[1]])


def narrow(w: Writer) -> Line:
    """Extremes of floats of 8 bits, some of which have no infinity."""
    v = w.pick("fi")
    if v is None:
        return None
    kind = w.draw.choice(["e4m3fn", "e4m3fnuz", "e5m2fnuz", "e4m3b11fnuz", "e5m2"])
    text, name = f"jnp.clip({v.in_order}, -4, 4).astype(jnp.float8_{kind})", w.draw.choice(["max", "min"])
    if w.draw.random() < 0.15:
        return f"jnp.arg{name}({text}, 0)", 2 * FRAMES
    pad = w.draw.choice([(0, 0), (1, 0), (0, 1)])
    forms = [f"lax.cum{name}({text}, 0)", f"{text}.{name}(0)", f"pool({text}, lax.{name}, 2, 1, {pad})"]
    return f"{w.draw.choice(forms)}.astype(jnp.float32)", 448


def loops(w: Writer) -> Line:
    v = w.pick("f")
    if v is None:
        return None
    text = w.limited(v)
    flags = ["True", "False", "x.dtype == bool", f"jnp.float32({w.draw.randrange(2)}) > 0"]
    if w.draw.random() < 0.3:
        k, how = w.draw.randint(1, 3), w.draw.choice(["for", "while"])
        if w.draw.random() < 0.5:
            return f"sliding({text}, {k}, {w.draw.choice(['vmap', 'map', 'scan'])!r})", 3 * w.most(v) + SMALL
        return f"numbered({text}, {k}, {how!r})[1]", 5
    forms = [f"leaky({text})", f"resetting({text})", f"repeated({text})", f"either({w.draw.choice(flags)}, {text})"]
    if len(v.rest) == 1:
        pad = w.draw.choice([(2, 0), (1, 1), (0, 2)])
        forms += [f"layered({text}, {pad})", f"remembering({text})", f"counted({text})"]
        forms += [f"jax.checkpoint(lambda v: ahead(leaky(v)[1], 1))({text})"]
    return w.draw.choice(forms), 8 * SMALL


def of_two(w: Writer) -> Line:
    """Two streams through one operation along time."""
    pair = w.pair("f")
    texts = pair and together(w, *pair)
    if not pair or not texts:
        return None
    a, b = (v.rest for v in pair)
    one, other = ("tcd"[: 1 + len(rest)] for rest in (a, b))
    forms = ["paired({}, {})", "joined({}, {})"] if a == b else []
    if a == b == (2,):
        forms += ["jnp.einsum('tc,td->cd', {}, {})", "jnp.einsum('tc,td->tcd', {}, {})"]
    if a == b or () in (a, b):
        wide = max(one, other)
        forms += [
            f"jnp.einsum('{one},{other}->{wide[1:]}', {{}}, {{}})",
            f"jnp.einsum('{one},{other}->{wide}', {{}}, {{}})",
        ]
    bound = FRAMES * max(map(w.most, pair)) ** 2
    return (w.draw.choice(forms).format(*texts), bound) if forms else None


def positions(w: Writer) -> Line:
    v = w.pick()
    if v is None:
        return None
    k, size = w.draw.choice([1, 1, 2, 3]), f"{v.name}.shape[{v.axis}]"
    place = f"jnp.arange({size})"
    forms = [f"{place} < {k}", f"{place} >= {k}", f"{place} % 3 == 1", f"{place} == {k}", f"{k} - {place} > 0"]
    forms += [f"{place} < {size} - {k}", f"{place} >= {size} - {k}", f"{place} == {size} - 1", f"{place} * 2 + 1"]
    forms += [f"jnp.where({place} < {k}, 3, {place} * 0)", f"{place} % 7", f"lax.iota(jnp.uint8, {size})"]
    return w.draw.choice(forms), 2 * FRAMES


def casts(w: Writer) -> Line:
    """Positions, lengths, and values known at the end in other types, which may not hold these."""
    v = w.pick("f")
    if v is None:
        return None
    k, size = w.draw.choice([1, 2, 3, 100, 127, 200, 257]), f"{v.name}.shape[{v.axis}]"
    place, kind = f"jnp.arange({size})", w.draw.choice(TYPES)
    cast = through(w, place, "int32")
    narrow = f"lax.iota('{w.draw.choice([*WHOLE, 'float16', 'float32'])}', {size})"
    forms = [(cast, LARGE), (f"{narrow}.astype(jnp.float32)", LARGE), (f"{narrow}.astype(jnp.int32) < {k}", 1)]
    forms += [(f"jnp.abs({cast} - {place}.astype({cast}.dtype)) > {k}", 1), (f"{cast} % 7", 7)]
    forms += [
        (f"{cast} {w.draw.choice(['<', '>=', '==', '!='])} {w.draw.choice([k, f'{cast}.dtype.type({k % 128})'])}", 1)
    ]
    forms += [(f"jnp.asarray({size}).astype('{kind}').astype(jnp.float32)", LARGE)]
    forms += [(f"looped({w.limited(v)}, '{kind}')", SMALL)]
    forms += [(f"lax.argmax({w.limited(v, in_order=False)}, {v.axis}, '{w.draw.choice(WHOLE)}')", LARGE)]
    if w.draw.random() < 0.5:
        return w.draw.choice(forms)
    # Whole numbers that the first type holds, and the differences too.
    first, factor = w.draw.choice([("float32", 37), ("float16", 12), ("bfloat16", 3)])
    text = f"({w.limited(v)} * {factor}).astype('{first}')"
    moved = (
        f"({text} - {text}.{w.draw.choice(['max', 'min'])}(0)).astype('{w.draw.choice(FLOATS)}').astype(jnp.float32)"
    )
    return f"({moved}{w.draw.choice(['', ' ** 2'])}).sum(0)", FRAMES * (2 * 37 * SMALL) ** 2


def by_number(w: Writer) -> Line:
    """Frames looked up by numbers that count on."""
    v = w.pick("fi")
    if v is None:
        return None
    text, k = w.limited(v), w.draw.choice([1, 1, 2, 3])
    size = f"{text}.shape[0]"
    forms = [f"{text}[jnp.arange({size} - {k}) + {w.draw.randint(0, k)}]", f"{text}[jnp.arange({size} // 2) * 2]"] * 2
    forms += [f"{text}[jnp.arange({size} - 2)[:, None] + jnp.arange(3)].sum(1)"] * 2
    place = f"jnp.arange({size})"
    forms += [f"{text}[jnp.clip({place} - {k}, 0)]", f"{text}[jnp.clip({place} + {k}, 0, {size} - 1)]"]
    forms += [f"{text}[jnp.clip({place}[:, None] + jnp.arange(-1, {k}), 0, {size} - 1)].sum(1)"]
    forms += [f"{text}[jnp.maximum(jnp.arange({size} // 2) * 2 - 1, 0)]"]
    if v.rest:
        forms += [f"{text}[{place}, jnp.argmax({text}.reshape({size}, -1), -1) % {v.rest[0]}]"] * 2
    forms += [f"{text}[jnp.arange({size} // 2) + {k}]", f"{text}[jnp.arange({size}) // 2]"]
    return w.draw.choice(forms), 3 * w.most(v)


def written(w: Writer) -> Line:
    """Frames and their elements written by number, and overlap-add."""
    v = w.pick("fi")
    if v is None:
        return None
    text, most, k = w.limited(v), w.most(v), w.draw.choice([1, 1, 2, 3])
    size, rest = f"{text}.shape[0]", "".join(f", {size}" for size in v.rest)
    forms = [f"{text}.at[{k % 2}::2].{kind}({text}[{k % 2}::2] - 1)" for kind in ("set", "add", "max")]
    forms += [
        f"{text}.at[{k}:].add({text}[{k}:])",
        f"{text}.at[jnp.array([{k}])].set(3)",
        f"{text}.at[jnp.array([0, {k}])].add(2)",
    ]
    forms += [f"jnp.ones(({k} * {size}{rest}), {text}.dtype).at[{k - 1}::{k}].set({text})"]
    if v.rest:
        forms += [f"overlapped({text}, {k}, {w.draw.randint(-1, 2)})"] * 4
        forms += [f"{text}.at[jnp.arange({size}), {v.rest[0] - 1}].set(1)", f"{text}.at[:, 0].add(1)"]
    return w.draw.choice(forms), 4 * most + 3


def signals(w: Writer) -> Line:
    """Filters, other rates, overlapping frames, and systems of a constant matrix."""
    v = w.pick("f")
    if v is None:
        return None
    text, most, seed, k = w.limited(v), w.most(v), w.draw.randrange(9), w.draw.randint(1, 3)
    up = w.draw.choice([1, 2, 2])
    forms = [(f"filtered({text}, {seed}, {w.draw.random() < 0.5})", 6 * FRAMES * most)]
    forms += [(f"{up} * jaxrnn.signal.interp({text}, {up}, {k})", up * most)]
    shape = f"{k}, {', '.join(['1'] * len(v.rest))}".rstrip(", ")
    mode = w.draw.choice(["full", "same", "valid"])
    forms += [(f"jaxrnn.signal.fftconvolve({text}, taps({seed}, {shape}), {mode!r}, 0)", 6 * most)]
    if len(v.rest) == 1:
        forms += [(f"shifted({text}, {w.draw.randint(1, v.rest[0])})", v.rest[0] * most)] * 2
        forms += [(f"jaxrnn.signal.fftconvolve({text}, taps({seed}, {k}, {v.rest[0]}), {mode!r}, 0)", 6 * most)]
    if len(v.rest) == 1 and v.rest[0] <= 4:
        forms += [(f"solved({text}, {seed})", 3 ** v.rest[0] * most)] * 2
    return w.draw.choice(forms)


def attention(w: Writer) -> Line:
    """Pairs of frames under a mask of their numbers: bounded, or all of the past in a sum of products."""
    v = w.pick("f")
    if v is None:
        return None
    text, left, right = w.limited(v), w.draw.randint(0, 4), w.draw.choice([0, 0, 1, 2])
    other = w.draw.choice([text, text, f"before({text}, 1)", f"ahead({text}, 1)"])
    masks = [f"(i - j <= {left}) & (j - i <= {right})", f"i // {left + 1} == j // {left + 1}"]
    masks += [f"(j >= i // 3 * 3 - {left}) & (j < i // 3 * 3 + {right + 1})", f"abs(2 * i - 2 * j) <= {left + right}"]
    masks += spelled_masks(w, left, right)
    join = w.draw.choice(["sum", "sum", "max", "any", "sink", "vectors", "rows", "added"])
    if join == "sum":
        masks += [f"i >= j - {right}", f"i >= j + {left}"]
    size = max(1, *v.rest) if v.rest else 1
    most = {"sum": FRAMES * 8 * size, "any": 1}.get(join, 50)
    return f"attended({text}, {other}, lambda i, j: {w.draw.choice(masks)}, {join!r})", most


def spelled_masks(w: Writer, left: int, right: int) -> list[str]:
    """Spellings of one mask, as packages for attention have them, with positions j along keys and i along queries."""
    n, kind = "j.shape[0]", w.draw.choice(["uint32", "float32", "int32"])
    held, flags = w.draw.choice([kind, "int8", "bfloat16", "bool"]), f"(i - j <= {left}), (j - i <= {right})"
    count = f"jnp.cumsum(jnp.ones((2, {n}), 'int32'), 1)"
    batches = ["jnp.broadcast_to(j, (2, *j.shape))", "jnp.stack([j, j])", "jnp.tile(j[None], (2, 1))", count]
    batches += ["jnp.concatenate([j[None], j[None] + 3])", "j + jnp.array([[2], [5]])", f"jnp.arange(400)[{count}]"]
    batches += [
        f"jnp.broadcast_to(j, (2, *j.shape)).astype('{kind}')",
        "jnp.broadcast_to(j, (3, *j.shape))[jnp.array([2, 1])]",
    ]
    cut = f"(lambda q, k: (q <= k + {left}) & (k <= q + {right}))"
    masks = [f"{cut}({p}[:, :, None], {p}[:, None])[{place}]" for p in batches for place in (w.draw.randrange(2),)]
    masks += [
        f"{cut}(i.astype('{kind}'), j.astype('{kind}'))",
        f"{cut}(i[j], j[j])",
        f"{cut}(*jnp.meshgrid(j, j, indexing='ij'))",
    ]
    masks += [f"jax.vmap(lambda a: jax.vmap(lambda b: {cut}(a, b))(j))(i[:, 0])"]
    masks += [f"jnp.tril(jnp.triu(jnp.ones(({n}, {n}), '{held}'), -{left}), {right}) > 0"]
    masks += [f"jnp.tri({n}, k={right}, dtype=bool) & ~jnp.tri({n}, k=-{left + 1}, dtype=bool)"]
    masks += [f"jnp.tri({n}, k={right}) - jnp.tri({n}, k=-{left + 1}) > 0"]
    masks += [f"(lambda a, b: (a.astype('{held}') * b.astype('{held}')).astype(bool))({flags})"]
    masks += [f"jnp.minimum(*(each.astype('int32') for each in ({flags}))) == 1"]
    masks += [f"jnp.tile(jnp.logical_and({flags})[None], (2, 1, 1))[1]", f"({cut}(i, j) & (j % 2 == 0)) | (i == j)"]
    return w.draw.sample(masks, 6)


def ended(w: Writer) -> Line:
    """Values known at the end."""
    v = w.pick()
    if v is None:
        return None
    text, most, k = w.limited(v), w.most(v), w.draw.randint(0, 2)
    if v.dtype == bool:
        return f"{text}.{w.draw.choice(['any', 'all', 'sum'])}(0)", FRAMES
    forms = [f"{text}.max(0)", f"{text}.min()", f"{text}[{k}]", f"{text}[-{k + 1}]", f"{text}[jnp.array([{k}, 0])]"]
    forms += [f"{text}[:{k + 1}]", f"{text}[-{k + 1}:]", f"{text}[jnp.array([-1, -{k + 1}])]"]
    if w.draw.random() < 0.15:
        return f"jnp.{w.draw.choice(['argmax', 'argmin'])}({text}, 0)", 2 * FRAMES
    if v.dtype.kind == "f" and w.draw.random() < 0.25:
        centre = w.draw.choice([f"{text}.max(0)", f"{text}.min(0)", f"{text}[-1]"])
        return f"(({text} - {centre}) {w.draw.choice(['** 2', f'* {text}', '* 3'])}).sum(0)", FRAMES * 4 * most**2
    forms += [f"jnp.sign({text}).prod(0)", f"({text} > 1).any(0)", f"({text} > -3).all()"]
    if w.draw.random() < 0.25:
        return f"{text}.sum({w.draw.choice(['', '0'])})", 12 * FRAMES * most
    return w.draw.choice(forms), max(1, most)


def after_the_end(w: Writer) -> Line:
    """Arithmetic on values known at the end."""
    pair = w.pair("fi", moving=False)
    if pair is None:
        return None
    one, other = map(w.limited, pair)
    if pair[0].shape != pair[1].shape:
        one, other = f"{one}.sum()", f"{other}.sum()"
    if pair[0].dtype != pair[1].dtype:
        one, other = f"{one}.astype(jnp.float32)", f"{other}.astype(jnp.float32)"
    form = w.draw.choice(["{} + {}", "{} * {}", "jnp.where({} > {}, 1, 2)"])
    return form.format(one, other), (12 * SMALL) ** 2


def fed_back(w: Writer) -> Line:
    """A frame with a number, or what is known at the end, used along the stream."""
    v, e = w.pick("f"), w.pick("f", moving=False)
    if v is None:
        return None
    text, most = w.limited(v), 2 * SMALL
    if e is None or e.shape != v.rest or w.draw.random() < 0.7:
        first = f"{text}[{w.draw.randint(0, 2)}]"
        forms = [f"{text} - {first}", f"jnp.concatenate([{first}[None], {text}])"]
        forms += [f"jnp.where({first}.sum() > 0, {text}, 1)", f"jnp.concatenate([{text}, {text}[-1:]])"]
        return w.draw.choice([*forms, f"lax.scan(lambda c, f: (small(c - f), c), {first}, {text})"]), most
    end = w.limited(e)
    forms = [f"{text} - {end}", f"jnp.concatenate([{text}, {end}[None]])", f"jnp.concatenate([{end}[None], {text}])"]
    return w.draw.choice(forms), most


def backwards(w: Writer) -> Line:
    v = w.pick("f")
    forms = v and [f"{v.in_order}[::-1]", f"lax.cumsum({w.limited(v)}, 0, reverse=True)"]
    return (w.draw.choice(forms), FRAMES * SMALL) if forms else None


MOMENTS = {
    cut: 14,
    around: 16,
    padded: 9,
    deltas: 3,
    rolled: 5,
    windows: 10,
    branched: 0.2,
    totals: 4,
    faster: 5,
    narrow: 2,
    loops: 6,
    of_two: 6,
    positions: 5,
    casts: 4,
    by_number: 6,
    written: 5,
    signals: 5,
    attention: 7,
    ended: 5,
    after_the_end: 2,
    fed_back: 2,
    backwards: 0.05,
}
