"""A service that passes on what it is asked: `chain.py NEXT_PORT`.

Each `GET PATH` makes one `GET PATH` to the port and is answered when that is. Passes no header on. As FastAPI's
documentation installs it: uvicorn on uvloop with httptools, calls by httpx. Prints `ready PORT`.
"""

import asyncio
import sys

import httpx
import uvicorn

NEXT = "http://127.0.0.1:" + sys.argv[1]
client = None


async def application(scope, receive, send):
    answer = await client.get(NEXT + scope["path"])
    assert answer.status_code == 200
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def main():
    global client
    client = httpx.AsyncClient(timeout=60, trust_env=False)
    options = {"port": 0, "lifespan": "off", "log_level": "error"}
    server = uvicorn.Server(uvicorn.Config(application, loop="none", http="httptools", **options))
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print("ready", server.servers[0].sockets[0].getsockname()[1], flush=True)
    await running


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
