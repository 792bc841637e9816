import math

import numpy as np
import pytest

from flockstep.workloads.noises import AlphaStable, CauchyMixture, Gaussian, LogTail, StudentT

EVERY = [
    Gaussian(),
    StudentT(df=1.5),
    StudentT(df=4.0),
    AlphaStable(alpha=0.7),
    AlphaStable(alpha=1.0),
    AlphaStable(alpha=1.3),
    AlphaStable(alpha=2.0),
    LogTail(),
    CauchyMixture(share=0.1),
    CauchyMixture(share=0.0),
    CauchyMixture(share=1.0),
]
COUNT = 200_000
# The Kolmogorov-Smirnov distance of so many numbers from their own distribution stays below this but once in a
# million: sqrt(ln(2 / 1e-6) / (2 n)).
CRITICAL = math.sqrt(math.log(2e6) / (2 * COUNT))


class Told:
    """A generator whose uniforms are given."""

    def __init__(self, *uniforms):
        self._uniforms = np.array(uniforms, dtype=np.float64)

    def random(self, shape):
        return np.broadcast_to(self._uniforms, shape).copy()


def simpson(values, width):
    """The integral up to every second point."""
    pieces = (values[:-2:2] + 4 * values[1:-1:2] + values[2::2]) * width / 3
    return np.concatenate([[0.0], np.cumsum(pieces)])


def beyond_by_integration(density, x):
    """P(U > x), x >= 0, of a symmetric density up to a factor: integrated along ln(1 + u), where tails are short."""
    y = np.linspace(0, 120, 400_001)
    u = np.expm1(y)
    upward = simpson((density(u) * np.exp(y))[::-1], y[1])[::-1]
    return np.exp(np.interp(np.log1p(x), y[::2][:-1], np.log(upward[:-1] / (2 * upward[0]))))


def t_beyond(df):
    return lambda x: beyond_by_integration(lambda u: np.exp(-(df + 1) / 2 * np.log1p(u * u / df)), x)


def log_tail_beyond(x):
    return beyond_by_integration(lambda u: np.exp(-np.log(u * u + 2) - 2 * np.log(np.log(u * u + 2))), x)


def normal_beyond(x):
    return np.array([math.erfc(at / math.sqrt(2)) / 2 for at in x])


def cauchy_beyond(x):
    return np.arctan2(1, x) / math.pi


def stable_beyond(alpha):
    """From the characteristic function: P(U > x) = 1/2 - 1/pi * integral of sin(t x) / t * exp(-t^alpha)."""

    def beyond(x):
        # t = s^3 makes the integrand smooth at zero, where t^alpha is not.
        s = np.linspace(1e-9, 40 ** (1 / (3 * alpha)), 60_001)
        t = s**3
        weight = np.exp(-(t**alpha)) * 3 / s
        return np.array([0.5 - simpson(np.sin(t * at) * weight, s[1] - s[0])[-1] / math.pi for at in x])

    return beyond


def mixture_beyond(share):
    return lambda x: (1 - share) * normal_beyond(x) + share * cauchy_beyond(x)


ORACLES = [
    (Gaussian(), normal_beyond),
    (StudentT(df=1.5), t_beyond(1.5)),
    (StudentT(df=4.0), t_beyond(4.0)),
    (AlphaStable(alpha=0.7), stable_beyond(0.7)),
    (AlphaStable(alpha=1.0), cauchy_beyond),
    (AlphaStable(alpha=1.3), stable_beyond(1.3)),
    (AlphaStable(alpha=2.0), lambda x: normal_beyond(x / math.sqrt(2))),
    (LogTail(), log_tail_beyond),
    (CauchyMixture(share=0.1), mixture_beyond(0.1)),
    (CauchyMixture(share=0.0), normal_beyond),
    (CauchyMixture(share=1.0), cauchy_beyond),
]


def test_the_oracles_agree_where_two_are_known():
    x = np.array([0.0, 0.3, 1.0, 4.0, 9.0])
    assert np.allclose(stable_beyond(1.0)(x), cauchy_beyond(x), atol=1e-6)
    assert np.allclose(stable_beyond(2.0)(x), normal_beyond(x / math.sqrt(2)), atol=1e-6)
    assert np.allclose(t_beyond(1.0)(x), cauchy_beyond(x), rtol=1e-6)


@pytest.mark.parametrize(("noise", "beyond"), ORACLES, ids=lambda value: repr(value) if "draw" in dir(value) else "")
def test_the_distribution(noise, beyond):
    u = np.sort(noise.draw(np.random.default_rng(11), COUNT // 8, 8).ravel())
    x = np.geomspace(0.01, 10, 40)
    expected = beyond(x)
    above = 1 - np.searchsorted(u, x, side="right") / COUNT
    below = np.searchsorted(u, -x, side="left") / COUNT
    assert np.abs(above - expected).max() < CRITICAL
    assert np.abs(below - expected).max() < CRITICAL


# P(|U| > x) far out, in closed form where there is one.
TAILS = [
    (AlphaStable(alpha=0.7), lambda x: 2 * math.gamma(0.7) * math.sin(math.pi * 0.35) / math.pi * x**-0.7),
    (AlphaStable(alpha=1.3), lambda x: 2 * math.gamma(1.3) * math.sin(math.pi * 0.65) / math.pi * x**-1.3),
    (StudentT(df=1.5), lambda x: 2 * t_beyond(1.5)(x)),
    (CauchyMixture(share=0.1), lambda x: 0.2 / (math.pi * x)),
    (LogTail(), lambda x: 2 * log_tail_beyond(x)),
]


@pytest.mark.parametrize(("noise", "beyond"), TAILS, ids=lambda value: repr(value) if "draw" in dir(value) else "")
def test_the_tail(noise, beyond):
    sizes = np.abs(noise.draw(np.random.default_rng(5), COUNT, 4).ravel())
    # Where about one number in a thousand, and one in ten thousand, lies further out.
    for share in (1e-3, 1e-4):
        x = np.geomspace(1, 1e7, 20_001)
        x = x[np.argmin(np.abs(beyond(x) - share))]
        expected = float(beyond(np.array([x]))[0]) * sizes.size
        assert abs(np.count_nonzero(sizes > x) - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize("noise", EVERY, ids=repr)
@pytest.mark.parametrize("dim", [1, 2, 7, 64])
def test_a_step_at_a_time_or_many_at_once(noise, dim):
    at_once, one_by_one, in_parts = (np.random.default_rng([3, dim]) for _ in range(3))
    block = noise.draw(at_once, 301, dim)
    assert block.shape == (301, dim)
    assert block.dtype == np.float64
    assert np.array_equal(block, np.concatenate([noise.draw(one_by_one, 1, dim) for _ in range(301)]))
    assert np.array_equal(block, np.concatenate([noise.draw(in_parts, steps, dim) for steps in (2, 37, 262)]))
    assert at_once.bit_generator.state == one_by_one.bit_generator.state == in_parts.bit_generator.state


@pytest.mark.parametrize("noise", EVERY, ids=repr)
def test_symmetry(noise):
    u = noise.draw(np.random.default_rng(2), 1000, 100).ravel()
    assert np.isfinite(u).all()
    assert abs(np.count_nonzero(u > 0) - 50_000) < 5 * math.sqrt(25_000)
    assert np.abs(np.corrcoef(np.sign(u[:-1]), np.sign(u[1:]))[0, 1]) < 5 / math.sqrt(u.size)


@pytest.mark.parametrize("uniform", [0.4, 0.05, 1e-3, 1e-6, 1e-9, 1e-12, 2.0**-53])
def test_log_tail_inverts_its_distribution_far_into_the_tail(uniform):
    low, high = LogTail().draw(Told(uniform, 1 - uniform), 1, 2)[0]
    assert log_tail_beyond(-low) == pytest.approx(uniform, rel=3e-6)
    # 1 - uniform is rounded to the next multiple of 2^-53.
    assert high == pytest.approx(-low, rel=1e-6 + 2.0**-53 / uniform)


@pytest.mark.parametrize("noise", [noise for noise in EVERY if not isinstance(noise, (Gaussian, StudentT))], ids=repr)
@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 0.25, 0.5, 0.75, 1 - 2.0**-53])
def test_no_uniform_is_too_far_out(noise, uniform):
    assert np.isfinite(noise.draw(Told(uniform), 2, 3)).all()


def test_log_tail_at_the_ends_of_its_table():
    first, middle, last = LogTail().draw(Told(0.0, 0.5, 1 - 2.0**-53), 1, 3)[0]
    assert first < -1e12
    assert middle == 0
    assert 1e12 < last <= -first


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StudentT(df=0), r"StudentT\.df must be positive, got 0"),
        (lambda: AlphaStable(alpha=0.0), r"AlphaStable\.alpha must be positive, got 0\.0"),
        (lambda: AlphaStable(alpha=2.1), r"AlphaStable\.alpha must be at most 2, got 2\.1"),
        (lambda: CauchyMixture(share=1.5), r"CauchyMixture\.share must be between 0 and 1, got 1\.5"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
