"""A test of an agent: its whole run, compared with stored lines."""

from agentloop import Config, Context, agent_loop, tool
from agentloop.testing import ScriptedModel, call, collect_sync, snapshot


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


STORED = ['tool_execution_start #1 add({"a":2,"b":3})', 'tool_execution_end #1 "5"']


def run() -> list[str]:
    """The lines of one run; ids and the cut of the deltas play no part."""
    model = ScriptedModel([[call("add", {"a": 2, "b": 3})], "The sum is 5."])
    return snapshot(collect_sync(agent_loop("2 + 3?", Context(tools=[add]), Config(model=model))))


def test_sum() -> None:
    """The tool's lines are these, and a second run is the same, line by line."""
    lines = run()
    tool_lines = [line.strip() for line in lines if line.strip().startswith("tool_execution")]
    assert tool_lines == STORED, tool_lines
    assert run() == lines


if __name__ == "__main__":
    test_sum()
    print("the run is as stored")
