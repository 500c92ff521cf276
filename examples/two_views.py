"""Two views of one image, either of which may be missing: attention fusion against fixed ways to combine them.

    python examples/two_views.py fashion_mnist.npz

The left and the right half of every image are two modalities. In training and in the test each is missing from a
quarter of the images; the last columns test with one view only. All models have the same two encoders, the same data
and the same steps: `fusion` weighs the views, `mean` averages those that are there, `sum` adds them (a missing one is
0), and `concatenation` reads both vectors side by side (a missing one is 0 there too).
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.core.attention import generator
from regard.models import presets
from regard.models.fusion import FusionClassifier
from regard_lab.tasks.classification import ImageClassificationTask
from regard_lab.tasks.config import ClassificationConfig

PATCH = 7
WAYS = ("fusion", "mean", "sum", "concatenation")


class Fixed(nn.Module):
    """The same encoders, combined without learned weights."""

    def __init__(self, model: FusionClassifier, way: str, classes: int) -> None:
        super().__init__()
        self.encoders, self.way = model.encoders, way
        width = model.config.dim * (len(model.encoders) if way == "concatenation" else 1)
        self.output = nn.Linear(width, classes)

    def forward(self, views: tuple[Tensor, ...], present: Tensor) -> Tensor:
        """Logits."""
        vectors = [encoder(view).hidden.mean(1) for encoder, view in zip(self.encoders, views, strict=True)]
        stacked = torch.stack(vectors, 1) * present[..., None]
        if self.way == "concatenation":
            return self.output(stacked.flatten(1))
        total = stacked.sum(1)
        return self.output(total if self.way == "sum" else total / present.sum(1, keepdim=True).clamp_min(1))


def halves(patches: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """The squares of the left and of the right half of images cut into side x side squares, row by row."""
    grid = patches.unflatten(1, (side, side))
    return grid[:, :, : side // 2].flatten(1, 2), grid[:, :, side // 2 :].flatten(1, 2)


def dropped(batch: int, rate: float, draw: torch.Generator) -> Tensor:
    """Which views are there: each is missing with probability `rate`, never both."""
    chance = torch.rand(batch, generator=draw)
    return torch.stack([chance >= rate, (chance < rate) | (chance >= 2 * rate)], 1)


def main() -> None:
    """Train every way, print accuracies and what fusion looks at."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="an .npz of images, such as Fashion-MNIST's")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.25, help="how often each view is missing")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2, help="of each view's encoder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    task = ImageClassificationTask(ClassificationConfig(data=str(options.data), patch=PATCH))
    side = int(task.length**0.5)
    train, test = task.examples("train"), task.examples("test")
    classes = len(task.classes)
    labels = torch.from_numpy(test.labels)
    views = halves(torch.from_numpy(test.cut(test.images)), side)
    draw = generator(options.seed, "test")
    cases = {
        "some missing": dropped(len(labels), options.rate, draw),
        "both": torch.tensor([True, True]).expand(len(labels), 2),
        "left only": torch.tensor([True, False]).expand(len(labels), 2),
        "right only": torch.tensor([False, True]).expand(len(labels), 2),
    }
    print(f"accuracy in the test, {options.steps} steps of {options.batch} images, %: {', '.join(cases)}")
    for way in WAYS:
        torch.manual_seed(options.seed)
        sizes = {"input_dim": task.input_dim, "dim": options.dim, "layers": options.layers}
        shape = presets.build("fusion", **sizes, seed=options.seed)
        whole = FusionClassifier(shape, classes=classes)
        fixed = None if way == "fusion" else Fixed(whole, way, classes)
        model: nn.Module = whole if fixed is None else fixed

        def logits(views: tuple[Tensor, ...], present: Tensor, whole=whole, fixed=fixed) -> Tensor:
            return whole(views, present=present).logits if fixed is None else fixed(views, present)

        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.steps)
        draw = generator(options.seed, "train")
        for _ in range(options.steps):
            picked = torch.randint(0, len(train), (options.batch,), generator=draw).numpy()
            batch = halves(torch.from_numpy(train.cut(train.images[picked])), side)
            loss = cross_entropy(
                logits(batch, dropped(options.batch, options.rate, draw)), torch.from_numpy(train.labels[picked])
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            right = [(logits(views, present).argmax(-1) == labels).double().mean().item() for present in cases.values()]
        print(f"{way:13} | " + " | ".join(f"{share:.4f}" for share in right))
        if fixed is None:
            with torch.no_grad():
                weights = whole(views, present=cases["both"]).weights
            found = "what fusion reads of the left view, mean by class: " + ", ".join(
                f"{name} {weights[labels == at, 0].mean():.2f}" for at, name in enumerate(task.classes)
            )
    print(found)


if __name__ == "__main__":
    main()
