"""Asks one upstream as two callers for all that it calls public, and tells what is not the same for both."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.cache.policy import READ, Rules, hints_of
from gateway.core.audit import (
    Difference,
    Given,
    Outcome,
    Refused,
    Silent,
    difference,
    instability,
    shown_uri,
)
from gateway.core.lists import merge_pages
from gateway.doctor.asking import NOBODY, Asker, Token
from gateway.doctor.findings import Audited, Finding, Suspicion, found
from gateway.protocol.call import UpstreamName
from gateway.protocol.jsonrpc import Json, Malformed, encode, split, text_of

log = logging.getLogger(__name__)

_AUDITED = 600.0
_TOLD_EVERY = 10


@dataclass(frozen=True, slots=True)
class Subject:
    """An upstream to be audited, what it serves, and whether it knows its callers."""

    name: UpstreamName
    rules: Rules
    methods: tuple[str, ...]
    forwards: bool


Told = tuple[Audited, list[Finding]]


async def audit(
    subject: Subject, asker: Asker, tokens: Sequence[Token], *, max_reads: int, say: Callable[[str], None]
) -> Told:
    """Return what one upstream calls public and is not; at most `max_reads` resources are read."""
    auditor = _Auditor(subject, asker, tokens, max_reads, say)
    try:
        async with asyncio.timeout(_AUDITED):
            await auditor.run()
    except TimeoutError:
        said = f"the audit took longer than {_AUDITED:g}s and is not complete"
        auditor.tell("audit-failed", said, "lower --max-reads")
    except Exception as error:
        log.exception("upstream %s: a bug in the audit", subject.name)
        auditor.tell("bug", f"a bug of ours: {type(error).__name__}")
    return auditor.audited, auditor.findings


class _Auditor:
    def __init__(
        self,
        subject: Subject,
        asker: Asker,
        tokens: Sequence[Token],
        max_reads: int,
        say: Callable[[str], None],
    ) -> None:
        self._subject = subject
        self._name = subject.name
        self._asker = asker
        self._max_reads = max_reads
        self._say = say
        self._apart = subject.forwards and bool(tokens)
        """Whether the two callers are two to the upstream."""
        self._first, self._second = _callers(tokens) if subject.forwards else (NOBODY, NOBODY)
        between = f"{self._first.name} and {self._second.name}" if self._apart else "two fetches alike"
        self.audited = Audited(self._name, between)
        self.findings: list[Finding] = []

    async def run(self) -> None:
        self._say(f"{self._name}: auditing, {self.audited.callers}")
        self._say_what_can_be_found()
        uris: dict[str, None] = {}
        for method in self._subject.methods:
            outcomes = await self._both(method)
            await self._compare(method, None, outcomes)
            if method == "resources/list":
                uris |= dict.fromkeys(outcomes[2])
        chosen = list(uris)[: self._max_reads]
        self.audited.unread = len(uris) - len(chosen)
        if self.audited.unread:
            said = (
                f"{self.audited.unread} of {len(uris)} resources were not read: --max-reads {self._max_reads}"
            )
            self.tell("audit-skipped", said)
        for done, uri in enumerate(chosen, 1):
            await self._compare(READ, uri, await self._both(READ, uri))
            if done % _TOLD_EVERY == 0 or done == len(chosen):
                self._say(f"{self._name}: {done} of {len(chosen)} resources compared")
        if self._apart and self._second.authorization is not None:
            await self._ask_without_a_token()

    def tell(self, kind: str, what: str, advice: str | None = None) -> None:
        self.findings.append(found(kind, self._name, what, advice))

    def _say_what_can_be_found(self) -> None:
        if not self._subject.forwards:
            said = (
                "the audit shows only what differs from fetch to fetch: its auth is not `forward`, so all "
                "callers are one and the same to it"
            )
            self.tell("audit-skipped", said)
        elif not self._apart:
            said = "the audit asked without a token: give two callers' with --token-env A --token-env B"
            self.tell("audit-skipped", said)

    async def _both(self, method: str, uri: str | None = None) -> tuple[Outcome, Outcome, list[str]]:
        """Return what each of the two is given, and what they list."""
        (ours, first), (theirs, second) = await asyncio.gather(
            self._ask(method, uri, self._first), self._ask(method, uri, self._second)
        )
        return ours, theirs, [*first, *second]

    async def _ask(self, method: str, uri: str | None, token: Token) -> tuple[Outcome, list[str]]:
        if method.endswith("/list"):
            outcome, pages = await self._asker.whole(self._name, method, token)
            return outcome, [item.key for item in merge_pages(pages)]
        params: dict[str, Json] = {} if uri is None else {"uri": encode(uri)}
        return await self._asker.ask(self._name, method, token, params), []

    async def _compare(
        self, method: str, uri: str | None, outcomes: tuple[Outcome, Outcome, list[str]]
    ) -> None:
        ours: Sequence[Outcome] = [outcomes[0]]
        theirs: Sequence[Outcome] = [outcomes[1]]
        if any(isinstance(one, Silent) for one in (*ours, *theirs)) or (
            self._apart and self._is_public(method, ours, theirs) and difference(method, ours, theirs)
        ):
            again = await self._both(method, uri)
            ours, theirs = _answers([*ours, again[0]]), _answers([*theirs, again[1]])
        mute = next((one for one in (ours[0], theirs[0]) if isinstance(one, Silent)), None)
        if mute is not None:
            self.tell("audit-failed", f"{_named(method, uri)} could not be compared: {mute.words}")
        elif not self._is_public(method, ours, theirs):
            self.audited.private += 1
        else:
            self.audited.compared += 1
            together = instability(method, [*ours, *theirs])
            unlike = difference(method, ours, theirs) if self._apart else together
            if unlike is not None:
                shared = any(self._shared(method, one) for one in (*ours, *theirs))
                self._tell(method, uri, unlike, shared=shared)

    def _tell(self, method: str, uri: str | None, unlike: Difference, *, shared: bool) -> None:
        words = unlike.words.replace("the first caller", self._first.name)
        words = words.replace("the second caller", self._second.name)
        if not shared:
            words = f"{words}; by the settings it is not shared"
            self.tell("kept-private", f"{_named(method, uri)} is called public and is not: {words}")
        else:
            target = None if uri is None else shown_uri(uri)
            advice = self._advice(unlike)
            self.audited.findings.append(Suspicion(self._name, method, target, unlike.kind, words, advice))

    def _advice(self, unlike: Difference) -> str:
        line = f"upstreams.{self._name}.cache: {{share_public: false}}"
        if self._subject.rules.scope == "public":
            line = f"take `scope: public` out of upstreams.{self._name}.cache, or write {line}"
        if unlike.kind == "unstable":
            return f"no leak by itself; if what changes is about a caller, {line}"
        return line

    async def _ask_without_a_token(self) -> None:
        """Say so where whoever has no token is refused, and would be answered from the cache."""
        refused = 0
        words = ""
        for method in self._subject.methods:
            ours, _ = await self._ask(method, None, self._first)
            if not self._shared(method, ours):
                continue
            nobodys, _ = await self._ask(method, None, NOBODY)
            if isinstance(nobodys, Refused):
                refused += 1
                words = nobodys.words
        if refused:
            said = (
                f"it refuses callers without a token ({words}), who are given {refused} of its public "
                f"results from the cache; upstreams.{self._name}.cache: {{share_public: false}} ends that"
            )
            self.tell("shared-anyway", said)

    def _is_public(self, method: str, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> bool:
        """Whether a result is called public, or made so, to either of the two."""
        return any(
            isinstance(one, Given) and (self._shared(method, one) or any(map(_says_public, one.pages)))
            for one in (*ours, *theirs)
        )

    def _shared(self, method: str, outcome: Outcome) -> bool:
        """Whether the cache would give a result to everybody."""
        return isinstance(outcome, Given) and all(
            (hints := hints_of(page, self._subject.rules, method)).scope == "public" and hints.complete
            for page in outcome.pages
        )


def _callers(tokens: Sequence[Token]) -> tuple[Token, Token]:
    first, second, *_ = (*tokens, NOBODY, NOBODY)
    return first, second


def _answers(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes of which something is known, all of them where nothing is of any."""
    return [one for one in outcomes if not isinstance(one, Silent)] or outcomes


def _named(method: str, uri: str | None) -> str:
    return method if uri is None else f"{method} {shown_uri(uri)}"


def _says_public(page: bytes) -> bool:
    try:
        return text_of(split(page).get("cacheScope")) == "public"
    except Malformed:
        return False
