"""The Python blocks of the README and of the pages in `docs/` run, one after another, as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guide.md"


def run_blocks(page: Path) -> int:
    """Run the page's Python blocks as one program; returns how many there are."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile("\n".join(blocks), str(page), "exec", dont_inherit=True), {"__name__": page.stem})
    return len(blocks)


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The README's blocks, joined, run and print what their model says."""
    assert run_blocks(README) >= 4
    assert capsys.readouterr().out == "The sum is 5."


def test_the_guide_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's blocks run and print what they claim; the session's trace is in the current folder."""
    monkeypatch.chdir(tmp_path)
    assert run_blocks(GUIDE) >= 8
    assert capsys.readouterr().out.splitlines() == [
        "progress: 1 of 1",
        "output: 'Bonn: rain. '",
        "output: '\\nTake an umbrella.'",
        "result: ['Bonn: rain. ', 'Take an umbrella.']",
        "aborted user_abort that takes too long",
        "['[the disk is full]', 'Hi']",
        "Les hiboux volent.",
        "fatal auth",
        "completed Here I am.",
        "user What did I ask?",
        "assistant You asked for a sum.",
        "user: 2 + 3?",
        "add: done",
        "text: The sum is 5.",
        "user: What did I ask?",
        "text: You asked for a sum.",
        "['Tool call denied: asking for approval failed.']",
        "{'path': 'notes/tod'}",
    ]
    assert len(list((tmp_path / "traces").rglob("*.jsonl"))) == 1


def test_the_pages_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of every other page run as well; the page about adapters has a test of its own."""
    monkeypatch.chdir(tmp_path)
    said = {}
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name not in ("guide.md", "adapters.md") and run_blocks(page):
            said[page.name] = capsys.readouterr().out.splitlines()
    assert said == {
        "approvals.md": ["1 to be answered", 'delete {"path":"old.txt"}', "deleted old.txt · It is gone."],
        "eager_tools.md": [],
        "events.md": ["Good morning. [completed]"],
    }


def test_every_link_leads_somewhere() -> None:
    """What README and pages link to in this repository exists, headings included."""
    for page in (README, *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, heading = target.partition("#")
            if "://" in path:
                continue
            found = page.parent / path if path else page
            assert found.exists(), f"{page.name}: {target}"
            if heading:
                assert heading in headings(found), f"{page.name}: {target}"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_it_is_short() -> None:
    """A reader is through in a few minutes."""
    assert len(README.read_text(encoding="utf-8").splitlines()) < 170
