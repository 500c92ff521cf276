"""8 bits are harmless, 3 are not.

Claim: A Transformer computed in 8 bits, attention included, loses next to nothing; with 3 bits and fewer it loses
accuracy unless it is trained for them.
Source: Jacob et al. 2018 and Zafrir et al. 2019, Q8BERT (8 bits); Shen et al. 2020, Q-BERT, shows the loss of few bits
on weights of layers, here it is tried on weights of attention
Control: The step of a rounded weight is its row's largest / (2^bits - 1): 16 bits have 257 times less error than 8. The
models have learned: recall is near 1 before anything is rounded, and a guess among the 4 pairs where all weights are
equal. 16 bits change nothing.
Measured: Error of the output on random input in float64; loss of bits per byte of a byte-level decoder on State of the
Union addresses, and of accuracy on associative recall, by bits of the weights; with 8 bits keys and values are rounded
too.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from regard import Heads, build
from regard.core.attention import generator
from regard.models import LanguageModel, ModelConfig
from regard_lab.benchmark.fitting import fit
from regard_lab.tasks import RecallConfig, TaskConfig, TextConfig, build_task
from regard_lab.tasks.base import IGNORE, Task
from regard_lab.training.batches import collate
from regard_lab.training.evaluation import score

EQUAL_WEIGHTS = "softmax(scale=1e-9)"
"""equal weights: what attention itself is worth"""


class EightBits(Claim):
    controls = (
        Control("ratio", "error at 8 bits / 16 bits", 257.0, tolerance=26.0),
        Control("recall", "recall accuracy, exact", 1.0, tolerance=0.05),
        Control("flat recall", "recall accuracy, equal weights", 0.25, tolerance=0.2),
        Control("text lost 16", "bits per byte lost by 16 bits", 0.0, tolerance=1e-4),
    )
    findings = (
        Finding("text lost 8", "8 bits: bits per byte lost", at_most=0.01),
        Finding("recall lost 8", "8 bits: recall lost", at_most=0.01, resolution=0.0005),
        Finding("text lost 3", "3 bits: bits per byte lost", at_least=0.01),
        Finding("recall lost 3", "3 bits: recall lost", at_least=0.01, resolution=0.0005),
    )
    revised = Revision(
        "The control with equal weights was added, and the steps of recall halved, before the record. "
        "Whether numbers had been seen is not recorded.",
        (0, 1, 2),
    )
    plots = (
        Plot("error", "Error of the output on random input", "bits", "relative error", log_y=True),
        Plot("text", "Text", "bits", "bits per byte lost"),
        Plot("recall", "Associative recall", "bits", "accuracy lost"),
    )

    bits: tuple[int, ...] = setting((1, 2, 3, 4, 6, 8, 16), tiny=(3, 8, 16))
    length: int = setting(1024, tiny=128)
    """keys of the random input"""
    recall_steps: int = setting(300, tiny=100)
    text_steps: int = setting(500, tiny=10)
    sequences: int = setting(500, tiny=60)
    """of recall, in the test"""
    windows: int = setting(64, tiny=4)
    """of text, in the test"""
    spec: str = "quantized"

    def observe(self, seed: int) -> Observation:
        curves: dict[str, dict[str, Curve]] = {plot.name: {} for plot in self.plots}
        values: dict[str, float] = {}
        errors = [self.error(bits, seed) for bits in self.bits]
        curves["error"]["weights"] = (self.bits, errors)
        coarse, fine = self.error(8, seed), self.error(16, seed)
        values["ratio"] = coarse / fine if fine else math.nan
        recall = RecallConfig(vocab_size=32, length=32, num_pairs=4, filler="zeros", num_held_out=self.sequences)
        shape = ModelConfig(layers=1, dim=64, heads=1, mlp="none", short_convolution=2, position="none", seed=seed)
        text = TextConfig(length=128)
        decoder = ModelConfig(layers=2, dim=64, heads=4, position="rotary", seed=seed)
        jobs: tuple[tuple[str, TaskConfig, ModelConfig, int, int], ...] = (
            ("recall", recall, shape, self.recall_steps, 0),
            ("text", text, decoder, self.text_steps, self.windows),
        )
        for name, task_config, config, steps, limit in jobs:
            task = build_task(task_config, seed=seed)
            config = replace(config, vocab_size=task.vocab_size, max_length=task.length)
            model = train(config, task, steps, seed)
            exact = quality(model, task, limit)
            values[name] = exact
            sign = 1 if name == "recall" else -1
            weights = {f"{bits}": f"{self.spec}(bits={bits}, store=float)" for bits in self.bits}
            specs = {**weights, "8, int8": f"{self.spec}(bits=8)", "equal weights": EQUAL_WEIGHTS}
            lost = {}
            for bits, spec in specs.items():
                rounded = LanguageModel(replace(config, attention=(spec,)))
                rounded.load_state_dict(model.state_dict())
                lost[bits] = sign * (exact - quality(rounded, task, limit))
            curves[name]["weights"] = (self.bits, [lost[str(bits)] for bits in self.bits])
            curves[name]["weights, int8 keys and values"] = ((8,), [lost["8, int8"]])
            curves[name]["equal weights"] = ((0,), [lost["equal weights"]])
            values[f"flat {name}"] = exact - sign * lost["equal weights"]
            values |= {f"{name} lost 3": lost["3"], f"{name} lost 16": lost["16"], f"{name} lost 8": lost["8, int8"]}
        return Observation(values, curves)

    def error(self, bits: int, seed: int) -> float:
        """Root mean square of the output's error over that of the output, on random input."""
        draw = generator(seed, "random input")
        q, k, v = torch.randn(3, 1, 4, self.length, 32, generator=draw, dtype=torch.float64)
        heads = Heads(count=4, key_dim=32)
        exact = build("softmax", heads)(q, k, v).values
        rounded = build(f"{self.spec}(bits={bits}, store=float)", heads)(q, k, v).values
        return float((rounded - exact).norm() / exact.norm())


def train(config: ModelConfig, task: Task, steps: int, seed: int) -> LanguageModel:
    model = LanguageModel(config).train()
    examples, draw = task.examples("train"), generator(seed, "order")

    def loss() -> Tensor:
        chosen = torch.randint(len(examples), (16,), generator=draw).tolist()
        batch = collate(examples, chosen, task.vocab_size)
        logits = model(batch.inputs).logits.flatten(0, 1)
        return F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE)

    fit(model.parameters(), loss, steps=steps, rate=3e-3)
    return model.eval()


def quality(model: LanguageModel, task: Task, limit: int) -> float:
    """Bits per byte on validation text; accuracy where targets stand for no bytes."""
    scores = score(model, task.examples("valid"), task.vocab_size, limit=limit)
    assert scores is not None
    summary = scores.summary()
    bits_per_byte = summary["bits_per_byte"]
    return float(summary["accuracy"] or 0.0) if bits_per_byte is None else float(bits_per_byte)
