"""The status page in a real browser: what it shows, how it follows what happens, and whom it believes."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.browser import CHROMIUM, Tab, chromium
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, status, tool

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
]

READY = "document.querySelector('tr.row') && document.querySelector('#catalogue tr.item .mono')"


@asynccontextmanager
async def shown(gateway: Running, **window: Any) -> AsyncIterator[Tab]:
    """Open the page; afterwards it has complained of nothing and asked nobody but the gateway."""
    async with chromium() as browser, browser.open(f"{gateway.addresses.admin}/", **window) as tab:
        await tab.until(READY)
        yield tab
        assert tab.errors == []
        assert {urlsplit(url).netloc for url in tab.requests if not url.startswith("data:")} == {
            urlsplit(gateway.addresses.admin or "").netloc
        }


def has(selector: str, text: str) -> str:
    """Return the condition that some element says this."""
    nodes = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return f"{nodes}.some((node) => node.innerText.includes({json.dumps(text)}))"


def row(upstream: str, text: str) -> str:
    """Return the condition that the row of an upstream says this."""
    return (
        "[...document.querySelectorAll('tr.row')].some((node) => "
        f"node.querySelector('.name button').innerText === {json.dumps(upstream)} "
        f"&& node.innerText.includes({json.dumps(text)}))"
    )


async def test_the_page_shows_what_there_is_and_loads_nothing_from_elsewhere() -> None:
    """Numbers, hints, reasons with what to do, and both names of a tool; the arrow opens the rest."""
    async with (
        ScriptedUpstream(tools=[tool("search", description="Looks for things")]) as alpha,
        ScriptedUpstream(tools=[tool("b"), tool("broken", inputSchema=1)], ttl_ms=0) as beta,
        running({"alpha": alpha, "beta": beta}, admin="127.0.0.1:0") as gateway,
    ):
        for _ in range(4):
            await gateway.ask("tools/list")
        await gateway.ask("tools/call", {"name": "alpha__search"})
        beta.on("tools/call", status(503))
        await gateway.ask("tools/call", {"name": "beta__b"})
        async with shown(gateway) as tab:
            assert await tab.evaluate(has(".tile", "2 of 2 up"))
            assert await tab.evaluate(row("alpha", "1 tool"))
            assert await tab.evaluate(row("beta", "1 failed"))
            assert await tab.evaluate(row("beta", "1 left out"))
            assert await tab.evaluate(has("#cache td", "The server gave no ttlMs, or 0"))
            assert await tab.evaluate(has("#clients td", "/mcp"))
            assert await tab.evaluate(has("#catalogue tr.item", "alpha__search"))
            await tab.click("[aria-label='Details of beta']")
            await tab.until(has("tr.more", "unexpected HTTP status, HTTP 503"))
            assert await tab.evaluate(has("tr.more code", "tools/list"))
            assert await tab.evaluate(has("tr.more li", "broken"))
            await tab.click("[aria-label='Details of beta']")
            await tab.until("!document.querySelector('tr.more')")
            assert await tab.evaluate("document.cookie + Object.keys(localStorage)") == ""


async def test_the_page_follows_what_happens() -> None:
    """An upstream dies and comes back: row, warning, and word for a screen reader, without a reload."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, admin="127.0.0.1:0") as gateway,
        shown(gateway) as tab,
    ):
        assert await tab.evaluate("!document.querySelector('.alerts')")
        await tab.evaluate("window.same = document")
        await beta.stop()
        await gateway.ask("tools/call", {"name": "beta__b"})
        await tab.until(has(".alerts li", "beta is down: connection failed"))
        assert await tab.evaluate(row("beta", "connection failed"))
        assert "beta is down" in await tab.evaluate("document.querySelector('[role=status]').innerText")
        await tab.click("#upstreams .chips button:nth-child(2)")
        await tab.until("document.querySelectorAll('tr.row').length === 1")
        await beta.start()
        await tab.until("!document.querySelector('.alerts')")
        await tab.until(has("#upstreams td", "No upstream has a problem."))
        assert "beta is up" in await tab.evaluate("document.querySelector('[role=status]').innerText")
        beta.tools.append(tool("brand_new"))
        await gateway.admin("/purge", {"upstream": "beta"})
        await gateway.ask("tools/list")
        await tab.until(has("#catalogue tr.item", "beta__brand_new"))
        assert await tab.evaluate("window.same === document")


async def test_a_hundred_upstreams_and_ten_thousand_tools() -> None:
    """Filtered, sorted, searched and paged; it fits into a phone's window, too."""
    async with AsyncExitStack() as stack:
        upstreams = {
            f"server-{at:02}": await stack.enter_async_context(
                ScriptedUpstream(tools=[tool(f"tool_{n:02}", description=f"Thing {n}") for n in range(100)])
            )
            for at in range(100)
        }
        gateway = await stack.enter_async_context(running(upstreams, admin="127.0.0.1:0"))
        await gateway.ask("tools/list")
        tab = await stack.enter_async_context(shown(gateway))
        await tab.until(has("#catalogue .note", "10,000 items"))
        assert await tab.evaluate("document.querySelectorAll('tr.row').length") == 100
        await tab.click("#filter")
        await tab.write("server-4")
        await tab.until("document.querySelectorAll('tr.row').length === 10")
        await tab.click("th button")
        await tab.click("th button")
        await tab.until("document.querySelector('tr.row .name button').innerText === 'server-49'")
        await tab.click("#q")
        await tab.write("server-42 tool_9")
        await tab.until(has("#catalogue .note", "10 items found"))
        first = "document.querySelector('#catalogue tr.item .mono').innerText"
        assert await tab.evaluate(first) == "server-42__tool_90"
        assert await tab.evaluate("document.querySelectorAll('#catalogue mark').length") > 0
        await tab.evaluate("(q.value = 'tool_', q.dispatchEvent(new Event('input')))")
        await tab.until(has(".pager span", "1–25 of 10,000"))
        await tab.click(".pager button:last-child")
        await tab.until(has(".pager span", "26–50 of 10,000"))
        await tab.size(400, 860)
        await tab.until("document.documentElement.scrollWidth <= 400")


async def test_an_upstream_may_call_its_tools_whatever_it_likes() -> None:
    """Markup stays text, and what cannot be seen is spelled out."""
    names = [
        "<script>window.hit = 1</script>",
        "<img src=x onerror='window.hit = 1'>",
        "safe\u202egpj.exe",
        "a\u200bb",
    ]
    async with (
        ScriptedUpstream(tools=[tool(name, description=f"{name} & more") for name in names]) as alpha,
        running({"alpha": alpha}, admin="127.0.0.1:0") as gateway,
        shown(gateway) as tab,
    ):
        await tab.until("document.querySelectorAll('#catalogue tr.item').length === 4")
        said = await tab.evaluate(
            "[...document.querySelectorAll('#catalogue tr.item td:nth-child(2)')].map((td) => td.innerText)"
        )
        assert said == [names[0], names[1], "safe\\u202egpj.exe", "a\\u200bb"]
        assert await tab.evaluate(
            "window.hit === undefined && !document.querySelector('main img, main script')"
        )
        # And if something did get in, the policy would not let it run.
        await tab.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {text: 'window.hit = 2'}))"
        )
        assert await tab.evaluate("window.hit === undefined")
        assert any("Content Security Policy" in error for error in tab.errors)
        tab.errors.clear()


async def test_the_keyboard_is_enough_and_everything_has_a_name() -> None:
    """What can be pressed can be reached and is called something; colours can be chosen, and are kept."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, admin="127.0.0.1:0") as gateway,
        shown(gateway) as tab,
    ):
        await tab.press("Tab", 9)
        assert await tab.evaluate("document.activeElement.innerText") == "Skip to the content"
        await tab.evaluate("document.querySelector('.chevron').focus()")
        await tab.press("Enter", 13)
        await tab.until("document.querySelector('.chevron').getAttribute('aria-expanded') === 'true'")
        assert await tab.evaluate("document.activeElement.className") == "chevron"
        await tab.tell("Accessibility.enable")
        nodes = (await tab.tell("Accessibility.getFullAXTree"))["nodes"]
        pressed = {"button", "link", "searchbox", "combobox", "columnheader"}
        unnamed = [
            node["role"]["value"]
            for node in nodes
            if not node.get("ignored") and node["role"]["value"] in pressed and not node["name"].get("value")
        ]
        assert unnamed == []
        await tab.click(".icon-button")
        await tab.click(".icon-button")
        await tab.until("document.documentElement.dataset.theme === 'dark'")
        await tab.evaluate("location.reload()")
        await tab.until(f"{READY} && document.documentElement.dataset.theme === 'dark'")


_CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const lightness = (colour) => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const probe = document.body.appendChild(document.createElement("i"));
  const of = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const poor = [];
  for (const [texts, grounds] of [
    [["text", "soft", "faint"], ["canvas", "card", "sunk"]],
    [["good", "warn", "bad"], ["card", "sunk"]],
    [["good"], ["good-wash"]],
    [["warn", "text", "soft"], ["warn-wash"]], [["bad", "text", "soft"], ["bad-wash"]],
  ]) for (const text of texts) for (const ground of grounds) {
    const [a, b] = [lightness(of(text)), lightness(of(ground))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${text} on ${ground}: ${ratio.toFixed(2)}`);
  }
  probe.remove();
  return poor;
})()"""


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_every_text_stands_out_enough(colours: str) -> None:
    """4.5 to 1 at least, by light and by dark (WCAG 2, level AA)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, admin="127.0.0.1:0") as gateway,
        shown(gateway, colours=colours) as tab,
    ):
        assert await tab.evaluate(_CONTRAST) == []
        ground = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(17, 18, 20)") == (colours == "dark")
