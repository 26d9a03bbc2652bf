"""What is said to a session while a run goes on, or before the next one: its two queues, and who asks them."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from agentloop._agent.queues import QUEUES, QueueMode, QueueName
from agentloop._session.conversation import Conversation
from agentloop._session.prompts import Prompts, prompt_messages
from agentloop.config import Config
from agentloop.messages import AgentMessage
from agentloop.omni.custom import MessageRegistry


class WithQueues:
    """The part of a `Session` that queues what is said to it."""

    __slots__ = ()

    conversation: Conversation
    _config: Config
    _registry: MessageRegistry

    def steer(self, prompts: Prompts) -> None:
        """Queue what the model shall hear soon: after the present turn, or after the next run's prompts. From any thread.

        A message is in memory alone until a run takes it: it waits for the next run, and is lost with the process. Raises
        `TypeError` and `ValueError` for anything that is not a prompt, and `TypeError` where the session has a callback
        (`get_steering_messages`) in the place of its queue.
        """
        self._queue("steering", prompts)

    def follow_up(self, prompts: Prompts) -> None:
        """Queue what the model shall hear when the run would end otherwise. All else as with `steer`."""
        self._queue("follow_up", prompts)

    def _queue(self, queue: QueueName, prompts: Prompts) -> None:
        if getattr(self._config, f"get_{queue}_messages") is not None:
            raise TypeError(f"{queue}: expected a session that keeps its own queue, got one with get_{queue}_messages")
        self.conversation.queues.add(queue, prompt_messages(prompts, self._registry))

    def queued(self, queue: QueueName) -> tuple[AgentMessage, ...]:
        """The messages that wait in the queue `steering` or `follow_up`, the next one first."""
        return self.conversation.queues.waiting(queue)

    def take_back(self, queue: QueueName | None = None) -> tuple[AgentMessage, ...]:
        """Remove and return the messages that wait in one queue, or in both, steering first; not what a run has taken."""
        return self.conversation.queues.take_back(queue)

    def set_queue_mode(self, queue: QueueName, mode: QueueMode) -> None:
        """Say how many messages of a queue are taken at a time: `one_at_a_time` (the default) or `all`."""
        self.conversation.queues.set_mode(queue, mode)

    def _queued_first(self) -> tuple[AgentMessage, ...]:
        """Where nothing else is there to go on with, what waits in a queue is the prompt."""
        queues = self.conversation.queues
        return next((tuple(queues.poll(queue)) for queue in QUEUES if queues.waiting(queue)), ())

    def _with_queues(self, config: Config) -> Config:
        """The session's own queues, where the caller has not said what is said."""
        queues = self.conversation.queues
        own: dict[str, Any] = {}
        if config.get_steering_messages is None:
            own["get_steering_messages"] = partial(queues.poll, "steering")
            if config.wait_for_steering is None:
                own["wait_for_steering"] = queues.wait_for_steering
        if config.get_follow_up_messages is None:
            own["get_follow_up_messages"] = partial(queues.poll, "follow_up")
        return attrs.evolve(config, **own)
