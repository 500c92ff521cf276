"""The user's own score."""

import copy
import importlib
from collections.abc import Callable, Mapping
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.core import generator
from regard.engines.dense import Rule, publish, softmax
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports


def scaled_dot_product(q: Tensor, k: Tensor) -> Tensor:
    """q_i . k_j / sqrt(d)."""
    return (q * q.shape[-1] ** -0.5) @ k.mT


def negative_distance(q: Tensor, k: Tensor) -> Tensor:
    """-|q_i - k_j|."""
    return -torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")


@final
class Score(Dense):
    """Softmax of any score: z_ij = f(q_i, k_j), o_i = sum_j softmax_j(z_ij) v_j.

    f takes a block of queries (batch, heads, queries, dim) and a block of keys (batch, heads, keys, dim) and returns
    their logits (batch, heads, queries, keys). It is called on blocks of any size, in at least float32, so that it must
    score every pair by itself: building the mechanism tries it and refuses a function that mixes pairs, rows of the
    batch, or random numbers into a score. Scores with weights are modules.

    Cost: that of f on every pair; memory of one chunk of queries x keys x `depth`. State: every key and value.

    Args:
        heads: what to serve.
        function: f: `module:name` of a function, or a function, or a `torch.nn.Module` whose parameters (no buffers)
            are trained along.
        depth: numbers that f makes per pair, which decides how many queries a chunk has.

    Raises:
        ConfigError: f cannot be imported or called, returns another shape, mixes pairs, needs gradients of tensors that
            are no parameters of a module, or is a module with buffers; a depth below 1.

    Example:
        >>> from regard import Heads, build
        >>> def negative_manhattan(q, k):
        ...     return -(q[:, :, :, None] - k[:, :, None]).abs().sum(-1)
        >>> mechanism = build("score", Heads(count=2, key_dim=8, causal=True), function=negative_manhattan, depth=8)
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> mechanism(q, k, v).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Luong et al. 2015, section 3.1: attention is a choice of score.
    """

    info = Info(
        title="Any score",
        source="Luong et al. 2015, section 3.1, score(h_t, h_s)",
        supports=Supports(
            causal=True,
            bidirectional=True,
            cross=True,
            key_mask=True,
            bias=True,
            state=True,
            prefix=True,
            dropout=True,
        ),
        state="length",
        sees_content_only=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"function": "regard.attention.dense.score:negative_distance", "depth": 2},
    )

    def __init__(
        self,
        heads: Heads,
        *,
        function: str | Callable[[Tensor, Tensor], Tensor] = "regard.attention.dense.score:scaled_dot_product",
        depth: int = 1,
    ) -> None:
        super().__init__(heads, function=function, depth=depth)
        if depth < 1:
            raise ConfigError(f"score needs a depth of at least 1, got {depth}")
        self.function, self.depth = function, depth
        if isinstance(function, nn.Module):
            score = functional(function)
        else:
            score = imported(function) if isinstance(function, str) else function
        self.try_out(score)
        # The rule keeps the function alive, so that its id names it.
        self.rule = publish(f"score({self.label}, {id(score)}, {depth})", Rule(score, softmax, depth=depth))

    @property
    def label(self) -> str:
        """The function's name, for messages."""
        if isinstance(self.function, str):
            return self.function
        return getattr(self.function, "__name__", type(self.function).__name__)

    def weights(self) -> list[Tensor]:
        """The parameters of a module."""
        return list(self.function.parameters()) if isinstance(self.function, nn.Module) else []

    def try_out(self, score: Callable[..., Tensor]) -> None:
        """Refuse a function that does not score every pair by itself.

        Raises:
            ConfigError: see the class.
        """
        heads, draw, weights = self.heads, generator(0, "score"), self.weights()
        device = weights[0].device if weights else torch.get_default_device()
        q, k = (torch.randn(2, heads.count, n, heads.key_dim, generator=draw, device="cpu").to(device) for n in (4, 5))
        weights = [weight.detach().to(q.dtype) for weight in weights]
        try:
            whole = score(q, k, *weights)
            part = score(q[1:, :, 1:3], k[1:, :, 2:], *weights)
        except Exception as error:
            raise ConfigError(
                f"score: {self.label} failed on queries {tuple(q.shape)} and keys {tuple(k.shape)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        wanted = (2, heads.count, 4, 5)
        if not isinstance(whole, Tensor) or whole.shape != wanted or whole.dtype != q.dtype:
            got = f"{tuple(whole.shape)}, {whole.dtype}" if isinstance(whole, Tensor) else type(whole).__name__
            raise ConfigError(
                f"score: {self.label} must return (batch, heads, queries, keys) = {wanted} in the dtype of its inputs, "
                f"{q.dtype}; got {got}"
            )
        if whole.requires_grad:
            raise ConfigError(
                f"score: {self.label} uses tensors that need gradients and would get none; make it a torch.nn.Module "
                "that holds them as parameters"
            )
        if part.shape != (1, heads.count, 2, 3) or not torch.allclose(
            part, whole[1:, :, 1:3, 2:], rtol=1e-4, atol=1e-5
        ):
            raise ConfigError(
                f"score: {self.label} gives a pair another logit inside a larger block: it must score every pair by "
                "itself, without randomness (normalising is the softmax's task)"
            )

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """The function on one query at a time, then the softmax of each row."""
        del marks
        k = k.repeat_interleave(self.heads.group, 1)
        function = imported(self.function) if isinstance(self.function, str) else self.function
        rows = [function(q[:, :, i : i + 1], k) for i in range(q.shape[2])]
        return reference_softmax(torch.cat(rows, 2), v, causal=self.heads.causal, key_mask=key_mask, bias=bias)


def functional(module: nn.Module) -> Callable[..., Tensor]:
    """A module as a function of queries, keys and its parameters, which keeps its structure but not its numbers.

    Raises:
        ConfigError: the module has buffers.
    """
    if next(module.buffers(), None) is not None:
        raise ConfigError(
            f"score: {type(module).__name__} has buffers, which a rule cannot be given; make them parameters with "
            "requires_grad=False"
        )
    names = [name for name, _ in module.named_parameters()]
    structure = copy.deepcopy(module).to("meta")

    def score(q: Tensor, k: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(structure, dict(zip(names, weights, strict=True)), (q, k))

    return score


def imported(path: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The function at `module:name`.

    Raises:
        ConfigError: no such module or name, or nothing that can be called.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"score cannot import {path!r}, which should be module:name: {error}") from error
    if not callable(found) or isinstance(found, type | nn.Module):
        raise ConfigError(
            f"score: {path!r} is a {type(found).__name__}, not a function of queries and keys; "
            "a torch.nn.Module is passed itself"
        )
    return cast(Callable[[Tensor, Tensor], Tensor], found)
