"""Laws of what runs the blocks of a model, and of halting."""

import math
from typing import Any

import torch
from torch import Tensor

from regard.models.config import ModelConfig
from regard.models.decoder import LanguageModel
from regard.models.depth import Depth
from regard.models.depth.early_exit import EarlyExit
from regard.models.depth.fixed import Fixed
from regard.models.depth.universal import Universal
from regard.testing.compare import assert_close, assert_identical, require
from regard.testing.inputs import here, randn
from regard.testing.registry import check

STEPS, LAYERS, CUT = 5, 4, 6
SIZES = {"depth.halt.weight": 0.1, "depth.halt.bias": -3.0, "depth.chooser.weight": 1.0, "depth.chooser.bias": 0.0}
"""of what is added to weights that decide, so that tokens differ; 0.2 to others"""


def texts() -> Tensor:
    """Three texts of 11 tokens."""
    return torch.arange(3 * 11, device=here()).reshape(3, 11) * 7 % 20


def model_of(part: type[Depth], layers: int = 2, shape: Any = None, **options: object) -> LanguageModel:
    """A decoder whose blocks this scheme runs; weights are random, so that tokens halt at different steps.

    Args:
        shape: more of its configuration, by name; None: nothing.
        options: of the scheme.
    """
    mlp = "none" if options.get("transition") == "convolution" else "gelu"
    config = ModelConfig(dim=16, heads=2, layers=layers, vocab_size=20, mlp=mlp, **(shape or {}))
    model = LanguageModel(config)
    model.depth = part(config, **options)
    model.to(here())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            size = SIZES.get(name, 0.2)
            weight.add_(size * (1.0 if weight.numel() == 1 else randn(*weight.shape, seed=name)))
    return model.double().eval()


@check(kind=Depth)
def depth_keeps_the_future_out(part: type[Depth]) -> None:
    """What a token gives, and how many steps it takes, does not depend on later tokens."""
    later = torch.cat([texts()[:, :CUT], (texts()[:, CUT:] + 5) % 20], 1)
    for options in part.samples:
        model = model_of(part, LAYERS, **options)
        with torch.no_grad():
            one, other = model(texts()), model(later)
        assert_close(other.logits[:, :CUT], one.logits[:, :CUT], tolerance=1e-12, what="logits before what changed")
        if one.steps is not None and other.steps is not None:
            assert_identical(other.steps[:, :CUT], one.steps[:, :CUT], what="steps before what changed")


@check(kind=Depth)
def depth_streams(part: type[Depth]) -> None:
    """Any split of a text with a state gives what one call gives; so does each row alone."""
    for options in part.samples:
        model = model_of(part, LAYERS, **options)
        with torch.no_grad():
            whole = model(texts())
            for split in ((4, 1, 6), (1,) * 11):
                state, logits, steps = model.initial_state(3), [], []
                for piece in texts().split(list(split), 1):
                    got = model(piece, state=state)
                    state, _, _ = got.state, logits.append(got.logits), steps.append(got.steps)
                assert_close(torch.cat(logits, 1), whole.logits, tolerance=1e-12, what=f"pieces of {split}")
                if whole.steps is not None:
                    assert_identical(torch.cat(steps, 1), whole.steps, what=f"steps in pieces of {split}")
            rows = torch.cat([model(row[None]).logits for row in texts()])
        assert_close(rows, whole.logits, tolerance=1e-12, what="each row alone")


@check(kind=Depth)
def depth_reads_no_padding(part: type[Depth]) -> None:
    """Masked tokens change nothing of the others, whatever they hold."""
    keep = torch.ones(3, 11, dtype=torch.bool, device=here())
    keep[0, 2] = keep[1, 8:] = keep[2, 0] = False
    for options in part.samples:
        model = model_of(part, LAYERS, **options)
        with torch.no_grad():
            one, other = (
                model(torch.where(keep, texts(), fill), key_mask=keep).logits
                for fill in (torch.zeros_like(texts()), 19)
            )
        assert_close(other[keep], one[keep], tolerance=1e-12, what="logits of real tokens")


@check(kind=Depth)
def depth_reads_nothing(part: type[Depth]) -> None:
    """A call of no tokens changes no state, whether there are rows in the batch or not, and with a state or without."""
    for options in part.samples:
        model = model_of(part, LAYERS, **options)
        with torch.no_grad():
            for shape in ((3, 0), (0, 5), (0, 0)):
                for state in (None, model.initial_state(shape[0])):
                    got = model(torch.zeros(shape, dtype=torch.long, device=here()), state=state)
                    what = f"of a batch of {shape} with {options}"
                    require(got.logits.shape == (*shape, 20), f"logits {tuple(got.logits.shape)} {what}")
                    require(got.steps is None or got.steps.shape == shape, f"steps {what}")
            before = model(texts(), state=model.initial_state(3)).state
            after = model(texts()[:, :0], state=before).state
        require(after.length == texts().shape[1], f"{after.length} tokens of {texts().shape[1]} with {options}")
        for name, x in before.tensors().items():
            assert_identical(after.tensors()[name], x, what=f"{name} after no token with {options}")


@check(kind=Depth)
def depth_rounds_in_autocast(part: type[Depth]) -> None:
    """In autocast a float32 model answers near what it answers without, token for token until one leaves elsewhere.

    So for blocks of both forms and norms in both places, in one call and token by token; training has finite slopes.
    Numbers of 8 bits pass through up to 24 blocks.
    """
    for options in part.samples:
        for shape in ({}, {"block": "parallel"}, {"norm": "post"}):
            model = model_of(part, LAYERS, shape, **options).float()
            with torch.no_grad():
                wanted, pieces = model(texts()), []
                with torch.autocast(here().type, dtype=torch.bfloat16):
                    got, state = model(texts()), model.initial_state(3)
                    for piece in texts().split(1, 1):
                        pieces.append(model(piece, state=state))
                        state = pieces[-1].state
            for parts in ([got], pieces):
                alike, answer = (
                    torch.ones(texts().shape, dtype=torch.bool, device=here()),
                    torch.cat([part.logits for part in parts], 1),
                )
                if wanted.steps is not None:
                    alike = (torch.cat([part.steps for part in parts], 1) == wanted.steps).cumprod(1).bool()
                require(bool(alike[:, 0].any()), f"no token leaves where it would, with {options}")
                assert_close(answer.float()[alike], wanted.logits[alike], tolerance=0.15, what=f"logits, {options}")
            with torch.autocast(here().type, dtype=torch.bfloat16):
                learnt = model.train()(texts())
            total = learnt.logits.float().square().mean() + sum(learnt.losses.values())
            slopes = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
            require(all(x is None or bool(x.isfinite().all()) for x in slopes), f"slopes with {options}, {shape}")


@check(kind=Depth)
def depth_counts_blocks(part: type[Depth]) -> None:
    """The blocks that a token is said to take are those that are run for it alone, and `most` at most."""
    for options in part.samples:
        model, run, found = model_of(part, LAYERS, **options), list[object](), set[int]()
        for block in model.blocks:
            block.register_forward_hook(lambda block, *_, run=run: run.append(block))
        for token in texts().flatten()[:20]:
            run.clear()
            with torch.no_grad():
                taken = model.hidden(token.view(1, 1)).blocks
            require((taken is None) == (model.depth.most is None), f"blocks {taken}, most {model.depth.most}")
            if taken is not None and model.depth.most is not None:
                found.add(int(taken))
                require(int(taken) == len(run), f"{int(taken)} blocks with {options}, {len(run)} were run")
        most = model.depth.most
        require(most is None or max(found) <= most, f"tokens take {found} blocks with {options}, {most} at most")


@check(kind=Universal)
def halting_average(part: type[Universal]) -> None:
    """The output averages a token's hidden states by p_1, p_2, ... and what is missing of 1; it stands still then."""
    model = model_of(part, steps=STEPS, coordinates="none")
    depth = model.depth
    assert isinstance(depth, Universal)
    with torch.no_grad():
        start = model.embeddings(texts())
        hidden, wanted = start, torch.zeros_like(start)
        left = torch.ones(texts().shape, dtype=torch.float64, device=here())
        steps = torch.zeros(texts().shape, dtype=torch.long, device=here())
        halted = [[False] * texts().shape[1] for _ in texts()]
        for step in range(STEPS):
            after = hidden
            for block in model.blocks:
                after = block(after).hidden
            after, before = after.clone(), hidden
            for row, tokens in enumerate(halted):
                for at, stands in enumerate(tokens):
                    if stands:
                        after[row, at] = before[row, at]
                        continue
                    p = torch.sigmoid(depth.halt(after[row, at]))[0]
                    steps[row, at] += 1
                    if left[row, at] - p <= 0.01 or step == STEPS - 1:
                        p, tokens[at] = left[row, at].clone(), True
                    wanted[row, at] += p * after[row, at]
                    left[row, at] -= p
            hidden = after
        got = model.hidden(texts())
        wanted = wanted if model.norm is None else model.norm(wanted)
    require(len(steps.unique()) > 2, f"tokens take {steps.unique().tolist()} steps, which shows too little")
    assert got.steps is not None
    assert_identical(got.steps, steps, what="steps of each token")
    assert_close(got.hidden, wanted, tolerance=1e-10, what="hidden states")


@check(kind=Universal)
def ponder_slope(part: type[Universal]) -> None:
    """The loss is the mean of N + R, and its slope that of R: minus that of p_1 + ... + p_{N-1}."""
    model = model_of(part, steps=STEPS).train()
    assert isinstance(model.depth, Universal)
    bias = model.depth.halt.bias

    def loss() -> Tensor:
        return model(texts()).losses["depth.ponder"]

    (slope,) = torch.autograd.grad(loss(), [bias])
    with torch.no_grad():
        values = []
        for move in (1e-5, -2e-5):
            bias.add_(move)
            values.append(loss())
    require(slope.abs().item() > 1e-3, "no slope, so that nothing is tested")
    assert_close((values[0] - values[1]) / 2e-5, slope[0], tolerance=1e-6, what="slope of the halting bias")


@check(kind=EarlyExit)
def no_exit_is_the_full_model(part: type[EarlyExit]) -> None:
    """A threshold above every confidence gives what the fixed depth gives, bit for bit, in its state too."""
    full = model_of(Fixed, LAYERS)
    for options in ({"threshold": 1.0}, {"threshold": 1.0, "decaying": True}, {"threshold": 1 - 1e-6}):
        model = model_of(part, LAYERS, **options)
        with torch.no_grad():
            wanted, got = (each(texts(), state=each.initial_state(3)) for each in (full, model))
        assert_identical(got.logits, wanted.logits, what=f"logits with {options}")
        for name, tensor in wanted.state.tensors().items():
            assert_identical(got.state.tensors()[name], tensor, what=f"{name} with {options}")
        assert_identical(got.steps, torch.full_like(texts(), LAYERS), what=f"blocks of each token with {options}")


@check(kind=EarlyExit)
def exits_by_definition(part: type[EarlyExit]) -> None:
    """A token leaves after the first block whose confidence reaches the threshold, and stands still from then on."""
    for options in part.samples:
        model = model_of(part, LAYERS, **options)
        depth, length = model.depth, 7
        assert isinstance(depth, EarlyExit)
        with torch.no_grad():
            got = model.hidden(texts()[:, :length])
            for row, start in enumerate(model.embeddings(texts()[:, :length])):
                entering: list[list[Tensor]] = [[] for _ in model.blocks]  # of each block, its input of each token
                for t, x in enumerate(start):
                    stands, steps, read = False, 0, start[: t + 1].sum(0) / (t + 1)
                    for at, block in enumerate(model.blocks):
                        entering[at].append(x)
                        if stands:
                            continue
                        before, x = x, block(torch.stack(entering[at])[None]).hidden[0, -1]
                        steps += 1
                        read = x if depth.confidence == "multinomial" and at == 0 else read
                        stands = _leaves(model, depth, t, x, before, read, steps)
                    what = f"token {t} of row {row} with {options}"
                    assert got.steps is not None
                    require(int(got.steps[row, t]) == steps, f"blocks of {what}: {got.steps[row, t]}, not {steps}")
                    wanted = headed(model, depth, x, steps)
                    assert_close(got.hidden[row, t], wanted, tolerance=1e-10, what=f"hidden state of {what}")
        taken = [] if got.steps is None else got.steps.unique().tolist()
        never = depth.threshold == 1 and not depth.thresholds
        require(never or len(taken) > 1, f"tokens take {taken} blocks with {options}: too little to see")


def headed(model: LanguageModel, depth: EarlyExit, x: Tensor, steps: int) -> Tensor:
    """What the output layer reads of a hidden state that leaves after so many blocks."""
    if depth.heads == "layer" and steps < LAYERS:
        own = depth.maps[steps - 1]
        assert isinstance(own, torch.nn.Linear)
        x = x + own.weight @ x + own.bias
    return x if model.norm is None else model.norm(x)


def _leaves(
    model: LanguageModel, depth: EarlyExit, t: int, x: Tensor, before: Tensor, read: Tensor, steps: int
) -> bool:
    """Whether a token leaves, by the papers' formulas."""
    limit = depth.threshold
    if t < depth.whole:
        return False
    if depth.thresholds:
        own = depth.thresholds[steps - 1] if steps < LAYERS else None
        limit = math.inf if own is None else own
    elif limit == 1:
        return False
    if depth.decaying:
        limit = min(1.0, max(0.0, 0.9 * limit + 0.1 * math.exp(-4 * t / depth.horizon)))
    if depth.confidence == "saturation":
        return steps > 1 and (x @ before / (x @ x).sqrt() / (before @ before).sqrt()).item() >= limit
    if depth.confidence in ("multinomial", "sequence"):
        odds = (depth.chooser.weight @ read + depth.chooser.bias).tolist()
        return steps > odds.index(max(odds))
    if depth.confidence in ("classifier", "geometric"):
        return 1 / (1 + math.exp(-(depth.chooser.weight[0] @ x + depth.chooser.bias[0]).item())) >= limit
    weights = model.logits(headed(model, depth, x, steps)).exp()
    top, second = sorted((weights / weights.sum()).tolist())[:-3:-1]
    return top - second >= limit
