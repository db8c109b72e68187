"""A real Chromium opens the app: what is drawn, what is clicked, what the address then says."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.session import Session
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit_dashboards import texts

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

Serve = Callable[[Path], tuple[subprocess.Popen[str], str]]

ARTEFACTS = Path(__file__).parents[2] / ".artefacts"
DATA = Path(__file__).parents[1] / "data"
#: A loaded machine draws slowly; nothing waits this long where things are well.
PATIENCE_MS = 60_000

expect.set_options(timeout=PATIENCE_MS)


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None and not os.environ.get("CI"):
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    assert path is not None, "CI must have a Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=[
                "--no-sandbox",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--no-first-run",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """A page of a fresh browser, which fails the test that lets it reach another host."""
    contexts = []
    foreign: list[str] = []

    def new(*, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 1000},
            color_scheme="dark" if scheme == "dark" else "light",
            accept_downloads=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda r: foreign.append(r.url) if _is_foreign(r.url) else None)
        return page

    yield new
    for context in contexts:
        context.close()
    assert not foreign, "the dashboard asked another host"


def _is_foreign(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1"


def settled(page: Page) -> Page:
    """The page once the app has drawn all of it, without an exception."""
    app = page.get_by_test_id("stApp")
    expect(app).to_have_attribute("data-test-connection-state", "CONNECTED")
    expect(app).to_have_attribute("data-test-script-state", "notRunning")
    expect(page.get_by_test_id("stException")).to_have_count(0)
    return page


def chart(page: Page, number: int = 0) -> Locator:
    """A chart that is drawn: an svg or canvas with an area."""
    drawn = page.get_by_test_id("stVegaLiteChart").nth(number).locator("svg, canvas").first
    expect(drawn).to_be_visible()
    box = drawn.bounding_box()
    assert box is not None and box["width"] > 200 and box["height"] > 80
    return drawn


def shoot(page: Page, name: str) -> None:
    """A screenshot of all of the page, kept for people to look at."""
    ARTEFACTS.mkdir(exist_ok=True)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": size["width"], "height": min(height + 40, 5_000)})
    settled(page)
    page.screenshot(path=str(ARTEFACTS / f"dashboard-{name}.png"))
    page.set_viewport_size(size)


def params(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_from_the_sentence_to_one_request(
    demo_store: Path, serve: Serve, open_page: Callable[..., Page]
) -> None:
    """Open, read, filter, click a finding, open a request, query, download."""
    with Session.open(demo_store) as session:
        sentence = diagnose(session).sentence
        keys = session.frame("select request_key from requests order by start_unix_ns desc")
    _, url = serve(demo_store)
    page = open_page()
    page.goto(url)

    # the sentence and the charts
    expect(page.get_by_role("heading", level=2)).to_have_text(sentence)
    expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(3)
    settled(page)
    for number in range(3):
        chart(page, number)
    shoot(page, "diagnosis-1280-light")

    # a table as CSV
    with page.expect_download() as download:
        page.get_by_test_id("stDownloadButton").first.get_by_role("button").click()
    percentiles = pl.read_csv(download.value.path())
    assert percentiles.filter(pl.col("metric") == "TTFT")["n"].to_list() == [keys.height]

    # an objective lives in the address and goes along
    page.get_by_role("textbox", name=texts.SLO).fill("ttft=2s")
    page.get_by_role("textbox", name=texts.SLO).press("Enter")
    expect(page.get_by_text(texts.GOODPUT, exact=True)).to_be_visible()
    settled(page)
    assert params(page) == {"slo": ["ttft=2s"]}
    page.get_by_role("link", name=texts.FINDING_OPEN).first.click()
    expect(page.get_by_role("button", name=texts.CLEAR_FILTER)).to_be_visible()
    settled(page)
    assert set(params(page)) == {"slo", "phase", "cause"}
    page.get_by_role("button", name=texts.CLEAR_FILTER).click()
    expect(page.get_by_text(f"{keys.height} requests")).to_be_visible()
    settled(page)

    # the first row's request, and the same from its address alone
    table = page.get_by_test_id("stDataFrame").first
    table.click(position={"x": 16, "y": 52})
    expect(page.get_by_text(texts.WATERFALL, exact=True)).to_be_visible()
    settled(page)
    chart(page)
    assert params(page)["request"] == [keys["request_key"][0]]
    heading = page.get_by_role("heading", level=3).first.inner_text()
    shoot(page, "request-1280-light")
    address = page.url
    other = open_page(width=1920, scheme="dark")
    other.goto(address)
    expect(other.get_by_role("heading", level=3).first).to_have_text(heading)
    expect(other.get_by_role("textbox", name=texts.SLO)).to_have_value("ttft=2s")
    settled(other)
    chart(other)
    shoot(other, "request-1920-dark")

    # a query
    page.get_by_role("link", name=texts.SQL).click()
    expect(page.get_by_role("textbox", name=texts.SQL_QUERY)).to_be_visible()
    assert params(page) == {"slo": ["ttft=2s"]}
    page.get_by_role("textbox", name=texts.SQL_QUERY).fill("select count(*) as n from requests")
    page.get_by_role("button", name=texts.SQL_RUN).click()
    expect(page.get_by_text("1 row in")).to_be_visible()
    settled(page)
    shoot(page, "sql-1280-light")
    with page.expect_download() as download:
        page.get_by_test_id("stDownloadButton").first.get_by_role("button").click()
    assert pl.read_csv(download.value.path())["n"].to_list() == [keys.height]

    # how the data are
    page.get_by_role("link", name=texts.HEALTH).click()
    expect(page.get_by_text(texts.SERVICES, exact=True)).to_be_visible()
    settled(page)
    chart(page)
    shoot(page, "health-1280-light")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (1920, "light")])
def test_every_page_fits(
    demo_store: Path, serve: Serve, open_page: Callable[..., Page], width: int, scheme: str
) -> None:
    """At both widths and in both themes: nothing is wider than the window, nothing fails."""
    _, url = serve(demo_store)
    page = open_page(width=width, scheme=scheme)
    for name, path, drawn in (
        ("diagnosis", "", 3),
        ("requests", "requests?request=queue-0080&order=e2e_ms", 1),
        ("sql", "sql", 0),
        ("health", "health", 2),
    ):
        page.goto(f"{url}/{path}")
        expect(page.get_by_test_id("stMainBlockContainer")).to_be_visible()
        expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(drawn)
        settled(page)
        overflow = page.evaluate(
            "(m => m.scrollWidth - m.clientWidth)(document.querySelector('[data-testid=stMain]'))"
        )
        assert overflow <= 0
        background = page.evaluate(
            "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
        )
        bright = sum(int(part) for part in background.strip("rgba()").split(",")[:3]) > 384
        assert bright == (scheme == "light")
        shoot(page, f"{name}-{width}-{scheme}")


def test_an_open_page_follows_the_store(
    tmp_path: Path, serve: Serve, open_page: Callable[..., Page]
) -> None:
    """From the empty state to the answer without a click, and no further once pinned."""
    store = Store.open(tmp_path / "store", create=True)
    _, url = serve(store.path)
    page = open_page()
    page.goto(url)
    expect(page.get_by_text(texts.EMPTY_TITLE, exact=True)).to_be_visible()
    shoot(page, "empty-1280-light")
    import_paths(store, [str(DATA / "article_table.csv")])
    completed = page.get_by_test_id("stMetric").filter(has_text=texts.COMPLETED).first
    expect(completed).to_contain_text("20")
    settled(page)
    shoot(page, "article-1280-light")
    page.get_by_role("button", name=texts.PIN).click()
    expect(page.get_by_role("button", name=texts.UNPIN)).to_be_visible()
    settled(page)
    assert set(params(page)) == {"at"}
    import_paths(store, [str(DATA / "vllm" / "baseline.requests.jsonl.gz")])
    pinned = open_page()
    pinned.goto(page.url)
    elsewhere = pinned.get_by_test_id("stMetric").filter(has_text=texts.COMPLETED).first
    expect(elsewhere).to_contain_text("of 20 in")
    page.get_by_role("button", name=texts.UNPIN).click()
    expect(completed).to_contain_text("of 68 in")
