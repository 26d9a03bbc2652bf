"""agentloop: the agent loop as one async iterator of events, in one total order, with checked guarantees.

Begin with `agent_loop` (one run, as its events) or `Agent` (a conversation that runs it); `tool` makes a tool of a function,
and `agentloop.models.registry.resolve` a model of `"provider:name"`. Sessions on disk are in `agentloop.session`, who may do
what is in `agentloop.approval`, what tests need in `agentloop.testing`.

The layers, each importing only those above it: values (`messages`, `errors`, `abort`), protocol (`events`, `reply`,
`grammar`, `reducer`), contracts (`model`, `tools`, `context`, `convert`, `config`), the driver (`loop`), then the shells
that run the loop for you (`agent`). This module re-exports what the kernel's modules and `agent` list, and holds nothing of
its own; the chunks that a model yields live in `agentloop.model`. Numbers such as G12 in comments are those of
docs/guarantees.md.
"""

from typing import TYPE_CHECKING

from agentloop import abort, agent, config, context, errors, events, loop, messages, reply, tools
from agentloop.abort import *
from agentloop.agent import *
from agentloop.config import *
from agentloop.context import *
from agentloop.errors import *
from agentloop.events import *
from agentloop.loop import *
from agentloop.messages import *
from agentloop.reply import *
from agentloop.tools import *

__version__ = "0.1.0"

if not TYPE_CHECKING:  # type checkers know no sum of lists: to them every name of the imports above is one to take
    __all__ = ["__version__"]
    __all__ += abort.__all__
    __all__ += agent.__all__
    __all__ += config.__all__
    __all__ += context.__all__
    __all__ += errors.__all__
    __all__ += events.__all__
    __all__ += loop.__all__
    __all__ += messages.__all__
    __all__ += reply.__all__
    __all__ += tools.__all__
