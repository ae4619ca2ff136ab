"""An empty application by plain uvicorn, in a process of its own: what HTTP costs without Serve.

Prints its URL once it listens, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from starlette.responses import Response

ANSWER = b'{"id":1,"x":0.5,"body":"' + b"x" * 84 + b'"}'
"""As large as a row of 100 bytes."""


def empty_app() -> FastAPI:
    """Answers ``GET /row`` with a row, and does nothing for it."""
    app = FastAPI()

    @app.get("/row")
    async def row() -> Response:
        return Response(ANSWER, media_type="application/json")

    return app


@contextlib.contextmanager
def plain_uvicorn() -> Iterator[str]:
    """The URL of one that runs meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()


async def _serve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(empty_app(), log_level="warning", access_log=False, loop="uvloop")
        server = uvicorn.Server(config)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await running


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve())
