"""Chat generators that ship with the worker."""

from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator

__all__ = ["OpenAICompatibleChatGenerator"]
