"""Makes docs/findings.md of the table of all that the doctor may find."""

from gateway.doctor.kinds import KINDS, LEVELS

_HEAD = """\
# What the doctor may find

<!-- Written by `make docs` from gateway/doctor/kinds.py: change it there. -->

Every kind of finding of [`mcp-gateway doctor`](doctor.md), as `kind` in its JSON. `NAME` is the key of the
upstream in the configuration. Where the doctor knows more it gives better advice than stands here.
"""


def page() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for level, means in LEVELS.items():
        lines += [f"## {level.capitalize()}s", "", f"What {means}.", ""]
        rows = {kind: row for kind, row in KINDS.items() if row.level == level}
        advised = any(row.next for row in rows.values())
        lines += (
            ["| Kind | What it means | Next |", "|---|---|---|"]
            if advised
            else ["| Kind | What it means |", "|---|---|"]
        )
        for kind, row in rows.items():
            advice = f" {row.next.format(at='upstreams.NAME')} |" if advised else ""
            lines.append(f"| `{kind}` | {row.means} |{advice}")
        lines.append("")
    return "\n".join(lines)
