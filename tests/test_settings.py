"""Files of settings, whatever they are for: what is no such file, how much it may stand for, and overrides."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Literal

import pytest
from refusals import check_refused

import jaxrnn
from jaxrnn.settings.files import SettingsFile
from jaxrnn.settings.functions import Options, find_function
from jaxrnn.settings.models import Settings, reference


class Anything(Settings, extra="allow"):
    pass


def values(path, overrides=()):
    return SettingsFile(Anything, path, overrides).settings.model_extra


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: found duplicate key a"),
        ("a:\n  b: [1", "line 2: expected ',' or ']'"),
        ("- a", "expected keys and values"),
        ("3", "cannot be understood: no keys"),
        ("a: !!python/object:os.x {}", "could not determine a constructor"),
        ("&a [*a]", "line 1: YAML recursive aliases are not supported"),
        ("a: !!bool maybe", "cannot be understood: 'maybe'"),
        ("a: " + "[" * 200_000, "line 1: lists and mappings nest more than 50 deep"),
        ("a: 1" + "0" * 5000, "cannot be understood: Exceeds the limit"),
        ("a: \0", "cannot be understood: unacceptable character"),
        ("a: ${", "cannot be understood: "),
        ("? [1]\n: 2", "line 1: found unhashable key"),
        ("~: 2", "Incompatible key type 'NoneType'"),
        (b"a: \xff", "is not a text file in UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_settings(tmp_path, text, said):
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(jaxrnn.InputError, match=r"bad\.yaml") as caught:
        values(path)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_variables_of_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "a.yaml"
    path.write_text("a: '${V_OF_TEST}'\nb: '${V_OF_TEST:-else}'\n")
    for value, wanted in (("x", ["x", "x"]), ("", ["", "else"])):
        monkeypatch.setenv("V_OF_TEST", value)
        assert list(values(path).values()) == wanted
    monkeypatch.delenv("V_OF_TEST")
    with pytest.raises(jaxrnn.InputError, match=r"V_OF_TEST is not set; set it, or write \$\{V_OF_TEST:-default\}"):
        values(path)


def repeating(levels, line):
    """Lines of which each repeats the one before, and names of those."""
    names = [f"a{level}" for level in range(levels)]
    return "\n".join(line(*pair) for pair in itertools.pairwise(names))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a0: &a0 [x]\n" + repeating(40, lambda one, two: f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]"),
            "expansion",
        ),
        ("a0: &a0 {k: 1}\n" + repeating(60, lambda one, two: f"{two}: &{two}\n  <<: [*{one}, *{one}]"), "expansion"),
        ("a0: &a0 [x]\n" + repeating(900, lambda one, two: f"{two}: &{two} [*{one}]"), ""),
    ],
    ids=["lists", "merges", "depth"],
)
def test_what_aliases_repeat_is_limited(tmp_path, text, said):
    """A text of some hundred characters stands for more than there is memory for."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    check_refused(jaxrnn.InputError, rf"bad\.yaml.*{said}", values, path)
    path.write_text("a: 1")
    check_refused(jaxrnn.InputError, "--set", values, path, ["b=&a [*a]"])


def test_aliases_and_merges(tmp_path):
    path = tmp_path / "good.yaml"
    path.write_text("base: &base {rate: 1e-3, sizes: &sizes [2, 3]}\nother: {<<: *base, rate: 4, more: *sizes}")
    assert values(path, ["other.sizes=5", "other.more.1=9"]) == {
        "base": {"rate": 0.001, "sizes": [2, 3]},
        "other": {"rate": 4, "sizes": 5, "more": [2, 9]},
    }
    with pytest.raises(jaxrnn.InputError, match=r"--set base.sizes.7=1 cannot be understood: list index out of range"):
        values(path, ["base.sizes.7=1"])
    with pytest.raises(jaxrnn.InputError, match=r"--set base.rate.x: base.rate is 0.001, without keys of its own"):
        values(path, {"base.rate.x": 1})


def test_a_function_without_a_signature_is_refused():
    with pytest.raises(jaxrnn.InputError, match="builtins:max does not say which arguments it takes: name a function"):
        find_function("builtins:max")


def network(data, size: int, rate: float = 1.0, *, kind: Literal["mask", "samples"] = "mask", folder: str = "."):
    """Return a network.

    Args:
        data: the network.
        size: samples of a frame, with
            ``numbers``.
        rate: the rate.
        kind: ``"mask"`` or samples.
        folder: the folder.
    """


NETWORK = Options(network, names=("size", "rate", "kind"), short="kind")


class Networks(Settings):
    one: Annotated[dict[str, Any], NETWORK]
    """A network."""
    other: Annotated[dict[str, Any], Options(network, names=("folder",))] | None = None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{size: 3}", {"size": 3, "rate": 1.0, "kind": "mask"}),
        ("{kind: samples, size: 3, rate: 2}", {"size": 3, "rate": 2, "kind": "samples"}),
        ("{size: 3, rat: 2}", "one.rat: unknown key (did you mean 'rate'?); there are: size, rate, kind"),
        ("{size: 3, folder: x}", "one.folder: unknown key; there are: size, rate, kind"),
        ("{rate: x, kind: x}", "one.size: missing\none.rate: Input should be a valid number, not 'x'\none.kind: Input"),
        ("{size: true}", "one.size: Input should be a valid integer, not True"),
        ("{size: 3, rate: .inf}", "one.rate: Input should be a finite number, not inf"),
        ("mask", "one: missing"),
        ("[3]", "one: Input should be a valid dictionary, not [3]"),
        ("null", "one: Input should be a valid dictionary, not null"),
    ],
)
def test_keys_that_are_arguments_of_a_function(tmp_path, text, said):
    path = tmp_path / "a.yaml"
    path.write_text(f"one: {text}")
    if isinstance(said, dict):
        found = SettingsFile(Networks, path).settings.one
        assert list(found.items()) == list(said.items())
    else:
        with pytest.raises(jaxrnn.InputError) as caught:
            _ = SettingsFile(Networks, path).settings
        assert str(caught.value).replace(f"{path}: ", "").startswith(said)
    assert list(reference(Networks))[:4] == [
        ("one", "needed", "A network."),
        ("one.size", "needed", "Samples of a frame, with `numbers`."),
        ("one.rate", "1.0", "The rate."),
        ("one.kind", "mask", "`mask` or samples."),
    ]
    assert ("other.folder", ".", "The folder.") in reference(Networks)
