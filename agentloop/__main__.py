"""`python -m agentloop` is the command `agentloop`."""

import sys

from agentloop.cli import main

sys.exit(main())
