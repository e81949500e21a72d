"""Reaches every upstream of a configuration once and tells how they are; listens nowhere, keeps nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from gateway.app import alone, guard_command
from gateway.cache.policy import READ
from gateway.cache.trial import Refusal, attempt
from gateway.config import Cache, Config, RedisAddress, parse_redis_url
from gateway.core.audit import Given, Outcome, Refused, Silent, shown_uri
from gateway.core.catalogue import Listing, rules_of
from gateway.core.discover import offers
from gateway.core.federation import Federation
from gateway.core.lists import Page, merge_pages
from gateway.doctor.asking import FORBIDDEN, NO_TOKEN, NOBODY, Asker, Token
from gateway.doctor.audit import Subject, audit
from gateway.doctor.crossing import Spoken, blocked, converted
from gateway.doctor.findings import (
    KINDS,
    AuthResult,
    Checkup,
    Note,
    Problem,
    Report,
    Shown,
    extensions_left_out,
    judged,
    kept_call,
    names_of,
    never_kept,
    rules_without_a_tool,
)
from gateway.protocol.call import Reason, UpstreamName
from gateway.protocol.jsonrpc import Json, Malformed, encode, split
from gateway.protocol.methods import METHODS
from gateway.runtime import Runtime, build
from gateway.support import logs
from gateway.support.metrics import Metrics
from gateway.support.redis import SharedRedis

log = logging.getLogger(__name__)

Say = Callable[[str], None]

_PROBED = 11.0
"""Seconds until an upstream that was probed has answered, or has not."""
_EXAMINED = 120.0
_REDIS = 2.0
_UNTIL_THEN = "until then requests are answered, and nothing is cached"
_UNAUTHORIZED = "HTTP 401"
_UPDATE = "bring the server to a protocol revision that the gateway speaks, best to 2026-07-28"
_NEXT = {
    Reason.CONNECT: "start it, or correct upstreams.{name}.url",
    Reason.TIMEOUT: "see whether it runs and is not overloaded, or correct upstreams.{name}.url",
    Reason.STATUS: "correct the path in upstreams.{name}.url, or look into the server's log",
    Reason.ERA: _UPDATE,
}
_NO_TOKEN = (
    ("invalid_client", "correct client_id, what proves it, or client_auth under {at}"),
    ("unauthorized_client", "let the authorization server give this client such tokens"),
    ("unsupported_grant_type", "let the authorization server give this client such tokens"),
    ("invalid_scope", "correct {at}.scopes"),
    ("invalid_target", "correct {at}.resource, or make the server known to the authorization server"),
    ("invalid_grant", "let the authorization server exchange the token of {caller}, or give another"),
    ("set `issuer`", "write {at}.issuer"),
    ("set `token_url`", "write {at}.token_url"),
    ("another issuer", "write {at}.issuer as the authorization server spells it"),
    ("not public", "write {at}.issuer, or token_url, if you trust that place"),
    ("on this machine", "write {at}.issuer, or token_url, if you trust that place"),
    ("certificate", "correct {at}.tls, or the authorization server's certificate"),
)
"""What a failure says, and what to do then."""
_NO_TOKEN_OTHERWISE = "see whether the authorization server runs, or correct issuer or token_url under {at}"
_NEXT_OF_PROGRAMS = {
    Reason.CONNECT: "run it by hand: correct command, args or env of upstreams.{name}, or what it misses",
    Reason.TIMEOUT: "run it by hand and see what it waits for; a first start may have something to install",
    Reason.PROTOCOL: "see whether it is an MCP server, and writes messages alone to its stdout",
    Reason.ERA: _UPDATE,
}


async def examine(
    config: Config,
    *,
    endpoint: str | None = None,
    tokens: Sequence[Token] = (),
    audited: bool = False,
    max_reads: int = 100,
    say: Say = lambda _: None,
) -> Report:
    """Return what there is to tell of the upstreams behind one endpoint or all; `say` hears of the progress.

    Every wait is bounded, and no upstream waits for another. Raises OSError or ValueError for a file of the
    configuration that will not do.
    """
    endpoints = list(config.endpoints) if endpoint is None else [endpoint]
    behind = {name for path in endpoints for name in config.endpoints[path].upstreams or config.upstreams}
    names = [UpstreamName(name) for name in config.upstreams if name in behind]
    report = Report(endpoints)
    guard_command(config, [token.authorization for token in tokens if token.authorization is not None])
    async with _quietly(config) as runtime:
        asker = Asker(runtime)
        examiners = [_Examiner(name, runtime, asker, tokens[0] if tokens else NOBODY, say) for name in names]
        redis, *_ = await asyncio.gather(
            _redis(config, say), _issuers(runtime, report, say), *(one.run() for one in examiners)
        )
        if redis is not None:
            report.redis = redis[0]
            report.problems += redis[1]
        for one in examiners:
            report.upstreams.append(one.checkup)
            report.problems += one.problems
            report.notes += one.notes
        for path in endpoints:
            _name(report, path, config, {one.name: one.listings for one in examiners})
        if audited:
            subjects = [one.subject() for one in examiners if one.checkup.state == "up"]
            done = await asyncio.gather(
                *(audit(one, asker, tokens, max_reads=max_reads, say=say) for one in subjects)
            )
            report.audit = []
            for found, notes, problems in done:
                report.audit.append(found)
                report.notes += notes
                report.problems += problems
    return report


@asynccontextmanager
async def _quietly(config: Config) -> AsyncIterator[Runtime]:
    """Run a gateway without listeners and without Redis; the report says what its log would say."""
    logs.quiet_aiohttp()
    root = logging.getLogger("gateway")
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        runtime = build(alone(config))
        await runtime.start(follow=False)
        try:
            yield runtime
        finally:
            await runtime.close()
    finally:
        root.setLevel(before)


async def _issuers(runtime: Runtime, report: Report, say: Say) -> None:
    """Say of each authorization server whether the tokens of callers can be verified."""
    if runtime.verifier is None or not runtime.config.authentication.tokens:
        return
    say("asking the issuers of tokens")
    for found in await runtime.verifier.examine():
        report.issuers[found.issuer] = found.said
        if found.next is not None:
            report.problems.append(Problem(None, f"issuer {found.issuer}: {found.said}", found.next))


async def _redis(config: Config, say: Say) -> tuple[str, list[Problem]] | None:
    """Return whether the configured Redis does all that the gateway needs of it; nothing stays there."""
    if config.cache.redis is None:
        return None
    say("asking redis")
    try:
        refusals = await _refusals(config.cache, parse_redis_url(config.cache.redis.get_secret_value()))
    except ValueError as error:  # a certificate that will not do
        refusals = [Refusal((), str(error), "correct cache.redis_tls", answered=False)]
    problems = [Problem(None, _refused(one), f"{one.advice}; {_UNTIL_THEN}") for one in refusals]
    return "; ".join(map(_refused, refusals)) or "works", problems


async def _refusals(cache: Cache, address: RedisAddress) -> list[Refusal]:
    redis = SharedRedis(address, timeout=_REDIS, metrics=Metrics(), tls=cache.redis_tls)
    try:
        return await attempt(redis, prefix=cache.redis_prefix, patience=_REDIS)
    finally:
        await redis.close()


def _refused(refusal: Refusal) -> str:
    if not refusal.answered:
        return f"redis does not answer: {refusal.said}"
    return f"redis does not let the gateway {', '.join(refusal.doings)}: {refusal.said}"


def _name(
    report: Report,
    endpoint: str,
    config: Config,
    listings: Mapping[UpstreamName, Mapping[str, Listing]],
) -> None:
    federation = Federation(endpoint, config)
    by_method = {
        method: {
            name: listings[name][method] for name in federation.namespaces if method in listings.get(name, {})
        }
        for method in KINDS
    }
    for found in names_of(endpoint, config, federation, by_method):
        match found:
            case Shown():
                report.names.append(found)
            case Problem():
                report.problems.append(found)
            case Note():
                report.notes.append(found)


class _Examiner:
    """Examines one upstream."""

    def __init__(self, name: UpstreamName, runtime: Runtime, asker: Asker, token: Token, say: Say) -> None:
        settings = runtime.config.upstreams[name]
        self.name = name
        self.checkup = Checkup(name, settings.place, auth=AuthResult(settings.auth.kind, "unknown"))
        self.listings: dict[str, Listing] = {}
        self.problems: list[Problem] = []
        self.notes: list[Note] = []
        self._config = runtime.config
        self._settings = settings
        self._pool = runtime.pool
        self._asker = asker
        self._token = token
        self._say = say
        self._rules = rules_of(runtime.config, name)
        self._capabilities: Mapping[str, Json] = {}

    def subject(self) -> Subject:
        """Return what an audit needs to know."""
        offered = [method for method in KINDS if self._offers(method)]
        return Subject(self.name, self._rules, ("server/discover", *offered), self._asker.forwards(self.name))

    async def run(self) -> None:
        """Fill the checkup; whatever goes wrong is told there and stops nobody else."""
        self._say(f"{self.name}: asking")
        try:
            async with asyncio.timeout(_EXAMINED):
                await self._pool.tried(self.name, _PROBED)
                await self._examine()
        except TimeoutError:
            self._problem(f"it took longer than {_EXAMINED:g}s", "see what keeps it busy, and run this again")
        except Exception as error:
            log.exception("upstream %s: a bug in the doctor", self.name)
            self._problem(f"a bug of ours: {type(error).__name__}", "report it, with the traceback")
        counts = ", ".join(
            f"{kind} {count}" for kind, count in self.checkup.items.items() if count is not None
        )
        self._say(f"{self.name}: {self.checkup.state}{f', {counts}' if counts else ''}")

    async def _examine(self) -> None:
        status = self._pool.status(self.name)
        self.checkup.state = "down" if status.state == "starting" else status.state
        self.checkup.era, self.checkup.version = status.era, status.version
        self.checkup.transport = status.wire
        if status.state != "up":
            self._down(status.last_error or Reason.TIMEOUT, status.detail)
            return
        discovered = await self._asker.ask(self.name, "server/discover", self._token)
        self._authenticated(discovered)
        if isinstance(discovered, Given):
            self._learn(discovered.pages[0])
            self._keep("server/discover", None, discovered)
        elif (known := self._pool.discovered(self.name)) is not None:
            self._learn(known.result)
        if status.era is not None and status.version is not None:
            spoken = Spoken(self.name, self._settings, status.era, status.version, self._capabilities)
            self.checkup.converted = list(converted(spoken))
            self.checkup.blocked = list(blocked(spoken))
        await asyncio.gather(*(self._list(method) for method in KINDS if self._offers(method)))
        self.checkup.cache.sort(key=lambda kept: list(METHODS).index(kept.method))
        await self._read()
        self.checkup.cache += never_kept(self.checkup.capabilities)
        for tool, call in self._settings.cache.calls.items():
            self.checkup.cache.append(kept_call(tool, call.ttl, call.scope, self._rules))
        if "tools/list" in self.listings:
            for found in rules_without_a_tool(self.name, self._config, self.listings["tools/list"]):
                (self.problems if isinstance(found, Problem) else self.notes).append(found)  # type: ignore[arg-type]  # each to its kind

    def _down(self, reason: Reason, detail: str) -> None:
        said = f"it is down: {reason.value}{f' ({detail})' if detail else ''}"
        if reason is Reason.CREDENTIALS:
            self._refused(detail)
            return
        if reason is Reason.TOKEN:
            self._tokenless(detail)
            return
        if detail.startswith("TLS: "):
            self._problem(said, f"correct upstreams.{self.name}.tls, or the server's certificate")
            return
        advice = _NEXT if self._settings.command is None else _NEXT_OF_PROGRAMS
        self._problem(said, advice.get(reason, "look into the server's log").format(name=self.name))

    def _authenticated(self, discovered: Outcome) -> None:
        kind = self._settings.auth.kind
        if isinstance(discovered, Refused) and discovered.words.startswith((_UNAUTHORIZED, FORBIDDEN)):
            self._refused(discovered.words)
        elif isinstance(discovered, Refused) and discovered.words.startswith(NO_TOKEN):
            self._tokenless(discovered.words.removeprefix(NO_TOKEN))
        elif isinstance(discovered, Silent):
            self._problem(f"server/discover: {discovered.words}", "look into the server's log")
        elif kind == "none":
            self.checkup.auth = AuthResult(kind, "none needed")
        elif self._settings.auth.personal and self._token.authorization is None:
            self.checkup.auth = AuthResult(kind, "answers without a token")
        else:
            self.checkup.auth = AuthResult(kind, "accepted")

    def _refused(self, words: str) -> None:
        """Tell a credential that is not known from one that may not (401, 403)."""
        kind, name = self._settings.auth.kind, self.name
        forbidden = words.startswith(FORBIDDEN)
        result = f"not allowed ({words})" if forbidden else f"refused ({words})"
        advice = f"correct the credential under upstreams.{name}.auth"
        if forbidden:
            advice = (
                f"the credential is known, and may not: give it more rights, or upstreams.{name}.auth another"
            )
        if kind == "none":
            result, advice = f"asked for ({words})", f"write what it wants under upstreams.{name}.auth"
        if kind == "client_credentials":
            advice = (
                f"give the client {'more scopes' if forbidden else 'a token that it takes'}: see scopes and "
                f"resource under upstreams.{name}.auth.{kind}, and the server's log"
            )
        if self._settings.auth.personal:
            advice = f"let the caller of {self._token.name} have the rights, or give another token"
            if self._token.authorization is None:
                self.checkup.auth = AuthResult(kind, f"wants the caller's token ({words})")
                self._note("it shows nothing to a caller without a token: give one with --token-env")
                return
        self.checkup.auth = AuthResult(kind, result)
        self._problem(f"auth {kind}: {result}", advice)

    def _tokenless(self, detail: str) -> None:
        """Say why the authorization server gives out no token."""
        kind = self._settings.auth.kind
        place = f"upstreams.{self.name}.auth.{kind}"
        advice = next((advice for sign, advice in _NO_TOKEN if sign in detail), _NO_TOKEN_OTHERWISE)
        self.checkup.auth = AuthResult(kind, f"no token ({detail})")
        self._problem(f"auth {kind}: no token ({detail})", advice.format(at=place, caller=self._token.name))

    def _learn(self, result: bytes) -> None:
        try:
            capabilities = split(result).get("capabilities")
            self._capabilities = split(capabilities) if capabilities is not None else {}
        except Malformed:
            self._problem("its capabilities are no object", "mend the server: clients refuse such a server")
        known = ("completions", "logging", "prompts", "resources", "tools")
        self.checkup.capabilities = tuple(one for one in known if offers(self._capabilities, one))
        if not self.checkup.capabilities:
            self._note("it declares no capability, so it is asked for nothing")
        elif missing := [
            one for one in ("tools", "prompts", "resources") if one not in self.checkup.capabilities
        ]:
            self._note(f"it declares no {' and no '.join(missing)}")
        self.notes += extensions_left_out(self.name, self._config, self._capabilities)

    def _offers(self, method: str) -> bool:
        return offers(self._capabilities, METHODS[method].capability or "")

    async def _list(self, method: str) -> None:
        outcome, pages = await self._asker.whole(self.name, method, self._token)
        match outcome:
            case Given():
                self._listed(method, pages, outcome)
            case Refused(words) if words == "error -32601":
                self._note(f"it declares {METHODS[method].capability} and does not serve {method}")
            case Refused(words) if self._settings.auth.personal and self._token.authorization is None:
                self._note(
                    f"{method} is refused to a caller without a token ({words}): give one with --token-env"
                )
            case Refused(words) | Silent(words):
                self._problem(f"{method}: {words}", _advice(self.name, words))

    def _listed(self, method: str, pages: Sequence[Page], outcome: Given) -> None:
        items = merge_pages(pages)
        excluded = tuple(pair for page in pages for pair in page.excluded)
        by_key = {item.key: item for item in items}
        self.listings[method] = Listing(items, by_key, outcome.pages, excluded)
        self.checkup.items[KINDS[method]] = len(items)
        self._keep(method, None, outcome)
        for item, reason in excluded:
            self.checkup.excluded.append((method, item, reason))
            self._problem(
                f"{item} is left out of {method}: {reason}", "mend the server: no client could read it"
            )
        for item, reason in (pair for page in pages for pair in page.trimmed):
            self._note(f"{item} of {method} is listed without what no client could read: {reason}")
        repeated = sum(len(page.items) for page in pages) - len(items)
        if repeated:
            self._note(f"{method} names {repeated} twice; the first counts")
        for missing in dict.fromkeys(inner for page in pages for inner in page.missing):
            self._note(f"it says that {method} lacks its own upstream {missing}")

    async def _read(self) -> None:
        """Read one resource, to see which hints its reads carry."""
        listing = self.listings.get("resources/list")
        if listing is None or not listing.items:
            return
        uri = listing.items[0].key
        outcome = await self._asker.ask(self.name, READ, self._token, {"uri": encode(uri)})
        if isinstance(outcome, Given):
            self._keep(READ, shown_uri(uri), outcome)
        else:
            self._note(f"{shown_uri(uri)}, which it lists, cannot be read: {outcome.words}")

    def _keep(self, method: str, target: str | None, outcome: Given) -> None:
        memory = self._config.cache.memory
        self.checkup.cache.append(judged(method, target, outcome.pages, self._rules, memory=memory))

    def _problem(self, what: str, advice: str) -> None:
        self.problems.append(Problem(self.name, what, advice))

    def _note(self, what: str) -> None:
        self.notes.append(Note(self.name, what))


def _advice(name: UpstreamName, words: str) -> str:
    if "in time" in words:
        return f"raise upstreams.{name}.list_timeout, or see what keeps it busy"
    if words.startswith((_UNAUTHORIZED, FORBIDDEN)):
        return f"give the credential under upstreams.{name}.auth the right to it"
    return "look into the server's log"
