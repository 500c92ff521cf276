"""Laws of tokens that leave early because they are told to, and of what exits learn."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.models.decoder import LanguageModel
from regard.models.depth import Depth
from regard.models.depth.early_exit import LEARNT, EarlyExit
from regard.models.depth.light_exit import LightExit
from regard.testing.compare import assert_close, assert_identical, require
from regard.testing.inputs import here
from regard.testing.registry import check
from tests.laws.depth import LAYERS, headed, model_of, texts


def told() -> Tensor:
    """After how many blocks each token leaves."""
    return texts() * 5 % 7 % LAYERS + 1


def wanted_tokens() -> Tensor:
    """What is to be predicted; -1: nothing."""
    return torch.where(texts() % 5 == 1, -1, texts() * 3 % 20)


def kept() -> Tensor:
    """A mask that hides the end of one text and the start of another."""
    keep = torch.ones(texts().shape, dtype=torch.bool, device=here())
    keep[1, 8:] = keep[2, :2] = False
    return keep


@check(kind=Depth)
def depth_losses_are_declared(part: type[Depth]) -> None:
    """In training a model gives exactly the losses that it has weights for, each a finite number; otherwise none."""
    for options in part.samples:
        model = model_of(part, LAYERS, **options)
        require(model(texts()).losses == {}, f"losses outside of training with {options}")
        got, declared = model.train()(texts()).losses, {f"depth.{name}" for name in model.depth.losses}
        require(got.keys() == declared, f"losses {sorted(got)} with {options}, declared: {sorted(declared)}")
        require(
            all(loss.ndim == 0 and math.isfinite(loss.item()) for loss in got.values()), f"losses {got} with {options}"
        )


@check(kind=EarlyExit)
def told_exits(part: type[EarlyExit]) -> None:
    """A token that is told its depth leaves there, and blocks above see keys of the state that it left with.

    So in one call and in any pieces, where blocks that no token of a piece takes keep its keys all the same; told the
    depth of the model, it is the full model.
    """
    for options in ({}, {"exits": "mixed", "heads": "layer"}, {"confidence": "sequence", "threshold": 0.5}):
        model = model_of(part, LAYERS, **options)
        depth = model.depth
        assert isinstance(depth, EarlyExit)
        with torch.no_grad():
            whole = model.hidden(texts(), depths=told())
            for row, entering in enumerate(_copied(model, told())):
                wanted = torch.stack(
                    [headed(model, depth, entering[LAYERS][t], int(n)) for t, n in enumerate(told()[row])]
                )
                assert_close(whole.hidden[row], wanted, tolerance=1e-10, what=f"hidden states of row {row}")
            assert whole.steps is not None
            assert_identical(whole.steps, told(), what="blocks of each token")
            for split in ((4, 1, 6), (1,) * 11):
                state, pieces = model.initial_state(3), []
                for piece, depths in zip(texts().split(list(split), 1), told().split(list(split), 1), strict=True):
                    pieces.append(model.hidden(piece, state=state, depths=depths))
                    state = pieces[-1].state
                hidden = torch.cat([piece.hidden for piece in pieces], 1)
                assert_close(hidden, whole.hidden, tolerance=1e-12, what=f"told exits in pieces of {split}")
            full, deep = model_of(part, LAYERS, **{**options, "threshold": 1.0}), torch.full_like(texts(), LAYERS)
            assert_identical(model(texts(), depths=deep).logits, full(texts()).logits, what="logits at full depth")


@check(kind=EarlyExit)
def exits_at_the_threshold(part: type[EarlyExit]) -> None:
    """A token leaves where its confidence is the threshold itself, from the first slot on that need not be whole."""
    for confidence in ("classifier", "geometric"):  # sigmoid(0) before they are taught
        _leave_at_one_half(part, confidence=confidence)


@check(kind=LightExit)
def light_exits_at_the_threshold(part: type[LightExit]) -> None:
    """Heads that are not fitted have a confidence of exactly 1/2: at that threshold every token leaves, but for those
    that take every block."""
    _leave_at_one_half(part)


def _leave_at_one_half(part: type[Depth], **options: object) -> None:
    """Confidences are 1/2 in weights of zero: enough for a threshold of 1/2, and not for one above it."""
    for whole, threshold in ((0, 0.5), (2, 0.5), (0, 0.501), (2, 0.501)):
        model = model_of(part, LAYERS, threshold=threshold, whole=whole, **options)
        with torch.no_grad():
            for weight in model.depth.parameters():
                weight.zero_()
            steps = model(texts()).steps
        wanted = torch.full_like(texts(), LAYERS)
        if threshold == 0.5:
            wanted[:, whole:] = 1
        require(steps is not None, "tokens do not say how many blocks they take")
        assert_identical(steps, wanted, what=f"blocks at {threshold=} with {whole=} and {options}")


def _copied(model: LanguageModel, told: Tensor) -> list[list[list[Tensor]]]:
    """Of every row, what each block is entered with and the last one gives, token by token; copied where one left."""
    rows = []
    for row, start in enumerate(model.embeddings(texts())):
        entering: list[list[Tensor]] = [[] for _ in range(LAYERS + 1)]
        for t, x in enumerate(start):
            for at, block in enumerate(model.blocks):
                entering[at].append(x)
                if at < int(told[row, t]):
                    x = block(torch.stack(entering[at])[None]).hidden[0, -1]
            entering[LAYERS].append(x)
        rows.append(entering)
    return rows


@check(kind=EarlyExit)
def mixed_training(part: type[EarlyExit]) -> None:
    """In mixed training every token leaves at a depth that is drawn, and its output is the one that it is told there.

    Depths are drawn for every token anew, all of them alike.
    """
    model = model_of(part, LAYERS, exits="mixed", heads="layer").train()
    with torch.no_grad():
        torch.manual_seed(0)
        one, other = model(texts()), model(texts())
        drawn = torch.cat([model(texts()).steps for _ in range(40)]).flatten()
    assert one.steps is not None
    assert other.steps is not None
    require(not torch.equal(one.steps, other.steps), "a second call draws the same depths")
    require(all((row != row[0]).any() for row in one.steps), "the tokens of a row share a depth")
    shares = torch.bincount(drawn, minlength=LAYERS + 1)[1:] / len(drawn)
    # 1,320 draws of 4: a share is within 0.25 +- 4.2 deviations of 0.012
    require(bool((shares - 1 / LAYERS).abs().amax() < 0.05), f"depths 1 to {LAYERS} are drawn in shares of {shares}")
    with torch.no_grad():
        wanted = model.eval()(texts(), depths=one.steps)
    assert_close(one.logits, wanted.logits, tolerance=1e-12, what="logits of drawn depths")


LESSONS: tuple[dict[str, object], ...] = (
    {"exits": "aligned"},
    {"exits": "aligned", "weights": "rising", "heads": "layer", "confidence": "classifier"},
    {"exits": "aligned", "confidence": "geometric", "smoothing": 2.0, "penalty": 0.05},
    {"exits": "aligned", "confidence": "multinomial", "smoothing": 3.0, "oracle": "correctness", "penalty": 0.3},
    {"confidence": "multinomial", "penalty": 0.2},
    {"confidence": "sequence", "penalty": 1.0},
    {"confidence": "sequence", "oracle": "correctness", "penalty": 0.0},
)
"""option sets of training"""


@check(kind=EarlyExit)
def exit_losses(part: type[EarlyExit]) -> None:
    """What exits learn, number by number: the mean of the losses below the last, and -log q of the oracle's exit."""
    for options in LESSONS:
        for mask in (None, kept()):
            model = model_of(part, LAYERS, **options)
            depth = model.depth
            assert isinstance(depth, EarlyExit)
            with torch.no_grad():
                states = _exits(model, mask)
                wanted = _by_definition(model, depth, states, mask)
                got = model.train()(texts(), targets=wanted_tokens(), key_mask=mask).losses
            require(got.keys() == {f"depth.{name}" for name in wanted}, f"losses {sorted(got)} with {options}")
            for name, loss in wanted.items():
                actual, expected = got[f"depth.{name}"], torch.tensor(loss, dtype=torch.float64, device=here())
                assert_close(actual, expected, tolerance=1e-10, what=f"{name} with {options}")


def _exits(model: LanguageModel, mask: Tensor | None) -> list[Tensor]:
    """What the first block is entered with, and the hidden states after each, of the full model."""
    states = [model.embeddings(texts())]
    for block in model.blocks:
        states.append(block(states[-1], key_mask=mask).hidden)
    return states


def _by_definition(
    model: LanguageModel, depth: EarlyExit, states: list[Tensor], mask: Tensor | None
) -> dict[str, float]:
    """Every loss, in loops over rows, tokens and exits, from plain numbers."""
    nats: list[list[float]] = []
    choices: list[float] = []
    agreements: list[list[tuple[bool, float]]] = [[] for _ in range(LAYERS - 1)]
    for row in range(len(texts())):
        slots = [t for t in range(texts().shape[1]) if mask is None or mask[row, t]]
        counted = [t for t in slots if wanted_tokens()[row, t] >= 0]
        likelihood: dict[int, list[float]] = {}
        said: dict[int, list[int]] = {}
        for t in counted:
            logits = [model.logits(headed(model, depth, x[row, t], n + 1)).tolist() for n, x in enumerate(states[1:])]
            target = int(wanted_tokens()[row, t])
            likelihood[t] = [each[target] - math.log(sum(map(math.exp, each))) for each in logits]
            said[t] = [each.index(max(each)) for each in logits]
            nats.append([-ll for ll in likelihood[t]])
        scores = {
            t: likelihood[t] if depth.oracle == "likelihood" else [float(s == wanted_tokens()[row, t]) for s in said[t]]
            for t in counted
        }
        for t in counted:
            after = [x[row, t] for x in states[1:]]
            if depth.confidence == "classifier":
                for n in range(LAYERS - 1):
                    agreements[n].append((said[t][n] == said[t][-1], _logits(depth, after[n])[0]))
            elif depth.confidence in LEARNT:
                read = after[0]
                if depth.confidence == "sequence":
                    before = [states[0][row, other] for other in slots if other <= t]
                    read = sum(before[1:], before[0]) / len(before)
                near = dict.fromkeys(counted, 1.0) if depth.confidence == "sequence" else _near(depth, t, counted)
                total = [sum(near[other] * scores[other][n] for other in near) for n in range(LAYERS)]
                reward = [s - depth.penalty * (n + 1) for n, s in enumerate(total)]
                taken = next(n for n in range(LAYERS) if reward[n] == max(reward))
                choices.append(-math.log(_odds(depth, after, read)[taken]))
    wanted: dict[str, float] = {}
    if depth.exits == "aligned":
        weights = [1.0 if depth.weights == "uniform" else n for n in range(1, LAYERS)]
        lower = [sum(w * x for w, x in zip(weights, each, strict=False)) / sum(weights) for each in nats]
        wanted["exits"] = sum(lower) / len(lower)
    if depth.confidence == "classifier":
        wanted["choice"] = sum(_balanced(pairs) for pairs in agreements) / len(agreements)
    elif choices:
        wanted["choice"] = sum(choices) / len(choices)
    return wanted


def _near(depth: EarlyExit, t: int, counted: list[int]) -> dict[int, float]:
    """The weight of each token in the score of token t."""
    if not depth.smoothing:
        return {t: 1.0}
    return {other: math.exp(-((t - other) ** 2) / depth.smoothing) for other in counted}


def _logits(depth: EarlyExit, x: Tensor) -> list[float]:
    return (depth.chooser.weight @ x + depth.chooser.bias).tolist()


def _odds(depth: EarlyExit, after: list[Tensor], read: Tensor) -> list[float]:
    """q of every exit."""
    if depth.confidence != "geometric":
        parts = [math.exp(x) for x in _logits(depth, read)]
        return [part / sum(parts) for part in parts]
    odds, left = [], 1.0
    for x in after[:-1]:
        logit = _logits(depth, x)[0]
        odds.append(left / (1 + math.exp(-logit)))
        left /= 1 + math.exp(logit)  # times 1 - chi, which itself would lose digits
    return [*odds, left]


def _balanced(pairs: list[tuple[bool, float]]) -> float:
    """-log sigmoid of +-z, those that agree and those that do not each counting half."""
    kinds = [
        [math.log(1 + math.exp(-z if kind else z)) for agrees, z in pairs if agrees is kind] for kind in (True, False)
    ]
    means = [sum(kind) / len(kind) for kind in kinds if kind]
    return sum(means) / len(means)


@check(kind=EarlyExit)
def exit_slopes(part: type[EarlyExit]) -> None:
    """Losses of exits have the slopes of their numbers, but the classifier's, which ends at the hidden states."""
    for options in LESSONS:
        model = model_of(part, LAYERS, **options)
        depth = model.depth
        assert isinstance(depth, EarlyExit)
        norm = next(iter(model.blocks[0].parameters()))
        for name in depth.losses:
            weights = {"the blocks": norm}
            if name == "choice":
                weights |= {"W": depth.chooser.weight, "b": depth.chooser.bias}
            stopped = name == "choice" and depth.confidence == "classifier"
            for what, weight in weights.items():
                what = f"slope of {name} by {what} with {options}"

                def loss(name: str = name, model: LanguageModel = model) -> Tensor:
                    return model.train()(texts(), targets=wanted_tokens()).losses[f"depth.{name}"]

                (slope,) = torch.autograd.grad(loss(), [weight], allow_unused=True)
                if stopped and weight is norm:
                    require(slope is None or not slope.any(), f"{what}: there is one, and it must stop")
                elif not (depth.confidence == "sequence" and weight is norm):  # which reads what enters, no block
                    _compare(slope, loss, weight, what)


def _compare(slope: Tensor | None, loss: Callable[[], Tensor], weight: Tensor, what: str) -> None:
    """Require the slope along the weight's own gradient, by differences of the loss."""
    require(slope is not None and bool(slope.any()), f"{what}: none")
    assert slope is not None
    step, along = 1e-6, slope / slope.norm()
    values = []
    with torch.no_grad():
        for move in (step, -2 * step, step):
            weight.add_(move * along)
            values.append(loss())
    assert_close((values[0] - values[1]) / (2 * step), slope.norm(), tolerance=1e-6, what=what)
