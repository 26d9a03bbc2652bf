"""`agentloop run --compact-at`: a long task is summarised on its way, a short one is left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop.cli import main, run
from agentloop.messages import Usage
from agentloop.model import UsageChunk
from agentloop.testing import ScriptedModel, call


def kinds(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, Any]]:
    """Kind and status of the event records that a run prints."""
    assert main(["run", "--json", *arguments]) == 0
    payloads = [json.loads(line)["payload"] for line in capsys.readouterr().out.splitlines()]
    return [(payload.get("type", ""), payload.get("status")) for payload in payloads]


def test_a_task_that_goes_on_is_summarised(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a further turn, once a request came to so many tokens, from the context's second turn on; not at the end."""
    large = UsageChunk(Usage(0, 50, 0))
    model = ScriptedModel([[call("x"), large], [call("x"), large], "the summary", [call("x"), large], ["done", large]])
    monkeypatch.setattr(run, "choose_model", lambda *args, **options: model)
    told = kinds(capsys, "go", "--compact-at", "50")
    assert [kind for kind, _ in told if kind in ("turn_end", "compaction_end")] == [
        "turn_end", "turn_end", "compaction_end", "turn_end", "turn_end",
    ]  # fmt: skip
    assert ("compaction_end", "completed") in told
    assert model.exhausted


def test_below_the_threshold_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    """No compaction without the option, nor below its number; what is no number is refused."""
    for arguments in ([], ["--compact-at", "1000000"]):
        assert not [kind for kind, _ in kinds(capsys, "what is 12*7 + 3?", *arguments) if "compaction" in kind]
    with pytest.raises(SystemExit):
        main(["run", "hello", "--compact-at", "0"])
