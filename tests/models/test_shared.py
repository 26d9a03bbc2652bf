"""What every adapter does alike: ids, data URLs, options."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.messages import ToolCall, ToolResultMessage, assistant, user
from agentloop.models import _shared as shared


@given(st.lists(st.text(min_size=1, max_size=30), unique=True, max_size=20))
def test_legal_ids_are_legal_and_distinct(ids: list[str]) -> None:
    """Every id gets one that the pattern takes, no two the same, legal ones themselves, and again the same."""
    made = shared.legal_ids(ids, "[a-z0-9_]{1,20}", alphabet="a-z0-9_", length=20)
    assert list(made) == ids
    assert len(set(made.values())) == len(ids)
    for own, sent in made.items():
        assert re.fullmatch("[a-z0-9_]{1,20}", sent)
        assert sent == own or not re.fullmatch("[a-z0-9_]{1,20}", own)
    assert shared.legal_ids(ids, "[a-z0-9_]{1,20}", alphabet="a-z0-9_", length=20) == made


def test_made_ids_that_would_collide_stay_distinct() -> None:
    """Where the room is small, two made ids that would be the same are made different."""
    ids = [f"id {number}" for number in range(40)]
    assert len(set(shared.legal_ids(ids, "[a-f0-9]{2}", length=2).values())) == 40


def test_a_made_id_yields_to_a_legal_one() -> None:
    """A legal id keeps its own spelling also where a made one would have had it."""
    made = shared.legal_ids(["a b"], "[a-z0-9_]+")["a b"]
    both = shared.legal_ids(["a b", made], "[a-z0-9_]+")
    assert both[made] == made
    assert both["a b"] != made


def test_ids_of_a_history() -> None:
    """The ids of calls and results, once each, in order."""
    history = [user("x"), assistant(ToolCall("a", "f"), ToolCall("b", "f")), ToolResultMessage("a", "f", "1")]
    assert shared.call_ids(history) == ["a", "b"]


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("data:image/png;base64,AAAA", ("image/png", "AAAA")),
        ("DATA:text/plain;charset=utf-8;BASE64,AA==", ("text/plain", "AA==")),
        ("data:;base64,AA", ("application/octet-stream", "AA")),
        ("data:text/plain,hello", None),
        ("https://example.org/a;base64,b", None),
        ("", None),
    ],
)
def test_data_urls(url: str, parts: Any) -> None:
    """MIME type and data of a base64 data URL; any other address is none."""
    assert shared.split_data_url(url) == parts


def test_data_url_there_and_back() -> None:
    """What is made is read."""
    assert shared.split_data_url(shared.data_url("QUJD", "image/gif")) == ("image/gif", "QUJD")


def test_options_are_sorted() -> None:
    """Common options are checked, others set aside, None counts as not given."""
    options = shared.common_options(
        {"stop": "x", "thinking": "off", "tool_choice": {"name": "f"}, "seed": None, "own": 1}
    )
    assert (options.stop, options.thinking, options.tool_choice, options.seed) == (("x",), "off", {"name": "f"}, None)
    assert options.extra == {"own": 1}
