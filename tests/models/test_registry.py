"""Names of models become configured adapters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentloop.models.offline import OfflineModel
from agentloop.models.ollama import Ollama
from agentloop.models.openai_chat import ChatQuirks, OpenAIChat
from agentloop.models.registry import CHAT, PROVIDERS, resolve
from agentloop.testing.wire import Play, WireServer, run_model

ANSWER = Play(
    b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n',
    headers={"content-type": "text/event-stream"},
)


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in PROVIDERS.values():
        monkeypatch.delenv(line.key or "", raising=False)
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)


def client_of(model: Any) -> Any:
    return model._client.get()


@pytest.mark.parametrize("provider", [name for name, line in PROVIDERS.items() if line.adapter == CHAT])
def test_every_chat_provider(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line gives an adapter with its name, address, key and quirks."""
    line = PROVIDERS[provider]
    if line.key:
        monkeypatch.setenv(line.key, "a key")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.example/")
    model: Any = resolve(f"{provider}:some/model:1")
    assert isinstance(model, OpenAIChat)
    assert (model.provider, model.model, model.quirks) == (provider, "some/model:1", line.quirks)
    client = client_of(model)
    address = (line.base_url or "https://api.openai.com/v1").replace("{AZURE_OPENAI_ENDPOINT}", "https://x.example")
    assert str(client.base_url).rstrip("/") == address
    assert client.api_key == ("a key" if line.key else "none")


@pytest.mark.parametrize("provider", [name for name, line in PROVIDERS.items() if line.adapter != CHAT])
def test_every_other_provider(provider: str) -> None:
    """Each line names an adapter that is there and takes what it is given."""
    path = Path(__file__).resolve().parents[2] / (
        PROVIDERS[provider].adapter.partition(":")[0].replace(".", "/") + ".py"
    )
    if not path.exists():
        pytest.skip(f"{path.name} is not there yet")
    model: Any = resolve(f"{provider}:m", api_key="k", base_url="http://127.0.0.1:1")
    assert model.model == "m"


def test_offline() -> None:
    """The offline model needs nothing."""
    assert isinstance(resolve("offline"), OfflineModel)


@pytest.mark.parametrize("name", ["gpt-5", "openai:", ":gpt-5", "", "acme:big"])
def test_unknown_names_list_the_known(name: str) -> None:
    """A name that cannot be resolved is answered with what can be."""
    with pytest.raises(ValueError, match=r"deepseek.*openai.*zai"):
        resolve(name)


def test_no_name_is_said_in_the_same_words() -> None:
    """As from a variable of the environment that is not set."""
    with pytest.raises(TypeError, match=r"^model: expected offline, local or PROVIDER:MODEL, got None$"):
        resolve(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("provider", [name for name, line in PROVIDERS.items() if line.key])
@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_missing_key_names_its_variable(provider: str, blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which variable to set; a blank key is none."""
    line = PROVIDERS[provider]
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.example")
    for variable in (line.key, line.other_key):
        if variable:
            monkeypatch.setenv(variable, blank)
    with pytest.raises(ValueError, match=rf"set {line.key}.* in the environment \(in code: api_key=…\)$"):
        resolve(f"{provider}:m", api_key=blank)


@pytest.mark.parametrize("name", ["", None])
def test_a_model_without_a_name(name: Any) -> None:
    """An adapter that could ask for nothing is refused when it is made, not at its first request."""
    with pytest.raises(ValueError, match=r"^model: expected the name of a model, got "):
        Ollama(name)


def test_a_missing_address_names_its_variable() -> None:
    """An address that depends on the account is asked for by name."""
    with pytest.raises(ValueError, match="AZURE_OPENAI_ENDPOINT"):
        resolve("azure:m", api_key="k")


@pytest.mark.anyio
async def test_anybody_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of the caller's own is asked at its address, with the key in its variable."""
    monkeypatch.setenv("MY_LAB_API_KEY", "lab")
    with WireServer() as server:
        address = server.play(ANSWER)
        outcome = await run_model(resolve("my-lab:big", base_url=f"{address}/v1"))
        assert outcome.message is not None
        assert (outcome.message.text, outcome.message.provider, outcome.message.model) == ("hi", "my-lab", "big")
        assert server.requests[-1].headers["authorization"] == "Bearer lab"
        assert server.requests[-1].json["model"] == "big"


@pytest.mark.anyio
async def test_a_known_provider_at_another_address() -> None:
    """The address and key that are given take the place of the table's; no key is needed there, and the quirks stay."""
    with WireServer() as server:
        address = server.play(ANSWER)
        await run_model(resolve("mistral:small", base_url=f"{address}/v1"), options={"seed": 3})
        assert server.requests[-1].json["random_seed"] == 3
        assert "stream_options" not in server.requests[-1].json
        await run_model(resolve("mistral:small", base_url=f"{address}/v1", api_key="mine"))
        assert server.requests[-1].headers["authorization"] == "Bearer mine"


def test_options_go_to_the_adapter() -> None:
    """What the adapter's constructor takes can be given."""
    model: Any = resolve("groq:m", api_key="k", headers={"x-a": "b"})
    assert client_of(model).default_headers["x-a"] == "b"


def test_quirks_name_only_common_options() -> None:
    """A quirk that renames or refuses an option names one that exists."""
    known = {"temperature", "top_p", "max_tokens", "seed", "stop", "tool_choice", "parallel_tool_calls"}
    for line in PROVIDERS.values():
        quirks = line.quirks or ChatQuirks()
        assert set(quirks.names) <= known
        assert set(quirks.thinking) <= {"off", "minimal", "low", "medium", "high", "max"}


def test_importing_loads_no_adapter() -> None:
    """The table can be read without an adapter or an SDK being loaded."""
    code = (
        "import sys, agentloop.models.registry;"
        "print([name for name in ('openai', 'anthropic', 'httpx2', 'agentloop.models.openai_chat') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
