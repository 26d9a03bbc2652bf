"""`--model` and `--tools`: what is found, and one clear line for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentloop.cli import UsageError
from agentloop.cli.choose import choose_model, choose_tools
from agentloop.models.offline import OfflineModel
from agentloop.models.openai_chat import OpenAIChat
from agentloop.testing.wire import Play, WireServer, run_model

EXAMPLES = ["calculate", "current_time", "list_files", "read_file", "measure_file"]

MODULE = '''
from agentloop import tool

def plain(x: int) -> int:
    """Plain."""
    return x

@tool(name="calculate")
def better(expression: str) -> str:
    """Better."""
    return expression

several = [plain, better]
nothing = 7

def unfit(*args):
    """No tool."""
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of tools, which Python does not know of by itself."""
    (tmp_path / "my_own_tools.py").write_text(MODULE)
    (tmp_path / "my_broken_tools.py").write_text("raise RuntimeError('no\\n such luck')")
    (tmp_path / "my_script.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    monkeypatch.setattr("sys.modules", {**__import__("sys").modules})
    return tmp_path


def names(*words: str, examples: bool = False) -> list[str]:
    return [tool.name for tool in choose_tools(words, examples=examples)]


def test_the_offline_model() -> None:
    """`offline` needs nothing; it has no address."""
    model = choose_model("offline", None, pace=0.5)
    assert isinstance(model, OfflineModel)
    assert model.pace == 0.5
    with pytest.raises(UsageError, match="--base-url: expected with the model of a provider"):
        choose_model("offline", "http://localhost")


def test_models_of_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider's model needs a key, unless an address of one's own is given; then a key is used if there is one."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError, match=r"^--model: openai needs a key: set OPENAI_API_KEY"):
        choose_model("openai:big", None)
    assert isinstance(choose_model("openai:big", "http://localhost:1/v1"), OpenAIChat)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    model = choose_model("openai:a:b", None)
    assert isinstance(model, OpenAIChat)
    assert model.model == "a:b"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("words", "variables", "sent"),
    [
        ("openai:m", {}, "Bearer none"),
        ("openai:m", {"OPENAI_API_KEY": " "}, "Bearer none"),
        ("openai:m", {"OPENAI_API_KEY": "k"}, "Bearer k"),
        ("mistral:m", {"MISTRAL_API_KEY": "k"}, "Bearer k"),
        ("acme:m", {}, "Bearer none"),
        ("acme:m", {"ACME_API_KEY": "k"}, "Bearer k"),
        ("google:m", {"GOOGLE_API_KEY": "k"}, "k"),
        ("ollama:m", {"OLLAMA_API_KEY": "k"}, None),
    ],
)
async def test_the_key_for_an_address_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, words: str, variables: dict[str, str], sent: str | None
) -> None:
    """The one in the provider's variables, as in code; without one the server is asked all the same."""
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", *variables):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with WireServer() as server:
        await run_model(choose_model(words, server.play(Play(b""))))
        headers = server.requests[-1].headers
    assert headers.get("x-goog-api-key", headers.get("authorization")) == sent


@pytest.mark.parametrize("words", ["", "gpt", "openai:", ":x", "nobody:big"])
def test_no_models(words: str) -> None:
    """What is no model is named, with what was expected."""
    with pytest.raises(UsageError, match=r"^--model: "):
        choose_model(words, None)


def test_a_misspelt_provider() -> None:
    """What may have been meant is said first."""
    with pytest.raises(
        UsageError, match=r"^--model: unknown provider 'openia' \(did you mean openai\?\) and no base_url; "
    ):
        choose_model("openia:big", None)


@pytest.mark.parametrize("address", ["", "localhost:8000", "file:///etc", "ftp://x"])
def test_no_address(address: str) -> None:
    """What is no web address is refused at once, and not asked again for a minute."""
    with pytest.raises(
        UsageError, match=r"^--base-url: expected an address that begins with http:// or https://, got "
    ):
        choose_model("openai:big", address)


def test_the_example_tools() -> None:
    """They are offered unless they are refused."""
    assert names(examples=True) == EXAMPLES
    assert names() == []


@pytest.mark.parametrize("place", ["my_own_tools", "./my_own_tools.py"])
def test_tools_from_the_working_folder(here: Path, place: str) -> None:
    """A module or a file gives a function, a tool or several; one with an example's name takes its place."""
    assert names(f"{place}:plain") == ["plain"]
    assert names(f"{place}:several") == ["plain", "calculate"]
    assert names(f"{place}:plain", examples=True) == [*EXAMPLES, "plain"]
    (calculate, *_) = choose_tools([f"{place}:better"], examples=True)
    assert (calculate.name, calculate.description) == ("calculate", "Better.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("my_own_tools", "expected MODULE:NAME or FILE.py:NAME, got 'my_own_tools'"),
        (":x", "expected MODULE:NAME"),
        ("my_own_tools:", "expected MODULE:NAME"),
        ("my_own_tools:missing", "my_own_tools has no 'missing'"),
        ("my_own_tools:nothing", "expected tools or functions, got int"),
        ("my_own_tools:unfit", "unfit"),
        ("missing_module:x", r"cannot load missing_module \(ModuleNotFoundError: No module named 'missing_module'\)"),
        ("missing.py:x", r"cannot load missing\.py \(FileNotFoundError"),
        ("my_broken_tools:x", r"cannot load my_broken_tools \(RuntimeError: no such luck\)"),
        ("my_script.py:x", r"cannot load my_script\.py \(SystemExit: 0\)"),
    ],
)
def test_no_tools(here: Path, words: str, message: str) -> None:
    """Each way to be wrong is one line that names the place."""
    with pytest.raises(UsageError, match=message) as caught:
        names(words)
    assert "\n" not in str(caught.value)


def test_two_tools_of_one_name(here: Path) -> None:
    """Two tools of the user's own with one name are refused."""
    with pytest.raises(UsageError, match="two named 'plain'"):
        names("my_own_tools:plain", "my_own_tools:several")
