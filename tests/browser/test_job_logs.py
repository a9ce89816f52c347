"""What the driver and the workers of a job have printed, on its page."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import Complaints, OpenPage, Serve
from tests.browser.served import Served, WatchedRun

pytestmark = pytest.mark.browser

JOB = "tiny-abcdef"
READS = re.compile(r"/logs\?")
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


@pytest.fixture
def run(home: Path) -> WatchedRun:
    """A job with two workers, by its record."""
    del home  # the run is under it
    run = WatchedRun(JOB)
    run.learn(range(1, 21))
    run.form("w0", "w1")
    run.employ(2)
    run.publish()
    return run


def open_logs(open_page: OpenPage, served: Served) -> Page:
    page = open_page(served.job_url(JOB))
    show_logs(page)
    return page


def show_logs(page: Page) -> None:
    """Open them, by a key: what comes above them meanwhile would move them away from a pointer.

    A key goes elsewhere, and is lost, as long as they can't be seen: before the job is known.
    """
    summary = page.get_by_text("Show what the driver")
    expect(summary).to_be_visible()
    summary.press("Enter")


def choice_of_log(page: Page) -> Locator:
    return page.get_by_label("Log of", exact=True)  # else the log is meant, too


def log_of(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=f"Log of {name}", exact=True)


def see_steps(page: Page, run: WatchedRun, *steps: int) -> None:
    """Have the page show these steps, one after the other: it looks once a second."""
    for step in steps:
        run.learn([step])
        expect(page.locator("#figure-step")).to_contain_text(str(step))


@contextmanager
def reads_unanswered(page: Page) -> Generator[None]:
    """Have the page wait for an answer meanwhile, whenever it asks for what a log says."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(READS, hold)
    yield
    for route in held:
        route.continue_()
    page.unroute(READS)


def is_at_end(log: Locator) -> bool:
    return log.evaluate("e => e.scrollTop + e.clientHeight >= e.scrollHeight - 2")


def test_the_drivers_log_is_followed(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.print("it begins\n")
    with serve() as served:
        page = open_logs(open_page, served)
        log = log_of(page, "the driver")
        expect(log).to_have_text("it begins\n")
        run.print(f"{HOSTILE}\nand goes on\n")
        expect(log).to_contain_text("and goes on")
        expect(log).to_contain_text(HOSTILE)
        assert page.locator("img").count() == 0
        expect(page.get_by_text(f"trainflow logs {JOB}")).to_be_visible()


def test_each_workers_log_can_be_chosen(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.print("of the driver\n")
    run.print("of rank 1\n", worker="w1")
    run.print("its last words\n", worker="w9")  # gone by now
    with serve() as served:
        page = open_logs(open_page, served)
        choice = choice_of_log(page)
        expect(choice.locator("option")).to_have_text(
            ["the driver", "worker w1, rank 1", "worker w9"]
        )
        choice.select_option("w1")
        expect(log_of(page, "worker w1, rank 1")).to_have_text("of rank 1\n")
        run.print("more of rank 1\n", worker="w1")
        expect(log_of(page, "worker w1, rank 1")).to_contain_text("more of rank 1")
        choice.select_option("w9")
        expect(log_of(page, "worker w9")).to_have_text("its last words\n")
        run.print("a new one\n", worker="w0")
        expect(choice.locator("option")).to_have_count(4, timeout=20_000)
        expect(choice).to_have_value("w9")
        expect(page.get_by_text(f"trainflow logs {JOB} --worker w9")).to_be_visible()


def test_a_log_that_is_not_there_yet_is_told_and_comes(
    serve: Serve, run: WatchedRun, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of the 404
    with serve() as served:
        page = open_logs(open_page, served)
        expect(page.get_by_text("Nothing is there yet")).to_be_visible()
        run.print("it begins\n")
        expect(log_of(page, "the driver")).to_have_text("it begins\n")
        expect(page.get_by_text("Nothing is there yet")).to_have_count(0)


def test_of_a_long_log_the_last_lines_are_drawn(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.print("".join(f"line {number}\n" for number in range(100_000)))
    with serve() as served:
        page = open_logs(open_page, served)
        log = log_of(page, "the driver")
        expect(log).to_contain_text("line 99999")
        lines = log.inner_text().split()
        assert len(lines) == 1000  # two words each
        assert is_at_end(log)
        run.print("the end\n" * 600)
        expect(log).not_to_contain_text("line")
        assert is_at_end(log)


def test_who_reads_further_up_is_left_there(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.print("a line\n" * 200)
    with serve() as served:
        page = open_logs(open_page, served)
        log = log_of(page, "the driver")
        expect(log).to_contain_text("a line")
        log.evaluate("e => { e.scrollTop = 0; }")
        run.print("the end\n")
        expect(log).to_contain_text("the end")
        assert log.evaluate("e => e.scrollTop") == 0


def test_what_is_closed_is_not_asked_for(serve: Serve, run: WatchedRun, open_page: OpenPage):
    asked: list[str] = []
    run.print("one\n")
    with serve() as served:
        page = open_page(served.job_url(JOB))
        page.on("request", lambda request: asked.append(request.url))
        see_steps(page, run, 21, 22, 23)
        assert not any("/logs" in url for url in asked)
        show_logs(page)
        expect(log_of(page, "the driver")).to_have_text("one\n")
        show_logs(page)
        see_steps(page, run, 24)  # what was under way is asked by now
        asked.clear()
        see_steps(page, run, 25, 26)
        assert not any("/logs" in url for url in asked)


def test_what_is_no_longer_followed_stays(serve: Serve, run: WatchedRun, open_page: OpenPage):
    asked: list[str] = []
    run.print("one\n")
    with serve() as served:
        page = open_logs(open_page, served)
        expect(log_of(page, "the driver")).to_have_text("one\n")
        with reads_unanswered(page):
            with page.expect_request(READS):
                run.print("two\n")
            page.get_by_label("Follow").uncheck()
        see_steps(page, run, 21)
        page.on("request", lambda request: asked.append(request.url))
        see_steps(page, run, 22, 23)
        expect(log_of(page, "the driver")).to_have_text("one\n")
        assert not any("/logs" in url for url in asked)
        page.get_by_label("Follow").check()
        expect(log_of(page, "the driver")).to_have_text("one\ntwo\n")


def test_what_is_chosen_is_read_once_where_it_is_not_followed(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    run.print("of the driver\n")
    run.print("of rank 1\n", worker="w1")
    with serve() as served:
        page = open_logs(open_page, served)
        expect(log_of(page, "the driver")).to_have_text("of the driver\n")
        page.get_by_label("Follow").uncheck()
        run.print("and more\n")
        choice_of_log(page).select_option("w1")
        expect(log_of(page, "worker w1, rank 1")).to_have_text("of rank 1\n")
        run.print("more of rank 1\n", worker="w1")
        see_steps(page, run, 21, 22, 23)
        expect(log_of(page, "worker w1, rank 1")).to_have_text("of rank 1\n")
        choice_of_log(page).select_option("the driver")
        expect(log_of(page, "the driver")).to_have_text("of the driver\nand more\n")


def test_a_first_look_is_not_lost_to_who_does_not_follow(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    run.print("one\n")
    with serve() as served:
        page = open_page(served.job_url(JOB))
        with reads_unanswered(page):
            with page.expect_request(READS):
                show_logs(page)
            page.get_by_label("Follow").uncheck()
        expect(log_of(page, "the driver")).to_have_text("one\n")
