"""What a single value in the configuration may be: each notation's parser and the type that uses it.

A message says what was expected and never repeats the value, which may be a secret (B42).
"""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
)

from gateway.protocol.methods import METHODS, RESERVED, is_foreign
from gateway.settings.document import is_like_a_secret
from gateway.settings.reading import content_of
from gateway.settings.redis_url import parse_redis_url
from gateway.settings.tls import check_authorities


@dataclass(frozen=True, slots=True)
class FromFile:
    """The validation context of a file: relative paths start at its folder, and every duration has a unit."""

    folder: Path
    named: Callable[[Path], None] = lambda _: None
    """Told of every file that the configuration names."""


_DURATION = re.compile(r"([0-9]{1,300}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 10 * 365 * 86400.0
_LONGEST_SECRET = 2**16
_SIZE = re.compile(r"([0-9]{1,300})(B|KiB|MiB|GiB)")
_LARGEST = 2**50
_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,30}")
_BAGGAGE_KEY = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}"
_LOGGER = r"[A-Za-z_]\w{0,63}(?:\.\w{1,64}){0,7}"
_ENDPOINT = re.compile(r"/|(?:/[A-Za-z0-9._~-]+)+")
_ORIGIN = r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._*-]+|\[[0-9a-f:.%]+\])(?::[0-9]{1,5})?"
_HOST = r"(?:[a-z0-9._*-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?"
_KEY_PREFIX = r"[A-Za-z0-9_.:/-]{1,32}"
_EXTENSION_ID = (
    r"[A-Za-z](?:[A-Za-z0-9.-]{0,126}[A-Za-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?"
)
_AUTH_EXTENSIONS = frozenset(
    {
        "io.modelcontextprotocol/enterprise-managed-authorization",
        "io.modelcontextprotocol/oauth-client-credentials",
    }
)
"""What a client and whoever it authenticates to agree on: the next hop is another matter (K-01)."""
_METHOD_PATTERN = r"[A-Za-z0-9_.$/*?-]{1,128}"
_LABEL = r"[^\x00-\x1f\x7f]{0,64}"
_LARGEST_STATE = 512 * 2**10
_SCOPE = r"[\x21\x23-\x5b\x5d-\x7e]{1,256}"
_CALLER_NAME = r"[A-Za-z0-9_.-]{1,64}"
_KEY_HASH = r"sha256:[0-9a-fA-F]{64}"
_RATE = r"([0-9]{1,9})/(s|m|h|d)"
_DAY = 86_400.0
_MOMENT_FORMS = "expected a date, or a date and time: 2027-01-31, 2027-01-31T12:00:00Z"
_RATE_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""Signatures that prove who made them; a shared secret proves nothing to others, `none` nothing at all."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that the gateway writes itself on the way to an upstream, besides Mcp-*."""
_TAKEN = frozenset(
    {
        "authorization",
        "cache-control",
        "cookie",
        "date",
        "forwarded",
        "origin",
        "proxy-authenticate",
        "referer",
        "set-cookie",
        "user-agent",
        "via",
        "www-authenticate",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-scheme",
        "x-forwarded-server",
        "x-real-ip",
    }
)
"""Headers that mean something else, to the gateway or on the way to it: none of them proves who calls."""
_TAKEN_ADVICE = "this header is there for something else: expected one of its own, such as"


def parse_duration(value: object, info: ValidationInfo) -> object:
    """Return the seconds that `250ms`, `30s`, `5m` or `24h` stand for; plain numbers are for Python code."""
    if isinstance(value, str) and (hit := _DURATION.fullmatch(value.strip())):
        return _bounded(float(hit[1]) * _DURATION_UNITS[hit[2]])
    if value == "0" or (value == 0 and not isinstance(value, bool)):
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not isinstance(info.context, FromFile):
            return _bounded(value)
        raise ValueError("expected a unit behind the number: 250ms, 30s, 5m or 24h")
    raise ValueError("expected a number with a unit: 250ms, 30s, 5m or 24h")


def _bounded(seconds: float) -> float:
    if seconds > _LONGEST:
        raise ValueError("too large: expected a duration of at most ten years")
    if not seconds >= 0:
        raise ValueError("expected a duration between 0 and ten years")
    return seconds


def show_duration(seconds: float) -> str:
    """Return a duration as a file would write it."""
    for unit in ("h", "m", "s"):
        if seconds and seconds % _DURATION_UNITS[unit] == 0:
            return f"{round(seconds / _DURATION_UNITS[unit])}{unit}"
    return f"{round(seconds * 1000)}ms" if seconds else "0s"


def _not_zero(amount: float) -> float:
    if not amount:
        raise ValueError("expected more than 0")
    return amount


def _fits_a_token(size: int) -> int:
    if size > _LARGEST_STATE:
        raise ValueError("expected at most 512KiB")
    return size


def parse_size(value: object) -> object:
    """Return the bytes that `512B`, `64KiB` or `64MiB` stand for; a plain integer is bytes."""
    if isinstance(value, str) and (hit := _SIZE.fullmatch(value.strip())):
        return _no_larger(int(hit[1]) * _SIZE_UNITS[hit[2]])
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return _no_larger(value)
    raise ValueError("expected a number with a unit: 512B, 64KiB, 64MiB or 1GiB")


def _no_larger(size: int) -> int:
    if size > _LARGEST:
        raise ValueError("too large: expected a size of at most 1048576GiB")
    return size


def show_size(size: int) -> str:
    """Return a size as a file would write it."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


def _true_or_false(value: object) -> object:
    """Return a boolean as the file or a variable in it spells one; `yes`, `on` and 1 are something else."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError("expected true or false")


def _read_secret(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str | SecretStr):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected text in quotes or {file: /path/to/the/secret}")
    if set(value) != {"file"} or not isinstance(value["file"], str):
        raise ValueError("expected text or {file: /path/to/the/secret}")
    path = _absolute(value["file"], info)
    _name(path, info)
    try:
        content = content_of(path, _LONGEST_SECRET)
        text = content.decode("utf-8").removeprefix("\ufeff").rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"cannot read the secret file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the secret file {path} is not UTF-8 text") from None
    if len(content) > _LONGEST_SECRET:
        raise ValueError(f"the secret file {path} is larger than 64 KiB")
    if not text.strip():
        raise ValueError(f"the secret file {path} is empty")
    return text


def _sound_secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.strip():
        raise ValueError("the secret is empty")
    if not text.isascii() or not text.isprintable():
        raise ValueError("the secret holds a line break or another character than printable ASCII")
    return value


def _sound_variable(value: SecretStr) -> SecretStr:
    if "\0" in value.get_secret_value():
        raise ValueError("a variable of the environment cannot hold a NUL character")
    return value


def _redis_url(value: SecretStr) -> SecretStr:
    parse_redis_url(value.get_secret_value())
    return value


def _key_prefix(value: str) -> str:
    if not re.fullmatch(_KEY_PREFIX, value):
        raise ValueError("expected 1 to 32 letters, digits, or _ . - : /")
    return value


def _absolute(path: str, info: ValidationInfo) -> Path:
    folder = info.context.folder if isinstance(info.context, FromFile) else Path()
    return (folder / Path(path).expanduser()).absolute()


def _name(path: Path, info: ValidationInfo) -> None:
    """Say that a part of the configuration is in this file."""
    if isinstance(info.context, FromFile):
        info.context.named(path)


def _readable_file(value: str, info: ValidationInfo) -> str:
    path = _absolute(value, info)
    _name(path, info)
    try:
        with path.open("rb"):
            return str(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def _split_url(value: str) -> SplitResult:
    if re.search(r"[\s\x00-\x1f\x7f]", value):
        raise ValueError("a URL holds no spaces and no control characters")
    try:
        url = urlsplit(value)
        host = url.hostname
    except ValueError:
        raise ValueError("expected a URL: http://host:port/path, an IPv6 address in [brackets]") from None
    if url.scheme not in ("http", "https") or not host:
        raise ValueError("expected a URL: http:// or https://, then a host")
    try:
        port = url.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("expected a port between 1 and 65535 behind the host")
    return url


def _upstream_url(value: str) -> str:
    url = _split_url(value)
    if "@" in url.netloc:
        raise ValueError(
            "credentials do not belong in a URL: put them under `auth`, as {bearer: …} or {headers: …}"
        )
    if "#" in value:
        raise ValueError("a URL that is requested has no #fragment")
    return value


def _proxy_url(value: str) -> str:
    url = _split_url(value)
    if "@" in url.netloc:
        raise ValueError("a proxy that asks for credentials is not supported by this version")
    if url.path.strip("/") or "?" in value or "#" in value:
        raise ValueError("expected the proxy's http://host:port and nothing behind it")
    return value


def _public_url(value: str) -> str:
    url = _split_url(value)
    if "@" in url.netloc or "?" in value or "#" in value:
        raise ValueError("expected https://host or https://host/path, no credentials, query or fragment")
    return value.rstrip("/")


def shown_url(url: str) -> str:
    """Return a URL without what may be secret in it: userinfo, query and fragment (B42)."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this very machine, by its spelling."""
    host = (urlsplit(url).hostname or "").lower()
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _origin(value: str) -> str:
    if value != "*" and not re.fullmatch(_ORIGIN, value.lower()):
        raise ValueError("expected an origin: https://host or https://host:port, nothing behind it; or *")
    return value.lower()


def _host(value: str) -> str:
    if not re.fullmatch(_HOST, value.lower()):
        raise ValueError("expected a host as the Host header has it: mcp.example.com, *.example.com:8443, *")
    return value.lower()


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError("expected an address or a network: 10.1.2.3, 10.0.0.0/8, fd00::/8") from None
    return value


def _header_name(value: str) -> str:
    if not _HEADER_NAME.fullmatch(value):
        raise ValueError("expected a header name: letters, digits and -")
    if value.lower() in _OWN_HEADERS or value.lower().startswith("mcp-"):
        raise ValueError("the gateway writes this header itself")
    return value


def _key_header(value: str) -> str:
    if _is_taken(value) or value.lower().startswith("x-forwarded-"):
        raise ValueError(f"{_TAKEN_ADVICE} X-API-Key")
    return _header_name(value)


def _certificate_header(value: str) -> str:
    if _is_taken(value):
        raise ValueError(f"{_TAKEN_ADVICE} X-Forwarded-Client-Cert")
    return _header_name(value)


def _is_taken(name: str) -> bool:
    return name.lower() in _TAKEN or name.lower().startswith(("access-control-", "sec-"))


CACHEABLE = tuple(name for name, method in METHODS.items() if method.cacheable)


def _cacheable_method(value: str) -> str:
    if value not in CACHEABLE:
        raise ValueError(f"expected a method whose results are cached: {', '.join(CACHEABLE)}")
    return value


def _exposed_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value):
        raise ValueError("expected a tool name: 1 to 128 characters of A-Z a-z 0-9 _ - .")
    return value


def _extension_id(value: str) -> str:
    if not re.fullmatch(_EXTENSION_ID, value):
        raise ValueError("expected an extension's id, with its prefix: com.example/search")
    if value in _AUTH_EXTENSIONS:
        raise ValueError("this one is between the gateway and its peers, and never carried on")
    return value


def _method_pattern(value: str) -> str:
    if not re.fullmatch(_METHOD_PATTERN, value):
        raise ValueError("expected a method of an extension: com.example.search/query, com.example.search/*")
    if not is_foreign(value) or value.partition("/")[0].casefold() in RESERVED:
        raise ValueError("the gateway serves this method itself, or nobody does")
    return value


def _issuer_url(value: str) -> str:
    """Return the URL of an authorization server; plain http is for this machine only."""
    url = _split_url(value)
    if "@" in url.netloc or "#" in value:
        raise ValueError("expected https://host/path, no credentials and no #fragment")
    if url.scheme != "https" and not is_loopback(value):
        raise ValueError("expected https: what is sent there, and what it says, decides who gets in")
    return value


def _scope_token(value: str) -> str:
    if not re.fullmatch(_SCOPE, value):
        raise ValueError("expected one scope: no spaces, quotes or backslashes")
    return value


def _caller_name(value: str) -> str:
    if not re.fullmatch(_CALLER_NAME, value):
        raise ValueError("expected a name: 1 to 64 characters of A-Z a-z 0-9 _ - .")
    if value.startswith("mcpgw_"):
        raise ValueError("this is a key itself, which is written nowhere: choose a name, and write its hash")
    return value


def _key_hash(value: str) -> str:
    if "mcpgw_" in value:
        raise ValueError(
            "this is the key itself, which is written nowhere: expected its hash, sha256: and 64 hex digits. "
            "Who can read this file has seen the key: make another one with `mcp-gateway key`"
        )
    if not re.fullmatch(_KEY_HASH, value):
        raise ValueError("expected sha256: and 64 hex digits, as `mcp-gateway key` prints it")
    return value.lower()


def parse_moment(value: object) -> object:
    """Return the seconds since the epoch at which ends what lasts until then; of a date alone, its last."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    moment = _read_moment(value) if isinstance(value, str) else value
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(moment, date):
        # Whoever writes a last day means to use it.
        return datetime(moment.year, moment.month, moment.day, tzinfo=UTC).timestamp() + _DAY
    raise ValueError(_MOMENT_FORMS)


def _read_moment(text: str) -> date | None:
    for kind in (date, datetime):
        try:
            return kind.fromisoformat(text)
        except ValueError:
            continue
    return None


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests in so many seconds; as many may come at once."""

    count: int
    seconds: float

    def __str__(self) -> str:
        units = {seconds: unit for unit, seconds in _RATE_UNITS.items()}
        return f"{self.count}/{units[self.seconds]}"


def parse_rate(value: object) -> object:
    """Return the rate that `100/s`, `600/m`, `1000/h` or `10000/d` stands for."""
    if isinstance(value, str) and (hit := re.fullmatch(_RATE, value.strip())) and int(hit[1]):
        return Rate(int(hit[1]), _RATE_UNITS[hit[2]])
    raise ValueError("expected a number of requests and a time: 100/s, 600/m, 1000/h or 10000/d")


def _algorithm(value: str) -> str:
    if value not in ALGORITHMS:
        raise ValueError(f"expected an asymmetric signature: {', '.join(ALGORITHMS)}")
    return value


def _label(value: str) -> str:
    if not re.fullmatch(_LABEL, value):
        raise ValueError("expected at most 64 characters in one line")
    return value


def _separator(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,8}", value):
        raise ValueError("expected 1 to 8 characters of A-Z a-z 0-9 _ - .")
    return value


def _endpoint_path(value: str) -> str:
    if not _ENDPOINT.fullmatch(value):
        advice = f': "{value.rstrip("/")}" would do' if _ENDPOINT.fullmatch(value.rstrip("/")) else ""
        raise ValueError(f"expected a path such as /mcp or /mcp/dev, without a slash at its end{advice}")
    segments = value.lower().split("/")
    if ".well-known" in segments or "." in segments or ".." in segments:
        raise ValueError("a path holds no `.`, `..` or `.well-known`: the last is where metadata is served")
    return value


def _namespace(text: str) -> str:
    if _NAMESPACE.fullmatch(text):
        return text
    # A name made of what was written would tell it, in other letters (B42).
    advice = "" if is_like_a_secret(text) else f': "{slug(text)}" would do'
    raise ValueError(f"expected a letter a-z, then up to 30 of a-z 0-9 and -{advice}")


def _baggage_key(text: str) -> str:
    if re.fullmatch(_BAGGAGE_KEY, text):
        return text
    raise ValueError("expected the name of a member of baggage: letters, digits and signs such as . _ -")


def _logger_name(text: str) -> str:
    if re.fullmatch(_LOGGER, text):
        return text
    raise ValueError("expected the dotted name of a part, such as gateway.upstream")


def _prefix(text: str) -> str:
    return text and _namespace(text)


def slug(text: str) -> str:
    """Return the valid namespace (F-02) nearest to a text."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"u-{plain}" if plain else "upstream"
    return plain[:31].strip("-")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(value: str) -> Address:
    """Return the address that `host:port` or `[::1]:port` stands for."""
    hit = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", value)
    if hit and int(hit[3]) <= 65535:
        return Address(hit[1] or hit[2], int(hit[3]))
    if port := re.fullmatch(r"(?:\*?:)?([0-9]{1,5})", value):
        here, everywhere = f"127.0.0.1:{port[1]}", f"0.0.0.0:{port[1]}"
        raise ValueError(f"expected host:port: {here} is this machine only, {everywhere} every interface")
    raise ValueError("expected host:port or [::1]:port, the port up to 65535")


def _address(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # `listen: 8080` deserves the advice that ":8080" gets
    return str(parse_address(value)) if isinstance(value, str) else value


def _address_or_off(value: object) -> object:
    return "off" if value is False or value == "off" else _address(value)  # YAML 1.1 reads off as false


VARIABLE_PATTERN = r"\$\{"
"""What a text holds before its variables are put in; an editor cannot know the outcome."""
DURATION_PATTERN = rf"^(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h)|0)$|{VARIABLE_PATTERN}"
_DURATION_SCHEMA = WithJsonSchema({"type": ["string", "integer"], "pattern": DURATION_PATTERN, "maximum": 0})
SIZE_PATTERN = rf"^[0-9]+(?:B|KiB|MiB|GiB)$|{VARIABLE_PATTERN}"
_SIZE_SCHEMA = WithJsonSchema({"type": ["string", "integer"], "pattern": SIZE_PATTERN, "minimum": 0})
_SECRET_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {
                "type": "object",
                "properties": {
                    "file": {"type": "string", "description": "A file that holds only the secret."}
                },
                "required": ["file"],
                "additionalProperties": False,
            },
        ]
    }
)


def _text_schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": rf"^(?:{pattern})$|{VARIABLE_PATTERN}"})


_URL_SCHEMA = _text_schema(r"[hH][tT][tT][pP][sS]?://[^\s]+")

Duration = Annotated[float, BeforeValidator(parse_duration), _DURATION_SCHEMA]
"""Seconds inside, `250ms 30s 5m 24h` in the file."""
Wait = Annotated[float, BeforeValidator(parse_duration), AfterValidator(_not_zero), _DURATION_SCHEMA]
"""A Duration that must not be zero."""
Size = Annotated[int, BeforeValidator(parse_size), _SIZE_SCHEMA]
"""Bytes inside, `64KiB 64MiB` in the file."""
PositiveSize = Annotated[int, BeforeValidator(parse_size), AfterValidator(_not_zero), _SIZE_SCHEMA]
StateSize = Annotated[
    int, BeforeValidator(parse_size), AfterValidator(_not_zero), AfterValidator(_fits_a_token), _SIZE_SCHEMA
]
"""A PositiveSize that fits into a sealed token."""
Count = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
Flag = Annotated[bool, BeforeValidator(_true_or_false)]
"""`true` or `false` and nothing else."""
Depth = Annotated[int, Field(ge=1, le=500), BeforeValidator(_no_bool)]
NameLength = Annotated[int, Field(ge=32, le=128), BeforeValidator(_no_bool)]
Secret = Annotated[SecretStr, BeforeValidator(_read_secret), AfterValidator(_sound_secret), _SECRET_SCHEMA]
"""Text or `{file: /run/secrets/x}`; never printed."""
VariableText = Annotated[
    SecretStr, BeforeValidator(_read_secret), AfterValidator(_sound_variable), _SECRET_SCHEMA
]
"""The value of a variable for a program, which may be anything, a key of many lines or nothing, too."""
RedisUrl = Annotated[
    SecretStr,
    BeforeValidator(_read_secret),
    AfterValidator(_sound_secret),
    AfterValidator(_redis_url),
    _SECRET_SCHEMA,
]
"""A Secret, for it may hold a password."""
KeyPrefix = Annotated[str, AfterValidator(_key_prefix), _text_schema(_KEY_PREFIX)]
FilePath = Annotated[str, AfterValidator(_readable_file)]
CertificateFile = Annotated[str, AfterValidator(_readable_file), AfterValidator(check_authorities)]
"""A PEM file of certificates."""
HeaderName = Annotated[str, AfterValidator(_header_name)]
KeyHeader = Annotated[str, AfterValidator(_key_header)]
"""A HeaderName that carries an API key and nothing else."""
CertificateHeader = Annotated[str, AfterValidator(_certificate_header)]
CachedMethod = Annotated[str, AfterValidator(_cacheable_method), _text_schema("|".join(CACHEABLE))]
Text = Annotated[str, Field(min_length=1)]
ExposedName = Annotated[str, AfterValidator(_exposed_name)]
Label = Annotated[str, AfterValidator(_label), _text_schema(_LABEL)]
ExtensionId = Annotated[str, AfterValidator(_extension_id), _text_schema(_EXTENSION_ID)]
MethodPattern = Annotated[str, AfterValidator(_method_pattern), _text_schema(_METHOD_PATTERN)]
Separator = Annotated[str, AfterValidator(_separator), _text_schema(r"[A-Za-z0-9_.-]{1,8}")]
Namespace = Annotated[str, AfterValidator(_namespace), _text_schema(_NAMESPACE.pattern)]
Prefix = Annotated[str, AfterValidator(_prefix), _text_schema(f"(?:{_NAMESPACE.pattern})?")]
BaggageKey = Annotated[str, AfterValidator(_baggage_key), _text_schema(_BAGGAGE_KEY)]
LoggerName = Annotated[str, AfterValidator(_logger_name), _text_schema(_LOGGER)]
EndpointPath = Annotated[str, AfterValidator(_endpoint_path), _text_schema(_ENDPOINT.pattern)]
UpstreamUrl = Annotated[str, AfterValidator(_upstream_url), _URL_SCHEMA]
ProxyUrl = Annotated[str, AfterValidator(_proxy_url), _URL_SCHEMA]
PublicUrl = Annotated[str, AfterValidator(_public_url), _URL_SCHEMA]
IssuerUrl = Annotated[str, AfterValidator(_issuer_url), _URL_SCHEMA]
"""A URL of an authorization server: https, or this very machine."""
ScopeToken = Annotated[str, AfterValidator(_scope_token), _text_schema(_SCOPE)]
CallerName = Annotated[str, AfterValidator(_caller_name), _text_schema(_CALLER_NAME)]
KeyHash = Annotated[str, AfterValidator(_key_hash), _text_schema(_KEY_HASH)]
Algorithm = Annotated[str, AfterValidator(_algorithm), _text_schema("|".join(ALGORITHMS))]
ClaimValue: TypeAlias = StrictBool | StrictInt | StrictStr
Moment = Annotated[float, BeforeValidator(parse_moment), WithJsonSchema({"type": "string"})]
"""Seconds since the epoch inside, a date in the file."""
RateText = Annotated[
    Rate, BeforeValidator(parse_rate), WithJsonSchema(_text_schema(r"[0-9]+/[smhd]").json_schema or {})
]
"""So many requests in so much time: 100/s, 600/m."""
Ratio = Annotated[float, Field(ge=0, le=1), BeforeValidator(_no_bool)]
OriginText = Annotated[str, AfterValidator(_origin)]
HostText = Annotated[str, AfterValidator(_host)]
Network = Annotated[str, AfterValidator(_network)]
ListenAddress = Annotated[str, BeforeValidator(_address)]
AddressOrOff = Annotated[str, BeforeValidator(_address_or_off)]
