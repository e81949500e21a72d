"""All that the doctor may find: how grave it is, what it means, and what to do next. Pure.

docs/findings.md is made of this table. A name of a kind, once released, is kept: scripts go by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Level: TypeAlias = Literal["problem", "warning", "note"]

LEVELS: Final[Mapping[Level, str]] = {
    "problem": "does not work",
    "warning": "works, but not as well as it could",
    "note": "works, and is worth a look",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of finding; `{at}` in the advice is where the upstream stands in the configuration."""

    level: Level
    means: str
    next: str = ""


_CERTIFICATE = "correct {at}.tls, or the server's certificate"
_UPDATE = "bring the server to a protocol revision that the gateway speaks, best to 2026-07-28"
_BY_HAND = "run it by hand: correct command, args or env of {at}, or what it misses"
_LOG = "look into the server's log"

KINDS: Final[Mapping[str, Kind]] = {
    # The way there
    "unknown-host": Kind(
        "problem",
        "The host of its URL has no address here.",
        "correct the host in {at}.url, or have this machine's name server know it",
    ),
    "refused": Kind(
        "problem",
        "Nothing listens at its address.",
        "start it, or correct host and port in {at}.url",
    ),
    "unreachable": Kind(
        "problem",
        "No connection is made in time, or there is no way to its address.",
        "see whether the machine runs and a firewall lets the gateway through; if a proxy leads to it, write "
        "{at}.proxy",
    ),
    "proxy": Kind(
        "problem",
        "The proxy that leads to it is not there, or lets nothing through.",
        "correct {at}.proxy, or HTTP_PROXY, HTTPS_PROXY and NO_PROXY where {at}.trust_env is set",
    ),
    "cut": Kind(
        "problem",
        "It takes the connection and closes it without an answer.",
        "write https: in {at}.url if it speaks TLS; else look into its log, or that of what stands before it",
    ),
    "no-tls": Kind(
        "problem",
        "Its URL says https, and it speaks no TLS there.",
        "write http: in {at}.url, or its port for TLS",
    ),
    "certificate-expired": Kind(
        "problem", "Its certificate has expired, or is not valid yet.", "renew it, or set this clock right"
    ),
    "certificate-untrusted": Kind(
        "problem",
        "Its certificate leads to no authority that is trusted.",
        "name its authority in {at}.tls.ca_file, or have the server send the whole chain",
    ),
    "certificate-name": Kind(
        "problem",
        "Its certificate is for another name.",
        "write the name of the certificate in {at}.url, or {at}.tls.server_name",
    ),
    "client-certificate": Kind(
        "problem",
        "It wants a client certificate, or refuses the one it is shown.",
        "write client_cert and client_key under {at}.tls, or correct them",
    ),
    "tls": Kind("problem", "The TLS handshake fails for another reason.", _CERTIFICATE),
    "not-http": Kind(
        "problem",
        "It answers something that is not HTTP.",
        "write https: in {at}.url if it speaks TLS, or correct the port",
    ),
    "silent": Kind(
        "problem",
        "It takes requests and does not answer.",
        "see whether it runs and is not overloaded, or correct {at}.url",
    ),
    # The answer
    "redirected": Kind(
        "problem",
        "It redirects to another place, where the gateway does not follow it.",
        "write the address that it redirects to into {at}.url",
    ),
    "web-page": Kind(
        "problem",
        "It answers with a web page: of a login, of a proxy, or of whatever else is at that path.",
        "correct the path in {at}.url; if the page is a login, write what it wants under {at}.auth",
    ),
    "no-such-path": Kind(
        "problem",
        "No MCP server is at the path of its URL.",
        "correct the path in {at}.url (often /mcp, of older servers /sse), or look into the server's log",
    ),
    "server-error": Kind(
        "problem",
        "It, or what stands before it, fails: HTTP 5xx.",
        "look into the server's log; 502, 503 and 504 are mostly said by a proxy whose server is gone",
    ),
    "too-many": Kind(
        "problem",
        "It takes no more requests for now: HTTP 429.",
        "run this again later, and write what it allows under {at}.rate",
    ),
    "status": Kind("problem", "It answers with an HTTP status that says nothing more.", _LOG),
    "not-mcp": Kind(
        "problem",
        "What it answers is no message of MCP.",
        "see whether an MCP server is at {at}.url, and look into its log",
    ),
    "encoding": Kind(
        "problem",
        "It compresses its answers in a way that nobody asked for.",
        "let it, or what stands before it, keep to gzip, deflate or none",
    ),
    "too-large": Kind(
        "problem",
        "Its answer is larger than the gateway takes.",
        "raise limits.message (of a whole list: limits.list_bytes), or let it answer in pages",
    ),
    "no-common-version": Kind("problem", "It speaks no revision that the gateway speaks.", _UPDATE),
    "wrong-era": Kind(
        "problem",
        "It does not speak what `era` says.",
        "write {at}.era: auto, or leave it out",
    ),
    "discover": Kind("problem", "It does not say what it can do.", _LOG),
    # Credentials
    "credential-missing": Kind(
        "problem",
        "It wants a credential, and none is configured.",
        "write what it wants under {at}.auth",
    ),
    "credential": Kind(
        "problem", "It does not know the credential: HTTP 401.", "correct the credential under {at}.auth"
    ),
    "forbidden": Kind(
        "problem",
        "It knows the credential, which may not: HTTP 403.",
        "the credential is known, and may not: give it more rights, or {at}.auth another",
    ),
    "no-token": Kind(
        "problem",
        "The authorization server gives out no token for it.",
        "see whether the authorization server runs, or correct what stands under {at}.auth",
    ),
    "callers-token": Kind("note", "It shows itself to its callers only, and no caller's token was given."),
    # Programs
    "no-program": Kind(
        "problem",
        "Its program is not installed, or neither on the PATH nor beside the gateway.",
        "install it, or write its whole path as {at}.command",
    ),
    "not-started": Kind("problem", "Its program cannot be started.", _BY_HAND),
    "no-folder": Kind(
        "problem", "The folder that its program is started in is not there.", "correct {at}.cwd"
    ),
    "ended": Kind("problem", "Its program ends by itself.", _BY_HAND),
    "silent-program": Kind(
        "problem",
        "Its program runs and says nothing that is a message of MCP.",
        "run it by hand and see what it waits for; a first start may have something to install",
    ),
    # Lists
    "no-capability": Kind(
        "note", "It declares that it can do nothing, or none of tools, prompts, resources."
    ),
    "list-failed": Kind("problem", "One of its lists cannot be had.", _LOG),
    "list-refused": Kind(
        "problem",
        "One of its lists is refused to the credential that it takes otherwise.",
        "give the credential under {at}.auth the right to it",
    ),
    "list-slow": Kind(
        "problem",
        "One of its lists takes longer than a joined list waits: clients do not see it.",
        "raise {at}.list_timeout, or see what keeps it busy",
    ),
    "list-invalid": Kind(
        "problem", "One of its lists is none.", "mend the server: no client could read that list"
    ),
    "slow": Kind(
        "warning",
        "One of its lists takes more than half of the time that a joined list waits for it.",
        "see what keeps it busy, raise {at}.list_timeout, or keep the list longer with {at}.cache.min_ttl",
    ),
    "not-served": Kind("note", "It declares something and does not serve its list."),
    "invalid-item": Kind(
        "problem",
        "A tool, prompt, resource or template is left out, because no client could read it.",
        "mend the server: no client could read it",
    ),
    "trimmed-item": Kind("note", "A part of an item is left out, because no client could read it."),
    "repeated-item": Kind("note", "A list names something twice."),
    "missing-part": Kind("note", "It is a gateway itself, and says that a server of its own is missing."),
    "unreadable": Kind("note", "A resource that it lists cannot be read."),
    "extension-left-out": Kind("note", "It declares an extension that `extensions` does not let through."),
    # Names
    "collision": Kind(
        "problem",
        "Two tools or prompts want the same name: one is shown under another.",
        "give one of them another name with {at}.tools.rename, or another {at}.prefix",
    ),
    "same-uri": Kind(
        "problem",
        "Two upstreams list the same https: URI, and only the first is asked for it.",
        "serve the two under two endpoints, or let one of them list it no longer",
    ),
    "changed-name": Kind(
        "warning",
        "A name is too long for clients, or has characters that they refuse, so they see another.",
        "give it a name of your own with {at}.tools.rename, shorten {at}.prefix, or let the hash stand: it "
        "never changes",
    ),
    "hidden": Kind("note", "Tools that the settings hide, or that `access` keeps from everybody."),
    "unused-setting": Kind(
        "warning",
        "A setting names a tool that is not there.",
        "write the upstream's own name of the tool, or take the setting out",
    ),
    "kept-tool-missing": Kind(
        "problem",
        "`cache.calls` names a tool that is not there.",
        "write the upstream's own name of the tool under {at}.cache.calls",
    ),
    # The cache, and changes
    "uncacheable": Kind(
        "warning",
        "None of its lists is kept: every list of every client asks it.",
        "let the server give ttlMs and cacheScope, or write {at}.cache: {{min_ttl: {{tools/list: 60s}}}}",
    ),
    "unfollowed": Kind(
        "warning",
        "It declares that it tells of changes, and does not: clients are told once somebody asks again.",
        "let the server serve what it declares; until then {at}.cache.max_ttl bounds how old a list may be",
    ),
    "clock": Kind(
        "warning",
        "Its clock and this machine's differ: tokens and certificates count too long, or not yet.",
        "set the clock right that is wrong (timedatectl shows this machine's)",
    ),
    "certificate-ends": Kind(
        "warning", "Its certificate ends within two weeks.", "see to it that it is renewed"
    ),
    # What the gateway itself leans on
    "redis-away": Kind(
        "problem", "The Redis of the configuration does not answer.", "start it, or correct cache.redis"
    ),
    "redis-refuses": Kind(
        "problem",
        "Redis lacks a right or a setting that the gateway needs.",
        "give the user of cache.redis that right",
    ),
    "redis-slow": Kind(
        "warning",
        "Redis takes longer than it is waited for: requests go on uncached.",
        "move Redis nearer, or raise cache.redis_timeout",
    ),
    "issuer": Kind(
        "problem",
        "Tokens of an issuer cannot be verified.",
        "correct it under authentication.tokens, or see whether it runs",
    ),
    # The examination itself
    "audit-skipped": Kind("note", "What an audit could not see, or left out."),
    "audit-failed": Kind("problem", "Something could not be compared.", "run the audit again"),
    "kept-private": Kind("note", "Something is called public and is not; the settings share it with nobody."),
    "shared-anyway": Kind(
        "note", "It refuses callers without a token, who are given its public results from the cache."
    ),
    "too-long": Kind(
        "problem", "The examination took too long.", "see what keeps it busy, and run this again"
    ),
    "bug": Kind("problem", "A mistake of the doctor's own.", "report it, with the traceback"),
}
