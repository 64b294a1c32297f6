"""Ask for one answer: no events, the tools run on the worker.

hayrunner serve examples/support.py      # in another terminal
python examples/client_answer.py "Where is order 1042?"
"""

import asyncio
import sys

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.errors import RunError


async def main(prompt: str = "Where is order 1042?", url: str = "nats://localhost:4222") -> None:
    async with await RunClient.connect(url) as client:
        # Queued durably: it survives the worker, and runs exactly once.
        try:
            print("durable:", await client.run("support", prompt, tools=True))
        except RunError as error:
            print(f"the run failed: {error.code}: {error}")

        # Direct: the lowest latency, and no second try.
        result = await client.ask("support", prompt, tools=True)
        print("direct: ", result.answer)
        print(f"{result.model_calls} model calls, {result.usage}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
