"""Questions to a person about calls: asked one at a time or all at once, answered in any order, from any thread.

An answer is bound to what was shown. It names the call and carries the digest of tool and arguments; if something else is
asked under that id meanwhile, it is refused. A question that is no longer waited for (time-out, abort, the run was left)
takes no answer. What counts in the end is the run's `ApprovalDecision`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import attrs

from agentloop._approval.rules import Verdict, checked_word
from agentloop._digest import shown_digest
from agentloop._jsontext import json_text, parse_json
from agentloop._values import as_tuple
from agentloop.abort import AbortSignal
from agentloop.config import Decision, MaybeAwaitable
from agentloop.errors import AnswerError
from agentloop.events import ApprovalRequest
from agentloop.tools import ToolInvocation

Key: TypeAlias = tuple[str, ...]
"""The origin of a question and its call's id."""

_REMEMBERED: Final = 1_000
"""How many questions that are over are remembered, so that a late answer is told from one to no question at all."""


class PolicyLike(Protocol):
    """What decides about calls: a `Policy`, several, or a class of one's own."""

    def decide(self, name: str, arguments: Mapping[str, Any]) -> Verdict:
        """The verdict about a call of this tool with these arguments. What it raises forbids the call."""
        ...


def decided(policy: PolicyLike, name: str, arguments: Mapping[str, Any]) -> Verdict:
    """A policy's verdict; `forbid` from one that fails."""
    try:
        verdict = policy.decide(name, arguments)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"expected a Verdict, got {type(verdict).__name__}")
        checked_word(verdict.word)
    except Exception as error:
        return Verdict("forbid", f"the policy failed: {type(error).__name__}: {error}")
    return verdict


@attrs.frozen
class Question:
    """A call that a person is asked about: its id (`tool_call_id`), and the tool (`tool_name`)."""

    tool_call_id: str
    tool_name: str
    arguments: str
    """JSON text, exactly what would run. Show it as it is, with control characters made harmless."""
    origin: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    """The nested sessions that it comes from, outermost first."""
    reason: str | None = None
    """Why it is asked: the rule that says so."""

    @property
    def digest(self) -> str:
        """What an answer is bound to."""
        return shown_digest(self.tool_name, self.arguments)


class _Open:
    """A question that is waited for."""

    __slots__ = ("answered", "decision", "question")

    def __init__(self, question: Question) -> None:
        self.question = question
        self.decision: Literal["allow", "deny"] | None = None
        self.answered = AbortSignal()  # the one switch here that any thread may fire and any backend await


class Approvals:
    """Asks a person about calls: an `approve` for a `Config` or a session, and the list of what waits for an answer.

    `policy` decides first: only its `ask` becomes a question (None: every call does). `approved` are answers that were given
    before, say in another process: call ids, each with the arguments that were shown; such a call runs without a question if
    it has these very arguments and the policy does not object. `on_question` is told each question as it opens; what it
    raises denies the call.

    With `Config.approval_order="all_at_once"` all calls of a reply are listed at once; with `approval_timeout` a question
    that nobody answers is denied. One object may serve several runs at once if their call ids differ, and nested runs,
    whose questions have an origin. All methods may be called from any thread. Raises `TypeError` for a policy without a
    `decide`.
    """

    def __init__(
        self,
        policy: PolicyLike | None = None,
        *,
        approved: Mapping[str, str] | None = None,
        on_question: Callable[[Question], MaybeAwaitable[None]] | None = None,
    ) -> None:
        if policy is not None and not callable(getattr(policy, "decide", None)):
            raise TypeError(f"policy: expected a Policy, or what has its decide(), got {type(policy).__name__}")
        self._policy = policy
        self._approved = dict(approved or {})
        self._on_question = on_question
        self._open: dict[Key, _Open] = {}
        self._over: OrderedDict[Key, Literal["duplicate", "late"]] = OrderedDict()
        self._always: set[Key] = set()
        self._news = AbortSignal()
        self._lock = threading.Lock()

    # ---------------------------------------------------------------- for the person

    @property
    def pending(self) -> tuple[Question, ...]:
        """The questions without an answer, in the order in which they were asked."""
        with self._lock:
            return tuple([each.question for each in self._open.values() if each.decision is None])

    async def wait(self) -> tuple[Question, ...]:
        """`pending`, as soon as there is something in it. Cancellable."""
        while True:
            news = self._news
            pending = self.pending
            if pending:
                return pending
            await news.wait()

    def answer(
        self,
        question: Question | str,
        decision: Literal["allow", "deny"],
        digest: str | None = None,
        *,
        origin: Sequence[str] = (),
        always: bool = False,
    ) -> None:
        """Answer a question: itself, or its call's id with the `digest` of what was shown (and its `origin`).

        With `always`, an `allow` is for every later call of that tool that would be asked about; never over a `deny` or
        `forbid` of the policy. Raises `AnswerError`, and then nothing has changed: `unknown`, `duplicate`, `late`,
        `changed`, `invalid`.
        """
        if isinstance(question, Question):
            origin, digest, id = question.origin, question.digest, question.tool_call_id
        else:
            id = question
        if decision not in ("allow", "deny"):
            raise AnswerError("invalid", f"answer to {id!r}: expected 'allow' or 'deny', got {decision!r}")
        if digest is None:
            raise AnswerError("invalid", f"answer to {id!r}: expected the digest of what was shown, got none")
        with self._lock:
            found = self._found((*origin, id), digest)
            found.decision = decision
            if always and decision == "allow":
                self._always.add((*found.question.origin, found.question.tool_name))
        found.answered.abort()

    def _found(self, key: Key, digest: str) -> _Open:
        found = self._open.get(key)
        if found is None:
            over = self._over.get(key)
            if over is None:
                known = ", ".join(repr(each[-1]) for each in self._open) or "none"
                raise AnswerError("unknown", f"answer to {key[-1]!r}: expected a call that is asked about ({known})")
            if over == "late":
                raise AnswerError("late", f"answer to {key[-1]!r}: expected it while it was waited for, got it late")
        if found is None or found.decision is not None:
            raise AnswerError("duplicate", f"answer to {key[-1]!r}: expected one answer, got another")
        if digest != found.question.digest:
            raise AnswerError("changed", f"answer to {key[-1]!r}: expected one to the arguments as they are shown now")
        return found

    # ---------------------------------------------------------------- for the loop

    def policy(self, call: ToolInvocation) -> Decision | None:
        """What needs no question; None: ask. A call of a nested run says where it comes from, as its request does."""
        return self._settled(tuple(getattr(call, "origin", ())), call.id, call.name, call.arguments)[0]

    async def __call__(self, request: ApprovalRequest) -> Decision:
        """Ask, and wait for the answer. Cancelled, the question is withdrawn.

        A request of a nested run says where it comes from by an attribute `origin`, session ids, outermost first.
        """
        return await self._ask(tuple(getattr(request, "origin", ())), request)

    def _settled(
        self, origin: Key, id: str, name: str, arguments: Mapping[str, Any]
    ) -> tuple[Decision | None, str | None]:
        """The decision that needs no question, or None and why it is asked."""
        verdict = Verdict("ask", "") if self._policy is None else decided(self._policy, name, arguments)
        if verdict.word == "forbid":
            return "forbidden", None
        if verdict.word != "ask":
            return verdict.word, None
        with self._lock:
            if (*origin, name) in self._always:
                return "allow", None
            if not origin and id in self._approved and self._approved[id] == json_text(arguments):
                del self._approved[id]  # it was an answer about one call, and ids may come again in another run
                return "allow", None
        return None, verdict.reason or None

    async def _ask(self, origin: Key, request: ApprovalRequest) -> Decision:
        id, name = request.tool_call_id, request.tool_name
        arguments = parse_json(request.arguments)
        if not isinstance(arguments, dict):
            raise ValueError(f"{name}: expected arguments that are an object, got {type(arguments).__name__}")
        decision, reason = self._settled(origin, id, name, arguments)
        if decision is not None:
            return decision
        question = Question(id, name, request.arguments, origin, reason)
        key, waiting = (*origin, id), _Open(question)
        self._add(key, waiting)
        try:
            told = None if self._on_question is None else self._on_question(question)
            if told is not None:
                await told
            await waiting.answered.wait()
            return waiting.decision or "deny"
        finally:
            self._remove(key, waiting)

    def _add(self, key: Key, waiting: _Open) -> None:
        with self._lock:
            if key in self._open:
                raise ValueError(f"{key[-1]!r}: expected an id that is not asked about already")
            self._open[key] = waiting
            self._over.pop(key, None)
            news, self._news = self._news, AbortSignal()
        news.abort()

    def _remove(self, key: Key, waiting: _Open) -> None:
        with self._lock:
            del self._open[key]
            self._over[key] = "late" if waiting.decision is None else "duplicate"
            while len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
