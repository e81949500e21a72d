"""The commands that write something to go on with: a configuration, an API key, the schema, the version."""

import argparse
import json
import os
import platform
import secrets
import shlex
import sys
from hashlib import sha256

from gateway import config
from gateway.commands.printing import FINE, PROBLEMS, WRONG, complain, plain, warn
from gateway.config import FIRST


def init(arguments: argparse.Namespace) -> int:
    """Write a first configuration, or one made of an editor's file; what is there already stays."""
    source, target = arguments.source, arguments.target
    if source is None:
        return _written(target, FIRST, "check it with", code=FINE)
    made = config.draft_file(source, keep_secrets=arguments.keep_secrets)
    for remark in made.remarks:
        warn(remark)
    for problem in made.problems:
        print(f"problem: {plain(problem)}", file=sys.stderr)
    if not made.taken:
        advice = "mend the above and run this again; `mcp-gateway init` alone writes an example"
        return complain(f"{source} holds no server that can be taken over", advice, code=WRONG)
    first = f"set {', '.join(made.variables)}, and then try" if made.variables else "check it with"
    return _written(target, made.text, first, code=PROBLEMS if made.problems else FINE)


def _written(target: str, text: str, advice: str, *, code: int) -> int:
    """Write a new file, readable by its owner alone as it may come to hold a secret; `-` is stdout."""
    if target == "-":
        print(text, end="")
        return code
    try:
        with open(target, "x", encoding="utf-8", opener=lambda path, how: os.open(path, how, 0o600)) as file:
            file.write(text)
    except FileExistsError:
        advice = "choose another name for the new file, or - for stdout"
        return complain(f"{target} is there already and stays as it is", advice, code=WRONG)
    except OSError as error:
        return complain(f"cannot write {target}: {error.strerror or error}", code=WRONG)
    print(f"{target}: written")
    print(f"next: {advice} `mcp-gateway check {shlex.quote(target)}`", file=sys.stderr)
    return code


def key(name: str, *, as_json: bool) -> int:
    """Make a key for a caller; only its hash is for the configuration, and the key itself is kept nowhere."""
    key = f"{config.KEY_PREFIX}{secrets.token_urlsafe(32)}"
    hashed = f"sha256:{sha256(key.encode()).hexdigest()}"
    try:
        config.Authentication.model_validate({"keys": {name: {"hash": hashed}}})
    except ValueError:
        advice = "take 1 to 64 characters of A-Z a-z 0-9 _ - ."
        return complain("this is no name for a caller", advice, code=WRONG)
    if as_json:
        print(json.dumps({"name": name, "key": key, "hash": hashed}))
        return FINE
    print(f"# the key of key:{name}, which is shown this once:\n{key}\n")
    print("# and what knows it again, for the configuration:")
    print(f"authentication:\n  keys:\n    {json.dumps(name)}:\n      hash: {hashed}")
    print("      # scopes: [read]          # what it grants\n      # expires: 2027-01-31     # its last day")
    print("next: give the key to its caller, who sends it as `Authorization: Bearer KEY`", file=sys.stderr)
    return FINE


def schema() -> int:
    """Print the schema of the configuration, ready to be redirected into a file."""
    print(json.dumps(config.schema(), indent=2, ensure_ascii=False))
    return FINE


def version(*, as_json: bool) -> int:
    """Print which version this is."""
    if as_json:
        facts = {"name": "mcp-gateway", "version": config.VERSION, "python": platform.python_version()}
        print(json.dumps(facts))
    else:
        print(f"mcp-gateway {config.VERSION}")
    return FINE
