"""The agent that every contender serves: Haystack's Agent, with one tool it does not call."""

from typing import Annotated, Any, Literal

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.tools import tool
from haystack.utils import Secret

from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator

__all__ = ["GeneratorName", "bench_agent"]

GeneratorName = Literal["own", "haystack"]

_KEY = Secret.from_token("not-a-key")


@tool
def order_status(order: Annotated[int, "The order's number"]) -> str:
    """Where an order is."""
    return f"order {order} is on its way"


def bench_agent(generator: GeneratorName, provider: str) -> Agent:
    """The agent with one generator or the other; `provider` is the base URL."""
    kinds: dict[GeneratorName, Any] = {
        "own": OpenAICompatibleChatGenerator,
        "haystack": OpenAIChatGenerator,
    }
    llm = kinds[generator](model="bench-1", api_key=_KEY, api_base_url=provider)
    return Agent(
        chat_generator=llm, tools=[order_status], system_prompt="You answer questions of customers."
    )
