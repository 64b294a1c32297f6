"""Who serves a model, in the words of OpenTelemetry's conventions for generative AI."""

from functools import lru_cache

from hayrunner.telemetry import names

__all__ = ["PROVIDERS", "provider_of"]

PROVIDERS = frozenset(names.PROVIDERS.values())


@lru_cache(maxsize=64)
def provider_of(kind: type[object]) -> str:
    """The provider of a generator of this class or of one that it is derived from; `_OTHER`
    where it is not known."""
    for cls in kind.__mro__:
        if found := names.PROVIDERS.get(cls.__name__):
            return found
    return names.OTHER
