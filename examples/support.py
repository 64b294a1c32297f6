"""An agent with two tools. Serve it:  hayrunner serve examples/support.py

With OPENAI_API_KEY set it uses that provider (OPENAI_BASE_URL and HAYRUNNER_MODEL say which
server and model). Without one the offline demo generator takes the model's place: it calls the
tools and reads their results out, and no model is asked.
"""

from typing import Annotated, Any, Literal

from hayrunner import Agent, ToolError
from hayrunner.demo import demo_llm

ORDERS = {
    7: {"status": "delivered", "item": "walnut chess board", "price_eur": 64.0},
    1042: {"status": "on its way", "item": "blue teapot", "price_eur": 31.5},
}
EUR_IN = {"USD": 1.08, "GBP": 0.85, "JPY": 162.0}


def find_order(order_number: Annotated[int, "The number on the invoice"]) -> dict[str, Any]:
    """Look an order up: its status, its item and its price in euros."""
    if order_number not in ORDERS:
        # A ToolError is told to the model. Any other exception is not: its text may hold secrets.
        raise ToolError(f"There is no order {order_number}; there are {sorted(ORDERS)}.")
    return {"order_number": order_number, **ORDERS[order_number]}


async def convert_price(
    price_eur: Annotated[float, "A price in euros"],
    currency: Literal["USD", "GBP", "JPY"] = "USD",
) -> dict[str, Any]:
    """Convert a price from euros."""
    return {"price": round(price_eur * EUR_IN[currency], 2), "currency": currency}


class Support(Agent):
    name = "support"
    instructions = "You help customers. Look orders up, give prices in their currency, be brief."
    tools = (find_order, convert_price)

    def get_llm(self) -> Any:
        return demo_llm()
