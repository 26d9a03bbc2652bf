"""Patterns over text that take time in proportion to the text, whatever pattern and text are.

`re` backtracks: `(a+)+b` against forty letters never ends, and both may come from strangers. Here a pattern becomes a
machine of states (Thompson's construction) that is in all its possible states at once, so each character is looked at
once. What no such machine can do (references back, looking ahead) is refused. Patterns have a greatest length and number
of states, and every match draws on a `Budget` of steps: one that is used up raises `TooCostly`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

MAX_PATTERN: Final = 1_000
"""Characters of a pattern."""
MAX_STATES: Final = 2_000
"""States of its machine, repetitions written out."""
_MAX_DEPTH: Final = 50
"""Groups within each other."""
_MAX_REPEAT: Final = 1_000

Test: TypeAlias = Callable[[str], bool]
"""Whether a character fits."""


class TooCostly(Exception):
    """The steps allowed for a decision are used up; whether the text matches is not known."""


class Budget:
    """Steps that may still be made."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def take(self, steps: int) -> None:
        """Use some. Raises `TooCostly` when there are not that many."""
        self.left -= steps
        if self.left < 0:
            raise TooCostly


@attrs.frozen
class Pattern:
    """A machine that says whether a whole text matches."""

    tests: tuple[Test | None, ...]
    """For each state, the character that it takes; None: it takes none."""
    ways: tuple[tuple[int, ...], ...]
    """For each state, where it leads: after its character, or at once where it takes none. State 0 is the end."""
    start: int

    def matches(self, text: str, budget: Budget) -> bool:
        """Whether the pattern describes all of the text. Raises `TooCostly`."""
        known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        states = self._reached((self.start,), budget)
        for character in text:
            key = (states, character)
            after = known.get(key)
            if after is None:
                after = known[key] = self._step(states, character, budget)
            budget.take(1)
            if not after:
                return False
            states = after
        return 0 in states

    def _step(self, states: frozenset[int], character: str, budget: Budget) -> frozenset[int]:
        budget.take(len(states))
        tests = self.tests
        taken = [state for state in states if (test := tests[state]) is not None and test(character)]
        return self._reached([way for state in taken for way in self.ways[state]], budget)

    def _reached(self, states: tuple[int, ...] | list[int], budget: Budget) -> frozenset[int]:
        """The states that take a character (and the end) that can be reached without taking one."""
        seen, open_states = set(states), list(states)
        while open_states:
            state = open_states.pop()
            if self.tests[state] is None:
                new = [way for way in self.ways[state] if way not in seen]
                seen.update(new)
                open_states += new
        budget.take(len(seen))
        return frozenset([state for state in seen if state == 0 or self.tests[state] is not None])


def glob(text: str) -> Pattern:
    """The pattern of a glob: `*` any characters, `?` one, `[abc]`, `[a-z]`, `[!abc]` one of these; `[*]` is a star.

    `*` takes every character, `/` and line ends too. Upper and lower case differ. Raises `ValueError`.
    """
    return _compiled(text, _Globs)


def regex(text: str) -> Pattern:
    """The pattern of a regular expression for the whole text: literals, `.` (any character, line ends too), `[…]`, groups,
    `|`, `* + ? {m,n}`, `\\d \\w \\s` and their opposites, `\\n \\t \\r`, `\\xHH`, `\\uHHHH`; `(?i)` in front: upper and lower
    case are the same.

    Raises `ValueError`, saying where, for anything else: back references, lookarounds and `\\b` among it.
    """
    return _compiled(text, _Expressions)


def _compiled(text: str, parser: type[_Parser]) -> Pattern:
    if len(text) > MAX_PATTERN:
        raise ValueError(f"expected a pattern of at most {MAX_PATTERN} characters, got {len(text)}")
    return parser(text).pattern()


# ---------------------------------------------------------------- parts of a pattern


@attrs.frozen
class _One:
    """One character."""

    test: Test


@attrs.frozen
class _Sequence:
    """One part after the other."""

    parts: tuple[_Part, ...]


@attrs.frozen
class _Choice:
    """One of the parts."""

    parts: tuple[_Part, ...]


@attrs.frozen
class _Repeat:
    """A part from `least` to `most` times; None: any number."""

    part: _Part
    least: int
    most: int | None


_Part: TypeAlias = _One | _Sequence | _Choice | _Repeat


def _any(character: str) -> bool:
    return True


class _Builder:
    """Makes the machine from its end to its start."""

    def __init__(self) -> None:
        self.tests: list[Test | None] = [None]
        self.ways: list[tuple[int, ...]] = [()]
        self.visits = 0

    def state(self, test: Test | None, ways: tuple[int, ...]) -> int:
        """A new state. Raises `ValueError` when there are too many."""
        if len(self.tests) >= MAX_STATES:
            raise ValueError(f"expected a pattern of at most {MAX_STATES} states, got more (large repetitions count)")
        self.tests.append(test)
        self.ways.append(ways)
        return len(self.tests) - 1

    def before(self, part: _Part, after: int) -> int:
        """The first state of a part that leads to `after`."""
        self.visits += 1
        if self.visits > 10 * MAX_STATES:  # repetitions of nothing make no states, and take their time all the same
            raise ValueError(f"expected a pattern of at most {MAX_STATES} states, got repetitions of repetitions")
        match part:
            case _One(test):
                return self.state(test, (after,))
            case _Sequence(parts):
                for inner in reversed(parts):
                    after = self.before(inner, after)
                return after
            case _Choice(parts):
                return self.state(None, tuple([self.before(inner, after) for inner in parts]))
            case _Repeat():
                return self._repeated(part, after)

    def _repeated(self, part: _Repeat, after: int) -> int:
        if part.most is None:
            loop = self.state(None, ())
            self.ways[loop] = (self.before(part.part, loop), after)
            after = loop
        else:
            end = after
            for _ in range(part.most - part.least):
                after = self.state(None, (self.before(part.part, after), end))
        for _ in range(part.least):
            after = self.before(part.part, after)
        return after


# ---------------------------------------------------------------- reading


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.folds = False

    def pattern(self) -> Pattern:
        """The machine of the whole text."""
        part = self.whole()
        builder = _Builder()
        start = builder.before(part, 0)
        return Pattern(tuple(builder.tests), tuple(builder.ways), start)

    def whole(self) -> _Part:
        """All of the text as one part."""
        raise AssertionError("a parser reads something")

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> bool:
        """Pass over this text if it comes next."""
        if not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def wrong(self, expected: str, at: int | None = None) -> ValueError:
        """The error of a place."""
        at = self.at if at is None else at
        got = repr(self.text[at : at + 10]) if at < len(self.text) else "the end"
        return ValueError(f"character {at + 1}: expected {expected}, got {got}")

    def one(self, character: str) -> _One:
        """This very character."""
        if self.folds:
            return _One(_same_letter(character))
        return _One(character.__eq__)

    def one_of(self, negation: str, escapes: bool) -> _One:
        """A class, behind its `[`."""
        start = self.at - 1
        negated = self.take(negation)
        tests: list[Test] = []
        first = True
        while first or self.peek() != "]":
            if not self.peek():
                raise self.wrong("a class with its `]`", start)
            first = False
            tests.append(self._range(escapes))
        self.at += 1
        if self.folds:
            tests = [_folded(test) for test in tests]
        return _One(_none_of(tests) if negated else _any_of(tests))

    def _range(self, escapes: bool) -> Test:
        at = self.at
        low = self._member(escapes)
        if callable(low):
            return low
        if self.peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return low.__eq__
        self.at += 1
        high = self._member(escapes)
        if callable(high) or high < low:
            raise self.wrong("a range from a lower to a higher character", at)
        return _between(low, high)

    def _member(self, escapes: bool) -> str | Test:
        character = self.peek()
        self.at += 1
        return self.escape() if escapes and character == "\\" else character

    def escape(self) -> str | Test:
        """What stands behind a backslash: a character, or a kind of character."""
        at = self.at - 1
        character = self.peek()
        self.at += 1
        if character in _KINDS:
            return _KINDS[character]
        if character in "xu" and character:
            digits = self.text[self.at : self.at + (2 if character == "x" else 4)]
            self.at += len(digits)
            if len(digits) != (2 if character == "x" else 4) or not set(digits) <= set("0123456789abcdefABCDEF"):
                raise self.wrong("hexadecimal digits", at)
            return chr(int(digits, 16))
        if character in _LETTERS:
            return _LETTERS[character]
        if not character or character.isalnum():
            raise self.wrong("an escape that needs no memory and no looking around", at)
        return character


class _Globs(_Parser):
    """A glob."""

    def whole(self) -> _Part:
        """All of it."""
        parts: list[_Part] = []
        while self.at < len(self.text):
            character = self.peek()
            self.at += 1
            if character == "*":
                if not (parts and isinstance(parts[-1], _Repeat)):
                    parts.append(_Repeat(_One(_any), 0, None))
            elif character == "?":
                parts.append(_One(_any))
            else:
                parts.append(self.one_of("!", escapes=False) if character == "[" else self.one(character))
        return _Sequence(tuple(parts))


class _Expressions(_Parser):
    """A regular expression."""

    def whole(self) -> _Part:
        """All of it; `^` in front and `$` at the end say what holds anyway."""
        self.folds = self.take("(?i)")
        self.take("^")
        part = self._choice(0)
        if self.at < len(self.text):
            raise self.wrong("the end, or `(` before this `)`")
        return part

    def _choice(self, depth: int) -> _Part:
        if depth > _MAX_DEPTH:
            raise self.wrong(f"at most {_MAX_DEPTH} groups within each other")
        parts = [self._sequence(depth)]
        while self.take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self.peek() not in ("", "|", ")"):
            if self.peek() == "$" and self.at == len(self.text) - 1 and depth == 0:
                self.at += 1
                break
            parts.append(self._repeated(self._atom(depth)))
        return _Sequence(tuple(parts))

    def _atom(self, depth: int) -> _Part:
        at, character = self.at, self.peek()
        self.at += 1
        if character == "(":
            if self.peek() == "?" and not self.take("?:"):
                raise self.wrong("a plain group (no lookaround, name or flag; `(?i)` only in front)", at)
            part = self._choice(depth + 1)
            if not self.take(")"):
                raise self.wrong("a group with its `)`", at)
            return part
        if character == "[":
            return self.one_of("^", escapes=True)
        if character == ".":
            return _One(_any)
        if character == "\\":
            escaped = self.escape()
            return _One(escaped) if callable(escaped) else self.one(escaped)
        if character in "*+?{^$":
            raise self.wrong("something to repeat, or a backslash before this sign", at)
        return self.one(character)

    def _repeated(self, part: _Part) -> _Part:
        at = self.at
        counts = self._counts()
        if counts is None:
            return part
        self.take("?")  # which of several matches is taken does not matter here
        if self.peek() and self.peek() in "*+?{":
            raise self.wrong("one repetition of a part (brackets around it for two)", at)
        return _Repeat(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in _SIGNS.items():
            if self.take(sign):
                return counts
        if self.peek() != "{":
            return None
        at = self.at
        inner, closing, _ = self.text[at + 1 :].partition("}")
        least, comma, most = inner.partition(",")
        numbers = [number for number in (least, most) if number]
        if not closing or not least or not all(number.isascii() and number.isdigit() for number in numbers):
            raise self.wrong("{m}, {m,} or {m,n}", at)
        low, high = int(least[:9]), (int(most[:9]) if most else None) if comma else int(least[:9])
        if low > _MAX_REPEAT or (high is not None and not low <= high <= _MAX_REPEAT):
            raise self.wrong(f"counts that go up, to {_MAX_REPEAT} at most", at)
        self.at = at + len(inner) + 2
        return low, high


_SIGNS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


def _digit(character: str) -> bool:
    return character.isdecimal()


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _not(test: Test) -> Test:
    return lambda character: not test(character)


_KINDS: Final[dict[str, Test]] = {
    "d": _digit,
    "D": _not(_digit),
    "w": _word,
    "W": _not(_word),
    "s": str.isspace,
    "S": _not(str.isspace),
}


def _between(low: str, high: str) -> Test:
    return lambda character: low <= character <= high


def _any_of(tests: list[Test]) -> Test:
    return lambda character: any(test(character) for test in tests)


def _none_of(tests: list[Test]) -> Test:
    return lambda character: not any(test(character) for test in tests)


def _same_letter(letter: str) -> Test:
    folded = letter.casefold()
    return lambda character: character.casefold() == folded


def _folded(test: Test) -> Test:
    return lambda character: test(character) or test(character.lower()) or test(character.upper())
