"""An agent with a tool that a person has to approve.

hayrunner serve examples/approvals.py                      # in another terminal
hayrunner ask cashier "Refund order 1042"                  # asks on the terminal
hayrunner ask cashier "Refund order 1042" --approve-all

Without OPENAI_API_KEY the offline demo generator takes the model's place.
"""

from typing import Annotated, Any

from hayrunner import Agent, requires_approval
from hayrunner.demo import demo_llm

PRICES = {7: 64.0, 1042: 31.5}


@requires_approval
def refund(order_number: Annotated[int, "The number on the invoice"]) -> str:
    """Pay an order back."""
    return f"Order {order_number}: {PRICES[order_number]} euros were paid back."


class Cashier(Agent):
    name = "cashier"
    instructions = "You pay orders back. Where you may not, say why."
    tools = (refund,)
    approval_timeout_s = 600.0

    def get_llm(self) -> Any:
        return demo_llm()
