"""What the live page shows, in a real browser, of jobs that are written while it looks."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Complaints, OpenPage, Serve
from tests.browser.served import Served, WatchedRun, serve_runs
from tests.unit.service.runs import wait_until
from trainflow.checkpointing.whole_files import replace_file
from trainflow.coordination.run_state import RunState
from trainflow.epochs import EpochId
from trainflow.service import event_stream
from trainflow.service.history.records import Scope

pytestmark = pytest.mark.browser

JOB = "tiny-abcdef"
# What the page promises: what happens is shown within this time.
SHOWN_WITHIN_MS = 2000
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


@pytest.fixture
def run(home: Path) -> WatchedRun:
    """A job that trains, by its record."""
    del home  # the run is under it
    run = WatchedRun(JOB)
    run.record.add_event("epoch", "epoch 1.1: 3 members from step 0", epoch="1.1")
    run.learn(range(1, 21))
    run.employ(3, spares=1)
    run.publish(failures=0, checkpoint=None)
    return run


def open_job(open_page: OpenPage, served: Served, **settings: Any) -> Page:
    page = open_page(served.job_url(JOB), **settings)
    expect(page.locator("#figure-step")).to_contain_text("20")
    expect(page.locator(".events li").last).to_contain_text("submitted")
    return page


def rows_of(page: Page, caption: str) -> Locator:
    return page.get_by_role("table", name=caption, exact=True).locator("tbody tr")


def test_jobs_are_listed_and_lead_to_each(serve: Serve, run: WatchedRun, open_page: OpenPage):
    WatchedRun("another-abcdef").end()
    with serve() as served:
        page = open_page(served.url)
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_label("State").select_option("succeeded")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_label("State").select_option("")
        page.get_by_role("link", name=JOB).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(JOB)
        expect(page).to_have_title(f"{JOB} · TrainFlow")
        page.get_by_role("link", name="All jobs").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        run.end()
        expect(page.locator("tbody .state-succeeded")).to_have_count(2)


def test_a_service_without_jobs_says_so(serve: Serve, open_page: OpenPage):
    with serve() as served:
        page = open_page(served.url)
        expect(page.get_by_text("There are no jobs yet.")).to_be_visible()


def test_a_kill_and_its_recovery_show_within_two_seconds(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    with serve() as served:
        page = open_job(open_page, served)
        run.lose(rank=1)
        run.publish(state="recovering", failures=1)
        killed = page.locator(".events .is-bad", has_text="lost w1 (rank 1)")
        expect(killed).to_be_visible(timeout=SHOWN_WITHIN_MS)
        expect(page.locator("#figure-state")).to_contain_text("recovering")
        expect(page.locator("#spoken")).to_contain_text("lost w1")

        run.learn([21], EpochId(1, 2))
        run.recover(21)
        run.publish(state="running")
        expect(rows_of(page, "Recoveries")).to_have_count(1, timeout=SHOWN_WITHIN_MS)
        expect(page.locator("#figure-step")).to_contain_text("21")
        expect(page.locator("#figure-recoveries")).to_contain_text("median 0.42 s")
        expect(page.locator("#figure-failures")).to_have_text("1")
        cells = rows_of(page, "Recoveries").first.locator("td").all_inner_texts()
        assert cells[1:3] == ["0.42 s", "0"]


def test_the_job_is_drawn_and_told_in_figures(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.keep(15)
    run.publish(checkpoint=15)
    with serve() as served:
        page = open_job(open_page, served)
        expect(page.locator("#figure-world")).to_have_text("3")
        expect(page.locator("#figure-spares")).to_have_text("1")
        expect(page.locator("#figure-checkpoint")).to_contain_text("5 steps behind")
        expect(page.locator("#figure-age")).to_contain_text("old")
        for title in ("Loss", "Gradient norm", "Step time by phase", "World and spares"):
            drawing = page.get_by_role("slider", name=f"{title},")
            expect(drawing.locator(".line.series-1")).not_to_have_attribute("d", "")
        expect(rows_of(page, "Workers")).to_have_count(4)
        expect(rows_of(page, "Checkpoints").locator("td").first).to_have_text("15")
        expect(page.locator("#figure-goodput")).to_be_hidden()
        run.publish(goodput={"ratio": 0.931, "worker_s": 10.0, "seconds": {"productive": 9.31}})
        expect(page.locator("#figure-goodput")).to_have_text("93.1 %")


def test_spares_that_were_lost_are_told_beside_those_there_are(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    run.publish(spares_lost=0)
    with serve() as served:
        page = open_job(open_page, served)
        spares = page.locator("#figure-spares")
        expect(spares).to_have_text("1")
        run.publish(spares_lost=1200, spares=2)
        expect(spares.locator("small")).to_have_text("1,200 lost so far")
        expect(spares.locator("span")).to_have_text("2")


def test_spares_are_those_of_the_whole_run_also_once_it_has_ended(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    run.learn([21])
    run.end()
    with serve() as served:
        drawing = open_page(served.job_url(JOB)).get_by_role("slider", name="World and spares,")
        told = re.compile("spares from .*: lowest 0, highest 1, now 1")
        expect(drawing).to_have_attribute("aria-label", told)
        expect(drawing.locator(".line.series-2")).to_have_attribute("d", re.compile("V"))


def test_a_job_that_ends_and_is_resumed_goes_on_being_shown(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    with serve() as served:
        page = open_job(open_page, served)
        run.publish(state="stopped")
        run.end(RunState.STOPPED)
        expect(page.locator("#figure-state")).to_contain_text("stopped")
        expect(page.locator("#figure-age")).to_have_text("final")
        expect(page.get_by_text("It has ended: so it ended")).to_be_visible()
        run.resume(EpochId(2, 1))
        run.learn([21], EpochId(2, 1))
        run.publish(state="running")
        expect(page.locator("#figure-step")).to_contain_text("21", timeout=15_000)
        expect(page.locator(".events li").first).to_contain_text("resumed", timeout=15_000)


def test_steps_that_are_done_again_are_drawn_as_they_count(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    with serve() as served:
        page = open_job(open_page, served)
        chart = page.locator("figure", has=page.get_by_role("heading", name="Loss"))
        chart.get_by_text("As a table").click()
        expect(chart.locator("tbody tr")).to_have_count(20)
        run.record.begin_after(15, "a checkpoint", EpochId(1, 2))
        run.learn(range(16, 18), EpochId(1, 2), loss=9.0)
        run.publish()
        expect(chart.locator("tbody tr")).to_have_count(17)
        expect(chart.locator("tbody tr").first.locator("td")).to_have_text(["step 17", "9"])


def test_values_that_are_no_numbers_are_marked(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.learn([21], loss=float("nan"))
    run.learn([22])
    with serve() as served:
        page = open_page(served.job_url(JOB))
        chart = page.locator("figure", has=page.get_by_role("heading", name="Loss"))
        expect(chart.locator(".odd")).not_to_have_attribute("d", "")
        chart.get_by_text("As a table").click()
        expect(chart.locator("tbody tr").nth(1)).to_contain_text("(1 not finite)")


def test_an_old_status_is_marked_as_stale(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.publish(age_s=60)
    with serve() as served:
        page = open_job(open_page, served)
        expect(page.locator(".notice", has_text="Stale")).to_be_visible()
        expect(page.locator("#figure-age")).to_contain_text("stale")
        page.get_by_role("link", name="All jobs").click()
        expect(page.locator("tbody .state")).to_have_text("running (stale)")
        run.publish()
        expect(page.locator("tbody .state")).to_have_text("running")
        run.publish()
        page.get_by_role("link", name=JOB).click()
        expect(page.locator("#figure-age")).to_contain_text("old")
        expect(page.locator(".notice", has_text="Stale")).to_have_count(0)


def test_a_lost_connection_is_told_and_taken_up_without_a_gap(
    run: WatchedRun, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of requests that fail
    with serve_runs() as served:
        port = int(served.url.rpartition(":")[2])
        page = open_job(open_page, served)
        run.happen(5)
        expect(page.locator(".events li")).to_have_count(7)
    expect(page.get_by_text("The connection to the service is lost")).to_be_visible()
    run.happen(5)
    with serve_runs(port=port):
        expect(page.locator(".events li")).to_have_count(12, timeout=30_000)
        lost = page.get_by_text("The connection to the service is lost")
        expect(lost).to_have_count(0, timeout=30_000)
        shown = page.locator(".events li").evaluate_all("all => all.map(e => e.dataset.number)")
    assert shown == [str(number) for number in range(12, 0, -1)]


def test_events_that_the_service_has_lost_are_told_and_the_job_is_shown_anew(
    serve: Serve, run: WatchedRun, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "CATCHES_UP_WITHIN_S", 0.0)
    run.happen(5)
    record = run.directory / "events.jsonl"
    with serve() as served:
        page = open_job(open_page, served)
        expect(page.locator(".events li")).to_have_count(7)
        replace_file(record, b"".join(record.read_bytes().splitlines(keepends=True)[:3]))
        expect(page.get_by_text("has lost the events that it told, up to number 7")).to_be_visible()
        expect(page.locator(".events li")).to_have_count(3)
        expect(page.locator("#figure-step")).to_contain_text("20")


def test_a_job_that_the_service_no_longer_knows_is_told_and_looked_for(
    serve: Serve, run: WatchedRun, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of the 404
    run.end()
    with serve() as served:
        page = open_page(served.job_url(JOB))
        expect(page.locator("#figure-step")).to_contain_text("20")
        served.history.jobs.erase(JOB)
        told = page.get_by_text(f"The service no longer knows the job {JOB}")
        expect(told).to_be_visible(timeout=20_000)
        expect(page.get_by_text(f"There is no job {JOB} yet.")).to_be_visible()


def test_a_page_that_nobody_sees_holds_no_connection(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    hide = """hidden => {
      Object.defineProperty(document, "hidden", { configurable: true, value: hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with serve() as served:
        page = open_job(open_page, served)
        wait_until(lambda: served.streams.num_open == 1)
        page.evaluate(hide, arg=True)
        wait_until(lambda: served.streams.num_open == 0)
        run.happen(3)
        page.evaluate(hide, arg=False)
        expect(page.locator(".events li")).to_have_count(5)


def test_a_job_that_was_submitted_just_now_appears_on_its_page(
    serve: Serve, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of the 404
    with serve() as served:
        page = open_page(served.job_url(JOB))
        waiting = page.get_by_text(f"There is no job {JOB} yet.")
        expect(waiting).to_be_visible()
        expect(page.locator("#figure-step")).to_be_hidden()
        WatchedRun(JOB).learn(range(1, 4))
        expect(page.locator("#figure-step")).to_contain_text("3", timeout=30_000)
        expect(page.get_by_role("heading", level=1)).to_have_text(JOB)
        expect(waiting).to_have_count(0)


def test_a_job_that_is_not_there_is_told_after_a_while(
    serve: Serve, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of the 404
    looks: list[str] = []
    with serve() as served:
        page = open_page(served.url)
        expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
        page.on("response", lambda answer: looks.append(answer.url))
        page.clock.install()
        page.goto(served.job_url("nowhere-abcdef"))
        expect(page.get_by_text("There is no job nowhere-abcdef yet.")).to_be_visible()
        told = page.get_by_role("heading", name="There is no such job")
        while not told.is_visible():
            page.clock.fast_forward(1000)
            page.evaluate("fetch('healthz').then((answer) => answer.status)")
        assert sum(url.endswith("/nowhere-abcdef") for url in looks) == 8
        page.get_by_role("link", name="All jobs").click()
        expect(page.get_by_text("There are no jobs yet.")).to_be_visible()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("#/jobs/UPPER", "The service refuses that"),
        ("#/jobs/%E0%A4", "No such page"),
        ("#/elsewhere", "No such page"),
    ],
)
def test_an_address_that_names_nothing_is_told(
    address: str, told: str, serve: Serve, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of the 422
    with serve() as served:
        page = open_page(f"{served.url}/{address}")
        expect(page.get_by_role("heading", level=1)).to_have_text(told)


def test_a_token_is_asked_for_and_kept_in_the_tab(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    with serve(authentication="tokens") as served:
        secret = served.history.tokens.create("me", frozenset({Scope.READ})).secret
        page = open_page(served.job_url(JOB))
        field = page.get_by_label("Token")
        field.fill("two words")
        page.get_by_role("button", name="Use this token").click()
        expect(page.get_by_role("alert")).to_contain_text("no token")
        field.fill(secret)
        page.get_by_role("button", name="Use this token").click()
        expect(page.locator("#figure-step")).to_contain_text("20")
        run.happen(1)
        expect(page.locator(".events li").first).to_contain_text("something")
        page.reload()
        expect(page.locator("#figure-step")).to_contain_text("20")
        assert page.evaluate("localStorage.length") == 0
        assert secret not in page.url
        page.get_by_role("button", name="Forget the token").click()
        expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize("kind", ["forged", "without the scope"])
def test_a_token_that_is_refused_is_asked_for_again(
    kind: str, serve: Serve, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of 401 and 403
    with serve(authentication="tokens") as served:
        submitting = served.history.tokens.create("s", frozenset({Scope.SUBMIT})).secret
        reading = served.history.tokens.create("r", frozenset({Scope.READ})).secret
        page = open_page(served.url)
        page.get_by_label("Token").fill("tf_forged" if kind == "forged" else submitting)
        page.get_by_role("button", name="Use this token").click()
        expect(page.get_by_role("alert")).to_contain_text("expected")
        page.get_by_label("Token").fill(reading)
        page.get_by_role("button", name="Use this token").click()
        expect(page.get_by_text("There are no jobs yet.")).to_be_visible()


def test_a_token_that_is_revoked_ends_the_view(
    serve: Serve, run: WatchedRun, open_page: OpenPage, complaints: Complaints
):
    complaints.are_expected = True  # of the 401
    with serve(authentication="tokens") as served:
        made = served.history.tokens.create("me", frozenset({Scope.READ}))
        page = open_page(served.job_url(JOB))
        page.get_by_label("Token").fill(made.secret)
        page.get_by_role("button", name="Use this token").click()
        expect(page.locator("#figure-step")).to_contain_text("20")
        served.history.tokens.revoke(made.token.token_id)
        expect(page.get_by_role("alert")).to_be_visible()


def test_of_ten_thousand_events_few_are_drawn(serve: Serve, run: WatchedRun, open_page: OpenPage):
    run.happen(10_500, "x" * 50)
    run.recover(20)
    with serve() as served:
        page = open_page(served.job_url(JOB))
        expect(page.locator(".events li").first).to_contain_text("recovered", timeout=30_000)
        expect(page.locator(".events li")).to_have_count(200)
        expect(page.get_by_text("The newest 200 of")).to_be_visible()
        expect(rows_of(page, "Recoveries")).to_have_count(1)


def test_a_very_long_run_is_drawn_with_few_points(
    serve: Serve, run: WatchedRun, open_page: OpenPage
):
    run.learn(range(21, 6021))
    with serve() as served:
        page = open_page(served.job_url(JOB))
        expect(page.locator("#figure-step")).to_contain_text("6,020", timeout=30_000)
        drawing = page.get_by_role("slider", name="Loss,")
        whole = re.compile("to step 6,020:")
        expect(drawing).to_have_attribute("aria-label", whole, timeout=30_000)
        path = drawing.locator(".line").get_attribute("d") or ""
        assert 100 < path.count("L") <= 2000


def test_long_and_hostile_names_are_texts(serve: Serve, open_page: OpenPage, home: Path):
    del home
    run = WatchedRun("l" * 63, {"note": HOSTILE, "long": "y" * 500})
    run.record.add_event("failure", HOSTILE + "z" * 2000)
    run.publish()
    with serve() as served:
        page = open_page(served.job_url(run.job_id), viewport={"width": 360, "height": 700})
        expect(page.locator(".events li").first).to_contain_text(HOSTILE)
        expect(page.get_by_text(f"note={HOSTILE}")).to_be_visible()
        assert page.locator("img").count() == 0
        assert page.title() == f"{run.job_id} · TrainFlow"
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, "the page itself scrolls sideways"
