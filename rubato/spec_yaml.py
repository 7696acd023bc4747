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
