"""Copies of JSON values, for those who may change what they are given."""

import copy
from typing import Any, cast

__all__ = ["copied"]

_UNCHANGEABLE = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """A copy of its own of a JSON value, at a fraction of what `deepcopy` costs; what else is in
    it is deep-copied."""
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return value
    if kind is dict:
        return {key: copied(item) for key, item in cast("dict[Any, Any]", value).items()}
    if kind is list:
        return [copied(item) for item in cast("list[Any]", value)]
    return copy.deepcopy(value)
