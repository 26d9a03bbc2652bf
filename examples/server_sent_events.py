"""A run as server-sent events: a plain server that tells whoever is connected, and a client that reads along."""

import asyncio
import json
import tempfile

from agentloop.omni.channel import Channel, Frame, task_state
from agentloop.omni.records import user_text
from agentloop.session import Session
from agentloop.testing import ScriptedModel

channel = Channel()
clients: set[asyncio.Queue[Frame | None]] = set()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")  # a header Last-Event-ID would go to `connect`: what was missed comes first
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    queue = asyncio.Queue[Frame | None]()
    clients.add(queue)
    for missed in channel.connect(state=task_state("idle")):
        writer.write(missed.data)
    while frame := await queue.get():
        writer.write(frame.data)
        await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"task_state")  # the server knows us
    with tempfile.TemporaryDirectory() as traces:
        async with Session.create(traces, ScriptedModel(["It is 5."])) as session:
            async for record in session.records([user_text("2 + 3?")]):
                frame = channel.publish(record)
                for queue in clients:
                    queue.put_nowait(frame)
    for queue in clients:
        queue.put_nowait(None)
    async for line in reader:
        if line.startswith(b"data: ") and (payload := json.loads(line[6:])["payload"])["type"] == "text":
            print(f"{payload['role']}: {payload['text']}")
    writer.close()
    server.close()


asyncio.run(main())
