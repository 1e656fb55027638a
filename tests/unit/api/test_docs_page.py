import re
from html.parser import HTMLParser

from statevisor.api.errors import STATUS
from statevisor.api.routes import ROUTES
from statevisor.hypervisor.errors import StatevisorError

VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Checks that tags nest, and collects ids and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src"):
                self.addresses.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


async def read(client):
    response = await client.get("/docs")
    assert response.content_type == "text/html"
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    text = await response.text()
    page = Page()
    page.feed(text)
    assert page.open == []
    return text, page


async def test_every_route_is_on_the_page(client):
    text, page = await read(client)
    for route in ROUTES:
        assert route.name in page.ids
        assert f"<code>{route.path}</code>" in text


async def test_every_code_can_be_linked_to(client):
    _, page = await read(client)
    assert {f"code-{kind.code}" for kind in STATUS} <= set(page.ids)


async def test_ids_are_unique_and_links_lead_somewhere(client):
    _, page = await read(client)
    assert len(set(page.ids)) == len(page.ids)
    inner = {address[1:] for address in page.addresses if address.startswith("#")}
    assert inner
    assert inner <= set(page.ids)


async def test_nothing_comes_from_elsewhere(client):
    text, page = await read(client)
    assert all(address.startswith(("#", "/")) for address in page.addresses)
    assert not re.search(r"<script|@import|url\(|https?://", text)


async def test_texts_are_escaped(client):
    class Odd(StatevisorError):
        """Less < more & "more"."""

        code = "odd_for_this_test"
        hint = "<b>"

    text, _ = await read(client)
    assert "Less &lt; more &amp; &quot;more&quot;. &lt;b&gt;" in text
    del Odd
