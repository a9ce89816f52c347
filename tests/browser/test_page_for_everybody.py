"""The live page with a keyboard, read aloud, in the dark, and without motion."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage, Serve
from tests.browser.served import Served, WatchedRun

pytestmark = pytest.mark.browser

JOB = "tiny-abcdef"
LEAST_CONTRAST = 4.5  # WCAG 2.2, AA

# The contrast (WCAG 2.2) of each text with what is behind it; the least one, and whose it is.
FIND_LEAST_CONTRAST = """() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = channels(color).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let each = node; each !== null; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if ((channels(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [...document.querySelectorAll("body *")]
    .filter((node) => [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
    .filter((node) => node.getClientRects().length > 0)
    .map((node) => {
      const style = getComputedStyle(node);
      const color = node instanceof SVGElement ? style.fill : style.color;
      const [a, b] = [light(color), light(behind(node))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), node.outerHTML.slice(0, 200)];
    });
  return found.reduce((least, each) => (each[0] < least[0] ? each : least));
}"""


@pytest.fixture
def run(home: Path) -> WatchedRun:
    """A job that has recovered, by its record."""
    del home  # the run is under it
    run = WatchedRun(JOB, {"team": "language"})
    run.learn(range(1, 21))
    run.employ(3, spares=1)
    run.lose(rank=1)
    run.recover(20)
    run.keep(15)
    run.publish(failures=1, checkpoint=15)
    return run


def open_job(open_page: OpenPage, served: Served, **settings: Any) -> Page:
    page = open_page(served.job_url(JOB), **settings)
    expect(page.locator("#figure-step")).to_contain_text("20")
    expect(page.locator(".events li")).to_have_count(4)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_both_schemes(
    scheme: str, serve: Serve, run: WatchedRun, open_page: OpenPage
):
    run.publish(age_s=60)  # so that a notice is there, too
    with serve() as served:
        page = open_job(open_page, served, color_scheme=scheme, reduced_motion="reduce")
        expect(page.locator(".notice:visible")).to_have_count(1)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        contrast, where = page.evaluate(FIND_LEAST_CONTRAST)
        assert contrast >= LEAST_CONTRAST, where


def test_nothing_moves_for_those_who_ask_for_that(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    with serve() as served:
        moving = open_job(open_page, served, reduced_motion="no-preference")
        still = open_job(open_page, served, reduced_motion="reduce")
        run.happen(1)
        for page, name in ((moving, "arrive"), (still, "none")):
            newest = page.locator(".events .is-new", has_text="something")
            expect(newest).to_have_count(1)
            assert newest.evaluate("e => getComputedStyle(e).animationName") == name


def test_every_part_has_a_name_and_a_place(serve: Serve, run: WatchedRun, open_page: OpenPage):
    with serve() as served:
        page = open_job(open_page, served)
        assert page.locator("html").get_attribute("lang") == "en"
        for landmark in ("banner", "main"):
            expect(page.get_by_role(landmark)).to_have_count(1)
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        headings = page.locator("h1, h2, h3")
        levels = headings.evaluate_all("all => all.map(e => Number(e.tagName[1]))")
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        ids = page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
        assert len(ids) == len(set(ids))
        for each in page.locator("button, a, input, select, [role], table").all():
            assert name_of(each), each.evaluate("e => e.outerHTML.slice(0, 200)")
        scopes = page.locator("th").evaluate_all("all => all.map(e => e.scope)")
        assert set(scopes) == {"col"}
        charts = page.locator("figure")
        assert charts.count() == charts.locator("details").count()


def name_of(part: Locator) -> str:
    """Return what a part is called when it is read aloud; of a live region: that it is one."""
    return part.evaluate(
        """e => ["status", "log", "alert"].includes(e.getAttribute("role"))
          ? "live"
          : e.getAttribute("aria-label") || e.caption?.textContent || e.labels?.[0]?.textContent
            || e.textContent.trim()"""
    )


def test_a_chart_is_read_point_by_point_with_keys(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    with serve() as served:
        page = open_job(open_page, served)
        chart = page.locator("figure", has=page.get_by_role("heading", name="Loss"))
        drawing, readout = chart.get_by_role("slider"), chart.locator("output")
        expect(drawing).to_have_attribute("aria-label", re.compile("from step 1 to step 20:"))
        expect(drawing).to_have_attribute("aria-valuetext", "no point chosen")
        drawing.focus()
        for key, step in (
            ("End", 20),
            ("ArrowLeft", 19),
            ("Shift+ArrowLeft", 9),
            ("Home", 1),
            ("ArrowLeft", 1),
            ("ArrowRight", 2),
            ("ArrowUp", 3),
            ("ArrowDown", 2),
            ("PageUp", 12),
            ("PageDown", 2),
        ):
            page.keyboard.press(key)
            expect(readout).to_contain_text(f"step {step}: loss")
            # As a screen reader has it, which passes arrow keys to a slider, and to no image.
            told = {"valuemin": "1", "valuemax": "20", "valuenow": str(step)}
            told["valuetext"] = readout.inner_text()
            for name, value in told.items():
                expect(drawing).to_have_attribute(f"aria-{name}", value)
        page.keyboard.press("Escape")
        expect(readout).to_have_text("")
        expect(drawing).to_have_attribute("aria-valuetext", "no point chosen")


def test_a_chart_of_nothing_says_so(serve: Serve, open_page: OpenPage, home: Path):
    del home
    WatchedRun(JOB)
    with serve() as served:
        drawing = open_page(served.job_url(JOB)).get_by_role("slider", name="Loss,")
        expect(drawing).to_have_attribute("aria-valuetext", "Nothing yet")
        expect(drawing).to_be_disabled()


def test_the_numbers_of_a_chart_are_beside_it(serve: Serve, run: WatchedRun, open_page: OpenPage):
    with serve() as served:
        page = open_job(open_page, served)
        chart = page.locator("figure", has=page.get_by_role("heading", name="Step time"))
        expect(chart.locator("tbody tr")).to_have_count(0)
        chart.get_by_text("As a table").press("Enter")
        expect(chart.locator("tbody tr")).to_have_count(20)
        cells = chart.locator("tbody tr").first.locator("td").all_inner_texts()
        assert cells[0] == "step 20"
        assert float(cells[2]) == pytest.approx(0.07)


def test_the_first_key_leads_past_the_head(serve: Serve, run: WatchedRun, open_page: OpenPage):
    with serve() as served:
        page = open_page(served.url)
        expect(page.get_by_role("link", name=JOB)).to_be_visible()
        page.locator(".skip").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.keyboard.press("Tab")
        expect(page.get_by_label("State")).to_be_focused()


def test_a_link_keeps_the_focus_while_the_list_changes(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    with serve() as served:
        page = open_page(served.url)
        link = page.get_by_role("link", name=JOB)
        link.focus()
        WatchedRun("newer-abcdef")
        run.learn([21])
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(link).to_be_focused()
