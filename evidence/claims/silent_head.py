"""softmax_plus_one can stay silent.

Claim: The weights of a softmax sum to 1, so that a head must add something even where it has nothing to say; with 1
added below the line it can say nothing.
Source: Miller 2023, Attention is off by one
Control: A softmax that is given one more key of content 0 can be silent by looking there: error 0. Without it the
weights sum to 1. Logits that are linear in the contents do not depend on a row's mean content, so that an average of n
independent contents keeps at least 1/n of the variance. Values scaled by w leave w^2/n where no key is marked and,
looking at the marked key alone, (1 - w)^2 where one is: together at least 1/(n + 1), at w = n/(n + 1). By itself the
first can be anything down to 0 (w = 0), so the sum is what is judged.
Measured: Error (share of the content's variance) of one trained head with a value projection without bias, where a key
is marked and where none is; and its largest logit.
"""

import torch
from torch import Tensor, nn

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import Attention, Heads, build
from regard.core.attention import generator
from regard.layer import linear
from regard_lab.benchmark.fitting import fit


class SilentHead(Claim):
    controls = (
        Control("sink silent", "error of softmax with a zero key, no mark", 0.0, tolerance=0.02),
        Control("sink marked", "error of softmax with a zero key, a mark", 0.0, tolerance=0.02),
    )
    findings = (
        Finding("plus one silent", "softmax_plus_one: error, no mark", at_most=0.02),
        Finding("plus one marked", "softmax_plus_one: error, a mark", at_most=0.02),
        Finding("plain both", "softmax: error, no mark + a mark, times keys + 1", at_least=0.9),
        Finding(
            "plain silent", "softmax: error, no mark, over keys/(keys + 1)^2", at_least=0.8, at_most=1.25, states=False
        ),
    )
    revised = Revision(
        "The finding on softmax was its error without a mark, at least half of 1/keys; a head can lower that "
        "error alone by smaller values, so the sum with the error where a key is marked is judged, against its least.",
        (0, 1, 2),
    )
    plots = (
        Plot("error", "Error", "", "share of the variance"),
        Plot("logits", "Largest logit on the test set", "", "|q . k| / sqrt(dim)"),
        Plot("loss", "Training", "step", "share of the variance", log_y=True),
    )

    keys: int = setting(8, tiny=4)
    content: int = setting(8, tiny=4)
    width: int = setting(16, tiny=8)
    steps: int = setting(1500, tiny=150)
    batch: int = setting(128, tiny=32)
    rate: float = setting(0.02, tiny=0.05)
    silent: str = "softmax_plus_one"
    plain: str = "softmax"

    def observe(self, seed: int) -> Observation:
        values: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        bars: dict[str, Curve] = {}
        logits: dict[str, Curve] = {}
        kinds = (("plus one", self.silent, False), ("plain", self.plain, False), ("sink", self.plain, True))
        for label, spec, sink in kinds:
            head = Head(spec, self.content, self.width, sink, seed)
            draw = generator(seed, "keys")

            def loss(head: Head = head, draw: torch.Generator = draw) -> Tensor:
                return head.error(*self.batch_of(self.batch, draw)).mean()

            shown = f"{spec} and a zero key" if sink else spec
            losses[shown] = fit(head.parameters(), loss, steps=self.steps, rate=self.rate)
            keys, marked = self.batch_of(4096, generator(seed, "test"))
            error = head.error(keys, marked).detach()
            values[f"{label} silent"] = float(error[~marked].mean())
            values[f"{label} marked"] = float(error[marked].mean())
            values[f"{label} logit"] = head.largest(keys)
            bars[shown] = (["no mark", "a mark"], [values[f"{label} silent"], values[f"{label} marked"]])
            logits[shown] = (["largest"], [values[f"{label} logit"]])
        values["plain both"] = (values["plain silent"] + values["plain marked"]) * (self.keys + 1)
        values["plain silent"] *= (self.keys + 1) ** 2 / self.keys
        return Observation(values, {"error": bars, "logits": logits, "loss": losses})

    def batch_of(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Keys (batch, keys, content + mark), and whether one is marked: in half of the rows, at a random place."""
        content = torch.randn(size, self.keys, self.content, generator=draw)
        marked = torch.rand(size, generator=draw) < 0.5
        place = torch.randint(self.keys, (size,), generator=draw)
        mark = nn.functional.one_hot(place, self.keys).to(content.dtype) * marked[:, None]
        return torch.cat([content, mark[..., None]], -1), marked


class Head(nn.Module):
    """One learned query over keys, and a linear output; nowhere a bias, except in the key that a sink needs."""

    def __init__(self, spec: str, content: int, width: int, sink: bool, seed: int) -> None:
        super().__init__()
        self.attention: Attention = build(spec, Heads(count=1, key_dim=width, value_dim=content, seed=seed))
        self.content, self.sink = content, sink
        self.query = nn.Parameter(torch.randn(width, generator=generator(seed, "query")))
        # A bias lets a key be refused (logit below 0) or accepted whatever its content is.
        self.key = linear(content + 1, width, bias=True, draw=generator(seed, "key"))
        self.value = linear(content, content, bias=False, draw=generator(seed, "value"))
        self.output = linear(content, content, bias=False, draw=generator(seed, "output"))

    def project(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.query.expand(keys.shape[0], 1, 1, -1)
        k, v = self.key(keys)[:, None], self.value(keys[..., : self.content])[:, None]
        if self.sink:
            k, v = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return q, k, v

    def error(self, keys: Tensor, marked: Tensor) -> Tensor:
        """Squared error of each row, over the variance of the content."""
        q, k, v = self.project(keys)
        output = self.output(self.attention(q, k, v).values[:, 0, 0])
        wanted = (keys[..., : self.content] * keys[..., -1:]).sum(1)
        assert bool(((wanted != 0).any(-1) == marked).all())
        return (output - wanted).square().mean(-1)

    def largest(self, keys: Tensor) -> float:
        q, k, _ = self.project(keys)
        return float(((q @ k.mT) / q.shape[-1] ** 0.5).detach().abs().max())
