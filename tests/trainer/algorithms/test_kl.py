"""KL estimators against slow references and documented figures; the adaptive weight."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms.kl import next_coef
from trainer.algorithms.kl_config import KLConfig
from trainer.algorithms.registry import KL_ESTIMATORS, load_builtin

load_builtin()

REFERENCES = {
    "k1": lambda new, ref: new - ref,
    "k2": lambda new, ref: (new - ref) ** 2 / 2,
    "k3": lambda new, ref: min(math.exp(ref - new) - (ref - new) - 1, 10.0),
    "abs": lambda new, ref: abs(new - ref),
}
ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3", "kl+": "k1+", "low_var_kl+": "k3+"}
RNG = random.Random(0)
NEW = [-RNG.expovariate(0.7) for _ in range(40)]
REF = [min(x + RNG.gauss(0, 0.8), -1e-3) for x in NEW]


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(NEW, dtype=torch.float64, requires_grad=True), torch.tensor(REF, dtype=torch.float64)


def test_names():
    assert set(KL_ESTIMATORS) == {*REFERENCES, *ALIASES, "k1+", "k3+"}
    for alias, name in ALIASES.items():
        assert KL_ESTIMATORS[alias].function is KL_ESTIMATORS[name].function


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_values_and_gradients(name):
    new, ref = tensors()
    estimate = KL_ESTIMATORS[name].function(new, ref)
    assert estimate.tolist() == pytest.approx(
        [REFERENCES[name](x, y) for x, y in zip(NEW, REF, strict=True)], abs=1e-12
    )
    assert torch.autograd.gradcheck(lambda x: KL_ESTIMATORS[name].function(x, ref), (new,))


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_straight_through(name):
    new, ref = tensors()
    joined, plain = KL_ESTIMATORS[f"{name}+"].function(new, ref), KL_ESTIMATORS[name].function(new, ref)
    torch.testing.assert_close(joined, plain, rtol=0, atol=1e-15)
    (gradient,) = torch.autograd.grad(joined.sum(), new)
    torch.testing.assert_close(gradient, (new - ref).detach())


@pytest.mark.parametrize("name", sorted(KL_ESTIMATORS))
def test_equal_policies(name):
    same = torch.tensor(NEW, dtype=torch.float64)
    assert KL_ESTIMATORS[name].function(same, same.clone()).tolist() == [0.0] * len(NEW)


@pytest.mark.parametrize("name", sorted(KL_ESTIMATORS))
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_far_policies_stay_finite(name, far):
    new = torch.tensor([-1.0], requires_grad=True)
    estimate = KL_ESTIMATORS[name].function(new, torch.tensor([-1.0 + far]))
    (gradient,) = torch.autograd.grad(estimate.sum(), new)
    assert estimate.isfinite().all() and gradient.isfinite().all()
    if name.startswith(("k3", "low_var_kl")):
        assert estimate.item() == pytest.approx(10.0)


def test_k3_is_exact_where_policies_hardly_differ():
    """float32: the naive exp(x) - x - 1 is all rounding here."""
    new = torch.tensor([-1.0])
    difference = float(torch.tensor([-1.0 + 2e-4]) - new)
    value = KL_ESTIMATORS["k3"].function(new, torch.tensor([-1.0 + 2e-4])).item()
    assert value == pytest.approx(difference**2 / 2, abs=3e-11)


def moments(name: str, mean: float) -> tuple[float, float]:
    """Mean and standard deviation of the estimator under N(0, 1), the reference being N(mean, 1), by quadrature."""
    x = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    constant = 0.5 * math.log(2 * math.pi)
    log_q, log_p = -(x**2) / 2 - constant, -((x - mean) ** 2) / 2 - constant
    weight = log_q.exp() * (x[1] - x[0])
    estimate = KL_ESTIMATORS[name].function(log_q, log_p)
    average = float((weight * estimate).sum())
    return average, math.sqrt(float((weight * estimate**2).sum()) - average**2)


@pytest.mark.parametrize(
    ("name", "mean", "bias", "deviation"),
    [
        ("k1", 0.1, 0.0, 20),
        ("k2", 0.1, 0.002, 1.42),
        ("k3", 0.1, 0.0, 1.42),
        ("k1", 1.0, 0.0, 2),
        ("k2", 1.0, 0.25, 1.73),
    ],
)
def test_documented_bias_and_deviation(name, mean, bias, deviation):
    """The tables of http://joschu.net/blog/kl-approx.html, both relative to the true divergence, mean^2 / 2."""
    truth = mean**2 / 2
    average, spread = moments(name, mean)
    assert average / truth - 1 == pytest.approx(bias, abs=1e-3)
    assert spread / truth == pytest.approx(deviation, rel=0.01)


ADAPTIVE = KLConfig(place="reward", controller="adaptive", target=0.1, horizon=1000)


@pytest.mark.parametrize(
    ("measured", "coef"), [(0.1, 0.5), (0.11, 0.505), (0.3, 0.51), (0.09, 0.495), (0.0, 0.49), (-1.0, 0.49)]
)
def test_adaptive_weight(measured, coef):
    """Ziegler et al.: proportional to the relative error, clipped to 0.2, times K = 0.1."""
    assert next_coef(0.5, measured, 100, ADAPTIVE) == pytest.approx(coef)


def test_fixed_weight():
    assert next_coef(0.5, 9.0, 100, KLConfig(place="reward")) == 0.5


@given(st.floats(1e-6, 10), st.floats(-50, 50), st.integers(0, 10**6))
def test_the_weight_stays_positive_and_follows(coef, measured, rollouts):
    after = next_coef(coef, measured, rollouts, ADAPTIVE)
    assert 0.8 * coef * (1 - 1e-9) <= after <= 1.2 * coef * (1 + 1e-9)
    assert (after - coef) * (measured - ADAPTIVE.target) >= 0


@pytest.mark.parametrize("measured", [math.nan, math.inf])
def test_a_measurement_that_is_no_number_raises(measured):
    with pytest.raises(ValueError, match="measured KL divergence is"):
        next_coef(0.5, measured, 100, ADAPTIVE)
