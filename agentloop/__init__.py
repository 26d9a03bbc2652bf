"""agentloop: the agent loop as one async iterator of events, in one total order, with checked guarantees.

The layers, each importing only those above it: values (`messages`, `errors`, `abort`), protocol (`events`, `grammar`,
`reducer`), contracts (`model`, `tools`, `context`, `convert`, `config`), the driver (`loop`), then the shells that run the loop
for you. This module re-exports the kernel's names and nothing else.
"""

from agentloop import abort, config, context, errors, events, loop, messages, model, tools
from agentloop.abort import *
from agentloop.config import *
from agentloop.context import *
from agentloop.errors import *
from agentloop.events import *
from agentloop.loop import *
from agentloop.messages import *
from agentloop.model import *
from agentloop.tools import *
