"""Tools of an MCP server: here a small one in this very file, started as a process of its own.

Needs the extra `mcp`.
"""

import asyncio
import sys

from agentloop import Config, Context, McpConnectEnd, ToolExecutionEnd, agent_loop
from agentloop.mcp import McpServers, StdioServer
from agentloop.testing import ScriptedModel, call


def serve() -> None:
    """The server's side, written with the official SDK."""
    from mcp.server import MCPServer

    server = MCPServer("shop")

    @server.tool()
    def price(item: str) -> float:
        """What an item costs."""
        return {"tea": 2.5}.get(item, 0.0)

    server.run("stdio")


async def main() -> None:
    servers = McpServers([StdioServer("shop", sys.executable, [__file__, "serve"])])
    model = ScriptedModel([[call("shop__price", {"item": "tea"})], "Tea is 2.50."])
    async for event in agent_loop("What does tea cost?", Context(), Config(model=model, tool_source=servers)):
        match event:
            case McpConnectEnd(results=[shop]):
                print(f"{shop.server}: {shop.status}, {shop.tools} tool")
            case ToolExecutionEnd(tool_name=name, result=result):
                print(f"{name}: {result.text}")


serve() if "serve" in sys.argv else asyncio.run(main())
