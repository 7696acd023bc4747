from __future__ import annotations

from ray._private.label_utils import validate_label_selector

from jobs.fleet import placement_options


def test_nodes_to_avoid_become_a_selector_that_ray_takes() -> None:
    assert placement_options(()) == {}
    options = placement_options(("a" * 56, "b" * 56))
    assert options == {"label_selector": {"ray.io/node-id": f"!in({'a' * 56},{'b' * 56})"}}
    assert validate_label_selector(options["label_selector"]) is None
