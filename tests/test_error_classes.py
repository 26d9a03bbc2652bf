"""The exceptions as values: they go to another process, and stand in events that are copied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from agentloop import AgentEnd, Config, Context, ModelError, RunError, agent_loop
from agentloop.errors import AgentLoopError, AnswerError, GrammarError, MissingExtra
from agentloop.testing import ScriptedModel, collect_sync

WITH_MORE: dict[type[AgentLoopError], AgentLoopError] = {
    RunError: RunError("deadline", "too late", "aborted"),
    ModelError: ModelError("rate_limit", "slow down", retryable=False, retry_after=7.0),
    AnswerError: AnswerError("late", "it is over"),
    MissingExtra: MissingExtra("openai", "openai"),
    GrammarError: GrammarError("call-order", "expected an end", 5),
}
"""Those that are not made of a text alone."""


def kinds(of: type[AgentLoopError] = AgentLoopError) -> list[type[AgentLoopError]]:
    """The package's own: other tests make some, too."""
    found = [kind for below in of.__subclasses__() for kind in kinds(below)]
    return [kind for kind in (of, *found) if kind.__module__.partition(".")[0] == "agentloop"]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_is_copied_and_pickled_whole(kind: type[AgentLoopError]) -> None:
    """Class, text, code and all: a pool of processes hands them on, and a broken one there breaks the pool."""
    error = WITH_MORE[kind] if kind in WITH_MORE else kind("some words")
    error.add_note("said later")
    copies: list[Any] = [copy.copy(error), copy.deepcopy(error)]
    copies += [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in copies:
        assert type(again) is kind and again is not error
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_the_end_of_a_failed_run_is_copied_and_pickled() -> None:
    """With the exception that it holds."""
    model = ScriptedModel([ModelError("auth", "the key is wrong")])
    end = collect_sync(agent_loop(["hi"], Context(), Config(model=model)))[-1]
    assert isinstance(end, AgentEnd)
    for again in (copy.deepcopy(end), pickle.loads(pickle.dumps(end))):
        assert again == end
        assert isinstance(again.exception, ModelError) and again.exception.code == "auth"
