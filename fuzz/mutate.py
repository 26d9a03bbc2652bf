"""A plain mutator of bytes: the corpus cut, joined and spoilt at random, with the pieces that parsers dislike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"

_DISLIKED: Final = (
    b"\0", b"\r", b"\n", b"\r\n", b"\n\n", b"\x1b[2J", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xe2\x80\xa8", b'"', b"\\", b"\\u",
    b"\\ud800", b"\\udc00", b"\xed\xa0\x80", b"{", b"}", b"[", b"]", b"[" * 300, b'{"a":' * 300, b":", b",", b"null", b"true",
    b"NaN", b"-Infinity", b"1e999", b"-0", b"0.1", b"9" * 25, b"9" * 5_000, b'"__class__"', b'"__proto__"', b'{"a":1,"a":2}',
    b"data:", b"id:", b"event:", b": ", b"(a+)+", b"*", b'"""', b"'''", b"{0.__class__}", b"%s", b"../", b"\xf0\x9f\x98\x80",
)  # fmt: skip


def corpus(name: str) -> list[bytes]:
    """What the corpus holds for a target, in the order of the names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def mutated(generator: random.Random, seeds: Sequence[bytes]) -> bytes:
    """An input made of the seeds by one to eight changes."""
    data = bytearray(generator.choice(seeds))
    for _ in range(generator.randint(1, 8)):
        generator.choice(_CHANGES)(generator, data, seeds)
    return bytes(data)


def _place(generator: random.Random, data: bytearray) -> tuple[int, int]:
    start = generator.randint(0, len(data))
    return start, min(len(data), start + generator.choice((1, 1, 2, 4, 16, 64)))


def _flip(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)


def _insert(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = generator.randint(0, len(data))
    data[at:at] = generator.choice(_DISLIKED)


def _replace(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start, end = _place(generator, data)
    data[start:end] = generator.choice(_DISLIKED)


def _delete(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start, end = _place(generator, data)
    del data[start:end]


def _repeat(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start, end = _place(generator, data)
    data[start:start] = data[start:end] * generator.choice((1, 2, 8))


def _join(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = generator.choice(seeds)
    start, _ = _place(generator, data)
    data[start:] = other[generator.randint(0, len(other)) :]


def _swap(generator: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start, end = _place(generator, data)
    piece = data[start:end]
    del data[start:end]
    at = generator.randint(0, len(data))
    data[at:at] = piece


_CHANGES: Final[tuple[Callable[[random.Random, bytearray, Sequence[bytes]], None], ...]] = (
    _flip, _insert, _replace, _delete, _repeat, _join, _swap,
)  # fmt: skip
