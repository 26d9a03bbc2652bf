"""The parts of `session`: one run, what lies between runs, prompts, queues, the guarded door."""
