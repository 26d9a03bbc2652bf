"""The parts of `agent`: its state, queues, readers, inputs and its thread."""
