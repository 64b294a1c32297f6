"""A Haystack Agent that exists already, served as it is: its prompts, tools, hooks and limits.

hayrunner serve examples/haystack_agent.py
"""

from typing import Annotated

from haystack.components.agents import Agent
from haystack.tools import tool

from hayrunner import Registry
from hayrunner.demo import demo_llm


@tool
def count_letters(word: Annotated[str, "apple, banana or cherry"]) -> dict[str, int]:
    """Count the letters of a word."""
    return {letter: word.count(letter) for letter in sorted(set(word))}


@tool
def cube(number: Annotated[int, "A whole number"]) -> dict[str, int]:
    """Multiply a number by itself, twice."""
    return {"cube": number**3}


counter = Agent(
    chat_generator=demo_llm(),
    tools=[count_letters, cube],
    system_prompt="Answer with the tools.",
    max_agent_steps=5,
)

registry = Registry()
registry.add("counter", counter)
