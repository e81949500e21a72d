"""YAML and JSON become plain data with lines; variables are put into strings, once."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.document import UNREADABLE, ConfigError, Document, read, show_path

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def load(text: str, **env: str) -> Document:
    return read(text, file="f.yaml", env=env)


def value(scalar: str, **env: str) -> object:
    """Return what a double-quoted scalar becomes."""
    document = load(json.dumps({"a": scalar}), **env)
    assert isinstance(document.data, dict)
    assert not document.problems
    return document.data["a"]


def complaints(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    return [str(problem) for problem in read(text, file="f.yaml", env=env or {}).problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Bearer ${TOK}", "Bearer s3cret"),
        ("${TOK:-none}", "s3cret"),
        ("${NOPE:-none}", "none"),
        ("${NOPE:-}", ""),
        ("${EMPTY:-none}", "none"),
        ("${EMPTY}", ""),
        ("$${LITERAL}", "${LITERAL}"),
        ("$$${TOK}", "$s3cret"),
        ("pa$$word", "pa$word"),
        ("a$b", "a$b"),
        ("$TOK", "$TOK"),
        ("100$", "100$"),
        ("${NOPE:-pa$$word}", "pa$word"),
        ("${NOPE:-a:-b}", "a:-b"),
        ("${TOK}${TOK}", "s3crets3cret"),
    ],
)
def test_variables_are_put_in(text: str, expected: str) -> None:
    """The notations of B41, and what only looks like one."""
    assert value(text, TOK="s3cret", EMPTY="") == expected


@pytest.mark.parametrize("inside", ['a"b', "a\nb", "x: y # z", "${TOK}", "$$", "- a", "{b: c}", "", "ü€😀"])
def test_a_value_stays_the_text_it_is(inside: str) -> None:
    """Variables are put in after parsing: a value cannot become YAML."""
    assert value("<${V}>", V=inside) == f"<{inside}>"


@given(name=NAMES, text=TEXTS, other=NAMES)
def test_a_value_is_never_interpolated_again(name: str, text: str, other: str) -> None:
    """Not recursive: whatever a variable holds arrives as it is."""
    held = f"{text}${{{other}}}$${text}"
    assert value(f"${{{name}}}", **{other: "wrong"} | {name: held}) == held


@given(TEXTS)
def test_doubling_the_dollars_protects_any_text(text: str) -> None:
    """`$$` escapes completely."""
    assert value(text.replace("$", "$$")) == text


@pytest.mark.parametrize(
    "yaml",
    [
        "a: ${NOPE}",
        "a: [[x, '${NOPE}']]",
        "a: {b: {c: 'Bearer ${NOPE} x'}}",
        "'${NOPE}': 1",
        "a: {auth: '${NOPE}'}",
    ],
)
def test_an_unset_variable_is_a_problem_anywhere(yaml: str) -> None:
    """In keys, nested lists and the middle of a text; the message names the variable."""
    (problem,) = complaints(yaml)
    assert "the variable NOPE is not set" in problem
    assert problem.startswith("f.yaml:1: ") or yaml.startswith("'")


def test_every_unset_variable_of_a_text_is_named() -> None:
    """All problems at once, not the first."""
    assert len(complaints("a: '${ONE}${TWO}'\nb: ${THREE}")) == 3


@pytest.mark.parametrize(
    "text", ["${}", "${1A}", "${A-b}", "${A:?b}", "${A", "${env:A}", "${A:-${B}}", "${{ A }}"]
)
def test_a_malformed_variable_is_a_problem(text: str) -> None:
    """A typo in a variable must not travel on as a literal token."""
    document = load(json.dumps({"a": text}), A="x", B="y")
    assert document.data == {"a": UNREADABLE}
    assert "expected NAME" in document.problems[0].message


@pytest.mark.parametrize("place", ["auth: {bearer: X}", "headers: {A: X}", "secrets: {keys: [X]}"])
def test_an_empty_variable_is_no_credential(place: str) -> None:
    """Set but empty fails the start inside a credential; elsewhere it is an empty text."""
    (problem,) = complaints(place.replace("X", "'Bearer ${EMPTY}'"), {"EMPTY": ""})
    assert "the variable EMPTY is empty" in problem


def test_a_variable_that_is_no_text_is_a_problem() -> None:
    """Bytes of the environment that are not UTF-8 cannot be sent anywhere."""
    assert "V is not valid text" in complaints("a: ${V}", {"V": "\udcff"})[0]


@pytest.mark.parametrize(
    ("yaml", "place"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: the key stands on line 1 already"),
        ("x:\n  a: 1\n  'a': 3\n", "f.yaml:3: x.a: the key stands on line 2 already"),
        ('{"a": 1,\n "b": [{"c": 1, "c": 2}]}', "f.yaml:2: b[0].c: the key stands on line 2 already"),
        ("${V}: 1\nv: 2", "f.yaml:2: v: the key stands on line 1 already"),
    ],
)
def test_a_duplicate_key_is_a_problem(yaml: str, place: str) -> None:
    """At any depth, in either notation; both lines are named."""
    assert complaints(yaml, {"V": "v"}) == [place]


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("a: off", "off"),
        ("a: 2026-07-28", "2026-07-28"),
        ("a: 1e3", 1000.0),
        ("a: true", True),
        ("a:", None),
        ("a: !!str 12", "12"),
        ("a: '12'", "12"),
        ("a: |\n  x\n  y\n", "x\ny\n"),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(yaml: str, expected: object) -> None:
    """`off` is a word, a date is a text."""
    assert load(yaml).data == {"a": expected}


def test_anchors_and_merges_work_and_keep_their_lines() -> None:
    """A key of the mapping itself goes before a merged one."""
    document = load("base: &b {x: 1,\n  y: 2}\nother:\n  <<: *b\n  x: 3\n")
    assert document.data == {"base": {"x": 1, "y": 2}, "other": {"x": 3, "y": 2}}
    assert document.lines["other", "y"] == 2
    assert document.lines["other", "x"] == 5


@pytest.mark.parametrize(
    "yaml",
    [
        "a: &a [*a]",
        "a: &a {b: *a}",
        "a: &a {<<: *a}",
        "a: !env X",
        "a: !!binary aGk=",
        "? [a]\n: 1",
        "a: !!int x",
    ],
)
def test_what_yaml_can_say_but_a_configuration_cannot_is_a_problem(yaml: str) -> None:
    """Cycles, tags and keys that are no text."""
    assert len(complaints(yaml)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "a: b: c",
        "a: [1",
        "a: 1\n---\nb: 2",
        "\x00",
        "[" * 700,
        "a: @x",
    ],
)
def test_a_text_that_is_no_yaml_says_so_without_a_traceback(text: str) -> None:
    """Every failure of the parser is a problem with a file name."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert str(caught.value).startswith("f.yaml")


@pytest.mark.parametrize("escapes", ["\\ud800", "\\ude00\\ud83d", "x\\udfff"])
def test_half_a_surrogate_pair_is_a_problem(escapes: str) -> None:
    """It has no UTF-8 form; a whole pair is the character it stands for."""
    assert len(complaints(f'{{"a": "{escapes}"}}')) == 1
    assert load('a: "\\ud83d\\ude00"').data == {"a": "😀"}


def test_aliases_of_aliases_are_bounded() -> None:
    """A few lines of YAML must not fill the memory."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(ConfigError, match="too large"):
        load("\n".join(lines))


@pytest.mark.parametrize(
    "yaml", ["a: *ghp_secret", "a: 'ghp_secret", "a: ghp_secret: x", "a: !ghp_secret x", "a: %ghp_secret"]
)
def test_a_syntax_error_does_not_repeat_the_text(yaml: str) -> None:
    """A secret that merely looks like an alias stays unsaid (B42)."""
    try:
        said = "".join(map(str, load(yaml).problems))
    except ConfigError as error:
        said = str(error)
    assert said
    assert "ghp_secret" not in said


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("a: {bearer: ${TOK}}", "f.yaml:1: not valid YAML: `{` opened at 1:4 is not closed; put ${…} in"),
        ("a: [x,\n  ${TOK}]", "f.yaml:2: not valid YAML: `[` opened at 1:4 is not closed; put ${…} in"),
        ("a: {b: 1\nc: 2", "f.yaml:2: not valid YAML: `{` opened at 1:4 is not closed before column 2"),
        ("a: {b: c: d}", '1: not valid YAML: `{` opened at 1:4 is not closed; text that holds ": " needs'),
        ("a: 1\nb: *nope", "2: not valid YAML: at column 4: an alias (*…) whose anchor (&…) stands nowhere"),
        ("a: b: c", "f.yaml:1: not valid YAML: at column 5: a value has no second `:`"),
        ("a:\n\tb: 1", "f.yaml:2: not valid YAML: a tab cannot indent"),
        ("a: @b", "f.yaml:1: not valid YAML: at column 4: text that begins with @ needs quotes"),
        ('a: "b\nc: d\n', "f.yaml:1: not valid YAML: the quote that opens at column 4 is not closed"),
        ("a: 'it's'", "f.yaml:1: not valid YAML: at column 8: text behind a value that has ended"),
        ("a:\n  b: 1\n c: 2", "f.yaml:3: not valid YAML: this line is indented unlike what began on line 1"),
        ("a: 1\nb\nc: 2", "f.yaml:2: not valid YAML: expected `key: value`"),
        ('a: "\\q"', "at column 6: in double quotes \\ begins an escape"),
        ("a: }", "f.yaml:1: not valid YAML: at column 4: expected a value before this sign"),
        ("a: 1\n---\nb: 2", "f.yaml:2: not valid YAML: at column 1: a second document (---) begins"),
        ("a: !x!y z", "f.yaml:1: not valid YAML: at column 4: text that begins with ! needs quotes"),
        ("a: *", "text that begins with * or & needs quotes"),
        ("a: | x", "text that begins with | or > needs quotes"),
        (
            '{"mcpServers": {\n  "a": {"comm',
            "f.yaml:2: not valid JSON: the file ends too early, or a bracket",
        ),
        ('{"mcpServers": {\n  "a": {}', "not valid JSON: the file ends too early, or a bracket"),
        (
            '{"mcpServers": // x\n {"a": {}]}',
            "f.yaml:2: not valid JSON: at column 10: expecting ',' delimiter",
        ),
    ],
)
def test_a_syntax_error_is_said_in_plain_words(yaml: str, said: str) -> None:
    """With line and column, and what would mend it: the parser's own words mean nothing to an operator."""
    with pytest.raises(ConfigError) as caught:
        load(yaml)
    assert said in str(caught.value)


@given(st.lists(st.sampled_from("ab \n\t:-?#&*!|>'\"%@`{}[],$\\."), max_size=24).map("".join))
def test_any_text_is_data_or_one_problem(yaml: str) -> None:
    """Whatever an operator's slip turns a file into, it is no traceback, and never without a reason."""
    said = ""
    try:
        load(yaml)
    except ConfigError as error:
        said = str(error)
    assert "this is not YAML" not in said


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_file_that_is_too_large_is_not_parsed(letter: str) -> None:
    """Parsing takes a minute for every few megabytes; the limit is in bytes."""
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load("#" + letter * (2**20 // len(letter.encode())))


@pytest.mark.parametrize("number", ["0x10", "0o17", "010", "1_000", "0b1"])
def test_only_decimal_numbers_are_numbers(number: str) -> None:
    """Anything else stays the text it is: no size is meant by it, a token may be."""
    assert load(f"a: {number}").data == {"a": number}
    assert load("a: [0, -1, 42]").data == {"a": [0, -1, 42]}


@given(JSON)
def test_json_reads_as_json_does(data: object) -> None:
    """Escapes, surrogate pairs, tabs and odd white space: every JSON text means what JSON says."""
    for text in (json.dumps({"a": data}, indent="\t"), json.dumps({"a": data}, ensure_ascii=False)):
        document = load(text.replace("$", "$$"))
        assert document.problems == []
        assert document.data == {"a": data}


def test_a_path_is_shown_for_people() -> None:
    """Keys that are no plain words stand in quotes."""
    assert show_path(("endpoints", "/mcp", "upstreams", 0)) == "endpoints./mcp.upstreams[0]"
    assert show_path(("a", "b.c", "d e")) == 'a."b.c"."d e"'
