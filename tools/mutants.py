"""Mutants of the core, and whether quick tests catch them: ``python -m tools.mutants [--only WORD] [--list]``.

A mutant replaces a text of a file in `jaxrnn/` by a wrong text, in a copy of the repository. The named tests must then
fail. If the tests pass, the mutant shows a gap in the tests. If the text is missing, the mutant is stale and must be
adapted to the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
MODELS = {"JAXRNN_MODELS": str(ROOT.parent / "shared" / "models")}
#: The folders and files that tests read.
COPIED = ("jaxrnn", "tests", "tools", "benchmarks", "examples", "pyproject.toml")


@dataclass(frozen=True)
class Mutant:
    """A wrong text in a file.

    Attributes:
        name: the mistake.
        file: a path in `jaxrnn/`.
        old: a text that occurs once in the file.
        new: the wrong text in place of ``old``.
        tests: files in `tests/`, perhaps followed by ``::`` and a test.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _mutants(tests: str, *rows: tuple[str, str, str, str]) -> list[Mutant]:
    return [Mutant(*row, tuple(tests.split())) for row in rows]


PAIRING, FIND, SIZES, NAMES, DRESSES = (
    f"onnx/state/{name}.py" for name in ("pairing", "find", "sizes", "names", "dresses")
)
LOADING = "model/loading.py"
STATE = _mutants(
    "test_state_finding.py test_state_principle.py test_state_of_arithmetic.py test_state.py test_state_generated.py",
    ("named averages are doubted", PAIRING, " or (self.rank == KEPT and self.affinity == 2)", ""),
    ("swapped final values", PAIRING, "    if misplaced.any():", "    if misplaced.all() and not misplaced.any():"),
    ("buffers in any order", PAIRING, "mask[old] = (apart == apart[:, :1]).all()", "mask[old] = True"),
    ("PyTorch's final states", NAMES, '{"hn": "h", "cn": "c"}', "{}"),
    ("scaled final values", PAIRING, "    scaled = own & (grade == SCALED)", "    scaled = own & (grade < 0)"),
    ("recordings forget nothing", FIND, "return len(known) < 2", "return False"),
    ("accidental equations", SIZES, "or self._accepts(again))", "or bool(again))"),
    (
        "names against the flow",
        PAIRING,
        "self._exchange() or [edge for each",
        "self._exchange() or [edge for each in () for each",
    ),
    ("windows as caches", PAIRING, "if window is False and (", "if ("),
    ("data that grow", PAIRING, "free = self._beside_data(free)", "pass"),
    ("blocks beside refilled buffers", PAIRING, "if edge.joins or (", "if ("),
    ("caches whole and cut", PAIRING, "alike = {rank, GROWN} if rank == BUFFER else", "alike ="),
    ("growth at unsolved sizes", SIZES, "longer = self._all_longer\n", "pass\n"),
    ("open batches of size 1", SIZES, "first != second and 1 in (first, second)", "first is None"),
)
STATE += _mutants(
    "test_state_complete.py",
    ("lost recurrences", FIND, "for lost in self.flow.lost:", "for lost in ():"),
    ("masked caches", PAIRING, "POSSIBLE if window is True else GATED", "POSSIBLE"),
    ("exchanged outputs", PAIRING, "if against := self._exchange() or [", "if against := ["),
    ("copies for evidence", PAIRING, "self.rank or 0.5 * bool(self.why)", "self.rank"),
    ("names of other languages", PAIRING, "if against := self._otherwise_named():", "if against := []:"),
    ("outputs with the state", PAIRING, "if other.rank in (POSSIBLE, PRODUCT) and", "if"),
    ("exchanged names of other languages", PAIRING, "len(pairs) == 2 and", "not pairs and"),
    ("English letters", NAMES, 'r"[^\\W\\d_]+|', 'r"[A-Za-z]+|'),
    ("no defaults", LOADING, 'options["operators"]) - given', 'options["operators"]) & given'),
    ("defaults of old files", LOADING, ">= _OVERRIDABLE:", ">= 0:"),
    ("weights as inputs", LOADING, "else made(given | paired)", "else model"),
    ("unknown growth", SIZES, "            return longer\n        pairs", "            return False\n        pairs"),
    ("unknown trips", SIZES, "if self.flow.sites[index].length is None:", "if index is None:"),
    ("origins again and again", SIZES, "if id(origin) not in seen:", "if True:"),
)
STATE += _mutants(
    "test_state_dresses.py test_state_finding.py test_state_complete.py",
    ("other dresses are data", FIND, "self._check_dressed(pairs, pairing)  #", "pass  #"),
    ("names in another dress", FIND, "and (edge.source, edge.output) not in self.candidates and", "and False and"),
    ("a first state over open time", FIND, "isinstance(end, Unknown) or not end for", "end is not None for"),
    ("masks of state are asked about", FIND, "if not any(_starts_from(each[1], name) for name in pairs)]", "]"),
    ("single frames that do not return", FIND, "alone = site.length == 1 and", "alone = site.length == 0 and"),
    ("outputs of two inputs", FIND, "and held_apart(dresses[one], dresses[other])):", "):"),
    ("orders of axes", DRESSES, "turned.transpose([self.order.index(axis)", "turned.transpose([self.order[axis]"),
    ("any elements are an order", DRESSES, "((turned == found) | (found < 0)).all()", "(turned >= 0).all()"),
    ("parts in any order", DRESSES, "== 1 and ends == starts else None", "== 1 else None"),
    ("shown outputs are state", DRESSES, "if piece.held is None and not piece.is_shown]", "if piece.held is None]"),
    ("elements in unknown order", DRESSES, "        fitting = []  #", "        pass  #"),
)

TOTALS = "streaming/totals.py"
PASSES, TIMELINE = "streaming/passes.py", "streaming/dimensions.py"
INSTANTS, HISTORIES = "streaming/instants.py", "streaming/histories.py"
WINDOWS, RECURRENCE, TIME = (f"streaming/rules/{name}.py" for name in ("windows", "recurrence", "time"))
STREAMS = _mutants(
    "test_stream_totals.py test_stream_lengths.py test_stream.py test_stream_ends.py test_stream_odd_input.py "
    "test_stream_random.py test_stream_equality.py",
    ("pads at the end", WINDOWS, "window.low != 0 or high != 0 or", "window.low != 0 or"),
    ("too early windows", WINDOWS, "- low + window.extent) // window.stride", "- low) // window.stride"),
    ("absent frames in carries", RECURRENCE, "new = [jnp.where(here, after, earlier) for", "new = [after for"),
    ("carries stay", RECURRENCE, "_numbers(after[index], type_of", "_numbers(before[index], type_of"),
    ("frames in front", TIME, "along(where < 0, axis, array.ndim)", "along(where <= 0, axis, array.ndim)"),
    ("frames after the end", TIME, "jnp.clip(where - end, 0,", "jnp.clip(where - end + 1, 0,"),
    (
        "totals drift",
        TOTALS,
        "_rounded(high, sum([x.low for x in (a, b) if x.low is not None], start=error))",
        "_rounded(high, error)",
    ),
    (
        "narrow totals",
        TOTALS,
        "np.dtype(np.float32) if dtype.itemsize < 4",
        "dtype if dtype.itemsize < 4",
    ),
    ("answers of JAX", "_jax/sizes.py", "return None if is_other else decide", "return None"),
    ("no single lengths", "streaming/transform.py", "plan.uncompared = offline.compare(plan)", "pass"),
    ("all forms are equal", "streaming/comparison.py", 'return "" if all(', 'return "" if any('),
    ("views from any place", "streaming/comparison.py", "whole.digest, start, strides", "whole.digest, strides"),
    ("lengths taken for unequal", "_jax/sizes.py", "inside[2][str(difference)] = difference", "pass"),
    (
        "horizons of whole pulses",
        "streaming/facts.py",
        "timeline.settled, -(-frames // timeline",
        "timeline.settled, (frames // timeline",
    ),
    ("narrow totals of files", "export/conversions.py", '("total", "remainder", "counter"', '("counter"'),
    (
        "limits of narrow floats",
        "_jax/context.py",
        "limit = infinite if infinite == sign * np.inf else limit",
        "limit = infinite",
    ),
    ("lengths of empty recordings", TIMELINE, "if str(size) not in self.when_empty:", "if True:"),
    ("squares that overflow", "streaming/rules/awaiting.py", "& ~(distant & endless)", "& (distant & ~distant)"),
    ("masks by the length", "streaming/rules/elementwise.py", "timeline.certain + wait)", "timeline.certain)"),
)

LIVES = _mutants(
    "test_stream_lives.py",
    ("counts overflow", "streaming/plan.py", "new[UNITS] -= done *", "new[UNITS] -= 0 * done *"),
    ("lost laps", "streaming/plan.py", "(now.laps + done).astype", "now.laps.astype"),
    ("laps of any length", TIMELINE, "return half // period * period", "return half - 1"),
    ("slow positions", TIMELINE, "max(self.fastest, math.ceil(abs(growth)))", "self.fastest"),
    (
        "one frame of a lap",
        INSTANTS,
        "np.asarray(self.facts.laps.length * growth)",
        "np.asarray(self.facts.laps.length)",
    ),
    ("laps of 64 bits", INSTANTS, "(positions - lost).astype", "positions.astype"),
    ("buffered positions", HISTORIES, "if self._growth and later.dtype == np.int32:", "if False:"),
)
STARTS = _mutants(
    "test_stream_start.py",
    ("programs of empty chunks", PASSES, "if timeline is not None and delay is not None and self", "if False and self"),
)
RULED = _mutants(
    "test_stream_refusals.py::test_derivative_rules_of_other_frames",
    (
        "sums of a pulse in every frame",
        "streaming/rules/reductions.py",
        "return FinalValue(reduced(frames, axes))",
        "return reduced(frames, axes)",
    ),
    ("derivative rules that count", "streaming/facts.py", "        if new:\n", "        if False:\n"),
)
FACTS = _mutants(
    "test_stream_facts.py test_stream.py",
    ("late from the start", TIME, "else None) or Fraction(0)\n", "else None) and Fraction(0) or Fraction(0)\n"),
    ("repeated frames wait", WINDOWS, "late is not None:\n        # Windows", "late is x:\n        # Windows"),
    (
        "late frames of windows",
        PASSES,
        "frames = self.with_late(frames, time, chunk,",
        "frames = (lambda f, *_: f)(frames, time, chunk,",
    ),
    (
        "all late frames at once",
        HISTORIES,
        "(where >= 0) & (where < count)), time",
        "(where >= 0) & (where <= count)), time",
    ),
    (
        "frames in front of a large pulse",
        HISTORIES,
        "jnp.clip(count - where[0], 0,",
        "jnp.clip(count - where[0] + 1, 0,",
    ),
    ("fields of strides", "streaming/reach.py", "[::stride][:count])", "[:count])"),
    ("facts of short recordings", "streaming/reach.py", "1 << (2 * bound + 8).bit_length()", "16"),
    ("facts of half of the windows", "streaming/reach.py", "node._wide + max(", "max("),
)

BODIES = "cells/cell.py"
CELLS = _mutants(
    "test_recurrent.py test_fast_forms.py",
    ("another peephole", BODIES, "self._sigmoid(a_i + peephole[0] * c)", "self._sigmoid(a_i + peephole[2] * c)"),
    ("uncoupled gates", BODIES, "c = (1 - i if self.input_forget else f) * c", "c = f * c"),
    ("late reset", BODIES, "(product(r * h, recurrent[0][1]) if", "(r * product(h, recurrent[0][1]) if"),
    ("tangent of the reset", BODIES, "candidate = of_r + r * rest[0] if rest", "candidate = r * rest[0] if rest"),
    ("one frame too many", "cells/recurrence.py", "[:, None] < lengths[None, :]", "[:, None] <= lengths[None, :]"),
    ("remainders of reversed blocks", "cells/forms.py", "length - covered if reverse else 0", "0"),
)

MATCHING = "jaxprs/recognition/matching.py"
RECOGNITION = _mutants(
    "test_recognition.py",
    ("other sums than one", MATCHING, " or polynomial[_pair(z, g)] != -0.5 * sign * gate:", ":"),
    ("negative relus", MATCHING, 'if kind == "relu" and sign < 0:', 'if kind == "relu" and sign is None:'),
    ("another carry in c", MATCHING, "if _is_piece(algebra, carry, cell_state):", "if cell_state is not None:"),
    ("rows that meet", MATCHING, "(self._row[elements] == np.arange(elements.shape[0])[:, None]).all()", "True"),
    ("products beside the reset", MATCHING, "if candidate.recurrent:", "if candidate.recurrent is None:"),
)

ARITHMETIC, INDEXING = "export/rules/arithmetic.py", "export/rules/movement.py"
LOWERING = [
    *_mutants(
        "test_lowering_elements.py",
        ("division by -1", ARITHMETIC, "edges[-1] = elements(", "edges[0] = elements("),
        ("negative roots", "export/small/functions.py", "jnp.where(x < 0, -root, root)", "root"),
    ),
    *_mutants(
        "test_lowering_indexing.py",
        ("minima as maxima", "export/rules/windows.py", "highest(dtype_of(x))", "lowest(dtype_of(x))"),
        ("reads behind the end", INDEXING, "np.asarray(np.clip(places, 0, last))", "np.asarray(places)"),
        ("slices behind the end", INDEXING, "begins[axis] = int(np.clip(start, 0, room))", "begins[axis] = int(start)"),
    ),
    *_mutants(
        "test_lowering_graphs.py",
        ("negative slopes", "export/rewrites/activations.py", '0 < match["alpha"] <= 1 else', 'match["alpha"] else'),
    ),
    *_mutants(
        "test_lowering_elements.py::test_transforms_of_several_axes",
        (
            "halved axes at any place",
            "export/small/complexes.py",
            'in steps if kind == "IRFFT" else reversed(steps):',
            "in steps:",
        ),
    ),
    *_mutants(
        "test_lowering_layers.py::test_refusals",
        ("one refusal", "export/translator.py", "self.problems.append(str(error))", "self.problems[:] = [str(error)]"),
    ),
]

FORMS, BATCHES = "export/litert/forms.py", "export/batches.py"
EXPORTS = [
    *_mutants(
        "test_litert.py",
        ("long sums of integers", FORMS, "_WHOLE = 2**24", "_WHOLE = 2**26"),
        ("integers that do not wrap", FORMS, "product(*factors).astype(np.int32)", "product(*factors).astype(dtype)"),
    ),
    *_mutants(
        "test_sweep.py",
        ("types that nobody compared", FORMS, "if name in known:", "if known:"),
        ("signs that shifts bring in", FORMS, "if logical and bits == 32:", "if logical and bits > 32:"),
    ),
    *_mutants(
        "test_export_batches.py",
        (
            "the third number of streams",
            BATCHES,
            "not list(map(_bits, lines)) == list(map(_bits, arrays))",
            "not list(map(_bits, lines[:2])) == list(map(_bits, arrays[:2]))",
        ),
        ("two numbers of streams", BATCHES, "NUMBERS = (3, 7, 11)", "NUMBERS = (3, 7, 7)"),
    ),
]

MOVED = "jaxprs/elements.py"
MOVES = _mutants(
    "test_moves.py",
    ("interior pads", MOVED, "end, interior + 1))", "end, 1))"),
    ("windows behind the end", MOVED, "int(np.clip(start, 0, whole - size)) for", "int(start) for"),
    ("scatters from outside", MOVED, "inside &= (start >= 0) &", "inside &="),
)

INDEXED, NARROW = (f"streaming/{name}.py" for name in ("indexed", "narrow"))
REWRITTEN = [
    *_mutants(
        "test_stream.py test_stream_refusals.py",
        ("loops from 0", INDEXED, 'numbers = numbers if str(begin) == "0" else', "numbers = numbers if True else"),
        ("reads that depend on the carry", INDEXED, "- dependents(jaxpr.eqns, carry)\n    late", "\n    late"),
        ("arrays that are read again", INDEXED, "alone and not read_again and", "alone and"),
        ("windows behind the end", "streaming/rules/time.py", "clips = beyond is None or beyond >= 0", "clips = False"),
    ),
    *_mutants(
        "test_quantization.py",
        ("factors of any sign", NARROW, "np.all((array > 0) &", "np.all((array == array) &"),
        ("wide movements", NARROW, "equations += _behind(steps, equation, narrow)", "equations.append(equation)"),
    ),
]

CASTS_OF, INTEGERS, INDEX_RULES = "jaxprs/casts.py", "streaming/integers.py", "streaming/index_rules.py"
AWAITING, PARALLEL, OUTSIDE = (f"streaming/rules/{name}.py" for name in ("awaiting", "parallel", "outside"))
CASTS = [
    *_mutants(
        "test_casts.py",
        ("range and no digits", CASTS_OF, "return self.range and self.digits", "return self.range"),
        ("digits and no range", CASTS_OF, "old.top << rounded_up <= new.top and", ""),
        ("no subnormal numbers", CASTS_OF, " and new.smallest <= old.smallest", ""),
        ("no infinities", CASTS_OF, " and old.special <= new.special", ""),
        ("numbers that are rounded up", CASTS_OF, "old.top << rounded_up", "old.top"),
        (
            "casts by their bits",
            AWAITING,
            "if not kept_by(equation).all:",
            "if jnp.finfo(type_of(equation.outvars[0])).bits < jnp.finfo(type_of(equation.invars[0])).bits:",
        ),
        (
            "lengths that wrap around",
            INTEGERS,
            "self.unclipped if holds or dtype == np.bool_ else None",
            "self.unclipped",
        ),
        (
            "counts that wrap around",
            "streaming/rewriting.py",
            'not equation.params["reverse"] and is_wide(type_of(equation.outvars[0]))\n    return',
            'not equation.params["reverse"]\n    return',
        ),
        ("scores out of range", PARALLEL, "if not (keeps.range or in_range) or", "if"),
        ("steep positions", INTEGERS, "is_near and max(map(abs, slopes)) <= STEEPEST", "is_near"),
        (
            "growth without end",
            INDEX_RULES,
            "len(found) == 1 and abs(found[0]) <= STEEPEST * self.frames",
            "len(found) == 1",
        ),
        ("lengths inside of ranges", "streaming/comparison.py", "> last + 1", "> last - 9"),
        (
            "no lengths past ranges",
            "streaming/comparison.py",
            "doubtful += _lengths_past_ranges(self.symbolic[0].jaxpr, lengths)",
            "pass",
        ),
        ("loops as they are written", "streaming/transform.py", "symbolic = by_frames(closed)", "symbolic = closed"),
        (
            "frames in the type of weights",
            "streaming/rules/keys.py",
            "arrays = [weights, frames]",
            "arrays = [weights, frames.astype(weights.dtype)]",
        ),
        (
            "places of 8 bits",
            "streaming/rules/reductions.py",
            "if jnp.iinfo(dtype).bits < 32:",
            "if jnp.iinfo(dtype).bits < 8:",
        ),
        ("rounded operands", "export/rules/products.py", "if rounds else dtype", "if None else dtype"),
        ("narrow sizes", "onnx/operators/types.py", "return kept(np.int32, dtype).all", "return True"),
        (
            "casts through float64",
            "export/rewrites/moves.py",
            "kept(dtype_of(x), between).all",
            'np.can_cast(dtype_of(x), between, "safe")',
        ),
    ),
    *_mutants(
        "test_stream_attention.py::test_masks_by_arithmetic",
        ("numbers that overflow", INTEGERS, "np.all(np.abs(at(far[:, None], far)) <= top)", "True"),
    ),
    *_mutants(
        "test_stream_attention.py",
        ("numbers that round", INTEGERS, "at if not self.is_quotient and self.fits(dtype) else None", "at"),
        ("signs of unsigned numbers", INDEX_RULES, 'if operation.dtype.kind != "i":', "if not operation.dtype.kind:"),
        ("equality at the ends only", INDEX_RULES, "(*ends, np.clip(0, *ends))", "ends"),
        ("masks of NaN", OUTSIDE, "and lowest(type_of(equation.outvars[0])) == -math.inf", ""),
    ),
]

#: Mutants that random changes of operators found, and that no test noticed.
FOUND = [
    *_mutants(
        "test_quantization.py",
        (
            "scales in front",
            "streaming/narrow.py",
            "self.operands[1 - self.operands.index(None)]",
            "self.operands[1 + self.operands.index(None)]",
        ),
    ),
    *_mutants(
        "test_compiled.py",
        (
            "first states of one element",
            "runtime/compiled/saving.py",
            "array.tobytes() == first",
            "array.tobytes() != first",
        ),
    ),
    *_mutants(
        "test_stream_attention.py",
        ("single keys", "streaming/rules/keys.py", "elif first > last:", "elif first >= last:"),
    ),
    *_mutants(
        "test_stream_sizes.py",
        ("a length for all columns", INTEGERS, "(length := common(c)) is None", "(length := c.flat[0]) is None"),
    ),
    *_mutants("test_lowering_elements.py", ("masks of all bits", ARITHMETIC, "(mask < np.iinfo", "(mask <= np.iinfo")),
]

NUMBERING = "jaxprs/numbering.py"
NUMBERS = _mutants(
    "test_numbering.py",
    ("effects in any order", NUMBERING, "key = self._past = digest((key, self._past))", "pass"),
    ("numbers drawn once", NUMBERING, 'frozenset({"rng_uniform"})', "frozenset()"),
    ("values of constants do not count", NUMBERING, "array.shape, content", "array.shape"),
    ("bytes in any order", NUMBERING, 'array.astype(array.dtype.newbyteorder("="), copy=False)', "array"),
    ("unread inputs do not count", NUMBERING, "self.key_of(inputs), self.body", '"", self.body'),
)
NUMBERS += _mutants("test_stream_equality.py", ("one carry for all loops", NUMBERING, "self._depth + 1", "self._depth"))
NUMBERS += _mutants("test_stream_again.py", ("callbacks by their name", NUMBERING, "digest(repr(params))", "0"))

COMPARISON = "comparison.py"
SAMPLING, ARBITER = (f"verification/{name}.py" for name in ("sampling", "arbiter"))
EXPORTED = "export/verification.py"
VERIFICATION = _mutants(
    "test_verify.py",
    ("zeros after the end", "export/engines.py", "else np.nan)", "else 0)"),
    (
        "no recording is compared",
        COMPARISON,
        "agrees = bool(by_reference) and all(map(agree, by_reference.values()))",
        "agrees = True",
    ),
    (
        "exported state is not compared",
        EXPORTED,
        "for name, expected in known.state.items():",
        "for name, expected in ():",
    ),
    ("NaN beside NaN agrees", COMPARISON, "(np.isfinite(a) | np.isfinite(b)).sum()", "a.size"),
    ("NaN is any number", COMPARISON, "(np.isnan(a) & np.isnan(b))", "(np.isnan(a) | np.isnan(b))"),
    ("nothing agrees", COMPARISON, " and any(each.compared for each in comparisons)", ""),
    ("tolerances of the output", COMPARISON, "for each in (dtype, precision) if", "for each in (dtype, None) if"),
    ("domains are not looked for", SAMPLING, "if most[0] or not names:", "if most[0] or names:"),
    ("lengths of one frame", SAMPLING, "return range(1, first.shape[", "return range(1, 0 * first.shape["),
    (
        "jaxrnn judges itself",
        ARBITER,
        "if compare(name, here, peer, atol=EQUAL",
        "if compare(name, here, here, atol=EQUAL",
    ),
    (
        "any distance is rounding",
        ARBITER,
        "far <= min(FURTHER * peer_far, ROUNDING * scale)",
        "far <= ROUNDING * scale",
    ),
)

FINITE, RUNNER, POOL = "steps/finite.py", "runtime/runner.py", "runtime/pool.py"
RECOVERY = _mutants(
    "test_nonfinite.py",
    ("infinities in the state are not seen", FINITE, "jnp.all(jnp.isfinite(", "jnp.all(~jnp.isnan("),
    ("faults are not marked", FINITE, "jnp.where(finite, array,", "jnp.where(True, array,"),
    ("no entry may begin infinite", FINITE, "if np.isinf(array).any())", "if False)"),
    ("only outputs of files are checked", FINITE, "(*given, *outputs.values(), *state.values())", "outputs.values()"),
    ("resets are not counted", RUNNER, "(loaded, state, resets + 1)", "(loaded, state, resets)"),
    (
        "the state stays after a fault",
        POOL,
        "starts={entry.slot: entry.start for entry in begun.values()}",
        "starts={}",
    ),
    ("a guard for NaN only", "export/exportable.py", "jnp.where(jnp.isfinite(array)", "jnp.where(~jnp.isnan(array)"),
)

BOUNDING, STATISTICS = "streaming/bounding.py", "streaming/statistics.py"
BOUNDED = _mutants(
    "test_bounded.py",
    ("windows that end early", BOUNDING, "block + future - more * block", "block + max(0, future - 1) - more * block"),
    ("frames after the end count", BOUNDING, "jnp.where(here, *pair)", "pair[0]"),
    (
        "statistics of the past",
        BOUNDING,
        "x = lax.slice_in_dim(x, future, length + future)",
        "x = lax.slice_in_dim(x, 0, length)",
    ),
    ("turned loops", BOUNDING, '{**params, "reverse": not params["reverse"]}', "params"),
    ("bands without a future", "streaming/rewriting.py", "np.int32(block - 1 + future)", "np.int32(block - 1)"),
    ("orders of time between flips", STATISTICS, "return along != axis", "return True"),
    ("gathers of frames between flips", STATISTICS, "axis not in (*numbers.start_index_map", "axis not in (*()"),
)

CONTENTS = _mutants(
    "test_contents.py",
    (
        "files known by time and size",
        "audio/contents.py",
        "found.st_mtime_ns, found.st_ctime_ns",
        "found.st_mtime_ns, 0",
    ),
    ("young digests are kept", "audio/contents.py", "> SETTLED and", "> -SETTLED and"),
    ("weak ETags", "_files/stores.py", 'if "W/" not in each', "if each"),
)

HELD = "jaxprs/held.py"
COPIES = _mutants(
    "test_stream_modules.py",
    ("modules in place of copies", HELD, "copy([*objects.values()])", "[*objects.values()]"),
    ("functions that lead to modules", HELD, "reached |= grown", "break"),
    ("all variables are copied", HELD, "types.CellType() if leads(cell) else cell", "types.CellType()"),
    ("keyword defaults stay", HELD, "name: copied(value) for", "name: value for"),
    ("global variables stay", HELD, "{name: copied(each.__globals__[name])", "{name: each.__globals__[name]"),
)

PLACES, SEARCH, WRITING = (f"model/opening/{name}.py" for name in ("places", "search", "writing"))
OPENING = _mutants(
    "test_opening.py",
    (
        "means by a number",
        PLACES,
        "        elif computes:\n            self._counts.update(lost)",
        "        elif False:\n            pass",
    ),
    ("positions by a number", PLACES, "        if counted or node.applies", "        if node.applies"),
    ("frames are counted from the first", PLACES, "number >= (length - 1) // 2]", "number > length]"),
    (
        "windows of all frames",
        PLACES,
        "if kernel > 1 and any(each[0][axis] == 1",
        "if kernel > 1 and any(each[0][axis] == 0",
    ),
    ("ends of slices stay", PLACES, 'if slot == "ends" and step > 0 and number == length:', "if False:"),
    ("lengths of sequences stay", PLACES, 'elif slot == "sequence_lens":', 'elif slot == "no slot":'),
    ("conditions of loops stay", PLACES, "for body in node.blocks if node.applies", "for body in () if node.applies"),
    ("joined axes in any order", PLACES, "parts = joined.get(str(size), (size,))", "parts = (size,)"),
    ("numbers are not doubted", SEARCH, "            if place.doubt:\n", "            if False:\n"),
    ("both readings fit", SEARCH, "frozenset({key, *known})).failed is None", "frozenset({key, *known})).failed == 0"),
    ("sizes that JAX does not compare", SEARCH, "            self._check_sizes(node, operands, outputs)\n", ""),
    ("parts of a batch", WRITING, "    for name in batches:\n", "    for name in ():\n"),
)
MUTANTS = [
    *VERIFICATION,
    *RECOVERY,
    *STATE,
    *STREAMS,
    *LIVES,
    *STARTS,
    *RULED,
    *FACTS,
    *NUMBERS,
    *CELLS,
    *RECOGNITION,
    *LOWERING,
    *EXPORTS,
    *MOVES,
    *REWRITTEN,
    *CASTS,
    *FOUND,
    *BOUNDED,
    *CONTENTS,
    *COPIES,
    *OPENING,
]


def verdict(mutant: Mutant, copy: Path) -> str:
    """Return "caught" with the failed test, "SURVIVED" or "STALE"."""
    file = copy / "jaxrnn" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        return f"STALE: {mutant.file} has {text.count(mutant.old)} times {mutant.old!r}"
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x"]
        command += [f"tests/{test}" for test in mutant.tests]
        environment = {**MODELS, **os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == 1 and failed:
        return f"caught by {failed[0].split(maxsplit=1)[1]}"
    return "SURVIVED" if done.returncode == 0 else f"pytest ended with {done.returncode}: {done.stdout[-500:]}"


@click.command()
@click.option("--only", multiple=True, help="Only mutants with this word in their name or file.")
@click.option("--list", "listed", is_flag=True, help="List the mutants and stop.")
def main(only: tuple[str, ...], listed: bool) -> None:
    """Show that the quick tests catch each mutant."""
    chosen = [each for each in MUTANTS if not only or any(word in f"{each.name} {each.file}" for word in only)]
    if listed:
        click.echo("\n".join(f"{each.file}: {each.name}" for each in chosen))
        return
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        for each in chosen:
            found = verdict(each, copy)
            missed += not found.startswith("caught")
            click.echo(f"{each.file}: {each.name}: {found[:160]}")
    click.echo(f"{len(chosen) - missed} of {len(chosen)} are caught")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
