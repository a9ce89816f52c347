"""A head that is silent holds up whoever asks it for a while, and the event loop never."""

import asyncio
import threading

import pytest

from trainflow.coordination.ray_question import RayQuestion, ask_patiently

TIMEOUT_S = 5.0


class Head:
    """Answers once it may, with how often it was asked."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.num_asked = 0

    def find(self) -> int:
        self.num_asked += 1
        number = self.num_asked
        assert self.may_answer.wait(TIMEOUT_S)
        return number


def test_an_answer_is_returned_and_asked_for_anew_each_time():
    async def act() -> list[int]:
        head, question = Head(), RayQuestion[int]()
        head.may_answer.set()
        return [await question.ask(head.find) for _ in range(2)]

    assert asyncio.run(act()) == [1, 2]


def test_a_head_that_is_silent_holds_one_thread_and_its_answer_counts_when_it_comes():
    async def act() -> None:
        head, question = Head(), RayQuestion[int](within_s=0.01)
        for _ in range(3):
            with pytest.raises(TimeoutError, match=r"Ray's head has not answered within 0.01 s"):
                await question.ask(head.find)
        assert head.num_asked == 1
        head.may_answer.set()
        question._within_s = TIMEOUT_S
        assert await question.ask(head.find) == 1
        assert await question.ask(head.find) == 2

    asyncio.run(act())


def test_an_answer_that_nobody_took_in_time_is_asked_for_anew():
    async def act() -> None:
        head, question = Head(), RayQuestion[int](within_s=0.01)
        with pytest.raises(TimeoutError):
            await question.ask(head.find)
        head.may_answer.set()
        late = question._open
        assert late is not None
        await late
        question._within_s = TIMEOUT_S
        question._answered_at_s -= 2 * TIMEOUT_S
        assert await question.ask(head.find) == 2

    asyncio.run(act())


def test_a_question_that_could_not_be_asked_is_asked_the_next_time(monkeypatch: pytest.MonkeyPatch):
    async def act() -> int:
        head, question = Head(), RayQuestion[int]()
        head.may_answer.set()
        with monkeypatch.context() as refusing:
            refusing.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="no thread"):
                await question.ask(head.find)
        return await question.ask(head.find)

    assert asyncio.run(act()) == 1


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("no thread")


def test_the_event_loop_runs_meanwhile():
    async def act() -> None:
        head, question = Head(), RayQuestion[int]()
        asking = asyncio.ensure_future(question.ask(head.find))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asking.done()
        head.may_answer.set()
        assert await asking == 1

    asyncio.run(act())


def test_two_that_ask_at_a_time_get_one_answer():
    async def act() -> list[int]:
        head, question = Head(), RayQuestion[int]()
        asking = [asyncio.ensure_future(question.ask(head.find)) for _ in range(2)]
        await asyncio.sleep(0)
        head.may_answer.set()
        return await asyncio.gather(*asking)

    assert asyncio.run(act()) == [1, 1]


def test_what_it_raises_is_raised_and_the_next_question_is_another():
    answers = iter([ValueError("no"), None])

    def find() -> None:
        error = next(answers)
        if error is not None:
            raise error

    async def act() -> None:
        question = RayQuestion[None]()
        with pytest.raises(ValueError, match="no"):
            await question.ask(find)
        await question.ask(find)

    asyncio.run(act())


def test_who_asks_patiently_waits_until_there_is_an_answer():
    async def act() -> int:
        head = Head()
        asking = asyncio.ensure_future(ask_patiently(head.find))
        await asyncio.sleep(0.02)
        assert not asking.done()
        head.may_answer.set()
        return await asking

    assert asyncio.run(act()) == 1
