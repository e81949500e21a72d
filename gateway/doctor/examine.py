"""Reaches every upstream of a configuration once and tells how they are; listens nowhere, keeps nothing."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from gateway.app import alone, guard_command
from gateway.cache.policy import READ
from gateway.cache.trial import Refusal, attempt
from gateway.config import Cache, Config, RedisAddress, parse_redis_url
from gateway.core.audit import Given, Outcome, Refused, Silent, shown_uri
from gateway.core.catalogue import Listing, rules_of
from gateway.core.discover import notifies, offers, subscribes
from gateway.core.federation import Federation
from gateway.core.lists import Page, merge_pages
from gateway.doctor.asking import FORBIDDEN, NO_TOKEN, NOBODY, Asker, Token
from gateway.doctor.audit import Subject, audit
from gateway.doctor.crossing import Spoken, blocked, converted
from gateway.doctor.diagnosis import Met, kind_of_failure
from gateway.doctor.findings import (
    LISTS,
    AuthResult,
    Checkup,
    Finding,
    Report,
    Shown,
    changed_names,
    extensions_left_out,
    found,
    judged,
    kept_call,
    names_of,
    never_kept,
    odd_clock,
    odd_way,
    rules_without_a_tool,
    slow,
    uncacheable,
)
from gateway.doctor.overhearing import Overheard, overhearing
from gateway.doctor.reach import reach, reach_issuer
from gateway.protocol.call import Challenge, Reason, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import Json, Malformed, McpError, encode, split
from gateway.protocol.methods import METHODS
from gateway.protocol.subscriptions import Wanted
from gateway.runtime import Runtime, build
from gateway.support import logs
from gateway.support.metrics import Metrics
from gateway.support.redis import PING, SharedRedis

log = logging.getLogger(__name__)

Say = Callable[[str], None]

_PROBED = 11.0
"""Seconds until a server that was probed has answered, or has not."""
_STARTED = 21.0
"""The same of a program, which is greeted twice."""
_LISTENED = 5.0
_HEARD = 0.5
"""The longest the last words of a program are waited for that has ended."""
_EXAMINED = 120.0
_REDIS = 2.0
_UNTIL_THEN = "until then requests are answered, and nothing is cached"
_UNAUTHORIZED = "HTTP 401"
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
    began = time.monotonic()
    endpoints = list(config.endpoints) if endpoint is None else [endpoint]
    behind = {name for path in endpoints for name in config.behind(path)}
    names = [UpstreamName(name) for name in config.upstreams if name in behind]
    report = Report(endpoints)
    guard_command(config, [token.authorization for token in tokens if token.authorization is not None])
    token = tokens[0] if tokens else NOBODY
    async with _quietly(config) as (runtime, overheard):
        asker = Asker(runtime)
        examiners = [_Examiner(name, runtime, asker, token, say, overheard) for name in names]
        await asyncio.gather(
            _redis(config, report, say), _issuers(runtime, report, say), *(one.run() for one in examiners)
        )
        for one in examiners:
            report.upstreams.append(one.checkup)
            report.findings += one.findings
        for path in endpoints:
            _name(report, path, config, {one.name: one.listings for one in examiners})
        report.findings += changed_names(report.names)
        if audited:
            subjects = [one.subject() for one in examiners if one.checkup.state == "up"]
            done = await asyncio.gather(
                *(audit(one, asker, tokens, max_reads=max_reads, say=say) for one in subjects)
            )
            report.audit = [compared for compared, _ in done]
            report.findings += [finding for _, findings in done for finding in findings]
    report.settle()
    report.seconds = round(time.monotonic() - began, 3)
    return report


@asynccontextmanager
async def _quietly(config: Config) -> AsyncIterator[tuple[Runtime, Overheard]]:
    """Run a gateway without listeners and without Redis; the report says what its log would say."""
    logs.quiet_aiohttp()
    root = logging.getLogger("gateway")
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        with overhearing() as overheard:
            runtime = await asyncio.to_thread(build, alone(config))  # it reads files
            await runtime.start(follow=False)
            try:
                yield runtime, overheard
            finally:
                await runtime.close()
    finally:
        root.setLevel(before)


async def _issuers(runtime: Runtime, report: Report, say: Say) -> None:
    """Say of each authorization server whether the tokens of callers can be verified."""
    if runtime.verifier is None or not runtime.config.authentication.tokens:
        return
    say("asking the issuers of tokens")
    issuers = runtime.config.authentication.tokens
    visits = asyncio.gather(*(reach_issuer(name, issuer) for name, issuer in issuers.items()))
    examined, ways = await asyncio.gather(runtime.verifier.examine(), visits)
    for one in examined:
        report.issuers[one.issuer] = one.said
        if one.next is not None:
            report.findings.append(found("issuer", None, f"issuer {one.issuer}: {one.said}", one.next))
    for (name, issuer), way in zip(issuers.items(), ways, strict=True):
        if way.clock is not None:
            report.findings += odd_clock(None, f"issuer {name}: its", way.clock, issuer.leeway)


async def _redis(config: Config, report: Report, say: Say) -> None:
    """Say whether the configured Redis does all that the gateway needs of it; nothing stays there."""
    cache = config.cache
    if cache.redis is None:
        return
    say("asking redis")
    took = None
    try:
        refusals, took = await _tried(cache, parse_redis_url(cache.redis.get_secret_value()))
    except ValueError as error:  # a certificate that will not do
        refusals = [Refusal((), str(error), "correct cache.redis_tls", answered=False)]
    report.redis = "; ".join(map(_refused, refusals)) or "works"
    for one in refusals:
        kind = "redis-refuses" if one.answered else "redis-away"
        report.findings.append(found(kind, None, _refused(one), f"{one.advice}; {_UNTIL_THEN}"))
    if took is not None and took > cache.redis_timeout:
        said = f"redis answers in {took * 1000:.0f} ms, and is waited for {cache.redis_timeout * 1000:.0f} ms"
        report.findings.append(found("redis-slow", None, said))


async def _tried(cache: Cache, address: RedisAddress) -> tuple[list[Refusal], float | None]:
    """Return what Redis refuses, and the shortest time in which it answered where it does all."""
    redis = SharedRedis(address, timeout=_REDIS, metrics=Metrics(), tls=cache.redis_tls)
    try:
        refusals = await attempt(redis, prefix=cache.redis_prefix, patience=_REDIS)
        if refusals:
            return refusals, None
        took = []
        for _ in range(3):
            began = time.monotonic()
            await redis.ask(PING, [f"{cache.redis_prefix}:1:{{trial}}:counts"], [], patience=_REDIS)
            took.append(time.monotonic() - began)
        return [], min(took)
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
        for method in LISTS
    }
    for one in names_of(endpoint, config, federation, by_method):
        if isinstance(one, Shown):
            report.names.append(one)
        else:
            report.findings.append(one)


class _Examiner:
    """Examines one upstream."""

    def __init__(
        self, name: UpstreamName, runtime: Runtime, asker: Asker, token: Token, say: Say, overheard: Overheard
    ) -> None:
        settings = runtime.config.upstreams[name]
        self.name = name
        self.checkup = Checkup(name, settings.place, auth=AuthResult(settings.auth.kind, "unknown"))
        self.listings: dict[str, Listing] = {}
        self.findings: list[Finding] = []
        self._config = runtime.config
        self._settings = settings
        self._pool = runtime.pool
        self._asker = asker
        self._token = token
        self._say = say
        self._overheard = overheard
        self._rules = rules_of(runtime.config, name)
        self._capabilities: Mapping[str, Json] = {}

    def subject(self) -> Subject:
        """Return what an audit needs to know."""
        offered = [method for method in LISTS if self._offers(method)]
        return Subject(self.name, self._rules, ("server/discover", *offered), self._asker.forwards(self.name))

    async def run(self) -> None:
        """Fill the checkup; whatever goes wrong is told there and stops nobody else."""
        self._say(f"{self.name}: asking")
        began = time.monotonic()
        try:
            async with asyncio.timeout(_EXAMINED):
                self.checkup.way, _ = await asyncio.gather(self._visited(), self._tried())
                if self.checkup.way is not None:
                    self.findings += odd_way(self.name, self.checkup.way, now=time.time())
                await self._examine()
        except TimeoutError:
            self._tell("too-long", f"it took longer than {_EXAMINED:g}s")
        except Exception as error:
            log.exception("upstream %s: a bug in the doctor", self.name)
            self._tell("bug", f"a bug of ours: {type(error).__name__}")
        self.checkup.seconds = round(time.monotonic() - began, 3)
        counts = ", ".join(
            f"{kind} {count}" for kind, count in self.checkup.items.items() if count is not None
        )
        self._say(f"{self.name}: {self.checkup.state}{f', {counts}' if counts else ''}")

    async def _visited(self) -> Met | None:
        return None if self._settings.command is not None else await reach(self.name, self._settings)

    async def _tried(self) -> None:
        await self._pool.tried(self.name, _PROBED if self._settings.command is None else _STARTED)

    async def _examine(self) -> None:
        status = self._pool.status(self.name)
        self.checkup.state = "down" if status.state == "starting" else status.state
        self.checkup.era, self.checkup.version = status.era, status.version
        self.checkup.transport = status.wire
        if status.state != "up":
            await self._down(status.last_error or Reason.TIMEOUT, status.detail)
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
        await asyncio.gather(*(self._list(method) for method in LISTS if self._offers(method)))
        self.findings += uncacheable(self.name, self.checkup.cache, self._rules)
        self.checkup.cache.sort(key=lambda kept: list(METHODS).index(kept.method))
        await self._read()
        await self._follow()
        self.checkup.cache += never_kept(self.checkup.capabilities)
        for tool, call in self._settings.cache.calls.items():
            self.checkup.cache.append(kept_call(tool, call.ttl, call.scope, self._rules))
        if "tools/list" in self.listings:
            self.findings += rules_without_a_tool(self.name, self._config, self.listings["tools/list"])

    async def _down(self, reason: Reason, detail: str) -> None:
        if reason is Reason.CREDENTIALS:
            self._refused(detail)
            return
        if reason is Reason.TOKEN:
            self._tokenless(detail)
            return
        settings = self._settings
        program = settings.command is not None
        if program:
            self.checkup.last_words = await self._overheard.last_words(self.name, _HEARD)
        kind = kind_of_failure(reason, detail, self.checkup.way or Met(), program=program, era=settings.era)
        said = f"it is down: {reason.value}{f' ({detail})' if detail else ''}"
        if (
            kind == "not-started"
            and settings.cwd
            and not await asyncio.to_thread(os.path.isdir, settings.cwd)
        ):
            kind, said = "no-folder", f"it is down: there is no folder {settings.cwd}"
        if self.checkup.last_words:
            said = f"{said}; it wrote last: {self.checkup.last_words[-1]}"
        self._tell(kind, said)

    def _authenticated(self, discovered: Outcome) -> None:
        kind = self._settings.auth.kind
        if isinstance(discovered, Refused) and discovered.words.startswith((_UNAUTHORIZED, FORBIDDEN)):
            self._refused(discovered.words)
        elif isinstance(discovered, Refused) and discovered.words.startswith(NO_TOKEN):
            self._tokenless(discovered.words.removeprefix(NO_TOKEN))
        elif isinstance(discovered, Refused) and self._settings.era == "modern":
            self._tell("wrong-era", f"server/discover: {discovered.words}")
        elif isinstance(discovered, Refused | Silent):
            self._tell("discover", f"server/discover: {discovered.words}")
        elif kind == "none":
            self.checkup.auth = AuthResult(kind, "none needed")
        elif self._settings.auth.personal and self._token.authorization is None:
            self.checkup.auth = AuthResult(kind, "answers without a token")
        else:
            self.checkup.auth = AuthResult(kind, "accepted")

    def _refused(self, words: str) -> None:
        """Tell a credential that is not known from one that may not (401, 403)."""
        kind, place = self._settings.auth.kind, f"upstreams.{self.name}.auth"
        may_not = words.startswith(FORBIDDEN)
        result = f"not allowed ({words})" if may_not else f"refused ({words})"
        finding, advice = "forbidden" if may_not else "credential", None
        if kind == "none":
            finding, result = "credential-missing", f"asked for ({words})"
        if kind == "client_credentials":
            advice = (
                f"give the client {'more scopes' if may_not else 'a token that it takes'}: see scopes and "
                f"resource under {place}.{kind}, and the server's log"
            )
        if self._settings.auth.personal:
            advice = f"let the caller of {self._token.name} have the rights, or give another token"
            if self._token.authorization is None:
                self.checkup.auth = AuthResult(kind, f"wants the caller's token ({words})")
                said = "it shows nothing to a caller without a token: give one with --token-env"
                self._tell("callers-token", said)
                return
        self.checkup.auth = AuthResult(kind, result)
        self._tell(finding, f"auth {kind}: {result}", advice)

    def _tokenless(self, detail: str) -> None:
        """Say why the authorization server gives out no token."""
        kind = self._settings.auth.kind
        place = f"upstreams.{self.name}.auth.{kind}"
        advice = next((advice for sign, advice in _NO_TOKEN if sign in detail), _NO_TOKEN_OTHERWISE)
        self.checkup.auth = AuthResult(kind, f"no token ({detail})")
        said = advice.format(at=place, caller=self._token.name)
        self._tell("no-token", f"auth {kind}: no token ({detail})", said)

    def _learn(self, result: bytes) -> None:
        try:
            capabilities = split(result).get("capabilities")
            self._capabilities = split(capabilities) if capabilities is not None else {}
        except Malformed:
            self._tell("not-mcp", "its capabilities are no object", "mend the server: clients refuse it")
        known = ("completions", "logging", "prompts", "resources", "tools")
        self.checkup.capabilities = tuple(one for one in known if offers(self._capabilities, one))
        if not self.checkup.capabilities:
            self._tell("no-capability", "it declares no capability, so it is asked for nothing")
        elif missing := [
            one for one in ("tools", "prompts", "resources") if one not in self.checkup.capabilities
        ]:
            self._tell("no-capability", f"it declares no {' and no '.join(missing)}")
        self.findings += extensions_left_out(self.name, self._config, self._capabilities)

    def _offers(self, method: str) -> bool:
        return offers(self._capabilities, METHODS[method].capability or "")

    async def _list(self, method: str) -> None:
        began = time.monotonic()
        outcome, pages = await self._asker.whole(self.name, method, self._token)
        took = self.checkup.took[method] = round(time.monotonic() - began, 3)
        patience = self._settings.list_timeout
        match outcome:
            case Given():
                self._listed(method, pages, outcome)
                self.findings += slow(self.name, method, took, patience)
            case Refused(words) if words == "error -32601":
                self._tell(
                    "not-served", f"it declares {METHODS[method].capability} and does not serve {method}"
                )
            case Refused(words) if self._settings.auth.personal and self._token.authorization is None:
                said = f"{method} is refused to a caller without a token ({words}): give one with --token-env"
                self._tell("callers-token", said)
            case Refused(words) | Silent(words):
                self._tell(_kind_of_list(words), f"{method}: {words}")

    def _listed(self, method: str, pages: Sequence[Page], outcome: Given) -> None:
        items = merge_pages(pages)
        excluded = tuple(pair for page in pages for pair in page.excluded)
        by_key = {item.key: item for item in items}
        self.listings[method] = Listing(items, by_key, outcome.pages, excluded)
        self.checkup.items[LISTS[method]] = len(items)
        self._keep(method, None, outcome)
        for item, reason in excluded:
            self.checkup.excluded.append((method, item, reason))
            self._tell("invalid-item", f"{item} is left out of {method}: {reason}")
        for item, reason in (pair for page in pages for pair in page.trimmed):
            said = f"{item} of {method} is listed without what no client could read: {reason}"
            self._tell("trimmed-item", said)
        repeated = sum(len(page.items) for page in pages) - len(items)
        if repeated:
            self._tell("repeated-item", f"{method} names {repeated} twice; the first counts")
        for missing in dict.fromkeys(inner for page in pages for inner in page.missing):
            self._tell("missing-part", f"it says that {method} lacks its own upstream {missing}")

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
            said = f"{shown_uri(uri)}, which it lists, cannot be read: {outcome.words}"
            self._tell("unreadable", said)

    async def _follow(self) -> None:
        """Listen for a moment, to see whether it tells of its changes as it declares."""
        tools, prompts, resources = (
            notifies(self._capabilities, kind) for kind in ("tools", "prompts", "resources")
        )
        listing = self.listings.get("resources/list")
        uris = [item.key for item in listing.items[:1]] if listing and subscribes(self._capabilities) else []
        wanted = Wanted(tools, prompts, resources, frozenset(uris))
        if not wanted or (self._settings.auth.personal and self._token.authorization is None):
            return
        words = ""
        honoured = Wanted()
        try:
            async with (
                asyncio.timeout(_LISTENED),
                self._asker.listen(self.name, wanted, self._token) as heard,
            ):
                honoured = heard
        except TimeoutError:
            words = f"no answer in {_LISTENED:g}s"
        except McpError as error:
            words = f"error {error.code}"
        except Challenge as error:
            words = f"HTTP {error.status}"
        except UpstreamUnavailable as error:
            words = f"{error.reason.value}{f' ({error.detail})' if error.detail else ''}"
        self.checkup.followed = _spelled(honoured)
        if missing := _spelled(wanted - honoured):
            why = f": {words}" if words else ", which it leaves out of what it grants"
            said = f"it declares that it tells of changes ({', '.join(missing)}) and does not{why}"
            self._tell("unfollowed", said)

    def _keep(self, method: str, target: str | None, outcome: Given) -> None:
        memory = self._config.cache.memory
        self.checkup.cache.append(judged(method, target, outcome.pages, self._rules, memory=memory))

    def _tell(self, kind: str, what: str, advice: str | None = None) -> None:
        self.findings.append(found(kind, self.name, what, advice))


def _spelled(wanted: Wanted) -> tuple[str, ...]:
    lists = (kind for kind in ("tools", "prompts", "resources") if getattr(wanted, kind))
    return (*lists, *(("single resources",) if wanted.uris else ()))


def _kind_of_list(words: str) -> str:
    signs = (
        ("in time", "list-slow"),
        (_UNAUTHORIZED, "list-refused"),
        (FORBIDDEN, "list-refused"),
        ("invalid result", "list-invalid"),
        ("unsupported encoding", "encoding"),
        (Reason.TOO_LARGE.value, "too-large"),
    )
    return next((kind for sign, kind in signs if sign in words), "list-failed")
