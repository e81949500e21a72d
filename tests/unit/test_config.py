"""A file becomes a Config, or a list of everything that is wrong with it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from pydantic import BaseModel, SecretStr, ValidationError
from ruamel.yaml import YAML

from gateway.config import Auth, Config, ConfigError, Upstream, load, load_file, schema

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config" / "gateway.example.yaml"
UP = "upstreams: {a: http://a/mcp}\n"
ENV = {"TOK": "hunter2", "TOKEN": "hunter2", "EMPTY": "", "PORT": "8081", "DEPTH": "7", "YES": "true"}


def read(text: str, folder: Path = Path()) -> Config:
    return load(text, file="g.yaml", env=ENV, folder=folder)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


def warned(text: str) -> list[str]:
    warnings: list[str] = []
    load(text, env=ENV, warn=warnings.append)
    return warnings


# What a file may say


def test_one_line_is_enough() -> None:
    """An upstream is its URL; everything else has a default."""
    config = read("upstreams:\n  time: http://127.0.0.1:9001/mcp\n")
    assert config.upstreams["time"].url == "http://127.0.0.1:9001/mcp"
    assert config.upstreams["time"].prefix == "time"
    assert config.listen == "127.0.0.1:8080"
    assert list(config.endpoints) == ["/mcp"]
    assert config.endpoints["/mcp"].upstreams is None


def test_the_order_of_the_file_is_the_order_of_the_upstreams() -> None:
    """Merged lists follow it (F-28)."""
    assert list(read("upstreams: {z: http://z, a: http://a, m: http://m}").upstreams) == ["z", "a", "m"]


@pytest.mark.parametrize(
    ("auth", "kind"),
    [
        ("none", "none"),
        ("forward", "forward"),
        ("{bearer: '${TOK}'}", "bearer"),
        ("{headers: {X-Key: '${TOK}', Authorization: 'Basic eDp5'}}", "headers"),
    ],
)
def test_auth_is_a_word_or_one_key(auth: str, kind: str) -> None:
    """The kind follows from the form."""
    config = read(f"upstreams: {{a: {{url: http://a, auth: {auth}}}}}")
    assert config.upstreams["a"].auth.kind == kind


@pytest.mark.parametrize(
    "auth",
    ["hunter2", "{hunter2: 1}", "[hunter2]", "{}", "{bearer: hunter2, headers: {A: b}}",
     "{kind: bearer, bearer: hunter2}", "bearer", "{bearer: 'Bearer hunter2'}", "{bearer: }", "{headers: {}}",
     "{headers: [hunter2]}", "{bearer: ''}", "{bearer: 12345}", "{kind: none}", "", "true",
     "{headers: {'hunter2 x': y}}"],
)  # fmt: skip
def test_any_other_auth_is_one_problem_that_repeats_no_token(auth: str) -> None:
    """Whatever stands where a token may stand stays unsaid (B42); the key of a header is no token."""
    (problem,) = problems(f"upstreams: {{a: {{url: http://a, auth: {auth}}}}}")
    assert "upstreams.a.auth" in problem
    assert "hunter2" not in problem or "hunter2 x" in problem
    assert "12345" not in problem


def test_variables_fill_numbers_and_switches_too() -> None:
    """`"${PORT}"` is a text; what it stands for counts."""
    config = read(
        UP + "listen: '127.0.0.1:${PORT}'\nlimits: {depth: '${DEPTH}'}\ncache: {single_tenant: '${YES}'}"
    )
    assert (config.listen, config.limits.depth, config.cache.single_tenant) == ("127.0.0.1:8081", 7, True)


def test_empty_sections_mean_their_defaults() -> None:
    """A section whose lines are all commented out."""
    assert read(UP + "cache:\nnames:\nlimits:\nendpoints: {/mcp: }\nlog:\nsecrets:\n") == read(UP)


def test_python_code_may_use_numbers_and_models() -> None:
    """Other parts build configurations without a file."""
    upstream = Upstream(url="http://a", prefix="", timeout=0.05, auth=Auth(bearer=SecretStr("t")))
    assert Config(upstreams={"a": upstream}).upstreams["a"].timeout == 0.05
    assert Config.model_validate({"upstreams": {"a": "http://a"}}).upstreams["a"].prefix == "a"
    with pytest.raises(ValidationError, match="same"):
        Config.model_validate(
            {"upstreams": {"a": "http://a"}, "endpoints": {"/mcp": {"upstreams": ["same"]}}}
        )


@pytest.mark.parametrize(
    ("upstream", "said"),
    [
        ("{timeout: 20m}", "timeout: expected no more than max_timeout, which is 10m: raise that too"),
        ("{timeout: 2s, max_timeout: 1s}", "timeout: expected no more than max_timeout, which is 1s"),
        ("{cache: {min_ttl: {tools/list: 2m}, max_ttl: 1m}}", "which is 1m"),
        ("{cache: {min_ttl: {tools/list: 48h}}}", "cache.min_ttl.tools/list: expected no more than max_ttl"),
        ("{cache: {min_ttl: {tools/list: 25h}, max_ttl: 30h}}", "which is 24h"),
    ],
)
def test_a_limit_that_another_takes_back_is_a_problem(upstream: str, said: str) -> None:
    """At its line; the other limit may be a default."""
    (problem,) = problems(f"upstreams:\n  a: {{url: http://a, {upstream[1:]}")
    assert problem.startswith("g.yaml:2: upstreams.a.")
    assert said in problem


def test_a_limit_that_another_takes_back_is_refused_in_python_too() -> None:
    """A model made by hand keeps the same promises."""
    with pytest.raises(ValidationError, match=r"upstreams\.a\.timeout: expected no more than max_timeout"):
        Config.model_validate({"upstreams": {"a": {"url": "http://a", "timeout": 3, "max_timeout": 2}}})


@pytest.mark.parametrize(
    ("token", "said"),
    [("Bearer hunter2", "without `Bearer`"), ("bearer hunter2", "without `Bearer`"), ("hunter 2", "space")],
)
def test_a_token_with_a_space_is_told_what_is_wrong_with_it(token: str, said: str) -> None:
    """A word before it, or a token that was not copied whole; neither is repeated (B42)."""
    (problem,) = problems(f"upstreams: {{a: {{url: http://a, auth: {{bearer: '{token}'}}}}}}")
    assert said in problem
    assert "hunter" not in problem


def test_a_huge_file_is_refused_before_it_is_read_whole() -> None:
    """A device that never ends is no configuration, and must not be read for ever."""
    with pytest.raises(ConfigError, match="/dev/zero: the file is larger than 1 MiB"):
        load_file("/dev/zero")


def test_the_tls_files_are_looked_for_beside_the_file(tmp_path: Path) -> None:
    """A path that is wrong fails the start, not the first call (B49)."""
    (tmp_path / "ca.pem").touch()
    text = "upstreams: {a: {url: https://a, tls: {ca_file: ca.pem}}}"
    with pytest.raises(ConfigError, match=f"tls.ca_file: {tmp_path / 'ca.pem'} holds no PEM certificate"):
        read(text, tmp_path)
    assert "cannot read" in problems(text)[0]


# What a file may not say


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("admim: off", "g.yaml:2: admim: unknown key; did you mean `admin`?"),
        ("timeout: 3s", "g.yaml:2: timeout: unknown key here; it belongs at upstreams.NAME.timeout"),
        ("cache:\n  Memory: 1MiB", "g.yaml:3: cache.Memory: unknown key; did you mean `memory`?"),
        ("xyzzy: 1", "g.yaml:2: xyzzy: unknown key; known here: listen, admin"),
        ("limits: {page-size: 3}", "limits.page-size: unknown key; did you mean `page_size`?"),
        ("endpoints: {/mcp: {upstream: [a]}}", "/mcp.upstream: unknown key; did you mean `upstreams`?"),
        ("cache: {redis: redis://x}", "cache.redis: needs secrets.keys"),
        ("authentication: {certificates: {source: tls}}", "certificates.source: needs tls.client_ca_file"),
        ("authentication: {certificates: {source: header}}", "certificates.source: needs `trusted_proxies`"),
        ("secrets: {keys: [0123456789abcdef]}\ncache: {redis: http://x}", "cache.redis: expected redis://host"),
        ("cache: {redis_prefix: 'a b'}", "cache.redis_prefix: expected 1 to 32 letters"),
        ("cache: {stale_if_error: 1}", "expected a unit behind the number"),
        ("limits: {sessions: 0}", "expected at least 1"),
        ("log: {level: loud}", "log.level: expected 'debug', 'info', 'warning' or 'error', found 'loud'"),
        ("log: {levels: {gateway.upstrem: debug}}", "there is no part `gateway.upstrem`; did you mean"),
        ("log: {levels: {'a b': debug}}", "expected the dotted name of a part"),
        ("tracing: {otlp: collector}", "tracing.otlp: expected a URL"),
        ("tracing: {sample: 2}", "tracing.sample: expected at most 1"),
        ("tracing: {baggage: ['a b']}", "expected the name of a member of baggage"),
        ("tracing: {headers: {Mcp-Method: x}}", "the gateway writes this header itself"),
        ("log: {access: some}", "log.access: expected 'all', 'problems' or 'none'"),
        ("limits: {depth: many}", "limits.depth: expected a whole number, found 'many'"),
        ("limits: {depth: '${TOK}'}", "expected a whole number, found '${TOK}'"),
        ("limits: {depth: 0}", "expected at least 1, found '0'"),
        ("limits: {depth: true}", "expected a whole number"),
        ("names: {max_length: 31}", "expected at least 32"),
        ("names: {max_length: 129}", "expected at most 128"),
        ("names: {separator: .}", "charset: spec"),
        ("names: {separator: ' '}", "expected 1 to 8 characters"),
        ("limits: {message: 0}", "expected more than 0"),
        ("cache: [1]", "expected a mapping"),
        ("origins: https://a", "expected a list"),
        ("identity: {name: 3}", "expected text: put the value in quotes"),
        ("cache: {single_tenant: perhaps}", "expected true or false"),
        ("startup_wait: 5", "expected a unit behind the number: 250ms, 30s, 5m or 24h, found '5'"),
        ("admin: 127.0.0.1:8080", "choose another port"),
        ("public_url: mcp.example.com", "expected a URL"),
        ("authentication: {tokens: {a: {issuer: 'https://a'}}}\nlisten: 0.0.0.0:80", "needs `public_url`"),
        (
            "authentication: {tokens: {a: {issuer: 'https://a'}}}\ntrusted_proxies: [10.0.0.0/8]",
            "which is that of the proxy",
        ),
        (
            "authentication: {tokens: {a: {issuer: 'https://a'}}}\nhosts: [mcp.example.com]",
            "`hosts` says that clients know another",
        ),
        ("endpoints: {}", "at least one path"),
        ("endpoints: {/mcp: {}, /mcp/: {}}", '"/mcp" would do'),
        ("endpoints: {/mcp: {upstreams: [b]}}", "endpoints./mcp.upstreams[0]: there is no upstream `b`"),
        ("endpoints: {/mcp: {upstreams: [a, a]}}", "/mcp.upstreams[1]: `a` is in this list already"),
        ("endpoints: {/mcp: {upstreams: []}}", "at least one upstream"),
        ("endpoints: {/mcp: {tools: {rename: {a: x, b: x}}}}", "a and b cannot both become x"),
        ("extensions: [com.example/x, com.example/x]", "com.example/x is listed twice"),
        ("subscriptions: {retry: 2s, longest_retry: 1s}", "cannot be shorter than retry"),
        ("subscriptions: {retry: 2m}", "cannot be shorter than retry"),
        ("endpoints: {/mcp: {tools: {rename: {a: x y}}}}", "expected a tool name"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_is_said_at_its_line(text: str, said: str) -> None:
    """File, line, path, what was expected, and the nearest known key."""
    (problem,) = problems(UP + text)
    assert problem.startswith("g.yaml:")
    assert said in problem


@pytest.mark.parametrize(
    ("upstreams", "said"),
    [
        ("{}", "at least one upstream"),
        ("", "expected a mapping"),
        ("{a: }", "expected either `url` or `command`"),
        ("{a: {prefix: b}}", "expected either `url` or `command`"),
        ("{a: [http://a]}", "expected a mapping"),
        ("{Time_Server: http://a}", 'up to 30 of a-z 0-9 and -: "time-server" would do'),
        ("{a: {url: http://a, prefix: A_b}}", '"a-b" would do'),
        ("{a: http://a, b: {url: http://b, prefix: a}}", 'b.prefix: "a" is the prefix of `a` too, and /mcp'),
        ("{a: {url: http://a, prefix: ''}, b: {url: http://b, prefix: ''}}", '"" is the prefix of `a` too'),
        ("{a: {url: http://a, command: npx}}", "expected either `url` or `command`"),
        ("{a: {url: http://a, args: [x]}}", "`args` goes with `command`, not with `url`"),
        ("{a: {command: npx, auth: forward}}", "a program is given its credentials in `env`"),
        ("{a: {command: npx, env: {K: '${NOT_SET}'}}}", "NOT_SET"),
        ("{a: {url: http://a, isolation: x}}", "expected 'shared', 'caller' or 'session'"),
        ("{a: {url: http://a, cache: {partition: user}}}", "expected 'token' or 'subject'"),
        (
            "{a: {url: http://a, auth: forward, cache: {partition: subject}}}",
            "does not go with `auth: forward`",
        ),
        ("{a: {url: http://a, cache: {calls: {t: {}}}}}", "`ttl` is missing"),
        ("{a: {url: http://a, cache: {calls: {t: {ttl: 0s}}}}}", "expected more than 0"),
        ("{a: {url: http://a, cache: {calls: {t: {ttl: 1s, scope: all}}}}}", "expected 'private' or"),
        ("{a: {url: http://a, auth: {client_credentials: {}}}}", "`client_id` is missing"),
        ("{a: {url: http://a, auth: {client_credentials: {client_id: a}}}}", "client_secret or client_key"),
        ("{a: {url: http://a, auth: token_exchange}}", "`token_exchange` needs its value"),
        ("{a: {url: http://a, headers: {A: b}}}", "or upstreams.NAME.auth.headers"),
        ("{a: {url: http://a, timout: 3s}}", "did you mean `timeout`?"),
        ("{a: {url: http://a, cache: {min_ttl: {tools/call: 1s}}}}", "expected a method whose result"),
        ("{a: {url: http://a, tls: {client_key: /dev/null}}}", "client_key needs client_cert"),
        ("{a: {url: http://a, connections: 0}}", "expected at least 1"),
        ("{a: {url: http://a, methods: [tools/*]}}", "the gateway serves this method itself, or nobody does"),
        ("{a: {url: http://a, methods: [Resources/x]}}", "the gateway serves this method itself, or nobody"),
        ("{a: {url: http://a, methods: [tasks/get]}}", "the gateway serves this method itself, or nobody"),
        ("{a: {url: http://a, timeout: 0}}", "expected more than 0"),
        ("{a: {url: http://a, forward_headers: [X-Tenant]}}", "not supported by this version"),
        ("{a: {url: http://a, proxy: 'http://u:hunter2@p'}}", "proxy that asks for credentials"),
    ],
)  # fmt: skip
def test_a_wrong_upstream_is_said_at_its_line(upstreams: str, said: str) -> None:
    """One mistake is one problem."""
    (problem,) = problems(f"upstreams: {upstreams}")
    assert said in problem
    assert "hunter2" not in problem


def test_prefixes_may_repeat_where_no_endpoint_serves_both() -> None:
    """Only names that meet can collide."""
    read(
        "upstreams: {a: {url: http://a, prefix: ''}, b: {url: http://b, prefix: ''}}\n"
        "endpoints: {/a: {upstreams: [a]}, /b: {upstreams: [b]}}"
    )


def test_a_prefix_leaves_room_for_names() -> None:
    """With 31 + 2 characters gone of 32, every tool would be a hash."""
    long = "a" * 31
    assert "shorter `prefix`" in problems(f"names: {{max_length: 32}}\nupstreams: {{{long}: http://a}}")[0]
    read(f"upstreams: {{{long}: http://a}}")


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    """A value that could not be read hides no other problem, and causes none."""
    lines = [
        "listen: 8080",
        "upstreams:",
        "  gh:",
        "    url: ${NOPE}",
        "    timout: 3s",
        "    auth: {bearer: '${NOPE}'}",
        "  gh: http://b",
        "  jira: {url: http://c, prefix: gh}",
        "endpoints: {/mcp: {upstreams: [gh, jria]}, bad: {}}",
        "log: {level: loud}",
    ]
    found = problems("\n".join(lines))
    assert [int(problem.split(":")[1]) for problem in found] == [1, 4, 5, 6, 7, 8, 9, 9, 10]
    assert "did you mean `jira`?" in found[6] + found[7]


@pytest.mark.parametrize("text", ["[]", "just text", "42", "- a: 1"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    """With an example of what a configuration starts with."""
    assert "upstreams" in problems(text)[0]


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """Missing, a folder, not UTF-8: no traceback, the path is named."""
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4")
    for name in ("missing.yaml", "latin.yaml", "."):
        with pytest.raises(ConfigError) as caught:
            load_file(tmp_path / name)
        assert str(tmp_path) in str(caught.value)


# Secrets stay secret (B42)

SECRETS = (
    "upstreams:\n  a: {url: 'http://a/mcp?api_key=hunter2', auth: {bearer: hunter2}}\n"
    "  b: {url: http://b, auth: {headers: {X-Key: hunter2}}}\nsecrets: {keys: [hunter2-hunter2-hunter2]}\n"
)


def test_a_configuration_prints_no_secret() -> None:
    """repr and str of the whole and of every part: an exception may carry the object."""
    config = read(SECRETS)
    for part in (config, config.upstreams["a"], config.upstreams["b"].auth, config.secrets):
        assert "hunter2" not in repr(part) + str(part)


@pytest.mark.parametrize(
    "text",
    [
        "${TOKEN}: 1",
        "upstreams: {a: {url: http://a, '${TOKEN}': 1}}",
        "upstreams: {'${TOKEN}': http://a, 'X${TOKEN}': http://a}",
        "upstreams: {a: http://a}\nlisten: '${TOKEN}'",
        "upstreams: {a: http://a}\nlog: {level: '${TOKEN}'}",
        "upstreams: {a: http://a}\nendpoints: {/mcp: {upstreams: ['${TOKEN}']}}",
        "upstreams: {a: {url: http://a, cache: {min_ttl: {'${TOKEN}': 1s}}}}",
    ],
)
def test_a_mistake_names_the_variable_and_not_its_value(text: str) -> None:
    """Wherever somebody put it by mistake."""
    with pytest.raises(ConfigError) as caught:
        load(text, env={"TOKEN": "Hunter2-hunter2"})
    assert "unter2" not in str(caught.value)


def test_a_settings_fingerprint_sees_every_setting() -> None:
    """Another credential is another cache; the same settings are the same bytes."""
    forms = {
        Upstream.model_validate({"url": "http://a", "prefix": "a", **more}).canonical()
        for more in (
            {},
            {"auth": {"bearer": "x"}},
            {"auth": {"bearer": "y"}},
            {"timeout": 1},
            {"auth": "forward"},
        )
    }
    assert len(forms) == 5
    assert Upstream(url="http://a", prefix="a").canonical() in forms


def every_mistake() -> Iterator[str]:
    """Yield the file above with each of its lines and values broken in turn."""
    for broken in ("{", "[", "*x ", "!t ", "'", "${hunter", "\t", "%", "? ", "x: "):
        for place in ("hunter2,", "'http", "{bearer", "{headers", "[hunter2", "http://b", "a: {", "keys"):
            yield SECRETS.replace(place, broken + place, 1)
    yield SECRETS.replace("url: 'http://a/", "url: 'http://u:hunter2@a/")
    yield SECRETS.replace("http://b", "hunter2")
    yield SECRETS.replace("url: 'http://a/mcp?api_key=hunter2'", "'http://a/mcp?api_key=hunter2'")
    yield SECRETS.replace("  a: {", "  A_A: {")
    yield "upstreams: {A_A: 'http://a/mcp?api_key=hunter2', b: 'x://hunter2', c: hunter2}"
    yield SECRETS.replace("bearer: hunter2", "bearer: [hunter2]")
    yield SECRETS.replace("keys: [", "keys: {x: ").replace("]}", "}}")


@pytest.mark.parametrize("text", list(every_mistake()))
def test_no_mistake_makes_an_error_say_a_secret(text: str) -> None:
    """Whatever is wrong around it, the value of a credential or a URL is not repeated."""
    try:
        said = repr(read(text))
    except ConfigError as error:
        said = str(error)
    assert "hunter2" not in said


def test_pydantic_errors_hide_their_input() -> None:
    """A Config built in code that fails must not print what it was given."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(
            {"upstreams": {"a": {"url": 3, "auth": {"bearer": "hunter2\n"}}}, "listen": "hunter2"}
        )
    assert "hunter2" not in str(caught.value) + repr(caught.value)


# What is allowed but worth a second look

SHARED = "secrets: {keys: [0123456789abcdef]}\ncache: {redis: 'rediss://r', "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("upstreams: {a: {url: https://a, tls: {insecure_skip_verify: true}}}", "anyone on the way"),
        ("upstreams: {a: {url: http://a, tls: {server_name: b}}}", "no effect"),
        ("upstreams: {a: {url: https://a, auth: forward}}", "write share_public: true or false to settle it"),
        (UP + "secrets: {keys: [short]}", "shorter than 16"),
        (
            UP + "secrets: {keys: [0123456789abcdef]}\ncache: {redis: 'redis://u:five5@r'}",
            "the password in cache.redis is shorter than 6",
        ),
        ("upstreams: {a: {url: https://a, auth: {bearer: five5}}}", "a.auth.bearer is shorter than 6"),
        (
            "upstreams: {a: {url: https://a, auth: {headers: {X-Key: five5}}}}",
            "upstreams.a.auth.headers.X-Key is shorter than 6",
        ),
        (UP + "cache: {redis_tls: {check_hostname: false}}", "cache.redis_tls has no effect"),
        (
            UP + SHARED + "redis_tls: {insecure_skip_verify: true}}",
            "cache.redis_tls.insecure_skip_verify: any",
        ),
        (
            UP + "listen: 0.0.0.0:8080\nhosts: [a]",
            "listen: 0.0.0.0:8080 lets in everybody who reaches it, and nobody is verified",
        ),
        (UP + "access: {default: deny}", "access denies everything to everybody"),
        (UP + "access: {}", "access holds no rules: everybody"),
        (UP + "access: {rules: []}", "access holds no rules: everybody"),
        (UP + "trusted_proxies: [10.0.0.0/8, '::/0']", "trusted_proxies: ::/0 is everybody"),
        (
            UP + "listen: 10.0.0.1:80\nhosts: [a]\n"
            f"authentication: {{keys: {{ci: {{hash: 'sha256:{64 * 'a'}'}}}}}}",
            "listen: 10.0.0.1:80 is neither TLS (tls.cert_file) nor behind",
        ),
        (
            UP + "public_url: http://mcp.svc\nauthentication: {tokens: {a: {issuer: 'https://a'}}}",
            "tokens for http://mcp.svc travel unencrypted",
        ),
        ("upstreams: {a: {url: http://a, cache: {partition: subject}}}", "cache.partition has no effect"),
        ("upstreams: {a: {url: http://a, cache: {scope: public}}}", "what it marks private is shared"),
        (
            "upstreams: {a: {url: http://a, cache: {share_public: false, calls: {t: {ttl: 1s, scope: "
            "public}}}}}",
            "results of t are not shared",
        ),
        (
            "upstreams: {a: {command: x, isolation: session, cache: {calls: {t: {ttl: 1s, scope: public}}}}}",
            "results of t are not shared: isolation forbids that",
        ),
        (
            "upstreams: {a: {command: x, isolation: caller, cache: {scope: public}}}",
            "upstreams.a.cache.scope has no effect",
        ),
        (
            "upstreams: {a: {url: http://a, auth: {bearer: abcdef}}}",
            "upstreams.a.auth: the credential travels",
        ),
        ("upstreams: {a: {url: http://a, auth: {headers: {X-Key: abcdef}}}}", "travels unencrypted"),
        (
            "upstreams: {a: {url: https://a, auth: {bearer: $TOKEN}}}",
            "upstreams.a.auth.bearer: `$TOKEN` without braces is text; did you mean ${TOKEN}?",
        ),
        (
            "upstreams: {a: {url: https://a, auth: {headers: {Authorization: Bearer $ghp}}}}",
            "upstreams.a.auth.headers.Authorization: `$NAME` without braces is text; did you mean ${NAME}?",
        ),
        (
            '{"mcpServers": {"a": {"url": "https://a", "headers": {"X-Key": "$TOKEN"}}}}',
            "mcpServers.a.headers.X-Key: `$TOKEN` without braces is text; did you mean ${TOKEN}?",
        ),
        (
            "upstreams: {a: {url: http://a, methods: [x/*, y]}, b: {url: http://b, methods: [z, x/*]}}",
            "upstreams.b.methods: x/* goes to `a`, the first in /mcp",
        ),
    ],
)
def test_what_is_worth_a_second_look_is_said(text: str, said: str) -> None:
    """Allowed, and said at every start (B49, C-24)."""
    (warning,) = warned(text)
    assert said in warning
    assert "(C-" not in warning


def test_a_listener_for_others_is_warned_of() -> None:
    """Any Host header, and anybody (Z-18)."""
    for listen in ("0.0.0.0:8080", "'[::]:8080'"):
        host, anybody = warned(UP + f"listen: {listen}")
        assert "answers to any Host header; name under `hosts` how clients reach it" in host
        assert "nobody is verified" in anybody


@pytest.mark.parametrize("written", ["", "{}", "{scopes: [mcp]}", "{anonymous: true}", "{keys: {}}"])
def test_authentication_that_verifies_nobody_is_a_mistake(written: str) -> None:
    """Whoever writes it believes that strangers are kept out, and all would be let in (Z-18)."""
    (said,) = problems(UP + f"authentication: {written}")
    assert "it verifies nobody" in said


ENTRANCE = (
    "listen: 0.0.0.0:8080\ntrusted_proxies: [10.0.0.0/8]\n{}\n"
    f"authentication: {{{{keys: {{{{ci: {{{{hash: 'sha256:{64 * 'a'}'}}}}}}}}}}}}"
)


@pytest.mark.parametrize(
    "text",
    ["upstreams: {a: {url: 'http://127.0.0.9/mcp', auth: {bearer: abcdef}}}",
     "upstreams: {a: {url: 'http://[::1]:1/mcp', auth: {bearer: abcdef}}}",
     "upstreams: {a: {url: http://localhost:1/mcp, auth: {bearer: abcdef}}}",
     UP + ENTRANCE.format("hosts: [mcp.example.com]"), UP + ENTRANCE.format("hosts: ['*']"),
     "upstreams: {a: {url: http://a, methods: [x]}, b: {url: http://b, methods: [x]}}\n"
     "endpoints: {/a: {upstreams: [a]}, /b: {upstreams: [b]}}",
     UP + "public_url: http://localhost:1\nauthentication: {tokens: {a: {issuer: 'https://a'}}}",
     UP + "listen: '[::1]:0'", UP + "listen: localhost:8080",
     "upstreams: {a: {url: https://a, auth: {bearer: '${TOK}'}}}",
     "upstreams: {a: {url: https://a, auth: {bearer: 'a$TOKEN'}}}",
     "upstreams: {a: {url: https://a, auth: {bearer: '$$TOKEN'}}}",
     "upstreams: {a: {url: https://a, tools: {describe: {x: costs $TOK}}}}"],
)  # fmt: skip
def test_what_is_as_it_should_be_is_not_warned_of(text: str) -> None:
    """A credential that stays on this machine or is encrypted, and a dollar sign that is meant."""
    assert warned(text) == []


def test_a_settled_question_is_not_asked_again() -> None:
    """Either answer to share_public ends the warning."""
    for answer in ("true", "false"):
        assert (
            warned(f"upstreams: {{a: {{url: https://a, auth: forward, cache: {{share_public: {answer}}}}}}}")
            == []
        )


KEY = f"mcpgw_{'PWCANARY' * 5}abc"
LOGIN = "https://user:PWCANARY@x/?k=PWCANARY"


@pytest.mark.parametrize(
    "text",
    [
        f"authentication: {{keys: {{ci: {{hash: {KEY}}}}}}}",
        f"authentication: {{keys: {{ci: {{hash: 'sha256:{KEY}'}}}}}}",
        f"authentication: {{keys: {{ci: {KEY}}}}}",
        f"authentication: {{keys: {{{KEY}: {{hash: 'sha256:{64 * 'a'}'}}}}}}",
        "authentication: {keys: {ghp_PWCANARY0123456789012: {}}}",
        f"authentication: {{keys: [{KEY}]}}",
        f"authentication: {{keys: {{ci: {{hash: x, expires: {KEY}}}}}}}",
        f"authentication: {{key_header: 'X-API-Key: {KEY}'}}",
        "authentication: {key_header: 'X-API-Key: PWCANARY'}",
        f"authentication: {{tokens: {{a: {{issuer: '{LOGIN}'}}}}}}",
        f"authentication: {{tokens: {{a: {{issuer: https://a, jwks_url: '{LOGIN}'}}}}}}",
        f"authentication: {{tokens: {{a: {{issuer: https://a, introspection_url: '{LOGIN}'}}}}}}",
        f"authentication: {{tokens: {{a: '{LOGIN}'}}}}",
        "authentication: {tokens: {a: {issuer: https://a, client_secret: [PWCANARY]}}}",
        f"authentication: '{KEY}'",
        f"listen: {KEY}",
        f"log: '{LOGIN}'",
        "public_url: 'ftp://user:PWCANARY@x'",
        "log: {level: Bearer PWCANARY}",
        "log: {level: ghpPWCANARY0123456789x}",
        "cache: {redis: 'http://:PWCANARY@h/'}",
        f"upstreams: {{b: {{url: http://b, auth: {{client_credentials: {{token_url: '{LOGIN}'}}}}}}}}",
        f"upstreams: {{'{LOGIN}': http://b}}",
        "upstreams: {b: {command: x, args: [5, {PWCANARY: 1}], env: {A: [PWCANARY]}}}",
    ],
)
def test_a_credential_in_a_wrong_place_is_not_repeated(text: str) -> None:
    """What is said of a configuration is kept in logs (B42)."""
    said = "\n".join(problems(text if text.startswith("upstreams") else UP + text))
    assert "pwcanary" not in said.lower()


def test_a_key_in_the_place_of_its_hash_is_told_from_a_mistyped_hash() -> None:
    """It has been seen: another one is due."""
    (pasted,) = problems(UP + f"authentication: {{keys: {{ci: {{hash: {KEY}}}}}}}")
    assert "this is the key itself" in pasted
    (cut,) = problems(UP + f"authentication: {{keys: {{ci: {{hash: 'sha256:{63 * 'a'}'}}}}}}")
    assert "expected sha256: and 64 hex digits" in cut


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{tokens: {a: {issuer: https://a, audience: x}}}", "did you mean `audiences`?"),
        ("{keys: {ci: {hash: x, scope: [a]}}}", "did you mean `scopes`?"),
        ("{required_scopes: [x]}", "did you mean `scopes`?"),
        ("{audience: x}", "it belongs at authentication.tokens.NAME.audiences"),
    ],
)
def test_what_is_near_goes_before_what_is_elsewhere(written: str, said: str) -> None:
    """A key of the same name may be known in a place that has nothing to do with it."""
    assert any(said in one for one in problems(UP + f"authentication: {written}"))


# The schema and the example keep step with the models


def keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the path of every key a file may have, free keys left out."""
    for name, field in model.model_fields.items():
        if field.json_schema_extra:
            continue
        inner = [
            kind
            for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
            if isinstance(kind, type)
        ]
        models = [kind for kind in inner if issubclass(kind, BaseModel)]
        yield f"{path}{name}"
        for kind in models:
            yield from keys(kind, f"{path}{name}.")


def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def plain(text: str) -> object:
    return YAML(typ="safe", pure=True).load(text)


def test_the_committed_schema_is_the_one_the_command_prints() -> None:
    """`mcp-gateway schema > config/gateway.schema.json` after every change of the models."""
    committed = (ROOT / "config" / "gateway.schema.json").read_text("utf-8")
    assert committed == json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def test_every_key_of_the_schema_is_described() -> None:
    """An editor shows the description."""

    def walk(part: object, place: str) -> Iterator[str]:
        if isinstance(part, dict):
            for name, member in part.get("properties", {}).items():
                if not member.get("description"):
                    yield f"{place}.{name}"
            for name, member in part.items():
                yield from walk(member, f"{place}.{name}")
        elif isinstance(part, list):
            for index, member in enumerate(part):
                yield from walk(member, f"{place}[{index}]")

    assert list(walk(schema(), "")) == []


def test_the_example_loads_and_fits_the_schema() -> None:
    """Without a variable set, and without a warning."""
    warnings: list[str] = []
    text = EXAMPLE.read_text("utf-8")
    load(text, env={}, warn=warnings.append)
    assert warnings == []
    assert list(validator().iter_errors(plain(text))) == []


def test_a_program_has_fewer_processes_than_a_url_has_sessions() -> None:
    """Each is a program that runs, with its keeper."""
    assert Upstream(url="http://a/", prefix="a").most_sessions == 1000
    assert Upstream(command="a", prefix="a").most_sessions == 50
    assert Upstream(command="a", prefix="a", sessions=7).most_sessions == 7


def test_the_example_holds_every_key() -> None:
    """Each model field stands in it, at its place."""

    def paths(data: object, path: str) -> Iterator[str]:
        if isinstance(data, dict):
            for key, value in data.items():
                yield f"{path}{key}"
                yield from paths(value, f"{path}{key}.")
        elif isinstance(data, list):
            for one in data:
                yield from paths(one, path)

    written = set(paths(plain(EXAMPLE.read_text("utf-8")), ""))
    for free in (
        "upstreams.github",
        "upstreams.internal",
        "upstreams.weather",
        "upstreams.files",
        "upstreams.billing",
        "upstreams.crm",
        "endpoints./mcp/dev",
    ):
        written |= {path.replace(free, free.partition(".")[0]) for path in written if path.startswith(free)}
    written |= {path.replace("calls.search", "calls") for path in written}
    for free in ("authentication.tokens.corp", "authentication.keys.ci"):
        written |= {path.replace(free, free.rpartition(".")[0]) for path in written if path.startswith(free)}
    once = {
        key for key in keys(Config) if not key.startswith("endpoints.tools.")
    }  # the same as upstreams.tools
    assert once - written == set()


def test_a_value_in_the_example_is_the_default() -> None:
    """Unless its comment says that it is an example."""
    config = load(EXAMPLE.read_text("utf-8"), env={})
    bare = load("upstreams: {a: http://a}", env={})
    for name in set(Config.model_fields) - {"upstreams", "endpoints", "authentication", "access"}:
        assert getattr(config, name) == getattr(bare, name), name
    named = {"url", "prefix", "label", "auth", "cache", "tools"}
    for name in set(Upstream.model_fields) - named:
        assert getattr(config.upstreams["github"], name) == getattr(bare.upstreams["a"], name), name


@pytest.mark.parametrize(
    "text",
    [
        UP,
        UP + "$schema: x\ncache:\n",
        "upstreams: {a: {url: http://a, auth: forward}}",
        "upstreams: {a: {url: http://a, auth: {bearer: {file: /dev/null}}}}",
        "upstreams: {a: {url: '${URL}', timeout: '${T}', connections: '${N}', era: '${E}'}}",
        UP + "limits: {message: 1024, depth: 5}\nstartup_wait: 0\nadmin: off",
        UP + "endpoints: {/mcp: , /: {upstreams: [a]}}",
    ],
)
def test_the_schema_accepts_short_forms_and_variables(text: str) -> None:
    """An editor must not underline what the gateway takes."""
    assert [error.message for error in validator().iter_errors(plain(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        UP + "admim: off",
        "upstreams: {A_A: http://a}",
        "upstreams: {a: npx}",
        "upstreams: {a: {url: http://a, auth: {kind: none}}}",
        "upstreams: {a: {url: http://a, auth: token}}",
        "upstreams: {a: {url: http://a, timeout: 30}}",
        "upstreams: {a: {url: http://a, cache: {min_ttl: {tools/call: 1s}}}}",
        UP + "limits: {depth: 0}",
        UP + "limits: {message: 64MB}",
        UP + "endpoints: {mcp: {}}",
    ],
)
def test_the_schema_refuses_what_the_gateway_refuses(text: str) -> None:
    """The editor's red line comes before the start's error."""
    assert list(validator().iter_errors(plain(text)))
    problems(text)


def test_tracing_without_opentelemetry_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started, at its line."""
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"tracing.otlp: needs .*pip install 'mcp-caching-gateway\[otel\]'"):
        load("upstreams: {a: http://127.0.0.1:1/mcp}\ntracing: {otlp: http://127.0.0.1:4318}")
    assert load("upstreams: {a: http://127.0.0.1:1/mcp}\ntracing: {baggage: [tenant]}").tracing.otlp is None
