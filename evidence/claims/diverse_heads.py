"""Heads capture different aspects.

Claim: Several heads attend to different positions jointly; with a single head, averaging inhibits this.
Source: Vaswani et al. 2017, section 3.2.2
Control: One earlier token is a lookup by position, which one head can do without error. Two tokens in one average
cannot be told apart by a linear output: where places alone decide who looks at what, half the variance of independent
contents is lost; half of that is asked for, as queries may read contents too.
Measured: Error (share of the variance) of one layer of equal width that has to give the contents one and two positions
back, and the total variation between what the two heads look at.
"""

import torch
from torch import Tensor, nn

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import AttentionLayer, weights
from regard.core.attention import generator
from regard_lab.benchmark.fitting import fit


class DiverseHeads(Claim):
    controls = (Control("one for one", "error of one head, one token wanted", 0.0, tolerance=0.05),)
    findings = (
        Finding("inhibited", "error of one head - error of two, two tokens wanted", at_least=0.25),
        Finding("two for two", "error of two heads, two tokens wanted", at_most=0.1),
        Finding("difference", "total variation between the two heads", at_least=0.8, at_most=1.0 + 1e-6),
    )
    least_seeds = 5
    revised = Revision(
        "It judged the error of one head, and judges what a second head gains, at least half of theory's 0.5.",
        (0, 1, 2),
    )
    plots = (
        Plot("error", "Error", "", "share of the variance"),
        Plot("loss", "Training", "step", "share of the variance"),
        Plot("heads", "What the heads of two look at, for the last query", "position", "weight"),
    )

    length: int = setting(12, tiny=5)
    content: int = setting(8, tiny=4)
    """width of a token's content; a head of two has room for it"""
    steps: int = setting(1000, tiny=160)
    batch: int = setting(64, tiny=16)
    rate: float = setting(0.02, tiny=0.05)
    spec: str = "softmax"

    def observe(self, seed: int) -> Observation:
        values: dict[str, float] = {}
        losses: dict[str, Curve] = {}
        looks: dict[str, Curve] = {}
        for label, heads, wanted in (("one for one", 1, 1), ("one for two", 1, 2), ("two for two", 2, 2)):
            model = Layer(self.spec, self.length, self.content, heads, wanted, seed)
            draw = generator(seed, "tokens")

            def loss(model: Layer = model, draw: torch.Generator = draw) -> Tensor:
                return model.loss(torch.randn(self.batch, self.length, self.content, generator=draw))

            losses[label] = fit(model.parameters(), loss, steps=self.steps, rate=self.rate)
            test = torch.randn(512, self.length, self.content, generator=generator(seed, "test"))
            values[label] = float(model.loss(test).detach())
            if label == "two for two":
                values["inhibited"] = values["one for two"] - values[label]
                looked = model.looks(test[:64])
                values["difference"] = float((looked[:, 0, 2:] - looked[:, 1, 2:]).abs().sum(-1).mean() / 2)
                positions = [float(at) for at in range(self.length)]
                looks = {f"head {head}": (positions, looked[:, head, -1].mean(0).tolist()) for head in (0, 1)}
        bars = {label: (["error"], [values[label]]) for label in losses}
        return Observation(values, {"error": bars, "loss": losses, "heads": looks})


class Layer(nn.Module):
    """Contents and one-hot positions in, the contents of the `wanted` positions before each one out."""

    def __init__(self, spec: str, length: int, content: int, heads: int, wanted: int, seed: int) -> None:
        super().__init__()
        self.wanted, self.length = wanted, length
        width = content + length
        width += width % 2
        self.positions = nn.functional.pad(torch.eye(length), (0, width - content - length))
        # 2 x content: room for both contents in either form
        self.layer = AttentionLayer(
            width, spec, heads=heads, key_dim=width // heads, value_dim=2 * content // heads, causal=True, seed=seed
        )
        self.output = nn.Linear(width, wanted * content, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length, wanted * content)."""
        return self.output(self.layer(self.hidden(tokens)).hidden)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Each token beside its position."""
        return torch.cat([tokens, self.positions.expand(tokens.shape[0], -1, -1)], -1)

    def loss(self, tokens: Tensor) -> Tensor:
        """Squared error over variance, from the first position that has all that is wanted."""
        before = [tokens[:, 2 - back : self.length - back] for back in range(1, self.wanted + 1)]
        return (self(tokens)[:, 2:] - torch.cat(before, -1)).square().mean()

    @torch.no_grad()
    def looks(self, tokens: Tensor) -> Tensor:
        """The attention matrix (batch, heads, queries, keys)."""
        seen: list[Tensor] = []
        hook = self.layer.attention.register_forward_pre_hook(lambda module, inputs: seen.extend(inputs[:2]))
        self(tokens)
        hook.remove()
        return weights(self.layer.attention, *seen[:2])
