"""YAML as people write job specs: PyYAML's safe loader without the traps of YAML 1.1."""

from __future__ import annotations

import re
from typing import Any

import yaml

_BUT_DATES = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")


_PLAIN = (
    ("expected <block end>", "this line does not fit the indentation of those above"),
    ("mapping values are not allowed", "a colon where no key can stand: mend the indentation, or quote the value"),
    ("cannot start any token", "a character that needs quotes, or a tab: indent with spaces"),
    ("could not find expected ':'", "a key without its colon"),
)


def describe_yaml_error(error: Exception) -> str:
    """What is wrong with a text, and in which line, in a sentence without a parser's words where they are known."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())[:300]
    opened = getattr(error, "context_mark", None)
    if opened is not None and "<stream end>" in problem:
        return f"line {opened.line + 1}, column {opened.column + 1}: what begins here is not closed"
    plain = next((said for part, said in _PLAIN if part in problem), problem)
    return f"line {mark.line + 1}, column {mark.column + 1}: {plain}"


class SpecLoader(yaml.SafeLoader):
    """Keys are texts as they are written (`on` and `no` are no truth values there), and none stands twice; `1e-3` is a
    number; a date is a text, for JSON knows no dates.
    """

    yaml_implicit_resolvers = _BUT_DATES

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Raises: yaml.YAMLError: it is not YAML, a key is no text, or stands twice."""
        mapping = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in mapping.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"the key at line {line} is no text")
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            key.tag = "tag:yaml.org,2002:str"
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} stands twice (line {line})")
            seen.add(key.value)
        return mapping


SpecLoader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
