"""A client for an event loop.

Process: any.  Thread: one event loop.  Blocks: never.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import httpx

import trainflow.client.requests as api
from trainflow.client.event_source import EventSource
from trainflow.client.problems import Problem, ServiceError, WaitedTooLongError
from trainflow.client.requests import (
    Answer,
    LogPiece,
    Request,
    decide_pause,
    error_in,
    refuse_url,
    unreachable,
)
from trainflow.client.trace_source import TraceSource
from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.service.documents import AttemptDocument, JobDetails, JobDocument
from trainflow.service.profile_documents import ProfileDocument
from trainflow.service.record_documents import (
    CheckpointDocument,
    EventDocument,
    PointDocument,
    WorkerLogDocument,
    WorkersDocument,
)
from trainflow.service.service_documents import ClusterDocument

_TIMEOUT_S = 60.0
_SILENT_AT_MOST_S = 60.0
_LOOK_EVERY_S = 1.0
_COME_BACK_AFTER_S = 0.5

OnHeaders = Callable[[Mapping[str, str]], None]


def _ignore(_headers: Mapping[str, str]) -> None:
    pass


Sleep = Callable[[float], Awaitable[None]]


class AsyncTrainFlowClient:
    """Asks one service. An asynchronous context manager.

    Requests that may be repeated are, some times over some seconds, where the service gives no
    answer or says that it can't now. Every method raises a `ServiceError`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = _TIMEOUT_S,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Sleep = asyncio.sleep,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        """Make a client; nothing is asked yet.

        Args:
            url: of the service, as ``http://127.0.0.1:8000``.
            token: that allows what is asked; None where authentication is off.
            timeout_s: for which an answer is waited.
            clock: measures.
            sleep: paces what is asked again.
            transport: how requests travel; for tests.

        Raises:
            ConfigError: ``url`` or ``token`` is none.
        """
        headers = api.authorize(token)
        try:
            self._http = httpx.AsyncClient(
                base_url=url, headers=headers, timeout=timeout_s, transport=transport
            )
        except httpx.InvalidURL as error:
            raise refuse_url(url, error) from error
        self._clock = clock
        self._timeout_s = timeout_s
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def submit(
        self,
        config: Mapping[str, Any] | str,
        *,
        working_directory: str | None = None,
        key: str | None = None,
    ) -> JobDetails:
        """Submit a job, once, however often that has to be asked.

        Args:
            config: the job file, as plain values or as text in YAML.
            working_directory: folder on the cluster's head with the job's modules.
            key: names this submission for whoever may repeat it; a new one if None.
        """
        return await self._ask(api.submit(config, working_directory, key))

    async def list(
        self,
        *,
        states: Sequence[str] = (),
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        page: int | None = None,
    ) -> AsyncIterator[JobDocument]:
        """Yield jobs, the newest first, asking for further pages as they are wanted."""
        cursor = None
        while True:
            found = await self._ask(api.list_jobs(states, name, labels or {}, page, cursor))
            for job in found.jobs:
                yield job
            cursor = found.next_cursor
            if cursor is None:
                return

    async def get(self, job_id: str) -> JobDetails:
        """Return a job with its newest status."""
        return await self._ask(api.get(job_id))

    async def attempts(self, job_id: str) -> Sequence[AttemptDocument]:
        """Return how often a job was begun, and how each ended."""
        return await self._ask(api.attempts(job_id))

    async def wait(self, job_id: str, timeout_s: float | None = None) -> JobDetails:
        """Return a job once it has ended.

        Raises:
            WaitedTooLongError: it has not within ``timeout_s``.
        """
        begun_s = self._clock.monotonic_s()
        look = api.get(job_id)
        while not (job := await self._ask(look)).state.is_terminal:
            look = replace(look, is_patient=timeout_s is None)
            if timeout_s is not None and self._clock.monotonic_s() - begun_s >= timeout_s:
                detail = f"job {job_id}: got {job.state} after {timeout_s:g} s, expected its end"
                raise WaitedTooLongError(Problem("", 0, f"{detail}; wait longer"))
            await self._sleep(_LOOK_EVERY_S)
        return job

    async def stop(self, job_id: str) -> JobDetails:
        """Stop a job at its next step boundary."""
        return await self._ask(api.stop(job_id))

    async def resume(self, job_id: str) -> JobDetails:
        """Go on with a job from its newest checkpoint."""
        return await self._ask(api.resume(job_id))

    async def erase(self, job_id: str) -> None:
        """Erase what is remembered of a job that has ended."""
        await self._ask(api.erase(job_id))

    async def events(
        self, job_id: str, *, after: int = 0, follow: bool = True
    ) -> AsyncIterator[EventDocument]:
        """Yield a job's events in order, each once; as they happen, until it has ended.

        A connection that ends is taken up where it was; a service that is away for a minute is
        waited for. Should it have lost the events that it has told, a warning is logged, and those
        that it has come from the first one on.

        Args:
            job_id: of the job.
            after: number of the last event that is known.
            follow: go on until the job has ended; else until there are no more.
        """
        source = EventSource(after)
        found = self._follow(job_id, source) if follow else self._list_events(job_id, source)
        async for event in found:
            yield event

    async def _list_events(self, job_id: str, source: EventSource) -> AsyncIterator[EventDocument]:
        while found := (await self._ask(api.events(job_id, source.last, None))).events:
            for event in found:
                yield event
            source.last = found[-1].number

    async def _follow(self, job_id: str, source: EventSource) -> AsyncIterator[EventDocument]:
        request = api.event_stream(job_id, source.last)
        while True:
            source.begin_again()
            known, is_empty = source.last, True
            async for piece in self._stream(request):
                is_empty = False
                for event in source.take(piece):
                    yield event
            if source.has_ended or (is_empty and await self._knows_all(job_id, known)):
                return
            request = replace(api.event_stream(job_id, source.last), is_patient=True)
            if source.last == known:
                await self._sleep(_COME_BACK_AFTER_S)

    async def _knows_all(self, job_id: str, last: int) -> bool:
        """Whether a stream that gave nothing was that of a job that has ended long ago."""
        job = await self._ask(replace(api.get(job_id), is_patient=True))
        return job.state.is_terminal and job.last_event == last

    async def logs(
        self, job_id: str, *, worker: str | None = None, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield what a job's driver, or a worker, has printed, from a byte on.

        Args:
            job_id: of the job.
            worker: its id, or a rank: of who has it, or had it last; None: the driver.
            offset: number of the first byte.
            follow: go on until the job has ended.
        """
        found = self.log_pieces(job_id, worker=worker, offset=offset, follow=follow)
        async for piece in found:
            yield piece.data

    async def log_pieces(
        self, job_id: str, *, worker: str | None = None, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[LogPiece]:
        """Yield as `logs` does, with the numbers of bytes, by which a log is taken up again.

        Of a worker's log only the newest part is kept: numbers may jump. Asked for by a rank, it
        stays the log of the worker that had it at first, whose id each piece has.
        """

        def begin(headers: Mapping[str, str]) -> None:
            nonlocal offset, worker
            offset = api.find_begin(headers, offset)
            worker = api.find_worker(headers, worker)

        has_begun = False
        while True:
            look = replace(api.get(job_id), is_patient=has_begun)
            is_over = not follow or (await self._ask(look)).state.is_terminal
            before = offset
            request = api.log_stream(job_id, worker, offset, follow=follow)
            request = replace(request, is_patient=has_begun)
            async for data in self._stream(request, begin):
                yield LogPiece(offset, data, worker)
                offset += len(data)
            has_begun = True
            if offset > before:
                continue
            if is_over:
                return
            await self._sleep(_COME_BACK_AFTER_S)

    async def worker_logs(self, job_id: str) -> Sequence[WorkerLogDocument]:
        """Return which workers have logs, also of those that are gone."""
        return (await self._ask(api.worker_logs(job_id))).workers

    async def metrics(
        self,
        job_id: str,
        *,
        since_step: int = 0,
        names: Sequence[str] = (),
        max_points: int = 1000,
    ) -> Sequence[PointDocument]:
        """Return a job's metrics after a step: those of ``names``, or all."""
        found = await self._ask(api.metrics(job_id, since_step, names, max_points))
        return found.points

    async def checkpoints(self, job_id: str) -> Sequence[CheckpointDocument]:
        """Return the checkpoints that a job has made, the newest first."""
        return (await self._ask(api.checkpoints(job_id))).checkpoints

    async def workers(self, job_id: str) -> WorkersDocument:
        """Return a job's workers, and how old that is."""
        return await self._ask(api.workers(job_id))

    async def profile(
        self, job_id: str, *, steps: int = 5, ranks: Sequence[int] = (0,)
    ) -> ProfileDocument:
        """Have ranks of a running job record steps; returns once they have been asked.

        Args:
            job_id: of the job.
            steps: how many, from about a second ahead.
            ranks: that record them.
        """
        return await self._ask(api.profile(job_id, steps, ranks))

    async def profiles(self, job_id: str) -> Sequence[ProfileDocument]:
        """Return a job's profiles, the oldest first, and which traces are written."""
        return (await self._ask(api.profiles(job_id))).profiles

    async def trace(self, job_id: str, number: int, rank: int) -> AsyncIterator[bytes]:
        """Yield what a rank has recorded: JSON for Perfetto, compressed by gzip."""
        source = TraceSource()
        while not source.is_whole:
            request = api.trace(job_id, number, rank, source.offset)
            async for data in self._stream(request, source.begin):
                yield source.take(data)
            source.end()

    async def cluster(self) -> ClusterDocument:
        """Return the cluster's nodes and resources."""
        return await self._ask(api.cluster())

    async def _ask(self, request: Request[Answer]) -> Answer:
        num_failures = 0
        while True:
            try:
                return await self._ask_once(request)
            except ServiceError as error:
                num_failures += 1
                pause_s = decide_pause(
                    num_failures,
                    error,
                    may_repeat=request.may_repeat,
                    is_patient=request.is_patient,
                )
                if pause_s is None:
                    raise
                await self._sleep(pause_s)

    async def _ask_once(self, request: Request[Answer]) -> Answer:
        content, headers = request.encode()
        try:
            answer = await self._http.request(
                request.method,
                request.path,
                params=dict(request.query),
                content=content,
                headers=headers,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise unreachable(str(self._http.base_url), error) from error
        error = error_in(answer.status_code, answer.content, answer.headers)
        if error is not None:
            raise error
        return request.read(answer.content)

    async def _stream(
        self, request: Request[bytes], begin: OnHeaders = _ignore
    ) -> AsyncIterator[bytes]:
        """Yield the pieces of an answer; a connection that breaks ends them, like its end does."""
        num_failures = 0
        while True:
            try:
                async for piece in self._stream_once(request, begin):
                    yield piece
            except ServiceError as error:
                num_failures += 1
                pause_s = decide_pause(
                    num_failures, error, may_repeat=True, is_patient=request.is_patient
                )
                if pause_s is None:
                    raise
                await self._sleep(pause_s)
            else:
                return

    async def _stream_once(self, request: Request[bytes], begin: OnHeaders) -> AsyncIterator[bytes]:
        has_begun = False
        timeout = httpx.Timeout(self._timeout_s, read=_SILENT_AT_MOST_S)
        try:
            async with self._http.stream(
                request.method,
                request.path,
                params=dict(request.query),
                headers=dict(request.headers),
                timeout=timeout,
            ) as answer:
                if not answer.is_success:
                    error = error_in(answer.status_code, await answer.aread(), answer.headers)
                    assert error is not None, "it is not a good one"
                    raise error
                has_begun = True
                begin(answer.headers)
                async for piece in answer.aiter_raw():
                    yield piece
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if not has_begun:
                raise unreachable(str(self._http.base_url), error) from error
