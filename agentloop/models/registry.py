"""`resolve("provider:model")`: a configured adapter, by a table with one line for each provider.

    resolve("deepseek:deepseek-chat")                                       # key from DEEPSEEK_API_KEY
    resolve("openai-responses:gpt-5", api_key="…")
    resolve("acme:big", base_url="https://llm.acme.example/v1")             # anybody who speaks Chat Completions

Nothing is loaded before it is asked for: importing this loads no adapter and no SDK.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import Any

import attrs

from agentloop._values import meant
from agentloop.model import Model
from agentloop.models import _chat_quirks as quirk
from agentloop.models._chat_quirks import ChatQuirks, IdRule

__all__ = ["PROVIDERS", "Provider", "resolve"]

CHAT = "agentloop.models.openai_chat:OpenAIChat"
OLLAMA = "agentloop.models.ollama:Ollama"


@attrs.frozen
class Provider:
    """How one provider is reached."""

    base_url: str | None = None
    """Its address, None: the adapter's own. `{NAME}` stands for an environment variable."""
    key: str | None = None
    """The environment variable that holds the key; None: none is needed."""
    quirks: ChatQuirks | None = None
    """For Chat Completions: what is special about it."""
    adapter: str = CHAT
    """`module:class`."""
    other_key: str | None = None
    """A second variable that counts where the first is not set."""


def _local(port: int, **quirks: Any) -> Provider:
    return Provider(f"http://localhost:{port}/v1", None, ChatQuirks(**quirks))


_MISTRAL = ChatQuirks(
    names={"seed": "random_seed"},
    thinking=quirk.EFFORT_NONE_HIGH,
    usage_option=False,
    call_id=IdRule("[a-zA-Z0-9]{9}", "0-9a-z", 9),
    text_ends_at_call=True,
)
_DEEPSEEK = ChatQuirks(
    names={"seed": None, "parallel_tool_calls": None}, thinking=quirk.THINKING_TYPE, text_ends_at_call=True
)
_OPENROUTER = ChatQuirks(thinking=quirk.REASONING_OBJECT)
_XAI = ChatQuirks(thinking=quirk.EFFORT_LOW_HIGH, text_ends_at_call=True)
_CEREBRAS = ChatQuirks(names={"max_tokens": "max_completion_tokens"})
_PERPLEXITY = ChatQuirks(names={"tool_choice": None, "parallel_tool_calls": None})
_SWITCHED = ChatQuirks(thinking=quirk.THINKING_TYPE)
_QWEN = ChatQuirks(thinking=quirk.ENABLE_THINKING)
_PLAIN = ChatQuirks()
_GEMINI = Provider(None, "GEMINI_API_KEY", adapter="agentloop.models.gemini:Gemini", other_key="GOOGLE_API_KEY")

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(None, "OPENAI_API_KEY", quirk.OPENAI),
    "openai-responses": Provider(None, "OPENAI_API_KEY", adapter="agentloop.models.openai_responses:OpenAIResponses"),
    "anthropic": Provider(None, "ANTHROPIC_API_KEY", adapter="agentloop.models.anthropic:Anthropic"),
    "gemini": _GEMINI,
    "google": _GEMINI,
    "ollama": Provider(None, None, adapter=OLLAMA),
    "ollama-cloud": Provider("https://ollama.com", "OLLAMA_API_KEY", adapter=OLLAMA),
    "azure": Provider("{AZURE_OPENAI_ENDPOINT}/openai/v1", "AZURE_OPENAI_API_KEY", quirk.OPENAI),
    "alibaba": Provider("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY", _QWEN),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", _CEREBRAS),
    "deepinfra": Provider("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY", _PLAIN),
    "deepseek": Provider("https://api.deepseek.com", "DEEPSEEK_API_KEY", _DEEPSEEK),
    "fireworks": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", _PLAIN),
    "github": Provider("https://models.github.ai/inference", "GITHUB_TOKEN", _PLAIN),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY", _PLAIN),
    "huggingface": Provider("https://router.huggingface.co/v1", "HF_TOKEN", _PLAIN),
    "hyperbolic": Provider("https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY", _PLAIN),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY", _MISTRAL),
    "moonshot": Provider("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", _SWITCHED),
    "novita": Provider("https://api.novita.ai/v3/openai", "NOVITA_API_KEY", _PLAIN),
    "nvidia": Provider("https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY", _PLAIN),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", _OPENROUTER),
    "perplexity": Provider("https://api.perplexity.ai", "PERPLEXITY_API_KEY", _PERPLEXITY),
    "sambanova": Provider("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY", _PLAIN),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY", _PLAIN),
    "vercel": Provider("https://ai-gateway.vercel.sh/v1", "AI_GATEWAY_API_KEY", _OPENROUTER),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY", _XAI),
    "zai": Provider("https://api.z.ai/api/paas/v4", "ZAI_API_KEY", _SWITCHED),
    "llama-cpp": _local(8080, thinking=quirk.CHAT_TEMPLATE),
    "lm-studio": _local(1234),
    "ollama-chat": _local(11434),
    "sglang": _local(30000, thinking=quirk.CHAT_TEMPLATE),
    "vllm": _local(8000, thinking=quirk.CHAT_TEMPLATE),
}
"""One line for each provider."""

IN_PROCESS: Mapping[str, str] = {
    "offline": "agentloop.models.offline:OfflineModel",
    "local": "agentloop.models.local:LocalModel",
}
"""Models that need no provider: fixed rules, and small weights (extra `local`)."""


def resolve(name: str, base_url: str | None = None, api_key: str | None = None, **options: Any) -> Model:
    """The adapter for `provider:model`, or a model in this process: `offline` (fixed rules), `local` (small weights).

    `base_url` and `api_key` take the place of the table's address and variable. A provider that the table does not have is
    asked by Chat Completions at its `base_url`, with the key in `<PROVIDER>_API_KEY` if there is one. `options` go to the
    adapter's constructor.

    Raises `ValueError`, naming what is missing, for an unknown provider without an address, a missing key or variable;
    `MissingExtra` without the SDK; `TypeError` for a `name` that is not a text.
    """
    if not isinstance(name, str):  # a variable of the environment that is not set, say
        raise TypeError(f"model: expected offline, local or PROVIDER:MODEL, got {name!r}")
    if name in IN_PROCESS:
        if base_url is not None:
            raise ValueError(f"base_url: expected with the model of a provider, got it with {name!r}")
        return _load(IN_PROCESS[name])(**options)  # type: ignore[no-any-return]
    provider, colon, model = name.partition(":")
    if not colon or not provider or not model:
        raise ValueError(f"model: expected offline, local or PROVIDER:MODEL, got {name!r}; known providers: {_known()}")
    if isinstance(api_key, str) and not api_key.strip():
        api_key = None
    line = PROVIDERS.get(provider)
    if line is None and base_url is None:
        hint = meant(provider, PROVIDERS)
        raise ValueError(f"model: unknown provider {provider!r}{hint} and no base_url; known providers: {_known()}")
    if line is None:
        line = Provider(base_url, None, ChatQuirks())
        api_key = api_key or os.environ.get(_variable(provider))
    address = base_url or _address(provider, line)
    given: dict[str, Any] = {"base_url": address, "api_key": api_key or _key(provider, line, base_url)}
    if line.adapter == CHAT:
        given |= {"provider": provider, "quirks": line.quirks}
    return _load(line.adapter)(model, **given, **options)  # type: ignore[no-any-return]


def _known() -> str:
    return ", ".join(sorted(PROVIDERS))


def _variable(provider: str) -> str:
    return re.sub(r"\W", "_", provider).upper() + "_API_KEY"


def _address(provider: str, line: Provider) -> str | None:
    """The table's address with its variables filled in."""
    address = line.base_url
    for variable in re.findall(r"\{(\w+)\}", address or ""):
        value = os.environ.get(variable)
        if not value:
            raise ValueError(f"model: {provider} needs its address in {variable}, or a base_url")
        address = (address or "").replace("{" + variable + "}", value.rstrip("/"))
    return address


def _key(provider: str, line: Provider, base_url: str | None) -> str | None:
    """The key in the table's variables. An address of the caller's may need none."""
    names = [name for name in (line.key, line.other_key) if name]
    key = next((value for name in names if (value := os.environ.get(name, "").strip())), None)
    if names and not key and base_url is None:
        raise ValueError(
            f"model: {provider} needs a key: set {' or '.join(names)} in the environment (in code: api_key=…)"
        )
    return key


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
