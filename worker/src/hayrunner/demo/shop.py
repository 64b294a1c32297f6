"""The demo agent: a shop's assistant with two tools that really look up and really compute."""

from datetime import date, timedelta
from typing import Annotated, Any

from hayrunner.agent import Agent
from hayrunner.demo.generator import demo_llm
from hayrunner.errors import ToolError

__all__ = ["Shop", "delivery_date", "find_order"]

_ORDERS: dict[int, dict[str, str]] = {
    7: {"item": "a walnut chess board", "shipped_on": "2026-03-02", "country": "Norway"},
    1042: {"item": "a blue teapot", "shipped_on": "2026-03-05", "country": "Germany"},
    2001: {"item": "two reading lamps", "shipped_on": "2026-03-06", "country": "Japan"},
}
_WORKING_DAYS = {"Germany": 2, "Norway": 4, "Japan": 7}
_SATURDAY = 5


def find_order(order_number: Annotated[int, "The number of the order"]) -> dict[str, Any]:
    """Look up one order: what was ordered, the day it was shipped, the country it goes to."""
    order = _ORDERS.get(order_number)
    if order is None:
        known = ", ".join(str(number) for number in _ORDERS)
        raise ToolError(f"There is no order {order_number}. The orders are {known}.")
    return {"order_number": order_number, **order}


def delivery_date(
    shipped_on: Annotated[str, "The day it was shipped, as YYYY-MM-DD"],
    country: Annotated[str, "The country it goes to"],
) -> dict[str, Any]:
    """Work out the day a parcel arrives. Weekends do not count."""
    days = _WORKING_DAYS.get(country)
    if days is None:
        raise ToolError(f"We do not ship to {country}, only to {', '.join(_WORKING_DAYS)}.")
    try:
        day = date.fromisoformat(shipped_on)
    except ValueError:
        raise ToolError("shipped_on must be a date such as 2026-03-05.") from None
    left = days
    while left:
        day += timedelta(days=1)
        if day.weekday() < _SATURDAY:
            left -= 1
    return {"arrives_on": day.isoformat(), "weekday": f"{day:%A}", "working_days": days}


class Shop(Agent):
    """The agent of `hayrunner demo`."""

    name = "shop"
    instructions = (
        "You help customers of a shop. Look their order up, work out when it arrives, and answer "
        "in two friendly sentences."
    )
    tools = (find_order, delivery_date)

    def get_llm(self) -> Any:
        return demo_llm(self.model)
