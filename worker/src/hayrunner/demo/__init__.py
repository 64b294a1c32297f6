"""What lets Hayrunner be tried without a model: an agent with two tools, an offline generator."""

from hayrunner.demo.generator import MODEL_NAME, OfflineChatGenerator, demo_llm
from hayrunner.demo.shop import Shop

__all__ = ["MODEL_NAME", "OfflineChatGenerator", "Shop", "demo_llm"]
