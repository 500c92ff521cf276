"""Under `torch.device(...)` everything is drawn as on the CPU and ends there. "meta" stands for a GPU."""

import pytest
import torch

from regard import catalog, memory
from regard.core.info import Heads
from regard.layer import AttentionLayer
from regard.memory import caches
from regard.models import Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig, LanguageModel, ModelConfig
from regard.testing.inputs import Subject


def devices(module: torch.nn.Module) -> set[str]:
    return {x.device.type for x in (*module.parameters(), *module.buffers())}


@pytest.mark.parametrize("name", catalog.names())
def test_mechanisms(name):
    cls, _ = catalog.resolve(name)
    for options in cls.samples:
        subject = Subject(cls, options)
        for causal in subject.modes:
            with torch.device("meta"):
                built = cls(subject.heads(causal), **options)
            assert devices(built) <= {"meta"}, options


@pytest.mark.parametrize("kind", [LanguageModel, Encoder, EncoderDecoder])
def test_models(kind):
    config = {LanguageModel: ModelConfig, Encoder: EncoderConfig, EncoderDecoder: EncoderDecoderConfig}[kind]
    attention = ("performer", "softmax:1 + lsh:1")
    with torch.device("meta"):
        built = kind(config(dim=16, heads=2, attention=attention, position="learned", bias=True))
    assert devices(built) == {"meta"}


def test_parts():
    heads = Heads(count=2, key_dim=4, causal=True)
    with torch.device("meta"):
        layer = AttentionLayer(8, "shaw", heads=2, memory="memorizing", causal=True)
        built = [layer, *(memory.build_memory(name, heads, 8) for name in memory.names())]
        built += [caches.cache_class(name)(heads) for name in caches.names()]
    assert set().union(*map(devices, built)) == {"meta"}
