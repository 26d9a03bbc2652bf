"""Policies: verdicts from rules, conditions on arguments, plain data and TOML; patterns that never hang."""

from __future__ import annotations

import copy
import json
import pickle
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import ApprovalRequest, Config, PolicyError, ToolInvocation, approval, tool
from agentloop._approval.automaton import MAX_STATES, Budget, TooCostly
from agentloop._approval.patterns import MAX_PATTERN, glob, regex
from agentloop._approval.rules import STEPS, WORDS
from agentloop.approval import Condition, Policies, Policy, Rule, Verdict
from agentloop.testing import ScriptedModel

MANY = 10_000_000


@tool
async def work() -> str:
    """Work."""
    return "ok"


def word(policy: Any, name: str = "work", **arguments: Any) -> str:
    """The verdict's word."""
    return str(policy.decide(name, arguments).word)


# ---------------------------------------------------------------- patterns

LETTERS = "ab1_ -.\n"
SIMPLE = st.recursive(
    st.sampled_from(
        ["a", "b", "1", ".", "\\d", "\\w", "\\s", "\\W", "[ab]", "[^a]", "[a-b1]", "\\.", "\\n", "\\x61", "-"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
    ),
    max_leaves=8,
)


@given(SIMPLE, st.text(LETTERS, max_size=12))
def test_a_regular_expression_means_what_re_means(pattern: str, text: str) -> None:
    """On the whole text, with `.` for every character, the machine and `re` agree."""
    assert regex(pattern).matches(text, Budget(MANY)) == bool(re.fullmatch(pattern, text, re.DOTALL | re.ASCII))


@given(st.text("ab*?[]!-", max_size=8), st.text("ab*-]", max_size=8))
def test_a_glob_means_what_fnmatch_means(pattern: str, text: str) -> None:
    """Where the glob is whole: stars, question marks and classes agree with the standard library's."""
    import fnmatch

    try:
        machine = glob(pattern)
    except ValueError:
        assert "[" in pattern
        return
    if re.search(r"\[[^\]]*-", pattern):  # ranges of odd ends are an error here and nothing there
        return
    assert machine.matches(text, Budget(MANY)) == fnmatch.fnmatchcase(text, pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "((a*)*)*b", ".*.*.*.*.*b", "(.*a){20}b", "(?i)(A+)+B"]
)
def test_hostile_patterns_take_linear_time(pattern: str) -> None:
    """Each of these takes `re` for ever on forty letters; here ten thousand cost less than a hundred steps a character."""
    budget = Budget(100 * 10_000)
    assert not regex(pattern).matches("a" * 10_000, budget)
    assert regex(pattern).matches("a" * 9_999 + "b", Budget(100 * 10_000))


@pytest.mark.parametrize(
    "pattern",
    [
        "a{1000}{1000}",
        "(((a{1000}){1000}){1000})",
        "(((){1000}){1000}){1000}",
        "(" * 60 + ")" * 60,
        "a{1001}",
        "a{2,1}",
        "a" * (MAX_PATTERN + 1),
        "(a|b){1000}{1000}",
        "(a{1000}){2,}",
    ],
)
def test_patterns_that_grow_are_refused(pattern: str) -> None:
    """Repetitions of repetitions, also of nothing, deep nesting and length are errors at once."""
    with pytest.raises(ValueError, match="expected"):
        regex(pattern)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Policy(Rule("allow")), "Policy.rules: expected a list of Rule, got Rule; write [Rule(…)]"),
        (lambda: Policy([Rule("allow"), {}]), "Policy.rules[1]: expected a Rule, got dict"),
        (lambda: Rule("allow", where=Condition("a", equals=1)),
         "Rule.where: expected a list of Condition, got Condition; write [Condition(…)]"),
        (lambda: Rule("deny", unless=["a"]), "Rule.unless[0]: expected a Condition, got str"),
        (lambda: Rule("deny", unless=3), "Rule.unless: expected a list of Condition, got int"),
    ],
)  # fmt: skip
def test_what_is_no_rule_or_condition_is_named(make: Any, words: str) -> None:
    """Its place, and how a single one is written: a rule that is none would forbid every call, later."""
    with pytest.raises(TypeError, match=f"^{re.escape(words)}$"):
        make()


def test_a_long_repetition_has_room() -> None:
    """Up to the limit a repetition is written out."""
    assert regex(f"a{{{MAX_STATES // 2}}}").matches("a" * (MAX_STATES // 2), Budget(MANY))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(a)\1", "character 4: expected an escape that needs no memory and no looking around, got"),
        (r"a(?=b)", "character 2: expected a plain group"),
        (r"(?<!a)b", "character 1: expected a plain group"),
        (r"\bx", "character 1: expected an escape"),
        ("a**", "character 2: expected one repetition"),
        ("*a", "character 1: expected something to repeat"),
        ("a^b", "character 2: expected something to repeat"),
        ("(a", r"character 1: expected a group with its `\)`"),
        ("a)", "character 2: expected the end"),
        ("[a", "character 1: expected a class"),
        ("[b-a]", "character 2: expected a range"),
        (r"\x6", "character 1: expected hexadecimal digits"),
        ("a{x}", "character 2: expected {m}"),
        ("a\\", "character 2: expected an escape"),
    ],
)
def test_a_pattern_that_cannot_be_read_says_where(pattern: str, words: str) -> None:
    """The place, what was expected, what came."""
    with pytest.raises(ValueError, match=words):
        regex(pattern)


def test_upper_and_lower_case() -> None:
    """They differ, unless the expression begins with (?i); classes and negated ones follow."""
    assert not regex("rm").matches("RM", Budget(MANY))
    for pattern, text, fits in (("(?i)rm", "Rm", True), ("(?i)[a-c]+", "aBc", True), ("(?i)[^a]", "A", False)):
        assert regex(pattern).matches(text, Budget(MANY)) is fits


def test_a_budget_ends_a_match() -> None:
    """A text that is longer than the steps that are left is not judged."""
    with pytest.raises(TooCostly):
        glob("*x").matches("a" * 1_000, Budget(500))


# ---------------------------------------------------------------- which verdict


def test_without_a_rule_the_default_decides() -> None:
    """It is `ask` unless said otherwise."""
    assert word(Policy()) == "ask"
    assert [word(Policy(default=each)) for each in WORDS] == list(WORDS)


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
def test_the_strictest_rule_wins_in_any_order(words: list[Any]) -> None:
    """Whatever stands first, the mildest and the default say nothing where a stricter rule matches."""
    assert word(Policy([Rule(each) for each in words], default="allow")) == max(words, key=WORDS.index)


def test_the_verdict_names_its_rule() -> None:
    """The reason says which rule, in its own words if it has some."""
    policy = Policy([Rule("allow"), Rule("deny", tools=["x", "w*"], reason="no work today")])
    assert policy.decide("work", {}) == Verdict("deny", "rules[1]: no work today")
    assert policy.decide("other", {}) == Verdict("allow", "rules[0]")
    assert Policy().decide("work", {}).reason == "no rule is about this call"


POLICIES = st.builds(
    Policy,
    st.lists(st.builds(Rule, st.sampled_from(WORDS), st.sampled_from(["*", "a", "b", "a*"])), max_size=4),
    st.sampled_from(WORDS),
)


@given(
    st.recursive(POLICIES, lambda inner: st.builds(lambda a, b: a & b, inner, inner), max_leaves=4),
    st.sampled_from("ab"),
)
def test_forbidden_wins_in_every_composition(policy: Any, name: str) -> None:
    """However policies are put together, one that forbids forbids, and the whole is never milder than a part."""
    parts, waiting = [], [policy]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Policies):
            waiting += part.members
        else:
            parts.append(word(part, name))
    assert word(policy, name) == max(parts, key=WORDS.index)
    decisions = {"allow": "allow", "ask": None, "deny": "deny", "forbid": "forbidden"}
    assert policy.policy(ToolInvocation("c", name, {}, work)) == decisions[word(policy, name)]
    assert policy(ApprovalRequest("c", name, "{}")) == (decisions[word(policy, name)] or "deny")


@pytest.mark.parametrize("answer", [RuntimeError("x"), None, "yes", 1])
@pytest.mark.parametrize("verdict", WORDS)
def test_a_function_that_fails_forbids(answer: Any, verdict: Any) -> None:
    """It raises, or says neither True nor False: forbidden, whatever its rule would have said."""

    def when(name: str, arguments: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert word(Policy([Rule(verdict, when=when)], default="allow")) == "forbid"


def test_a_function_decides() -> None:
    """True is a match, False none; one that would have to be awaited forbids."""
    policy = Policy([Rule("allow", when=lambda name, arguments: len(arguments["path"]) < 5)])
    assert (word(policy, path="abc"), word(policy, path="abcdef")) == ("allow", "ask")

    async def when(name: str, arguments: Any) -> bool:
        return True

    assert word(Policy([Rule("allow", when=when)])) == "forbid"  # type: ignore[arg-type]


@pytest.mark.parametrize("member", [None, "allow", Verdict("perhaps", "")])  # type: ignore[arg-type]
def test_a_member_that_fails_forbids(member: Any) -> None:
    """A policy of one's own that raises or returns nonsense is a closed door."""

    class Own:
        def decide(self, name: str, arguments: Any) -> Any:
            if member is None:
                raise OSError("rules are gone")
            return member

    assert word(Policy(default="allow") & Own()) == "forbid"


def test_arguments_that_are_no_object_are_denied() -> None:
    """What cannot be read is not allowed, whatever the default."""
    for text in ("", "[]", "{", "null"):
        assert Policy(default="allow")(ApprovalRequest("c", "work", text)) == "deny"


# ---------------------------------------------------------------- conditions


def holds(condition: Condition, arguments: Any) -> tuple[bool, bool]:
    """Whether it holds surely, and perhaps."""
    return tuple(condition.holds(arguments, Budget(STEPS), surely=surely) for surely in (True, False))  # type: ignore[return-value]


YES, NO, UNSURE = (True, True), (False, False), (False, True)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a", 1), ("o.k", 2), ('o["odd.key"]', 3), ('["o"].k', 2), ("l[0]", 4), ("l[-1]", 5), ("n.deep[1].x", 7),
    ],
)  # fmt: skip
def test_paths(path: str, found: int) -> None:
    """Keys, indexes from both ends, keys in quotes."""
    arguments = {"a": 1, "o": {"k": 2, "odd.key": 3}, "l": [4, 5], "n": {"deep": [6, {"x": 7}]}}
    assert holds(Condition(path, equals=found), arguments) == YES
    assert holds(Condition(path, equals=0), arguments) == NO
    assert (
        holds(
            Condition("missing." + path.lstrip("["), equals=found) if path[0] != "[" else Condition("x", equals=1), {}
        )
        == NO
    )


@pytest.mark.parametrize("path", ["", ".a", "a.", "a..b", "a b", "a[", "a[x]", "[", "a[*", "***", "a.*", 'a["b]'])
def test_paths_that_cannot_be_read(path: str) -> None:
    """They are an error when the condition is made."""
    with pytest.raises(ValueError, match="argument: expected a path"):
        Condition(path, equals=1)


def test_each_of_several_values() -> None:
    """`[*]` and `**`: all must fit to be sure, one is enough for a suspicion, none at all is no hit."""
    for path in ("files[*]", "**"):
        condition = Condition(path, glob="*.txt")
        assert holds(condition, {"files": ["a.txt", "b.txt"]}) == YES
        assert holds(condition, {"files": ["a.txt", "b.key"]}) == UNSURE
        assert holds(condition, {"files": ["b.key"]}) == NO
        assert holds(condition, {"files": []}) == NO
    assert holds(Condition("[*]", equals=1), {"a": 1, "b": 1}) == YES


@pytest.mark.parametrize(
    ("value", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (1, "1", False),
        (None, None, True),
        ([1], [True], False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ("x", "X", False),
    ],
)
def test_equals(value: Any, other: Any, same: bool) -> None:
    """JSON values: numbers by value, truth values are no numbers, objects by all their keys."""
    assert holds(Condition("a", equals=value), {"a": other}) == (YES if same else NO)


def test_what_is_no_text_is_its_json() -> None:
    """A list that a tool would join is not out of a pattern's reach."""
    assert holds(Condition("command", regex=".*rm.*"), {"command": ["rm", "-rf"]}) == YES
    assert holds(Condition("n", regex="[0-9]+"), {"n": 12}) == YES


@pytest.mark.parametrize(
    ("folder", "path", "answer"),
    [
        ("src", "src/a", YES), ("src", "src", YES), ("src", "./src//a/../b", YES), ("src/", "src/a", YES),
        ("src", "srcs/a", NO), ("src", "src/../a", NO), ("src", "a", NO), ("src", 5, NO), (".", "a", YES),
        ("src", "../main/src/a", UNSURE), ("src", "src/../../etc", UNSURE), ("src", "/etc", UNSURE), ("src", "~/a", UNSURE),
        ("src", "src\\..\\..\\etc", UNSURE), ("src", "src/a\0", UNSURE), ("src", "C:/src", UNSURE), ("src", ["src/a"], UNSURE),
        ("/etc", "/etc/passwd", YES), ("/etc", "//etc/passwd", YES), ("/etc", "/etc/../home", NO), ("/", "/x", YES),
        ("/etc", "etc", UNSURE), ("src", "", NO),
    ],
)  # fmt: skip
def test_within(folder: str, path: Any, answer: tuple[bool, bool]) -> None:
    """Below the folder by the path's words; what only the file system knows is neither allowed nor let by."""
    assert holds(Condition("path", within=folder), {"path": path}) == answer


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "expected one of equals, glob, regex, within, got none"),
        ({"glob": "a", "regex": "b"}, "got glob and regex"),
        ({"regex": "(a"}, "regex: character 1"),
        ({"glob": "[a"}, "glob: character 1"),
        ({"within": ""}, "within: expected a folder"),
        ({"within": "../x"}, "within: expected a folder"),
        ({"equals": float("nan")}, "expected a JSON number"),
    ],
)
def test_conditions_that_cannot_be(fields: Any, words: str) -> None:
    """Exactly one test, of a kind that can be read."""
    with pytest.raises(ValueError, match=words):
        Condition("a", **fields)


def test_allow_needs_certainty_and_the_others_a_suspicion() -> None:
    """A value that cannot be judged is not allowed, and is stopped by each rule that closes."""
    value = "../x"
    for verdict, expected in (("allow", "ask"), ("deny", "deny"), ("forbid", "forbid")):
        assert word(Policy([Rule(verdict, where=[Condition("path", within="src")])]), path=value) == expected


def test_an_exception_is_the_other_way_round() -> None:
    """`unless`: a suspicion takes a permission away, a prohibition is only lifted with certainty."""
    inside = [Condition("path", within="src")]
    allow, deny = Policy([Rule("allow", unless=inside)]), Policy([Rule("deny", unless=inside)])
    assert [word(allow, path=path) for path in ("src/a", "../x", "lib/a")] == ["ask", "ask", "allow"]
    assert [word(deny, path=path) for path in ("src/a", "../x", "lib/a")] == ["ask", "deny", "deny"]
    assert word(deny) == "deny"


def test_hostile_values_end_and_close_the_door() -> None:
    """Values beyond the steps of a decision: the rule that allows them does not match, the one that denies does."""
    huge: dict[str, Any] = {"text": "a" * (STEPS + 1), "list": ["x"] * (STEPS + 1)}
    deep: Any = "x"
    for _ in range(150):
        deep = [deep, deep] if isinstance(deep, str) else [deep]
    for path in ("text", "list[*]", "**"):
        assert holds(Condition(path, glob="*b" if path == "text" else "*"), huge) == UNSURE
    assert holds(Condition("**", equals="x"), {"d": deep}) == YES


def test_the_steps_are_those_of_the_whole_decision() -> None:
    """Many costly rules do not add up: once the steps are used up, every further rule that closes matches."""
    rules = [Rule("ask", where=[Condition("text", regex=f"(.*a){{{n}}}b")]) for n in range(1, 50)]
    policy = Policy([*rules, Rule("forbid", where=[Condition("text", glob="y")])], default="allow")
    assert word(policy, text="ab" * 20_000) == "forbid"
    assert word(policy, text="a") == "allow"


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=8),
    )
)
def test_a_decision_never_raises(arguments: dict[str, Any]) -> None:
    """Whatever the arguments, there is a verdict."""
    tests: list[Any] = [{"glob": "*a?"}, {"regex": "a+"}, {"equals": None}, {"within": "a"}]
    rules = [Rule("deny", where=[Condition(path, **test)]) for path in ("a", "[*]", "**", "a[0].b") for test in tests]
    assert (
        word(
            Policy(rules, "allow"),
        )
        in WORDS
    )
    assert Policy(rules, "allow").decide("work", arguments).word in ("allow", "deny")


# ---------------------------------------------------------------- plain data and TOML

EXAMPLE = """
default = "deny"

[[rules]]
verdict = "allow"
tools = ["read_*", "list_files"]
where = [{ argument = "path", within = "src" }]
unless = [{ argument = "path", glob = "*.key" }]
reason = "sources may be read"

[[rules]]
verdict = "forbid"
tools = "shell"
where = [
    { argument = "command", regex = '.*\\bad.*' },
]
"""


def test_a_policy_in_toml() -> None:
    """The example of the docstring and more is the same policy in Python."""
    policy = Policy.from_toml(EXAMPLE.replace("\\bad", "sudo"))
    where, unless = [Condition("path", within="src")], [Condition("path", glob="*.key")]
    assert policy == Policy(
        [
            Rule("allow", ["read_*", "list_files"], where, unless, "sources may be read"),
            Rule("forbid", "shell", [Condition("command", regex=".*sudo.*")]),
        ],
        "deny",
    )


def test_the_policy_in_the_docs() -> None:
    """It can be read, and does what the page says."""
    page = (Path(__file__).resolve().parents[1] / "docs/approvals.md").read_text("utf-8")
    policy = Policy.from_toml(page.split("```toml\n")[1].split("```")[0])
    assert [word(policy, "read_file", path=path) for path in ("src/a.py", "src/a.key", "../src/a.py")] == [
        "allow",
        "ask",
        "ask",
    ]
    assert [word(policy, "shell", command=line) for line in ("ls", "SUDO rm x", "ls; sudo rm")] == [
        "ask",
        "forbid",
        "forbid",
    ]


CONDITIONS = st.one_of(
    st.builds(
        Condition, st.sampled_from(["a", "**", "l[*].x"]), equals=st.none() | st.integers() | st.lists(st.text())
    ),
    st.builds(lambda text: Condition("a", glob=text), st.text("ab*?", max_size=5)),
    st.builds(lambda text: Condition("a", regex=text), SIMPLE),
)
RULES = st.builds(
    Rule,
    st.sampled_from(WORDS),
    st.lists(st.text("ab*", min_size=1), min_size=1, max_size=2),
    st.lists(CONDITIONS, max_size=2),
    st.lists(CONDITIONS, max_size=2),
    st.none() | st.text(),
)


@given(st.builds(Policy, st.lists(RULES, max_size=3), st.sampled_from(WORDS)))
def test_plain_data_round_trips(policy: Policy) -> None:
    """Through JSON and back it is the same policy."""
    assert Policy.from_data(json.loads(json.dumps(policy.to_data()))) == policy


def test_a_function_is_no_data() -> None:
    """A rule with `when` cannot be written down."""
    with pytest.raises(PolicyError, match=r"rules\[1\]\.when: expected a rule of data"):
        Policy([Rule("ask"), Rule("ask", when=lambda name, arguments: True)]).to_data()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("default = 'maybe'", "line 1, default: expected one of allow, ask, deny, forbid, got 'maybe'"),
        ("\ndefault = 5", "line 2, default: expected one of allow, ask, deny, forbid, got 5"),
        ("rules = 5", "line 1, rules: expected an array, got 5"),
        ("colour = 'red'", "line 1, colour: expected one of the keys default, rules, got 'colour'"),
        ("[[rules]]\n", "line 1, rules[0].verdict: expected allow, ask, deny or forbid, got nothing"),
        (
            "[[rules]]\nverdict = 'Allow'",
            "line 2, rules[0].verdict: expected one of allow, ask, deny, forbid, got 'Allow'",
        ),
        (
            "[[rules]]\nverdict = 'ask'\n[[rules]]\nverdict = 'ask'\ntool = 'x'",
            "line 5, rules[1].tool: expected one of the keys",
        ),
        ("[[rules]]\nverdict = 'ask'\ntools = []", "line 3, rules[0].tools: expected a name at least, got none"),
        ("[[rules]]\nverdict = 'ask'\ntools = [1]", "line 3, rules[0].tools[0]: expected a text, got 1"),
        ("[[rules]]\nverdict = 'ask'\ntools = 'a['", "line 3, rules[0].tools: character 2: expected a class"),
        ("[[rules]]\nverdict = 'ask'\nwhere = {}", "line 3, rules[0].where: expected an array, got a table"),
        ("[[rules]]\nverdict = 'ask'\nwhere = [1]", "line 3, rules[0].where[0]: expected a table, got 1"),
        ("[[rules]]\nverdict = 'ask'\nwhere = [{glob = 'a'}]", "line 3, rules[0].where[0].argument: expected a path"),
        (
            "[[rules]]\nverdict = 'ask'\nwhere = [{argument = 'a', regex = '(?=x)'}]",
            "rules[0].where[0].regex: character 1: expected a plain",
        ),
        (
            "[[rules]]\nverdict = 'ask'\nwhere = [{argument = 'a', equals = 1979-05-27}]",
            "rules[0].where[0]: $: expected",
        ),
        (
            "[[rules]]\nverdict = 'ask'\nreason = '''\n[[rules]]\nverdict = 5\n'''\nwhen = 1",
            "line 7, rules[0].when: expected one of the keys",
        ),
        ("default = ", "TOML: expected TOML, got an error: Invalid value (at end of document)"),
        ("policy.toml", "(at end of document); a file is given as a Path"),
        ("x" * 200_001, "TOML: expected at most 200000 characters, got more"),
    ],
)
def test_errors_of_a_policy_say_where(text: str, words: str) -> None:
    """Line and key, what was expected, what came."""
    with pytest.raises(PolicyError) as caught:
        Policy.from_toml(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copied_policy_says_the_same(again: Any) -> None:
    """Also one that went to another process: equal, and no door stands open that was closed."""
    rules = [
        Rule("forbid", "shell", [Condition("command", regex=".*sudo.*")]),
        Rule("allow", "read_*", [Condition("path", within="src")], [Condition("path", glob="*.key")]),
        Rule("deny", "send", [Condition("to", equals=None)]),
    ]
    policy = Policy(rules, "ask") & Policy([Rule("deny", "shell", [Condition("**", glob="*rm*")])], "allow")
    copied = again(policy)
    assert copied == policy and hash(copied) == hash(policy)
    for name, arguments in (
        ("shell", {"command": "sudo ls"}),
        ("shell", {"command": "rm x"}),
        ("read_file", {"path": "src/a"}),
        ("read_file", {"path": "src/a.key"}),
        ("send", {"to": None}),
        ("send", {}),
    ):
        assert copied.decide(name, arguments) == policy.decide(name, arguments)
    assert word(copied, "shell", command="sudo ls") == "forbid"


def test_the_example_at_the_head_of_the_module() -> None:
    """It can be typed in as it stands, and means what it seems to."""
    lines = [line for line in str(approval.__doc__).splitlines() if line.startswith("    ")]
    scope: dict[str, Any] = {**vars(approval), "Config": Config, "model": ScriptedModel([])}
    exec(textwrap.dedent("\n".join(lines)), scope)
    policy = scope["policy"]
    assert scope["config"].approve is not None
    assert [word(policy, "read_file", path=path) for path in ("src/a.py", "etc/a.py")] == ["allow", "ask"]
    assert [word(policy, "shell", command=line) for line in ("sudo rm x", "ls")] == ["forbid", "ask"]


def test_a_policy_in_a_file(tmp_path: Path) -> None:
    """A path is a file, with Windows line ends and a byte order mark too; errors name it; other bytes are an error."""
    path = tmp_path / "policy.toml"
    path.write_bytes(b"\xef\xbb\xbfdefault = 'deny'\r\n[[rules]]\r\nverdict = 'allow'\r\n")
    assert Policy.from_toml(path) == Policy([Rule("allow")], "deny")
    path.write_bytes(b"default = 'deny'\n[[rules]]\nverdict = 'al'\n")
    with pytest.raises(PolicyError, match=re.escape(f"{path}, line 3, rules[0].verdict: expected")):
        Policy.from_toml(path)
    path.write_bytes(b"default = '\xff'")
    with pytest.raises(PolicyError, match="expected text in UTF-8, got byte 0xff at 11"):
        Policy.from_toml(path)
    with pytest.raises(FileNotFoundError):
        Policy.from_toml(tmp_path / "none.toml")
