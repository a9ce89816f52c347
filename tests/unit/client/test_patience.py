"""A job is followed over a service's being away; who was never answered is told of that soon."""

from typing import Any, cast

import httpx
import pytest

from trainflow.client import AsyncTrainFlowClient, ServiceUnavailableError, TrainFlowClient
from trainflow.service import sse
from trainflow.service.documents import JobDetails

LOG = b"one\ntwo\nthree\n"
NUM_EVENTS = 3
AWAY_FOR = 10  # requests: more than are made by who doesn't follow


class NoClock:
    """Nobody waits."""

    def monotonic_s(self) -> float:
        return 0.0

    def unix_s(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        pass


async def pass_time(duration_s: float) -> None:
    """Nobody waits."""


class Restarting:
    """A service that is away after each answer, until it has told everything.

    Attributes:
        away_for: requests that find nobody before the next one is answered.
    """

    def __init__(self) -> None:
        self.away_for = 0
        self._has_ended = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away_for:
            self.away_for -= 1
            raise httpx.ConnectError("refused", request=request)
        if request.url.path.endswith("/events"):
            return self._give(self._tell_next(int(request.headers["last-event-id"])))
        if request.url.path.endswith("/logs"):
            rest = LOG[int(request.url.params["offset"]) :]
            self._has_ended = len(rest) <= 4
            return self._give(rest[:4])
        return httpx.Response(200, json=self._describe())

    def _give(self, data: bytes) -> httpx.Response:
        self.away_for = 0 if self._has_ended else AWAY_FOR
        return httpx.Response(200, stream=httpx.ByteStream(data))

    def _tell_next(self, known: int) -> bytes:
        if known == NUM_EVENTS:
            self._has_ended = True
            return sse.frame_named("end", {})
        event = {"number": known + 1, "at_s": 1.0, "kind": "k", "text": "", "data": {}}
        return sse.frame_event(known + 1, event)

    def _describe(self) -> dict[str, object]:
        examples = cast("Any", JobDetails.model_config)["json_schema_extra"]["examples"]
        return {**examples[0], "state": "succeeded" if self._has_ended else "running"}


def test_a_job_is_followed_over_restarts_of_the_service():
    service = Restarting()
    transport = httpx.MockTransport(service)
    with TrainFlowClient("http://service", clock=NoClock(), transport=transport) as client:
        assert [event.number for event in client.events("a")] == [1, 2, 3]
        assert b"".join(client.logs("a", follow=True)) == LOG


def test_who_does_not_follow_or_was_never_answered_is_told_soon():
    service = Restarting()
    transport = httpx.MockTransport(service)
    with TrainFlowClient("http://service", clock=NoClock(), transport=transport) as client:
        for ask in (
            client.cluster,
            lambda: list(client.events("a")),
            lambda: list(client.logs("a", follow=True)),
            lambda: client.wait("a"),
        ):
            service.away_for = AWAY_FOR
            with pytest.raises(ServiceUnavailableError, match="got no answer"):
                ask()


def test_a_service_that_does_not_come_back_is_told():
    service = Restarting()
    transport = httpx.MockTransport(service)
    with TrainFlowClient("http://service", clock=NoClock(), transport=transport) as client:
        events = client.events("a")
        assert next(events).number == 1
        service.away_for = 100
        with pytest.raises(ServiceUnavailableError, match="got no answer"):
            next(events)


@pytest.mark.anyio
async def test_the_asynchronous_client_does_the_same():
    service = Restarting()
    transport = httpx.MockTransport(service)
    async with AsyncTrainFlowClient(
        "http://service", clock=NoClock(), sleep=pass_time, transport=transport
    ) as client:
        assert [event.number async for event in client.events("a")] == [1, 2, 3]
        assert b"".join([piece async for piece in client.logs("a", follow=True)]) == LOG
        service.away_for = AWAY_FOR
        with pytest.raises(ServiceUnavailableError, match="got no answer"):
            await client.cluster()
