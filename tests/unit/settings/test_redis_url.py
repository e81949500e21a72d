"""Which addresses of a Redis are understood, and that no mistake in one says its password."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.redis_url import RedisAddress, parse_redis_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://127.0.0.1", RedisAddress("single", (("127.0.0.1", 6379),))),
        ("redis://r:1/2", RedisAddress("single", (("r", 1),), db=2)),
        ("redis://[::1]:7000", RedisAddress("single", (("::1", 7000),))),
        (
            "rediss://ann:p%40ss@r",
            RedisAddress("single", (("r", 6379),), tls=True, username="ann", password="p@ss"),
        ),
        ("redis://:secret@r", RedisAddress("single", (("r", 6379),), password="secret")),
        ("unix:///run/redis.sock?db=3", RedisAddress("unix", path="/run/redis.sock", db=3)),
        ("unix://:pw@/run/a%20b", RedisAddress("unix", path="/run/a b", password="pw")),
        (
            "redis+sentinel://a,b:26380/main/1?sentinel_password=s",
            RedisAddress(
                "sentinel",
                (("a", 26379), ("b", 26380)),
                service="main",
                db=1,
                options={"sentinel_password": "s"},
            ),
        ),
        ("rediss+cluster://a:7001,b", RedisAddress("cluster", (("a", 7001), ("b", 6379)), tls=True)),
    ],
)
def test_an_address_is_read(url: str, address: RedisAddress) -> None:
    """One server, a socket, Sentinels, a Cluster; with and without TLS and credentials."""
    assert parse_redis_url(url) == address


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://r", "redis://host:6379/0"),
        ("redis://", "redis://host:6379/0"),
        ("redis://r:99999", "redis://host:6379/0"),
        ("redis://r/x", "number of the database"),
        ("redis://a,b", "several hosts"),
        ("redis+sentinel://a:1", "/NAME"),
        ("redis+sentinel://a:1/na me", "no spaces"),
        ("redis+cluster://a/1", "database 0 only"),
        ("unix://", "unix:///path"),
        ("redis://r?sockettimeout=1", "unknown option `sockettimeout`"),
        ("rediss://r?ssl_ca_certs=/ca.pem", "said under `cache.redis_tls`"),
        ("redis://r#x", "redis://host:6379/0"),
    ],
)
def test_a_mistake_is_named(url: str, said: str) -> None:
    """The start fails with what was expected instead."""
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_redis_url(url)


@given(
    st.text(), st.sampled_from(["", "redis://", "redis://:hunter2hunter2@", "unix://", "redis+cluster://"])
)
def test_any_text_is_an_address_or_a_value_error(text: str, start: str) -> None:
    """Nothing else is raised, and the password is in no message and no repr."""
    said = ""
    try:
        said = repr(address := parse_redis_url(start + text)) + str(address)
    except ValueError as error:
        said = str(error)
    assert "hunter2hunter2" not in said
