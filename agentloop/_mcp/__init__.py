"""The parts of `mcp`: which servers, how they are reached, what they offer and answer."""
