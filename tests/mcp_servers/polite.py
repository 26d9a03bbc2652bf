"""A well-behaved MCP server, written with the SDK's server side: `polite.py` over stdio, `polite.py PORT` over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.stdio import stdio_server

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 0}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
NOTE = {"type": "object", "properties": {"file": {"type": "string"}}}

tools = [
    types.Tool(name="add", title="Adder", description="Add two numbers.", input_schema=ADD),
    types.Tool(name="environment", input_schema=NOTHING),
    types.Tool(name="media", input_schema=NOTHING),
    types.Tool(name="fail", input_schema=NOTHING),
    types.Tool(name="grow", input_schema=NOTHING),
    types.Tool(name="hang", input_schema=NOTE),
    types.Tool(name="long", input_schema={"type": "object", "properties": {"size": {"type": "integer"}}}),
    types.Tool(name="files.read-all", input_schema=NOTHING),
    types.Tool(name="unusable", input_schema={"type": "object", "properties": {"x": {"type": 12}}}),
]


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    """All tools, in two pages."""
    if params is None or params.cursor is None:
        return types.ListToolsResult(tools=tools[:4], next_cursor="rest")
    return types.ListToolsResult(tools=tools[4:])


async def call_tool(ctx: Any, params: Any) -> types.CallToolResult:
    """Run a tool."""
    arguments = params.arguments or {}
    match params.name:
        case "add":
            await ctx.session.report_progress(1, 2, "adding")
            total = arguments["a"] + arguments["b"]
            return types.CallToolResult(content=[text(str(total))], structured_content={"sum": total})
        case "environment":
            return types.CallToolResult(content=[], structured_content={"names": sorted(os.environ)})
        case "media":
            return types.CallToolResult(content=media(), _meta={"took": 3})
        case "grow":
            tools.append(types.Tool(name="grown", input_schema=NOTHING))
            await ctx.session.send_tool_list_changed()
        case "grown":
            return types.CallToolResult(content=[text("grown up")])
        case "hang":
            await ctx.session.report_progress(0)
            try:
                await anyio.sleep_forever()
            finally:
                mark(arguments["file"])
        case "long":
            return types.CallToolResult(content=[text("x" * arguments["size"])])
        case "fail":
            return types.CallToolResult(content=[text("no such row")], is_error=True)
    return types.CallToolResult(content=[text("done")])


def text(words: str) -> types.TextContent:
    """A block of text."""
    return types.TextContent(type="text", text=words)


def mark(file: str) -> None:
    """Leave a sign."""
    Path(file).write_text("cancelled")


def media() -> list[Any]:
    """One block of each kind."""
    file = types.TextResourceContents(uri="file:///a.txt", text="inside")
    blob = types.BlobResourceContents(uri="file:///a.bin", blob="AAEC", mime_type="application/zip")
    return [
        text("look:"),
        types.ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        types.AudioContent(type="audio", data="AAEC", mime_type="audio/wav"),
        types.ImageContent(type="image", data="not base64!", mime_type="image/png"),
        types.ResourceLink(type="resource_link", name="a", uri="file:///a", mime_type="text/plain", size=6),
        types.EmbeddedResource(type="resource", resource=file),
        types.EmbeddedResource(type="resource", resource=blob),
    ]


server: Server[Any] = Server("polite", on_list_tools=list_tools, on_call_tool=call_tool)


async def over_stdio() -> None:
    """Serve the process that started this one."""
    async with stdio_server() as (incoming, outgoing):
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        await server.run(incoming, outgoing, options)


def over_http(port: int) -> None:
    """Serve whoever comes, on the loopback."""
    import uvicorn

    uvicorn.run(
        server.streamable_http_app(), host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        over_http(int(sys.argv[1]))
    else:
        anyio.run(over_stdio)
