"""The parts of `agent`: its state, queues, listeners, readers, inputs and its thread."""
