"""The status page loads nothing from elsewhere, and whoever reads slowly is given the whole anew."""

import json
import re
from importlib import resources

from gateway.front.page import Frame, Viewer

HTML = resources.files("gateway.front").joinpath("status.html").read_text("utf-8")


def test_the_page_names_no_other_place() -> None:
    """It works without internet; what looks like an address is the name of a namespace."""
    found = set(re.findall(r"https?://[^'\"\s)]*", HTML))
    assert found == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|script|img|iframe)[^>]*\b(src|href)=[\"'](?!data:)", HTML)


def test_nothing_of_an_upstream_becomes_html() -> None:
    """Texts are set as texts; a policy without unsafe-inline keeps the rest out."""
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", HTML
    )
    assert not re.search(r"<[a-z]+[^>]*\s(on[a-z]+|style)=", HTML)


async def test_who_takes_each_frame_is_given_the_changes() -> None:
    """The whole comes first."""
    viewer = Viewer()
    viewer.offer(Frame("whole", {"n": 1}), Frame("change", {"n": 1}))
    assert await viewer.frame() == b'event: whole\ndata: {"n":1}\n\n'
    viewer.offer(Frame("whole", {"n": 2}), Frame("change", {"n": 2}))
    assert await viewer.frame() == b'event: change\ndata: {"n":2}\n\n'


async def test_who_reads_slowly_is_given_the_whole_anew() -> None:
    """However many changes were missed, one frame waits."""
    viewer = Viewer()
    for number in range(100):
        viewer.offer(Frame("whole", {"n": number}), Frame("change", {"n": number}))
    event, data = (await viewer.frame()).decode().split("\n")[:2]
    assert (event, json.loads(data.removeprefix("data: "))) == ("event: whole", {"n": 99})
    viewer.offer(Frame("whole", {"n": 100}), Frame("change", {"n": 100}))
    assert (await viewer.frame()).startswith(b"event: change")
