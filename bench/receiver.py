"""A collector that throws everything away: takes OTLP over HTTP, and answers at once.

A process of its own. Prints its address, ends when its standard input closes.
"""

import asyncio
import sys

import uvloop
from aiohttp import web


async def _main() -> None:
    async def take(request: web.Request) -> web.Response:
        await request.read()
        # An empty message: everything was accepted.
        return web.Response(content_type="application/x-protobuf")

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/v1/{signal}", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(_main())
