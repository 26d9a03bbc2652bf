"""A run over a socket of one's own: lines of records go out, and on the other side they are the same events again."""

import asyncio

from agentloop import Config, Context, Event, agent_loop
from agentloop.omni.codec import LineDecoder, LineEncoder
from agentloop.testing import ScriptedModel
from agentloop.view import Bubble, View

Socket = asyncio.Queue[bytes | None]  # stands for a web socket: `put` is its send, `get` its receive


async def serve(socket: Socket) -> list[Event]:
    encoder, sent = LineEncoder(), []
    async for event in agent_loop("2 + 3?", Context(), Config(model=ScriptedModel([["It is ", "5."]]))):
        for line in encoder.lines(event):  # an event has one record or several; each line is one JSON object
            await socket.put(line)
        sent.append(event)
    await socket.put(None)
    return sent


async def show(socket: Socket) -> list[Event]:
    decoder, view, got = LineDecoder(), View(), list[Event]()
    while line := await socket.get():
        for event in decoder.feed_line(line):
            view.feed(event, now=0.0)
            got.append(event)
    print([f"{item.kind}: {item.text}" for item in view.items if isinstance(item, Bubble)])
    return got + decoder.finish()


async def main() -> None:
    socket = Socket()
    sent, got = await asyncio.gather(serve(socket), show(socket))
    print("the same events:", got == sent)


asyncio.run(main())
