"""That a sealed token opens for its purpose, holder and time only, and that partitions tell callers apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.support.seal import LARGEST, Seal, SealBroken, SealTooLarge

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seal(clock: Clock) -> Seal:
    return Seal(["correct horse"], now=clock)


@given(st.binary(), st.text(st.characters(codec="utf-8")), st.binary())
def test_what_is_sealed_opens_to_the_byte(data: bytes, purpose: str, holder: bytes) -> None:
    """Any data, for any purpose and holder, in characters that fit into a URL and a cursor."""
    seal = Seal(["k"])
    token = seal.seal(purpose, data, bound_to=holder, ttl=60)
    assert set(token) <= set(ALPHABET)
    assert seal.open(purpose, token, bound_to=holder) == data


@given(st.text())
def test_any_text_is_refused_in_the_same_way(token: str) -> None:
    """A client may send anything as a cursor: SealBroken, never another exception."""
    with pytest.raises(SealBroken):
        Seal(["k"]).open("cursor", token)


@given(st.text(alphabet=ALPHABET + "=+/ \n"))
def test_any_base64_is_refused_in_the_same_way(token: str) -> None:
    """Also when it decodes."""
    with pytest.raises(SealBroken):
        Seal(["k"]).open("cursor", token)


@given(st.data())
def test_a_token_with_one_character_changed_is_refused(data: st.DataObject) -> None:
    """Every character counts, also the unused bits of the last one."""
    seal = Seal(["k"])
    token = seal.seal("cursor", b"page 2", ttl=60)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from([sign for sign in ALPHABET if sign != token[at]]))
    with pytest.raises(SealBroken):
        seal.open("cursor", token[:at] + other + token[at + 1 :])


@given(st.data())
def test_a_token_cut_or_lengthened_is_refused(data: st.DataObject) -> None:
    """A proxy that cuts long headers must not make another token of it."""
    seal = Seal(["k"])
    token = seal.seal("cursor", b"page 2", ttl=60)
    with pytest.raises(SealBroken):
        seal.open("cursor", token[: data.draw(st.integers(0, len(token) - 1))])
    with pytest.raises(SealBroken):
        seal.open("cursor", token + data.draw(st.text(min_size=1, max_size=4)))


def test_a_token_opens_for_its_own_purpose_only(seal: Seal) -> None:
    """A cursor must not pass for a requestState."""
    token = seal.seal("cursor", b"x", ttl=60)
    with pytest.raises(SealBroken):
        seal.open("state", token)


def test_a_token_opens_for_its_own_holder_only(seal: Seal) -> None:
    """Bob cannot go on with Ann's cursor (F-19, M-09), nor anybody without a name."""
    token = seal.seal("cursor", b"x", bound_to=b"ann", ttl=60)
    for holder in (b"bob", b"", b"ann\0"):
        with pytest.raises(SealBroken):
            seal.open("cursor", token, bound_to=holder)


def test_purpose_and_holder_cannot_run_into_each_other(seal: Seal) -> None:
    """The same letters split elsewhere are another purpose and another holder."""
    token = seal.seal("ab", b"x", bound_to=b"c", ttl=60)
    with pytest.raises(SealBroken):
        seal.open("a", token, bound_to=b"bc")


def test_a_token_expires(seal: Seal, clock: Clock) -> None:
    """It opens until its last millisecond, and not from then on."""
    token = seal.seal("cursor", b"x", ttl=60)
    clock.now += 59.9
    assert seal.open("cursor", token) == b"x"
    clock.now += 0.1
    with pytest.raises(SealBroken):
        seal.open("cursor", token)


def test_an_old_key_still_opens_what_it_sealed(clock: Clock) -> None:
    """Keys rotate without breaking the tokens that are out: the first seals, all of them open."""
    token = Seal(["old"], now=clock).seal("cursor", b"x", ttl=60)
    both = Seal(["new", "old"], now=clock)
    assert both.open("cursor", token) == b"x"
    assert Seal(["new"], now=clock).open("cursor", both.seal("cursor", b"y", ttl=60)) == b"y"
    with pytest.raises(SealBroken):
        Seal(["new"], now=clock).open("cursor", token)


def test_replicas_with_the_same_key_open_each_others_tokens(clock: Clock) -> None:
    """A load balancer may send the next page anywhere."""
    token = Seal(["shared"], now=clock).seal("cursor", b"x", ttl=60)
    assert Seal(["shared"], now=clock).open("cursor", token) == b"x"


def test_without_keys_every_process_has_its_own() -> None:
    """A random key is nobody else's, and a token does not survive a restart."""
    one, other = Seal(), Seal()
    token = one.seal("cursor", b"x", ttl=60)
    assert one.open("cursor", token) == b"x"
    with pytest.raises(SealBroken):
        other.open("cursor", token)
    assert one.partition("Bearer t") != other.partition("Bearer t")


def test_the_same_data_never_gives_the_same_token(seal: Seal) -> None:
    """Nobody can tell from two tokens that they say the same."""
    assert len({seal.seal("cursor", b"x", ttl=60) for _ in range(100)}) == 100


def test_too_much_data_is_refused_both_ways(seal: Seal) -> None:
    """What is sealed may be as large as LARGEST; a longer token is not even decoded."""
    largest = bytes(LARGEST)
    assert seal.open("state", seal.seal("state", largest, ttl=60)) == largest
    with pytest.raises(SealTooLarge):
        seal.seal("state", largest + b"x", ttl=60)
    with pytest.raises(SealBroken):
        seal.open("state", "A" * (2 * LARGEST))


@given(st.text())
def test_a_partition_is_of_constant_length_and_hides_the_credential(authorization: str) -> None:
    """C-25: raw tokens never appear in keys."""
    partition = Seal(["k"]).partition(authorization)
    assert len(partition) == 64
    assert set(partition) <= set("0123456789abcdef")


def test_a_partition_is_the_same_for_the_same_credential_only(seal: Seal) -> None:
    """C-18: another token is another context, and replicas agree."""
    assert seal.partition("Bearer a") == Seal(["newer", "correct horse"]).partition("Bearer a")
    assert seal.partition("Bearer a") != seal.partition("Bearer b")
    assert seal.partition("Bearer a") != Seal(["another"]).partition("Bearer a")


def test_no_error_and_no_repr_tells_a_secret(seal: Seal) -> None:
    """Neither key nor token nor data may reach a log."""
    token = seal.seal("state", b"data", ttl=60)
    with pytest.raises(SealBroken) as broken:
        seal.open("cursor", token)
    assert str(broken.value) == "the token is invalid or expired"
    assert repr(seal) == "<Seal 1 keys>"


@given(st.binary(), st.text(st.characters(codec="utf-8")), st.binary())
def test_what_is_encrypted_comes_back_to_the_byte(data: bytes, purpose: str, holder: bytes) -> None:
    """Also more than a token holds: results are kept this way."""
    seal = Seal(["k"])
    assert seal.decrypt(purpose, seal.encrypt(purpose, data, bound_to=holder), bound_to=holder) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_the_same_way(sealed: bytes) -> None:
    """Whatever lies in the store: SealBroken, never another exception."""
    with pytest.raises(SealBroken):
        Seal(["k"]).decrypt("entry", sealed)


def test_encrypted_bytes_open_in_their_place_only(seal: Seal) -> None:
    """A value copied under another key of the store is nobody's."""
    sealed = seal.encrypt("entry", b"x", bound_to=b"here")
    with pytest.raises(SealBroken):
        seal.decrypt("entry", sealed, bound_to=b"there")
    with pytest.raises(SealBroken):
        seal.decrypt("bus", sealed, bound_to=b"here")


def test_a_new_key_before_the_others_changes_no_name() -> None:
    """Keys rotate without a cold cache: what is stored keeps its name, and opens."""
    old, both = Seal(["old"]), Seal(["new", "old"])
    assert both.name("entry", b"x") == old.name("entry", b"x")
    assert both.partition("Bearer a") == old.partition("Bearer a")
    assert both.decrypt("entry", old.encrypt("entry", b"x")) == b"x"


def test_names_of_different_purposes_and_data_differ(seal: Seal) -> None:
    """A name is 16 bytes, and its purpose cannot run into its data."""
    names = {
        seal.name("a", b"bc"),
        seal.name("ab", b"c"),
        seal.name("a", b"bd"),
        Seal(["z"]).name("a", b"bc"),
    }
    assert len(names) == 4
    assert {len(name) for name in names} == {16}


def test_apart_every_key_stands_alone() -> None:
    """Two replicas in the middle of a rotation have one key in common."""
    new, old = Seal(["new", "old"]).apart()
    assert old.name("bus", b"") == Seal(["old"]).name("bus", b"")
    assert Seal(["new"]).decrypt("bus", new.encrypt("bus", b"x")) == b"x"
    with pytest.raises(SealBroken):
        Seal(["new"]).decrypt("bus", old.encrypt("bus", b"x"))
    assert len(Seal(["old", "new", "old"]).apart()) == 2
    assert Seal(["old", "new", "old"]).apart()[-1].name("bus", b"") == old.name("bus", b"")
    (random,) = (alone := Seal()).apart()
    assert alone.decrypt("bus", random.encrypt("bus", b"x")) == b"x"
