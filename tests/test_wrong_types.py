"""Arguments of plainly wrong types are refused by what is expected, not by an error from inside."""

import inspect
from functools import partial

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import RegardError
from regard.core.types_of import typed
from regard.models import Encoder, EncoderConfig, LanguageModel, ModelConfig
from regard.models.generate import generate, stream
from regard.models.sampling import Sampling
from regard.testing import check_attention
from regard.text.tokenizer import ByteTokenizer
from regard_lab.tasks import TextConfig
from regard_lab.training import TrainedModel, TrainingConfig

HEADS = regard.Heads(count=2, key_dim=4, causal=True)
TINY = {"dim": 8, "layers": 1, "heads": 2, "vocab_size": 9}
X, IDS = torch.zeros(1, 2, 3, 4), torch.zeros(1, 3, dtype=torch.long)
MECHANISM = regard.build("softmax", HEADS)
MODEL, ENCODER = LanguageModel(ModelConfig(**TINY)), Encoder(EncoderConfig(**TINY))
CALLS = {
    "names": (regard.names, {"pattern": "*", "supports": ()}),
    "attend": (regard.attend, {"q": X, "k": X, "v": X, "spec": "softmax", "key_mask": None, "bias": None}),
    "weights": (regard.weights, {"mechanism": MECHANISM, "q": X, "k": X, "bias": None, "inputs": None}),
    "merge": (regard.merge, {"parts": [(X, X[..., 0])]}),
    "mechanism": (MECHANISM, {"q": X, "k": X, "v": X, "key_mask": None, "inputs": None, "query_start": None}),
    "initial_state": (MECHANISM.initial_state, {"batch": 1, "device": None, "dtype": None}),
    "HeadMix": (regard.HeadMix, {"heads": HEADS, "parts": [("softmax", MECHANISM)]}),
    "AttentionLayer": (regard.AttentionLayer, {"dim": 8, "spec": "softmax", "heads": 2, "context_dim": None}),
    "Input": (partial(regard.Input, slots="keys", heads="key"), {"low": 0.0, "high": 1.0, "neutral": 0.0}),
    "ModelConfig": (ModelConfig, {**TINY, "attention": ("softmax",), "dropout": 0.0, "norm_eps": 1e-5}),
    "EncoderConfig": (EncoderConfig, {**TINY, "input_dim": 0}),
    "TrainingConfig": (TrainingConfig, {"steps": 1, "learning_rate": 0.1, "betas": (0.9, 0.95), "clip": 1.0}),
    "TextConfig": (TextConfig, {"length": 32, "holdout": 0.1}),
    "LanguageModel": (LanguageModel, {"config": MODEL.config}),
    "decoder": (MODEL, {"tokens": IDS, "key_mask": None, "positions": None, "state": None}),
    "encoder": (ENCODER, {"inputs": IDS, "key_mask": None, "positions": None}),
    "generate": (lambda **given: generate(MODEL, **given), {"prompts": [[1]], "max_new_tokens": 1, "top_k": None}),
    "encode": (ByteTokenizer().encode, {"text": "a"}),
}  # fmt: skip
WRONG = (
    None,
    3,
    1.5,
    "text",
    [1, 2],
    [["a"]],
    {},
    b"x",
    object(),
    float("nan"),
    -1,
    torch.zeros(2),
    np.zeros((1, 3)),
    int,
)


@pytest.mark.parametrize(("name", "argument"), [(name, each) for name, (_, given) in CALLS.items() for each in given])
def test_only_errors_of_the_library_come_out(name, argument):
    call, given = CALLS[name]
    refused = 0
    for wrong in WRONG:
        try:
            call(**{**given, argument: wrong})
        except RegardError:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: regard.names(supports="causal"), r"supports is a list of capabilities; write supports=\['causal'\]"),
        (lambda: check_attention("softmax", checks="causality"), r"write checks=\['causality'\]"),
        (lambda: generate(MODEL, 3, max_new_tokens=1), "prompts is a list of texts or token ids, .* got an int"),
        (lambda: generate(MODEL, [[1], [None]], max_new_tokens=1), r"prompt 1 must be integers .* got \[None\]"),
        (lambda: regard.compare("softmax"), r"specs is a list of specifications; write \['softmax'\]"),
        (lambda: regard.attend([1], X, X), r"must be tensors .* got a list, torch.float32 \(1, 2, 3, 4\)"),
        (
            lambda: MECHANISM(X, X, X, bias=X),
            r"bias must be a ScoreBias\(table=...\), got torch.float32 \(1, 2, 3, 4\)",
        ),
        (lambda: MODEL(IDS, key_mask=np.zeros(3)), r"must be bool \(1, 3\).* got a numpy.ndarray of float64 \(3,\)"),
        (lambda: ModelConfig(dim="8"), "ModelConfig: option dim='8' is not valid: Input should be a valid integer"),
        (lambda: LanguageModel("tiny"), "LanguageModel: option config='tiny' .* instance of ModelConfig"),
        (lambda: ByteTokenizer().encode(["a"]), "encodes one text, got a list"),
    ],
)
def test_a_message_says_what_is_expected(call, message):
    with pytest.raises(RegardError, match=message):
        call()


def test_an_error_from_inside_stays_where_all_types_are_right():
    @typed
    def broken(number: int) -> int:
        return number + None  # type: ignore[operator]

    @typed
    def inside(items: np.ndarray, weights: torch.Tensor) -> None:
        raise ValueError("something else")

    with pytest.raises(TypeError, match="unsupported operand"):
        broken(3)
    with pytest.raises(ValueError, match="something else"):
        inside(np.zeros((2, 3)), torch.zeros(2))
    with pytest.raises(regard.ConfigError, match="broken: option number='3' is not valid"):
        broken("3")


def test_one_default_temperature():
    from regard.integrations.pretrained import PublishedModel

    for call in (generate, stream, TrainedModel.generate, TrainedModel.draw, PublishedModel.generate):
        assert inspect.signature(call).parameters["temperature"].default == Sampling().temperature


def test_a_lack_of_memory_is_no_wrong_type():
    """Whatever was given meanwhile: arrays stumble over nothing."""

    @typed
    def measured(items: np.ndarray, said: str) -> None:
        raise RuntimeError(said)

    with pytest.raises(RuntimeError, match="can't allocate memory"):
        measured(np.zeros((2, 3)), "DefaultCPUAllocator: can't allocate memory")
