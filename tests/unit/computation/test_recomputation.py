"""Layers that are computed again in backward: same numbers, less work or less memory."""

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from trainflow.computation.recomputation import choose_policy, recompute_units
from trainflow.config.parallel import Recomputed
from trainflow.errors import TrainingError

aten = torch.ops.aten
each_kind = pytest.mark.parametrize("what", ["selective", "full"])


class Block(nn.Module):
    """Draws random numbers, and changes buffers."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.narrow = nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(8))
        self.num_runs = 0

    def forward(self, x: Tensor, *, scale: float) -> Tensor:
        self.num_runs += 1
        with torch.no_grad():
            self.seen += x.mean(0)
        x = x + scale * torch.tanh(self.seen)
        return x + self.drop(self.narrow(self.drop(torch.tanh(self.norm(self.widen(x))))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return self.head(x)


def make(what: Recomputed) -> Net:
    torch.manual_seed(3)
    net = Net()
    recompute_units("net", net, what)
    return net


def train(net: Net, *, num_forwards: int = 1, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return what a step leaves: gradients, buffers, and where random numbers go on."""
    torch.manual_seed(4)
    loss = torch.zeros(())
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        for _ in range(num_forwards):
            loss = loss + net(torch.randn(5, 8)).square().mean()
    loss.backward()
    grads = [each.grad for each in net.parameters() if each.grad is not None]
    return [*grads, *net.buffers(), torch.rand(1)]


def are_equal(mine: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(mine, others, strict=True))


@each_kind
@pytest.mark.parametrize("num_forwards", [1, 2])
def test_gradients_buffers_and_random_numbers_are_as_ever(what: Recomputed, num_forwards: int):
    net = make(what)
    got = train(net, num_forwards=num_forwards)
    assert are_equal(got, train(make("none"), num_forwards=num_forwards))
    assert [layer.num_runs for layer in net.layers] == [2 * num_forwards] * 3


@each_kind
def test_under_autocast_too(what: Recomputed):
    expected = train(make("none"), dtype=torch.bfloat16)
    assert are_equal(train(make(what), dtype=torch.bfloat16), expected)


@each_kind
def test_what_autocast_has_in_its_cache_may_be_gone_in_backward(what: Recomputed):
    got = train(make(what), num_forwards=2, dtype=torch.bfloat16)
    expected = train(make("none"), num_forwards=2, dtype=torch.bfloat16)
    for mine, other in zip(got, expected, strict=True):
        assert torch.allclose(mine, other, rtol=0.02, atol=1e-3)


@each_kind
def test_names_and_types_stay(what: Recomputed):
    net, plain = make(what), make("none")
    assert list(net.state_dict()) == list(plain.state_dict())
    assert [type(each) for each in net.modules()] == [type(each) for each in plain.modules()]


@each_kind
def test_a_copy_computes_with_what_it_has_itself(what: Recomputed):
    net = make(what)
    twin = copy.deepcopy(net)
    assert are_equal(train(twin), train(make("none")))
    assert [layer.num_runs for layer in net.layers] == [0, 0, 0]


def test_without_gradients_nothing_is_recorded():
    net = make("full").eval()
    with torch.no_grad():
        assert torch.equal(net(torch.ones(2, 8)), make("none").eval()(torch.ones(2, 8)))


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("what", "products", "others"), [("full", 6, 3), ("selective", 0, 3)])
def test_only_full_recomputes_products(what: Recomputed, products: int, others: int):
    with Counting() as backward:
        loss = make(what)(torch.randn(5, 8)).sum()
        backward.counts.clear()
        loss.backward()
    # Torch stops with the last result that is needed: dropout's mask, after the last product.
    assert backward.counts["addmm"] == products
    assert backward.counts["native_batch_norm"] == others


def test_a_model_without_layers_is_refused():
    with pytest.raises(TrainingError, match=r"(?s)full.*expected some.*none"):
        recompute_units("net", nn.Linear(2, 2), "full")
    holders = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"a": nn.Linear(2, 2)})])})
    with pytest.raises(TrainingError, match="ModuleList"):
        recompute_units("net", holders, "full")


@pytest.mark.parametrize(
    ("op", "before"),
    [
        (aten._scaled_dot_product_flash_attention.default, ()),
        (aten._scaled_dot_product_efficient_attention.default, (None, True)),
        (aten._scaled_dot_product_cudnn_attention.default, (None, True)),
    ],
)
def test_attention_is_kept_unless_it_draws_random_numbers(op: Any, before: tuple[Any, ...]):
    places = [argument.name for argument in op._schema.arguments]
    assert places.index("dropout_p") == 3 + len(before)
    q = torch.ones(1, 1, 2, 8)
    keep, again = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
    assert choose_policy(None, op, q, q, q, *before) is keep
    assert choose_policy(None, op, q, q, q, *before, 0.0, True) is keep
    assert choose_policy(None, op, q, q, q, *before, 0.1) is again
    assert choose_policy(None, op, q, q, q, *before, dropout_p=0.1) is again
    assert choose_policy(None, aten.relu.default, q) is again
