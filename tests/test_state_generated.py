"""`model.state` of random step models is found or asked for, never wrong."""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
from collections.abc import Callable, Hashable, Iterable

import numpy as np
import onnx
import pytest
from state_generator import Case, case, dressed
from verifier import assert_same, run_session, session

import jaxrnn

COUNT, QUICK, CARRIED, DRESSED = 2000, 40, 300, 36
STEPS = 30
VERDICTS = ("found", "asked", "wrong")


def verdict(case: Case) -> tuple[str, str]:
    """Judge `model.state`: one of `VERDICTS`, and the pairs or the error."""
    try:
        state = jaxrnn.load(case.proto).state
    except jaxrnn.StateError as error:
        lists = ("' -> '" in str(error) or case.dress) and "state={" in str(error)
        return ("asked" if lists else "wrong"), f"StateError: {error}"
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    pairs = {variable.input: variable.output for variable in state if variable.kind == "external"}
    internal = [variable.name for variable in state if variable.kind != "external"]
    is_right = pairs == case.truth and not internal and not case.exchanged
    return ("found" if is_right else "wrong"), f"{pairs}, internal: {internal}"


def assert_judged(cases: list[Case], verdicts: list[tuple[str, str]], most_asked: float = 1 / 8) -> None:
    """Check that no case is wrong, that no conventional case is asked, and the share of asked cases."""
    told = [
        f"{case.description}: {words}" for case, (name, words) in zip(cases, verdicts, strict=True) if name == "wrong"
    ]
    assert not told, "\n".join([f"{len(told)} wrong", *told[:10]])
    asked = [case for case, (name, _) in zip(cases, verdicts, strict=True) if name == "asked" and not case.exchanged]
    conventional = [case.description for case in asked if case.conventional]
    assert not conventional, "\n".join([f"{len(conventional)} asked", *conventional[:10]])
    assert len(asked) <= most_asked * len(cases), "\n".join(case.description for case in asked)


def peer_step(opened, case, state, frame):
    """Return the data outputs and the new state of ONNX Runtime."""
    values = run_session(opened, {**state, **frame})
    state = case.graph.undressed(values)
    return {name: value for name, value in values.items() if name not in case.graph.replaced}, state


def carry(case: Case) -> None:
    """Compare steps with ONNX Runtime: one compiled scan, or a few single steps if shapes change."""
    model = jaxrnn.load(case.proto, state=case.truth if case.dress else None)
    opened, rng = session(case.proto), np.random.default_rng(case.seed)
    compiles = case.compiles and not case.growing
    frames = [case.frame(rng) for _ in range(STEPS if compiles else 4)]
    ours = theirs = start = case.start(rng)
    expected, actual = [], []
    for frame in frames:
        values, theirs = peer_step(opened, case, theirs, frame)
        expected.append(values)
    if compiles:
        inputs = {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}
        outputs, ours = model.scan(model.params, start, inputs)
        actual = [{name: value[index] for name, value in outputs.items()} for index in range(len(frames))]
    else:
        for frame in frames:
            outputs, ours = model.step(model.params, ours, frame)
            actual.append(outputs)
    largest = max(np.abs(value).max() for values in (*expected, theirs) for value in values.values() if value.size)
    atol = STEPS * (2e-3 if case.dress == "float16" else 1e-6) * (1 + float(largest))
    for index, values in enumerate(expected):
        assert_same(actual[index], values, atol)
    assert_same(ours, theirs, atol)


def assert_sound(case: Case) -> None:
    """Check that the model is valid, and that ONNX Runtime carries its state with finite values."""
    onnx.checker.check_model(case.proto, full_check=True)
    opened, rng = session(case.proto), np.random.default_rng(case.seed)
    state = case.start(rng)
    for _ in range(4):
        values, state = peer_step(opened, case, state, case.frame(rng))
        assert all(np.all(np.isfinite(value)) for value in (*values.values(), *state.values())), case.description


def test_state_is_found_or_asked_for():
    cases = [case(seed) for seed in range(QUICK)]
    assert_judged(cases, [verdict(each) for each in cases])


@pytest.mark.thorough
def test_state_in_another_dress_is_asked_for():
    """Each language with each dress; the caller carries what is not converted, with the declaration of the truth."""
    cases = covering([dressed(seed) for seed in range(DRESSED)], lambda case: [case.dress, case.language])
    verdicts = [verdict(each) for each in cases]
    assert_judged(cases, verdicts, most_asked=1)
    assert all(name == "asked" for case, (name, _) in zip(cases, verdicts, strict=True) if case.dress)


def test_cases_are_sound():
    cases = [case(seed) for seed in range(QUICK)]
    assert sum(not each.evident for each in cases) <= QUICK / 4
    for each in cases:
        assert_sound(each)


def test_cases_are_deterministic():
    assert case(3).proto == case(3).proto


def choices_of(case: Case) -> set[tuple[str, str]]:
    """Return the kinds of update, names, sizes and extra data of a case."""
    updates = {("update", name) for name in case.updates or ("stateless",)}
    return updates | {("names", case.names), ("sizes", case.sizes)} | {("extra", name) for name in case.extras}


def covering(cases: list[Case], facts_of: Callable[[Case], Iterable[Hashable]]) -> list[Case]:
    """Return few cases with all the facts of the given cases, by the greedy algorithm."""
    facts = [set(facts_of(case)) for case in cases]
    missing, chosen = set().union(*facts), []
    while missing:
        best = max(range(len(cases)), key=lambda index: len(facts[index] & missing))
        chosen.append(cases[best])
        missing -= facts[best]
    return chosen


@pytest.mark.nightly
def test_state_of_all_pairs_of_choices_is_found_or_asked_for():
    """``python tests/test_state_generated.py`` judges all cases."""
    cases = covering(
        [case(seed) for seed in range(COUNT)], lambda case: itertools.combinations(sorted(choices_of(case)), 2)
    )
    # The greedy choice prefers cases with many kinds of extra data.
    assert_judged(cases, [verdict(each) for each in cases], most_asked=1 / 6)


@pytest.mark.nightly
def test_state_is_carried():
    """Carry each kind of update with each kind of sizes; the option ``--carry`` of this file carries all cases."""
    cases = covering(
        [case(seed) for seed in range(CARRIED)], lambda case: [*case.extras, *((u, case.sizes) for u in case.updates)]
    )
    cases += covering([dressed(seed) for seed in range(CARRIED)], lambda case: [(case.dress, u) for u in case.updates])
    for each in cases:
        if each.dress == "not returned":
            continue
        assert_sound(each)
        if (verdict(each)[0] == "found" or each.dress) and each.truth:
            try:
                carry(each)
            except Exception as error:
                error.add_note(each.description)
                raise


def main() -> None:
    """Print the verdicts by kind of update and of names, and list wrong ones."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("count", nargs="?", type=int, default=COUNT)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--dressed", action="store_true", help="names in four languages, and state in other dresses")
    parser.add_argument("--asked", action="store_true", help="also list asked ones")
    parser.add_argument("--carry", action="store_true", help="also carry what is found beside ONNX Runtime")
    given = parser.parse_args()
    table = collections.Counter()
    told = []
    for seed in range(given.first, given.first + given.count):
        each = dressed(seed) if given.dressed else case(seed)
        name, words = verdict(each)
        if given.carry and (name == "found" or each.dress) and each.truth and each.dress != "not returned":
            carry(each)
        kinds = each.updates or ("stateless",)
        if given.dressed:
            kinds = f"{each.language}, {each.dress or 'as it is'}", each.dress or "all as they are"
        traps = ("exchanged",) * each.exchanged + ("with a default",) * bool(each.first)
        for kind in (*kinds, *traps, "all"):
            table[kind, each.names, name] += 1
            table[kind, "all names", name] += 1
        if name == "wrong" or (name == "asked" and (given.asked or each.conventional)):
            must = " (must be found)" if each.conventional else ""
            told.append(f"{name} {each.description}{must}\n    truth {each.truth}\n    {words[:400]}")
    columns = [*sorted({names for _, names, _ in table} - {"all names"}), "all names"]
    print(" / ".join(VERDICTS))
    print(f"{'':32}" + "".join(f"{names:>24}" for names in columns))
    for kind in [*sorted({kind for kind, _, _ in table} - {"all"}), "all"]:
        cells = ("/".join(str(table[kind, names, name]) for name in VERDICTS) for names in columns)
        print(f"{kind:32}" + "".join(f"{cell:>24}" for cell in cells))
    print("\n".join(told))


if __name__ == "__main__":
    sys.exit(main())
