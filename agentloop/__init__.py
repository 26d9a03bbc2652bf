"""agentloop."""
