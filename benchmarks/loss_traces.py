"""Losses and gradient norms of made-up runs, with what is wrong with them.

A healthy loss falls as a power of the step to a floor above zero; its noise is normal, has the
tails of Student's t with 4 degrees of freedom, lasts over some ten steps, or is a swing. Now and
then a pass begins, with a loss that is 3% lower. The norm is ten times what it will be, and falls
to that while the learning rate warms up. What is wrong is put in at a step that is drawn.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainflow.monitoring.anomalies.detector import StepValues
from trainflow.monitoring.anomalies.kinds import AnomalyKind

NUM_STEPS = 3000
NOISES = ("normal", "tails", "lasting", "swing")


@dataclass(frozen=True)
class Trace:
    """One run.

    Attributes:
        values: of its steps.
        wrong: what is wrong, in the words of `WRONGS`; empty of a healthy run.
        from_step: where that begins.
        until_step: by when it should be told of.
    """

    values: Sequence[StepValues]
    wrong: str = ""
    from_step: int = 0
    until_step: int = 0


@dataclass(frozen=True)
class Noise:
    """How much a run's values differ from what they should be, as a share."""

    shape: str
    of_loss: float
    of_norm: float


def make_healthy(rng: random.Random, num_steps: int = NUM_STEPS) -> Trace:
    """Make a run with which nothing is wrong."""
    return Trace(_make_values(rng, _draw_noise(rng), num_steps))


def make_wrong(rng: random.Random, wrong: str, num_steps: int = NUM_STEPS) -> Trace:
    """Make a run with which something is, by a name in `WRONGS`."""
    noise = _draw_noise(rng)
    values = _make_values(rng, noise, num_steps)
    step = rng.randrange(num_steps // 4, num_steps // 2)
    return WRONGS[wrong].put(values, step, noise, rng)


def _draw_noise(rng: random.Random) -> Noise:
    return Noise(rng.choice(NOISES), rng.uniform(0.005, 0.04), rng.uniform(0.05, 0.2))


def _make_values(rng: random.Random, noise: Noise, num_steps: int) -> list[StepValues]:
    exponent, floor, scale = rng.uniform(0.1, 0.4), rng.uniform(0.5, 2.0), rng.uniform(4.0, 8.0)
    pass_steps = rng.choice((num_steps // 4, 10 * num_steps))
    of_loss, of_norm = _draw(rng, noise.shape), _draw(rng, noise.shape)
    values: list[StepValues] = []
    for step in range(1, num_steps + 1):
        loss = (floor + scale * (step + 20) ** -exponent) * 0.97 ** (step // pass_steps)
        norm = 1.0 + 9.0 * math.exp(-step / 60)
        values.append(
            StepValues(
                step,
                loss * math.exp(noise.of_loss * of_loss(step)),
                norm * math.exp(noise.of_norm * of_norm(step)),
            )
        )
    return values


def _draw(rng: random.Random, shape: str) -> Callable[[int], float]:
    """Return what draws the noise of one step, with a spread of about one."""
    state = 0.0

    def lasting(_step: int) -> float:
        nonlocal state
        state = 0.9 * state + math.sqrt(1 - 0.9**2) * rng.gauss(0.0, 1.0)
        return state

    def tails(_step: int) -> float:
        chi_squared = sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(4))
        return rng.gauss(0.0, 1.0) / math.sqrt(chi_squared / 4)

    draws: dict[str, Callable[[int], float]] = {
        "normal": lambda _: rng.gauss(0.0, 1.0),
        "tails": tails,
        "lasting": lasting,
        "swing": lambda step: rng.gauss(0.0, 0.8) + 0.8 * math.sin(step / 40),
    }
    return draws[shape]


# What can be wrong

Put = Callable[[list[StepValues], int, Noise, random.Random], Trace]


def _change(
    values: Sequence[StepValues],
    step: int,
    loss: Callable[[int], float] = lambda _: 1.0,
    norm: Callable[[int], float] = lambda _: 1.0,
) -> list[StepValues]:
    """Multiply the values from a step on, by functions of how many steps it is since."""
    return [
        each
        if each.step < step
        else StepValues(
            each.step, each.loss * loss(each.step - step), each.norm * norm(each.step - step)
        )
        for each in values
    ]


def _put_nan(values: list[StepValues], step: int, _noise: Noise, rng: random.Random) -> Trace:
    bad, lasts = rng.choice((math.nan, math.inf)), rng.randint(1, 5)
    in_loss = rng.choice((True, False))
    factor = {True: lambda k: bad if k < lasts else 1.0, False: lambda _: 1.0}
    changed = _change(values, step, factor[in_loss], factor[not in_loss])
    return Trace(changed, "not_finite", step, step)


def _put_spike(values: list[StepValues], step: int, noise: Noise, rng: random.Random) -> Trace:
    """Of 10 to 25 times the noise, and a tenth at least, gone after 3 to 15 steps."""
    height = max(0.1, rng.uniform(10, 25) * noise.of_loss)
    decay = rng.uniform(3, 15)
    changed = _change(values, step, lambda k: math.exp(height * math.exp(-k / decay)))
    return Trace(changed, "spike", step, step + 5)


def _put_rise(values: list[StepValues], step: int, noise: Noise, rng: random.Random) -> Trace:
    """Within 20 steps, by 15% to 50% and 6 times the noise at least, for good."""
    height = max(math.log(rng.uniform(1.15, 1.5)), 6 * noise.of_loss)
    changed = _change(values, step, lambda k: math.exp(height * min(1.0, k / 20)))
    return Trace(changed, "rise", step, step + 200)


def _put_drift(values: list[StepValues], step: int, noise: Noise, rng: random.Random) -> Trace:
    """Over 500 to 1,000 steps, by 15% to 50% and 6 times the noise at least."""
    height = max(math.log(rng.uniform(1.15, 1.5)), 6 * noise.of_loss)
    lasts = rng.randint(500, 1000)
    changed = _change(values, step, lambda k: math.exp(height * min(1.0, k / lasts)))
    return Trace(changed, "drift", step, step + lasts + 200)


def _put_high(values: list[StepValues], step: int, noise: Noise, rng: random.Random) -> Trace:
    """For 3 to 20 steps the norm is 3 times what it was at least, and 12 to 25 times the noise."""
    height = max(math.log(3.0), rng.uniform(12, 25) * noise.of_norm)
    lasts = rng.randint(3, 20)
    changed = _change(values, step, norm=lambda k: math.exp(height if k < lasts else 0.0))
    return Trace(changed, "norm_high", step, step + 5)


def _put_low(values: list[StepValues], step: int, noise: Noise, rng: random.Random) -> Trace:
    """For 30 to 200 steps the norm is a third at most, and lower by 12 to 25 times the noise."""
    depth = max(math.log(3.0), rng.uniform(12, 25) * noise.of_norm)
    lasts = rng.randint(30, 200)
    changed = _change(values, step, norm=lambda k: math.exp(-depth if k < lasts else 0.0))
    return Trace(changed, "norm_low", step, step + 30)


def _put_frozen(values: list[StepValues], step: int, _noise: Noise, _rng: random.Random) -> Trace:
    """The loss is the very same in each step from there on."""
    frozen = values[step - 1].loss
    changed = [e if e.step < step else StepValues(e.step, frozen, e.norm) for e in values]
    return Trace(changed, "frozen", step, step + 30)


def _put_plateau(values: list[StepValues], _step: int, _n: Noise, _rng: random.Random) -> Trace:
    """After a fifth of the run the loss falls no more."""
    step = len(values) // 5
    level = _smooth(values, step)
    changed = [
        e if e.step < step else StepValues(e.step, e.loss * level / _smooth(values, e.step), e.norm)
        for e in values
    ]
    return Trace(changed, "plateau", step, len(values))


def _smooth(values: Sequence[StepValues], step: int, reach: int = 150) -> float:
    """Return the mean of the losses around a step."""
    near = values[max(0, step - reach) : step + reach]
    return sum(each.loss for each in near) / len(near)


@dataclass(frozen=True)
class Wrong:
    """How something wrong is made, and which anomalies tell of it."""

    put: Put
    told_by: frozenset[AnomalyKind]


_OF_RISES = frozenset({AnomalyKind.LOSS_SPIKE, AnomalyKind.LOSS_RISE, AnomalyKind.LOSS_DRIFT})

WRONGS: dict[str, Wrong] = {
    "not_finite": Wrong(_put_nan, frozenset({AnomalyKind.NOT_FINITE})),
    "spike": Wrong(_put_spike, frozenset({AnomalyKind.LOSS_SPIKE})),
    "rise": Wrong(_put_rise, _OF_RISES),
    "drift": Wrong(_put_drift, _OF_RISES - {AnomalyKind.LOSS_SPIKE}),
    "norm_high": Wrong(_put_high, frozenset({AnomalyKind.NORM_HIGH})),
    "norm_low": Wrong(_put_low, frozenset({AnomalyKind.NORM_LOW})),
    "frozen": Wrong(_put_frozen, frozenset({AnomalyKind.LOSS_STALLED})),
    "plateau": Wrong(_put_plateau, frozenset({AnomalyKind.LOSS_STALLED})),
}
"""All that can be wrong, by name."""
