"""A notebook as an MCP server: notes live in memory.

`summarise_notes` is slow: it reports progress, or goes on as a task. `delete_tagged` asks its user first.
"""

import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Annotated

import anyio
from mcp.server import MCPServer
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    PromptReference,
    ResourceTemplateReference,
    ToolAnnotations,
)
from pydantic import BaseModel, Field

from deploy.demo.resource_hints import resource_hints
from deploy.demo.serving import serve_as_asked
from deploy.demo.tasks import Tasks

GUIDE = """\
# The notebook

A note has a title, a text and tags. Add one with `add_note`, find it with `search_notes`, read it at
note://note/{id}, let `summarise_notes` read them all, and let `delete_tagged` throw away what you agree
to. This page never changes, so its cache hint is an hour and public; the list of notes is private and good
for ten seconds.
"""


@dataclass
class Note:
    """One note of the notebook."""

    id: int
    title: str
    text: str
    tags: list[str] = field(default_factory=list)

    def page(self) -> str:
        tags = " ".join(f"#{tag}" for tag in self.tags)
        return f"# {self.title}\n\n{self.text}\n\n{tags}".rstrip() + "\n"


class Summary(BaseModel):
    """What all notes say, in short."""

    notes: int
    words: int
    frequent_words: list[str]
    first_sentences: dict[str, str]


class Notebook:
    """All notes, by id."""

    def __init__(self) -> None:
        self._ids = count(1)
        self.notes: dict[int, Note] = {}

    def add(self, title: str, text: str, tags: list[str]) -> Note:
        note = Note(next(self._ids), title, text, sorted(set(tags)))
        self.notes[note.id] = note
        return note

    def find(self, words: str) -> list[Note]:
        wanted = words.lower().split()
        return [n for n in self.notes.values() if all(word in n.page().lower() for word in wanted)]

    def tagged(self, tag: str) -> list[Note]:
        return [note for note in self.notes.values() if not tag or tag in note.tags]

    def tags(self) -> list[str]:
        return sorted({tag for note in self.notes.values() for tag in note.tags})


def summarise(notes: list[Note]) -> Summary:
    """Return the length, the frequent words and the first sentences of some notes."""
    words = [word.lower() for note in notes for word in re.findall(r"[^\W\d_]+", note.text)]
    frequent = Counter(word for word in words if len(word) > 4)
    return Summary(
        notes=len(notes),
        words=len(words),
        frequent_words=[word for word, _ in frequent.most_common(5)],
        first_sentences={note.title: re.split(r"(?<=[.!?])\s", note.text, maxsplit=1)[0] for note in notes},
    )


def ask_whether_to_delete(notes: list[Note]) -> InputRequiredResult:
    """Return the question for the user's consent, and which notes it is about."""
    question = ElicitRequestFormParams(
        message=f"Delete {', '.join(note.title for note in notes) or 'nothing'}?",
        requested_schema={
            "type": "object",
            "properties": {"delete": {"type": "boolean", "title": "Delete for good"}},
            "required": ["delete"],
        },
    )
    return InputRequiredResult(
        input_requests={"consent": ElicitRequest(params=question)},
        request_state=" ".join(str(note.id) for note in notes),
    )


def build(book: Notebook) -> MCPServer:
    """Return the server of one notebook."""
    server = MCPServer(
        "notes",
        title="Notebook",
        version="1.0.0",
        instructions="Search before you add: a note on the subject may exist already.",
        log_level="WARNING",
        cache_hints={
            "server/discover": CacheHint(3_600_000, "public"),
            "tools/list": CacheHint(60_000, "public"),
            "prompts/list": CacheHint(300_000, "public"),
            "resources/list": CacheHint(60_000, "public"),
            "resources/templates/list": CacheHint(300_000, "public"),
            "resources/read": CacheHint(10_000, "private"),
        },
        middleware=[resource_hints({"note://guide": CacheHint(3_600_000, "public")})],
        extensions=[Tasks("summarise_notes")],
    )

    @server.tool(title="Add a note")
    async def add_note(title: str, text: str, ctx: Context, tags: list[str] | None = None) -> Note:
        """Write a note down; the answer holds its id."""
        note = book.add(title, text, tags or [])
        await ctx.notify_resource_updated("note://index")
        return note

    @server.tool(title="Search the notes", annotations=ToolAnnotations(read_only_hint=True))
    def search_notes(
        words: Annotated[str, Field(description="All of them must occur in a note")],
    ) -> list[Note]:
        """Find the notes that contain every given word, in title, text or tags."""
        return book.find(words)

    @server.tool(
        title="Delete a note", annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True)
    )
    async def delete_note(id: int, ctx: Context) -> str:
        """Remove one note for good."""
        note = book.notes.pop(id, None)
        if note is None:
            raise ToolError(f"There is no note {id}")
        await ctx.notify_resource_updated("note://index")
        return f"Deleted “{note.title}”"

    @server.tool(title="Delete the notes with a tag", annotations=ToolAnnotations(destructive_hint=True))
    async def delete_tagged(tag: str, ctx: Context) -> str | InputRequiredResult:
        """Remove all notes that have one tag, once the user agreed."""
        answer = (ctx.input_responses or {}).get("consent")
        if answer is None:
            return ask_whether_to_delete(book.tagged(tag))
        content = answer.content if isinstance(answer, ElicitResult) and answer.action == "accept" else None
        if not (content and content.get("delete") is True):
            return "Nothing was deleted"
        # The state says what the user was asked about; a note that came since then stays.
        agreed = [int(id) for id in (ctx.request_state or "").split()]
        deleted = [note for note in book.tagged(tag) if note.id in agreed]
        for note in deleted:
            del book.notes[note.id]
        await ctx.notify_resource_updated("note://index")
        return f"Deleted {', '.join(note.title for note in deleted) or 'nothing'}"

    @server.tool(title="Summarise the notes", annotations=ToolAnnotations(read_only_hint=True))
    async def summarise_notes(
        ctx: Context,
        tag: Annotated[str, Field(description="Only notes with this tag")] = "",
        pace: Annotated[float, Field(ge=0, le=5, description="Seconds per note")] = 0.5,
    ) -> Summary:
        """Read note after note, slowly, and say what they hold; reports its progress."""
        notes = book.tagged(tag)
        for done, note in enumerate(notes):
            await ctx.report_progress(done, len(notes), f"Reading “{note.title}”")
            await anyio.sleep(pace)
        await ctx.report_progress(len(notes), len(notes), "Done")
        return summarise(notes)

    @server.resource("note://guide", title="How the notebook works", mime_type="text/markdown")
    def guide() -> str:
        """The notebook's manual."""
        return GUIDE

    @server.resource("note://index", title="All notes", mime_type="application/json")
    def index() -> list[dict[str, object]]:
        """Id, title and tags of every note."""
        return [{k: v for k, v in asdict(note).items() if k != "text"} for note in book.notes.values()]

    @server.resource("note://note/{id}", title="One note", mime_type="text/markdown")
    def note(id: str) -> str:
        """One note as Markdown."""
        found = book.notes.get(int(id)) if id.isdecimal() else None
        if found is None:
            raise ResourceNotFoundError(f"There is no note {id}")
        return found.page()

    @server.prompt(title="Review notes")
    def review_notes(tag: str) -> str:
        """Ask for a review of all notes with one tag."""
        pages = "\n---\n".join(note.page() for note in book.tagged(tag)) or "(no notes)"
        return f"Review these notes on {tag}: what is missing, what contradicts itself?\n\n{pages}"

    @server.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        known = [str(id) for id in book.notes] if isinstance(ref, ResourceTemplateReference) else book.tags()
        values = [value for value in known if value.startswith(argument.value)]
        return Completion(values=values[:100], total=len(values), has_more=len(values) > 100)

    return server


def sample() -> Notebook:
    """Return a notebook that is not empty."""
    book = Notebook()
    book.add(
        "Cache hints",
        "Every list carries ttlMs and cacheScope. A gateway may answer from memory while an entry is fresh.",
        ["caching", "protocol"],
    )
    book.add(
        "Public and private",
        "A public answer may be shared by everybody. A private answer belongs to the caller who got it.",
        ["caching", "security"],
    )
    book.add(
        "Progress",
        "A slow tool reports progress on its own stream. The stream ends with the result.",
        ["protocol"],
    )
    return book


def main() -> None:
    serve_as_asked(build(sample()), __doc__, 9101)


if __name__ == "__main__":
    main()
