"""Token counts, in the spellings that providers have for them."""

from collections.abc import Mapping
from typing import Any

from hayrunner_contracts.events import Usage

__all__ = ["merged_usage", "usage_from", "usage_of_ollama"]


def merged_usage(known: Mapping[str, Any] | None, usage: Mapping[str, Any]) -> Mapping[str, Any]:
    """`usage` over what an earlier chunk said, where the later one leaves counts out."""
    return {**(known or {}), **{name: count for name, count in usage.items() if count is not None}}


def usage_from(usage: Mapping[str, Any]) -> Usage:
    """Token counts from either spelling: prompt/completion (chat completions) or input/output
    (Responses, Anthropic, whose input leaves out what came from its cache or went there)."""
    input_tokens = _count(usage, "input_tokens", "prompt_tokens")
    from_cache = _count(usage, "cache_read_input_tokens")
    if "input_tokens" in usage:
        input_tokens += from_cache + _count(usage, "cache_creation_input_tokens")
    output_tokens = _count(usage, "output_tokens", "completion_tokens")
    cached = _details(usage, "input_tokens_details", "prompt_tokens_details")
    reasoning = _details(usage, "output_tokens_details", "completion_tokens_details")
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=_count(usage, "total_tokens") or input_tokens + output_tokens,
        cached_input_tokens=_count(cached, "cached_tokens") or from_cache,
        reasoning_tokens=_count(reasoning, "reasoning_tokens"),
    )


def _count(usage: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    return 0


def _details(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = usage.get(name)
        if isinstance(value, Mapping):
            return value
    return {}


def usage_of_ollama(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The usage in Ollama's last chunk; None where it has none."""
    if meta.get("eval_count") is None:
        return None
    return {
        "input_tokens": meta.get("prompt_eval_count") or 0,
        "output_tokens": meta["eval_count"],
    }
