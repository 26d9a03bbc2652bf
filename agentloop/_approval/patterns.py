"""Patterns as people write them, globs and regular expressions, read into machines of states.

What no such machine can do (references back, looking ahead) is refused, and so is a pattern that is too long.
"""

from __future__ import annotations

from typing import Final

from agentloop._approval.automaton import Builder, Choice, One, Part, Pattern, Repeat, Sequence, Test

MAX_PATTERN: Final = 1_000
"""Characters of a pattern."""
_MAX_DEPTH: Final = 50
"""Groups within each other."""
_MAX_REPEAT: Final = 1_000


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
        builder = Builder()
        start = builder.before(part, 0)
        return Pattern(tuple(builder.tests), tuple(builder.ways), start)

    def whole(self) -> Part:
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

    def one(self, character: str) -> One:
        """This very character."""
        if self.folds:
            return One(_same_letter(character))
        return One(character.__eq__)

    def one_of(self, negation: str, escapes: bool) -> One:
        """A class, after its `[`."""
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
        return One(_none_of(tests) if negated else _any_of(tests))

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
        """What stands after a backslash: a character, or a kind of character."""
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

    def whole(self) -> Part:
        """All of it."""
        parts: list[Part] = []
        while self.at < len(self.text):
            character = self.peek()
            self.at += 1
            if character == "*":
                if not (parts and isinstance(parts[-1], Repeat)):
                    parts.append(Repeat(One(_any), 0, None))
            elif character == "?":
                parts.append(One(_any))
            else:
                parts.append(self.one_of("!", escapes=False) if character == "[" else self.one(character))
        return Sequence(tuple(parts))


class _Expressions(_Parser):
    """A regular expression."""

    def whole(self) -> Part:
        """All of it; `^` in front and `$` at the end say what holds anyway."""
        self.folds = self.take("(?i)")
        self.take("^")
        part = self._choice(0)
        if self.at < len(self.text):
            raise self.wrong("the end, or `(` before this `)`")
        return part

    def _choice(self, depth: int) -> Part:
        if depth > _MAX_DEPTH:
            raise self.wrong(f"at most {_MAX_DEPTH} groups within each other")
        parts = [self._sequence(depth)]
        while self.take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, depth: int) -> Part:
        parts: list[Part] = []
        while self.peek() not in ("", "|", ")"):
            if self.peek() == "$" and self.at == len(self.text) - 1 and depth == 0:
                self.at += 1
                break
            parts.append(self._repeated(self._atom(depth)))
        return Sequence(tuple(parts))

    def _atom(self, depth: int) -> Part:
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
            return One(_any)
        if character == "\\":
            escaped = self.escape()
            return One(escaped) if callable(escaped) else self.one(escaped)
        if character in "*+?{^$":
            raise self.wrong("something to repeat, or a backslash before this sign", at)
        return self.one(character)

    def _repeated(self, part: Part) -> Part:
        at = self.at
        counts = self._counts()
        if counts is None:
            return part
        self.take("?")  # which of several matches is taken does not matter here
        if self.peek() and self.peek() in "*+?{":
            raise self.wrong("one repetition of a part (brackets around it for two)", at)
        return Repeat(part, *counts)

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


def _any(character: str) -> bool:
    return True
