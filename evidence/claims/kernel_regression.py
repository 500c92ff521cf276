"""A learned bandwidth fits better and less smoothly.

Claim: Averaging by a kernel of the distance predicts much better than the mean of all, and with a learned bandwidth it
follows the data more closely, at the price of a less smooth curve.
Source: Zhang et al., Dive into deep learning, section 10.2 of its first edition (attention pooling: Nadaraya-Watson
kernel regression), after Nadaraya 1964 and Watson 1964
Control: A bandwidth that is learned by leaving one point out reaches the least such error of a fine grid, in the median
data set: in a few, descent ends beside it. A kernel so narrow that each point sees itself alone gives back the sample:
error 0.
Measured: Mean squared error against the true curve, which has no noise, over data sets of 50 points; each has a
bandwidth of its own, learned without any point seeing itself; roughness is the sum of squared second differences of the
predicted curve.
"""

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import Attention, Heads, build
from regard.core.attention import generator


class KernelRegression(Claim):
    controls = (
        Control("trained", "leave-one-out error / least of a grid, median data set", 1.0, tolerance=0.01),
        Control("interpolation", "error on its own sample, narrowest kernel", 0.0, tolerance=1e-4),
    )
    findings = (
        Finding("mean / fixed", "test error, mean / w = 1", at_least=2.0),
        Finding("learned / fixed", "test error, learned w / w = 1", at_most=1.0),
        Finding("closeness", "error on the own sample, learned w / w = 1", at_most=1.0),
        Finding("roughness", "roughness, learned w / w = 1", at_least=1.0),
    )
    revised = Revision(
        "After a first record the control reads the median data set; before it, the steps had been 100 and became 300.",
        (0, 1, 2),
    )
    plots = (
        Plot("fit", "One data set", "x", "y"),
        Plot("error", "Mean squared error against the true curve", "", "error"),
    )

    points: int = 50
    datasets: int = setting(100, tiny=12)
    noise: float = 0.5
    steps: int = setting(300, tiny=80)
    rate: float = setting(0.1, tiny=0.3)
    kernel: str = "gaussian"
    mean: str = "uniform"

    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "kernel_regression")
        shape = (1, self.datasets, self.points, 1)  # a data set is a head: each learns a bandwidth of its own
        x = 5 * torch.rand(shape, generator=draw)
        y = curve(x) + self.noise * torch.randn(shape, generator=draw)
        grid = torch.linspace(0, 5, 101)[None, None, :, None].expand(1, self.datasets, -1, 1)
        learned = self.learn(x, y)
        w = {"fixed": torch.ones(self.datasets), "learned": learned, "narrow": torch.full((self.datasets,), 1e6)}
        predicted = {label: self.predict(width, grid, x, y) for label, width in w.items()}
        fitted = {label: self.predict(width, x, x, y) for label, width in w.items()}
        predicted["mean"] = self.build(self.mean)(grid, x, y).values
        test = {label: float((line - curve(grid)).square().mean()) for label, line in predicted.items()}
        rough = {label: float(line.diff(2, dim=2).square().sum(2).mean()) for label, line in predicted.items()}
        widths = torch.logspace(-1, 1.5, 101)
        least = torch.stack([self.left_out(width.expand(self.datasets), x, y) for width in widths]).amin(0)
        values = {
            "trained": float((self.left_out(learned, x, y) / least).median()),
            "interpolation": float((fitted["narrow"] - y).square().mean()),
            "mean / fixed": test["mean"] / test["fixed"],
            "learned / fixed": test["learned"] / test["fixed"],
            "closeness": float((fitted["learned"] - y).square().mean() / (fitted["fixed"] - y).square().mean()),
            "roughness": rough["learned"] / rough["fixed"],
            "learned w": float(learned.mean()),
        }
        positions = grid[0, 0, :, 0].tolist()
        lines: dict[str, Curve] = {"true": (positions, curve(grid)[0, 0, :, 0].tolist())}
        shown = ("mean", "fixed", "learned")
        lines |= {label: (positions, predicted[label][0, 0, :, 0].detach().tolist()) for label in shown}
        bars: dict[str, Curve] = {label: (["test error"], [test[label]]) for label in shown}
        return Observation(values, {"fit": lines, "error": bars})

    def build(self, spec: str) -> Attention:
        return build(spec, Heads(count=self.datasets, key_dim=1))

    def kernels(self, w: Tensor, *, left_out: bool = False) -> Attention:
        built = self.build(f"{self.kernel}(bandwidth='scalar', leave_one_out={left_out})")
        with torch.no_grad():
            built.weight.copy_(w)  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        return built

    @torch.no_grad()
    def predict(self, w: Tensor, at: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.kernels(w)(at, x, y).values

    def learn(self, x: Tensor, y: Tensor) -> Tensor:
        """Inverse bandwidths by gradient descent on the error of each point left out."""
        kernels = self.kernels(torch.ones(self.datasets), left_out=True)
        optimizer = torch.optim.Adam(kernels.parameters(), lr=self.rate)
        for _ in range(self.steps):
            optimizer.zero_grad()
            (kernels(x, x, y).values - y).square().mean((2, 3)).sum().backward()
            optimizer.step()
        return next(kernels.parameters()).detach()

    @torch.no_grad()
    def left_out(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The error of each data set whose points do not see themselves."""
        return (self.kernels(w, left_out=True)(x, x, y).values - y).square().mean((0, 2, 3))


def curve(x: Tensor) -> Tensor:
    """The function that is sought."""
    return 2 * torch.sin(x) + x**0.8
