"""The same without Hayrunner's packages: any NATS client in any language can do this.

hayrunner serve examples/support.py      # in another terminal
python examples/plain_json.py "Where is order 1042?"
"""

import asyncio
import json
import sys
import uuid

import nats


async def main(prompt: str = "Where is order 1042?", url: str = "nats://localhost:4222") -> None:
    connection = await nats.connect(url)
    message_id = str(uuid.uuid4())

    # Subscribe first, then ask: the id is the requester's to choose, so nothing is missed.
    events = await connection.subscribe(f"runs.default.{message_id}.events")
    await connection.jetstream().publish(
        "agents.default.support.requests",
        json.dumps({"message_id": message_id, "prompt": prompt}).encode(),
        headers={"Nats-Msg-Id": message_id},
    )
    async for message in events.messages:
        print(message.data.decode())
        if json.loads(message.data)["type"] == "stream_end":
            break

    # The one result: published before `stream_end`, kept as the last message of its subject.
    result = await connection.jetstream().get_last_msg(
        "RUN_RESULTS", f"runs.default.{message_id}.result"
    )
    print((result.data or b"").decode())

    # A direct request answers on its own reply inbox.
    reply = await connection.request(
        "agents.default.support.ask",
        json.dumps({"prompt": prompt, "mode": "answer", "tools": True}).encode(),
        timeout=60,
    )
    print(reply.data.decode())
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
