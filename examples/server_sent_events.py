"""A run as server-sent events: a server that tells whoever is connected, and a client that is cut off and comes back."""

import asyncio
import contextlib
import tempfile

from agentloop.omni.channel import Channel, Frame, task_state
from agentloop.omni.codec import Decoder
from agentloop.omni.sse import SERVER_EVENT, Parser
from agentloop.session import Session
from agentloop.testing import ScriptedModel
from agentloop.view import Bubble, View

channel, connected, over = Channel(), asyncio.Event(), asyncio.Event()
clients: set[asyncio.Queue[Frame | None]] = set()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    last = next((line.split(": ")[1] for line in head if line.startswith("Last-Event-ID")), None)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    clients.add(queue := asyncio.Queue[Frame | None]())
    for missed in channel.connect(last, state=task_state("idle" if over.is_set() else "running")):
        writer.write(missed.data)
    connected.set()
    with contextlib.suppress(ConnectionError):  # the client has gone
        while not (over.is_set() and queue.empty()) and (frame := await queue.get()):
            writer.write(frame.data)
            await writer.drain()
    clients.discard(queue)
    writer.close()


async def run(traces: str) -> None:
    await connected.wait()
    async with Session.create(traces, ScriptedModel([["It ", "is ", "5."]])) as session:
        async for record in session.records("2 + 3?"):
            frame = channel.publish(record)
            for queue in clients:
                queue.put_nowait(frame)
    over.set()
    for queue in clients:
        queue.put_nowait(None)


class Client:
    def __init__(self, port: int) -> None:
        self.port, self.last, self.view, self.decoder = port, "", View(), Decoder()

    async def read(self, until: str | None = None) -> None:
        """One connection, left after a record of this type."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET / HTTP/1.1\r\nLast-Event-ID: {self.last}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        parser, kind = Parser(), ""
        while kind != until and (data := await reader.read(4096)):
            for received in parser.feed(data):
                record, self.last = received.record(), received.id
                if received.event == SERVER_EVENT:
                    print("the server says:", record["type"], record.get("state"))
                    continue
                for event in self.decoder.feed(record):
                    self.view.feed(event, now=0.0)
                if (kind := record["payload"]["type"]) == until:
                    break
        writer.close()
        print([f"{item.kind}: {item.text}" for item in self.view.items if isinstance(item, Bubble)])


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(server.sockets[0].getsockname()[1])
    with tempfile.TemporaryDirectory() as traces:
        running = asyncio.create_task(run(traces))
        await client.read(until="partial_text")
        await running
    await (
        client.read()
    )  # what was missed comes first; after a `resync_required` the history is fetched (`channel.join`)
    server.close()


asyncio.run(main())
