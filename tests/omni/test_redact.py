"""Known secret shapes are masked, and nothing else; linear time, whatever the text."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.omni.jsonl import dumps
from agentloop.omni.records import (
    custom_message,
    inline_data,
    reply_end,
    request_end,
    thinking,
    tool_call,
    tool_call_output,
    tool_execution_end,
    user_text,
)
from agentloop.omni.redact import mask_secrets, mask_text

ALPHABET = string.ascii_letters + string.digits


def made(length: int, alphabet: str = ALPHABET, seed: int = 7) -> str:
    """A made-up secret that holds a digit."""
    return "".join(random.Random(seed).choices(alphabet, k=length - 1)) + "7"


JWT = f"eyJ{made(20)}.eyJ{made(40)}.{made(43)}"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join(made(64, seed=n) for n in range(6))
    + "\n-----END RSA PRIVATE KEY-----"
)

SECRETS = {
    "anthropic key": "sk-ant-api03-" + made(90),
    "openrouter key": "sk-or-v1-" + made(64, "0123456789abcdef"),
    "api key": "sk-proj-" + made(80),
    "stripe key": "sk_" + "live_" + made(24),
    "google key": "AIza" + made(35),
    "google token": "ya29." + made(60),
    "groq key": "gsk_" + made(52),
    "xai key": "xai-" + made(80),
    "perplexity key": "pplx-" + made(48),
    "hugging face token": "hf_" + made(34),
    "replicate token": "r8_" + made(37),
    "github token": "ghp_" + made(36),
    "gitlab token": "glpat-" + made(20),
    "npm token": "npm_" + made(36),
    "pypi token": "pypi-AgE" + made(80),
    "slack token": "xoxb-" + "123456789012-" + made(24),
    "aws key id": "AKIA" + made(16, string.ascii_uppercase),
    "json web token": JWT,
    "private key": PEM,
}


@pytest.mark.parametrize("name", SECRETS)
def test_known_shapes(name: str) -> None:
    """Each known shape is masked wherever it stands, and the words around it stay."""
    secret = SECRETS[name]
    for before, after in [("", ""), ("key=", " next"), ('{"key": "', '"}'), ("(", ")"), ("é", "\n"), ("a/", ", b")]:
        masked = mask_text(before + secret + after)
        assert masked == f"{before}[masked {name}]{after}"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer " + made(40), "Authorization: Bearer [masked bearer token]"),
        ("authorization: bearer " + made(40) + "==;", "authorization: bearer [masked bearer token];"),
        ("postgres://app:hunter2@db:5432/x", "postgres://app:[masked password]@db:5432/x"),
        ("aws_secret_access_key = " + made(40), "aws_secret_access_key = [masked aws secret key]"),
        ('"SecretAccessKey": "' + made(40) + '"', '"SecretAccessKey": "[masked aws secret key]"'),
        ("github_pat_" + made(60), "[masked github token]"),
        ("sk-" + made(32, "0123456789abcdef"), "[masked api key]"),
    ],
)
def test_what_stands_before_a_secret_stays(text: str, masked: str) -> None:
    """Where the shape needs the word before it, that word stays."""
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn",
        "sk-folding-cube-container-wrapper",
        "task-0123456789012345678901234567",
        "the bearer of this letter",
        "bearer authentication-and-authorization",
        "https://example.org/a:b/c?d=e@f",
        "user@example.org",
        "0123456789abcdef0123456789abcdef01234567",
        "AKIAXXXX",
        "eyJ.eyJ.x",
        "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----",
        "xoxo-hugs-and-kisses",
        "hf_model",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Words, hashes, addresses and public keys stay as they are."""
    assert mask_text(text) == text


def test_private_keys_in_every_dress() -> None:
    """A private key is masked with real line ends, escaped in JSON text, and where its end is cut off; what follows
    stays."""
    for text in (PEM, json.dumps(PEM)[1:-1], json.dumps(json.dumps(PEM))[3:-3]):
        assert mask_text(f"a {text} b") == "a [masked private key] b"
    cut = mask_text(PEM[: len(PEM) // 2] + "\n\nand so on")
    assert cut.startswith("[masked private key]")
    assert made(64, seed=1) not in cut
    assert cut.endswith("and so on")
    assert mask_text(f"{PEM}\n{PEM}") == "[masked private key]\n[masked private key]"


def test_every_string_of_a_record() -> None:
    """Strings at any depth are masked, keys too, and JSON text stays JSON text; the record itself is not changed."""
    secret = SECRETS["github token"]
    record = custom_message("note", {"a": [{"b": secret, secret: 1, f"{secret} ": 2}]})
    before = dumps(record)
    masked = mask_secrets(record)
    assert masked["payload"]["data"]["a"][0] == {
        "b": "[masked github token]",
        "[masked github token]": 1,
        "[masked github token] ": 2,
    }
    assert dumps(record) == before
    call = mask_secrets(tool_call("run", json.dumps({"token": secret, "pem": PEM}), "c1"))
    assert json.loads(call["payload"]["arguments"]) == {"token": "[masked github token]", "pem": "[masked private key]"}


def test_two_keys_that_become_equal_stay_two() -> None:
    """Nothing is lost when two keys of an object are masked alike."""
    data = {"ghp_" + made(36, seed=1): 1, "ghp_" + made(36, seed=2): 2}
    assert list(mask_secrets(custom_message("note", data))["payload"]["data"].values()) == [1, 2]


def test_opaque_things_stay() -> None:
    """Fidelity, ids and base64 data are left alone, whatever they look like."""
    secret = SECRETS["google key"]
    for record in [
        thinking("hm", fidelity={"signature": secret}),
        inline_data(secret, "image/png"),
        tool_call_output(secret, "out", images=[f"data:image/png;base64,{secret}"]),
    ]:
        assert mask_secrets(record) == record
    both = thinking(secret, fidelity={"signature": secret})
    assert mask_secrets(both)["payload"]["fidelity"] == {"signature": secret}
    assert secret not in mask_secrets(both)["payload"]["thinking"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=10,
    )
)
def test_other_records_come_back_equal(value: Any) -> None:
    """A record without secrets is the same record."""
    record = custom_message("note", value)
    assert mask_secrets(record) == record


HIDDEN = [
    *SECRETS.values(),
    "Bearer " + made(40),
    "BEARER " + made(40),
    "aws_secret_access_key=" + made(40),
    "AWS_SECRET_ACCESS_KEY: " + made(40),
    "a://b:c@d",
    "github_pat_" + made(60),
    "rk_" + "test_" + made(24),
    "ASIA" + made(16, string.ascii_uppercase),
]


@pytest.mark.parametrize("secret", HIDDEN, ids=range(len(HIDDEN)))
def test_the_fast_look_misses_nothing(secret: str) -> None:
    """`may_hold_secret` is true of every record that would be masked, wherever the secret stands, short ones
    included."""
    assert mask_text(secret) != secret
    for text in (secret, f"é {secret}", "x" * 500 + f"\n{secret}\n" + "y " * 500):
        for record in (
            user_text(text),
            thinking(text),
            tool_call("run", text, "c1"),
            tool_call_output("c1", text),
            tool_call_output("c1", "ok", content=[{"type": "text", "text": text}]),
            custom_message("note", {text: 1}),
            tool_execution_end("c1", "run", details=[[text]]),
            request_end("fatal", error_message=text),
            reply_end("fatal", None, error_message=text),
            {"type": "event_msg", "payload": {"type": "later", "words": text}},
            {"type": "event_msg", "payload": {"type": "turn_end"}, "more": text},
        ):
            assert secret not in str(mask_secrets(record)), record


KINDS = [
    "text", "thinking", "tool_call", "tool_call_output", "tool_execution_start", "tool_execution_end", "message_start",
    "message_end", "turn_start", "turn_end", "request_begin", "request_end", "token_usage", "approval_decision", "later",
]  # fmt: skip
FIELDS = [
    "role", "text", "thinking", "name", "arguments", "output", "images", "tool_name", "is_error", "stop_reason", "status",
    "sender", "model", "error_message", "details", "usage", "x", "words",
]  # fmt: skip
SECRET = SECRETS["github token"]


@settings(max_examples=10 * settings().max_examples)
@given(
    st.sampled_from(KINDS),
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.sampled_from(
            ["", None, True, 3, SECRET, [SECRET], {"a": SECRET}, {SECRET: 1}, {"total": 1}, {"total": SECRET}]
        ),
        max_size=6,
    ),
)
def test_a_secret_is_masked_in_whichever_field_it_stands(kind: str, fields: dict[str, Any]) -> None:
    """Also where another writer leaves out what ours always say: no number of fields is a reason not to look."""
    record = {"timestamp": "2026-09-01T02:00:00.137Z", "type": "event_msg", "payload": {"type": kind, **fields}}
    assert SECRET not in str(mask_secrets(record))


@pytest.mark.parametrize(
    "record",
    [
        {"type": "x_unknown", "words": SECRET},
        {"type": "x_unknown", "payload": None, "words": SECRET},
        {"type": "x_unknown", "payload": [SECRET], "timestamp": ""},
        {"type": "x_unknown", "payload": SECRET, "timestamp": ""},
        {"payload": {"type": "turn_end"}, "timestamp": "", "words": SECRET},
    ],
)
def test_a_record_of_another_shape_is_masked_too(record: dict[str, Any]) -> None:
    """A decoder passes on what it does not know, and a run is not closed for it where it is recorded."""
    masked = mask_secrets(record)
    assert masked.keys() == record.keys()
    assert SECRET not in str(masked)
    assert "[masked github token]" in str(masked)


@given(
    st.text(st.characters(codec="utf-8"), max_size=80) | st.text("sk-_live AIza=:/@.eyJbearBE\n0123456789", max_size=60)
)
def test_the_fast_look_agrees(text: str) -> None:
    """A text that the fast look lets pass is one that masking leaves as it is."""
    assert mask_secrets(user_text(text))["payload"]["text"] == mask_text(text)


def test_a_record_without_secrets_is_itself() -> None:
    """Nothing is copied where nothing is masked."""
    record = tool_call_output(
        "c1", "Plain words, a long_identifier_of_some_length, and 0123456789abcdef0123456789abcdef."
    )
    assert mask_secrets(record) is record


def test_deep_records() -> None:
    """A deep record is masked without recursion."""
    value: Any = SECRETS["github token"]
    for _ in range(900):
        value = [value]
    masked = mask_secrets(custom_message("note", value))["payload"]["data"]
    while isinstance(masked, list):
        masked = masked[0]
    assert masked == "[masked github token]"


@pytest.mark.parametrize(
    "piece",
    [
        "sk-",
        "sk-ant-",
        "eyJaaaaaaaaa.",
        "eyJ",
        "Bearer ",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "://a:",
        "a" * 64,
        "AKIA",
        "xoxb-",
        "secret_access_key=",
        "-----BEGIN PRIVATE KEY-----\n" + "A" * 64,
        "sk-a",
    ],
)
def test_hostile_texts_are_linear(piece: str) -> None:
    """A megabyte of beginnings that never become a secret costs no more than a pass or two: it ends."""
    text = piece * (1_000_000 // len(piece))
    assert len(mask_text(text)) <= len(text)
