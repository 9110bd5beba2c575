"""YAML as values, with the line of every key, and with limits on what a short text may stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from jaxrnn.errors import InputError

#: The keys that lead to a value, from the outside in; items of lists go by their number.
Keys = tuple[str | int, ...]

#: Characters that aliases may repeat: an alias of an alias of lists doubles, or worse, with every line.
MAX_REPEATED = 100_000
#: Lists and mappings may lie in each other as deep as this, what aliases stand for included.
MAX_DEPTH = 50


def parse(text: str, name: str) -> tuple[Any, dict[Keys, int]]:
    """The value of a text, and the line of every key.

    Raises:
        InputError: it is no YAML, has a key twice, or goes beyond the limits; begins with the name.
    """
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        return loader.construct_document(node), dict(_lines(node, ()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{name}{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is no YAML: {str(error).splitlines()[0]}") from error
    finally:
        if loader is not None:
            loader.dispose()


def brief(value: Any) -> str:
    """A value in a message, shortened."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: ``1e-3`` is a number, ``on``, ``1:30`` and dates are words; a key stands once."""

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = self._repeated = 0
        #: Of every finished node its characters and depth, written out: with what its aliases stand for.
        self._written_out: dict[yaml.Node, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark, is_alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        self._check_depth(self._depth, mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and node not in self._written_out:
            raise _problem("an alias stands for what it is itself a part of", mark)
        if is_alias:
            size, depth = self._written_out[node]
            self._repeated += size
            if self._repeated > MAX_REPEATED:
                raise _problem(
                    f"with this alias, aliases repeat {self._repeated:,} characters, and no more than {MAX_REPEATED:,} "
                    "are allowed; write less of them",
                    mark,
                )
            self._check_depth(self._depth + depth, mark)
        else:
            self._written_out[node] = self._measured(node)
        return node

    def _check_depth(self, depth: int, mark: yaml.Mark) -> None:
        if depth > MAX_DEPTH:
            raise _problem(f"lists and mappings lie in each other more than {MAX_DEPTH} deep", mark)

    def _measured(self, node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value), 0
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = [self._written_out[part] for part in parts]
        return 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ValueError, LookupError, AttributeError, TypeError) as error:  # such as !!bool maybe
            raise _problem(f"{brief(node.value)} is no {node.tag.rpartition(':')[2]}", node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | None):
                raise _problem(f"a key must be a word or a number, not {brief(key)}", key_node.start_mark)
            if key in seen:
                raise _problem(f"the key {key!r} stands there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _problem(message: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, message, mark)


_RESOLVERS = {
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "tag:yaml.org,2002:timestamp": (r"(?!)", "0"),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in _RESOLVERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, (_pattern, _firsts) in _RESOLVERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_firsts))


def _lines(node: yaml.Node, keys: Keys) -> Iterator[tuple[Keys, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*keys, key.value)
            yield inner, key.start_mark.line + 1
            yield from _lines(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*keys, index), value.start_mark.line + 1
            yield from _lines(value, (*keys, index))
