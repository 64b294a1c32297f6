"""Start a run and read its events as they happen.

hayrunner serve examples/support.py      # in another terminal
python examples/client_stream.py "Where is order 1042?"
"""

import asyncio
import sys

from hayrunner_contracts.client import RunClient
from hayrunner_contracts.events import MessageEnd, TextChunk, ToolExecutionCommitted, ToolOutput


async def main(prompt: str = "Where is order 1042?", url: str = "nats://localhost:4222") -> None:
    async with await RunClient.connect(url) as client:
        async for event in client.stream("support", prompt):
            match event:
                case TextChunk():
                    print(event.content, end="", flush=True)
                case ToolExecutionCommitted():
                    print(f"\n-> {event.tool_name} {event.tool_input}")
                case ToolOutput():
                    print(f"<- {event.tool_output}")
                case MessageEnd():
                    print(f"\n({event.finish_reason}, {event.usage})")
                case _:
                    pass  # there are more; see docs/contract.md


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
