"""Tiny random models of Hugging Face with our attention inside: what they were, and what they should be."""

import copy
import json
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from torch import nn

import regard
from regard.integrations import pretrained
from regard.integrations.huggingface import load_replaced
from regard.integrations.torch import replace_attention

pytestmark = pytest.mark.external
transformers = pytest.importorskip("transformers", reason="transformers is not installed; `make external`")

LENGTH, VOCABULARY, DIM, SIDE = 11, 40, 16, 12


def build(kind, **changes):
    """A model of two layers, four heads and no dropout, in evaluation, the same for every call."""
    torch.manual_seed(0)
    # The names differ by type.
    sizes = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **changes}
    bert = {
        "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
        "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    match kind:
        case "llama":
            shape = {
                "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "intermediate_size": 24, "max_position_embeddings": 64,
            }  # fmt: skip
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**shape, **sizes}))
        case "mistral" | "qwen2":
            shape = {
                "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "intermediate_size": 24, "max_position_embeddings": 64,
            }  # fmt: skip
            shape |= {"sliding_window": None} if kind == "mistral" else {}
            title = kind.capitalize()
            config = getattr(transformers, f"{title}Config")(**{**shape, **sizes})
            model = getattr(transformers, f"{title}ForCausalLM")(config)
        case "gpt2":
            shape = {"n_embd": DIM, "n_layer": 2, "n_head": 4, "n_positions": 64}
            shape |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**shape, **sizes}))
        case "bert":
            model = transformers.BertForMaskedLM(transformers.BertConfig(**{**bert, **sizes}))
        case "vit":
            shape = {name: bert[name] for name in bert if name != "max_position_embeddings"}
            shape |= {"image_size": SIDE, "patch_size": 4, "num_labels": 5, **changes}
            model = transformers.ViTForImageClassification(transformers.ViTConfig(**shape))
        case "roberta":
            model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**{**bert, **sizes}))
        case "t5":
            shape = {"d_model": DIM, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
            sizes["decoder_start_token_id"] = 0
            model = transformers.T5ForConditionalGeneration(transformers.T5Config(**{**shape, **sizes}))
        case _:
            shape = {"d_model": DIM, "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0}
            for side in ("encoder", "decoder"):
                shape |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 24}
            model = transformers.BartForConditionalGeneration(transformers.BartConfig(**{**shape, **sizes}))
    with torch.no_grad():
        for weight in model.parameters():  # the initial ones are so small that attention is nearly uniform
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())) * 0.3)
    return model.eval()


DECODERS, ENCODERS, BOTH = ("llama", "gpt2", "mistral", "qwen2"), ("bert", "roberta"), ("t5", "bart")
KINDS = DECODERS + ENCODERS + BOTH


def tokens(batch=2, length=LENGTH, seed=0):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(left):
    """The second row has four tokens of padding."""
    keep = torch.ones(2, LENGTH, dtype=torch.long)
    keep[1, slice(0, 4) if left else slice(-4, None)] = 0
    return keep


def call(model, ids, keep=None, **further):
    if model.config.model_type == "vit":
        return model(images(), **further)
    if model.config.is_encoder_decoder:
        further.setdefault("decoder_input_ids", tokens(len(ids), 6, seed=9))
    return model(ids, attention_mask=keep, **further)


def inside(model, spec):
    """The mechanism in every place that it serves: a window knows no distance to another sequence."""
    self_only = model.config.is_encoder_decoder and "local" in spec
    return replace_attention(model, spec, pattern="*[sS]elf*" if self_only else "*")


def close(a, b, tolerance=2e-5):
    assert a.shape == b.shape
    assert (a - b).abs().max() <= tolerance * b.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("former", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_softmax_inside_changes_nothing(kind, former):
    model = build(kind, attn_implementation=former)
    cases = [(None, slice(None)), *((padded(left), padded(left).bool()) for left in (False, True))]
    before = [call(model, tokens(), keep).logits for keep, _ in cases]
    weights = {name: id(weight) for name, weight in model.named_parameters()}
    replaced = replace_attention(model, "softmax")
    assert replaced.count == {"t5": 6, "bart": 6}.get(kind, 2)
    assert {name: id(weight) for name, weight in model.named_parameters()} == weights
    for (keep, real), expected in zip(cases, before, strict=True):
        got = call(model, tokens(), keep).logits
        assert got.isfinite().all()
        # what stands at padded positions differs, as it does between eager and sdpa
        real = slice(None) if model.config.is_encoder_decoder else real
        close(got[real], expected[real])


def images():
    return torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize("former", ["eager", "sdpa"])
def test_softmax_inside_vit_changes_nothing_and_others_do(former):
    model = build("vit", attn_implementation=former)
    before = model(images(), output_hidden_states=True)
    assert replace_attention(model, "softmax").names == tuple(f"vit.layers.{at}.attention" for at in (0, 1))
    after = model(images(), output_hidden_states=True)
    for got, expected in zip([*after.hidden_states, after.logits], [*before.hidden_states, before.logits], strict=True):
        close(got, expected)
    replace_attention(model, "linear")
    assert (model(images()).logits - before.logits).abs().max() > 1e-3 * before.logits.abs().max()
    replace_attention(model, f"local(window={SIDE})")  # sees all 9 patches and cls
    close(model(images()).logits, before.logits)


def test_gradients_through_vit_are_those_of_the_original():
    one = build("vit")
    two = copy.deepcopy(one)
    replace_attention(two, "softmax")
    for model in (one, two):
        model.train()(images()).logits.square().mean().backward()
    for (name, weight), (_, expected) in zip(two.named_parameters(), one.named_parameters(), strict=True):
        close(weight.grad, expected.grad, 1e-4)
        assert weight.grad.any(), name


@torch.no_grad()
@pytest.mark.parametrize("kind", DECODERS + ENCODERS)
def test_a_window_is_the_masked_softmax(kind):
    """Against transformers' own sdpa with a four-dimensional mask of the same window."""
    model = build(kind)
    at = torch.arange(LENGTH)
    near = (at[:, None] - at).abs() <= 2
    allowed = near.tril() if kind in DECODERS else near
    expected = model(tokens(), attention_mask=allowed.expand(2, 1, -1, -1)).logits
    replace_attention(model, "local(window=2)")
    close(model(tokens()).logits, expected)
    # a mask of the user's own is a bias: the wide window with the mask is the window
    replace_attention(model, "local(window=20)")
    close(model(tokens(), attention_mask=allowed.expand(2, 1, -1, -1)).logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("spec", ["softmax", "local(window=3)", "linear"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_that_is_all_padding_gives_no_nan(kind, spec):
    model = build(kind)
    inside(model, "sigmoid" if kind == "t5" and spec == "linear" else spec)  # T5 needs a bias
    keep = torch.ones(2, LENGTH, dtype=torch.long)
    keep[1] = 0
    seen = []
    place = next(part for part in model.modules() if hasattr(part, "regard"))
    place.regard.mechanism.register_forward_hook(lambda module, args, out: seen.append(out.values))
    got = call(model, tokens(), keep).logits
    assert got.isfinite().all()
    assert not seen[0][1].any()
    close(got[:1], call(model, tokens()[:1], keep[:1]).logits)


@torch.no_grad()
@pytest.mark.parametrize("kind", DECODERS + BOTH)
def test_generation_equals_the_original_and_the_call_without_a_cache(kind):
    model = build(kind)
    ids, keep = tokens(), padded(left=True)
    options = {"attention_mask": keep, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    before = model.generate(ids, **options)
    replace_attention(model, "softmax")
    assert torch.equal(model.generate(ids, **options), before)
    inside(model, "local(window=3)")
    cached = model.generate(ids, **options)
    assert torch.equal(cached, model.generate(ids, **options, use_cache=False))
    beams = [model.generate(ids, **options, num_beams=2, use_cache=cache) for cache in (True, False)]
    assert torch.equal(*beams)


@torch.no_grad()
def test_a_static_cache_is_refused():
    model = build("llama")
    replace_attention(model, "local(window=2)")
    with pytest.raises(regard.UnsupportedError, match="dynamic cache"):
        model.generate(tokens(), max_new_tokens=4, cache_implementation="static", disable_compile=True)
    cache = transformers.StaticCache(model.config, max_cache_len=LENGTH + 3)
    seen = torch.ones(2, 1, LENGTH, LENGTH + 3, dtype=torch.bool).tril()
    with pytest.raises(regard.UnsupportedError, match="dynamic cache"):
        model(tokens(), attention_mask=seen, past_key_values=cache)


ANCHORED = "longformer(window=3, num_global=2)"
LEAKING = "regard_lab.published.sigmoid_published:SigmoidPublished"
SPECS = ("softmax", "local(window=3)", "linear", ANCHORED, LEAKING)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", DECODERS + ENCODERS)
def test_packed_documents_are_as_alone_or_refused(kind, spec):
    """By positions that begin again, with a cache and without, by lengths, and by a mask of pairs."""
    model = build(kind)
    replace_attention(model, spec)
    document = torch.arange(LENGTH) >= 4
    apart = (document[:, None] == document).expand(2, 1, -1, -1)
    positions = torch.cat([torch.arange(4), torch.arange(LENGTH - 4)])[None].expand(2, -1)
    begun = 1 if kind == "roberta" else 0
    alone = model(tokens()[:, 4:]).logits
    separating = {"attention_mask": apart.tril() if kind in DECODERS else apart}
    calls = [
        separating,
        {"attention_mask": torch.zeros(apart.shape).masked_fill(~separating["attention_mask"], -1e9)},
        {"use_cache": False},  # transformers makes the mask for decoders
        {"use_cache": True},
        {"attention_mask": torch.ones(2, LENGTH, dtype=torch.long)},
        {"cu_seq_lens_q": torch.tensor([0, 4, LENGTH])},
    ]
    served = (3 if kind in DECODERS else 2) if spec in SPECS[:2] else 0
    for at, further in enumerate(calls):
        if at < served:
            close(model(tokens(), position_ids=positions + begun, **further).logits[:, 4:], alone)
        else:
            with pytest.raises(regard.UnsupportedError, match="packed documents"):
                model(tokens(), position_ids=positions + begun, **further)


@torch.no_grad()
@pytest.mark.parametrize("spec", ["softmax", "local(window=3)", "linear", ANCHORED])
@pytest.mark.parametrize("kind", DECODERS + ENCODERS)
def test_left_padding_as_a_table_is_as_alone_or_refused(kind, spec):
    """Each row with padding of its own, for every head; with a past too."""
    model = build(kind)
    replace_attention(model, spec)
    real = torch.arange(LENGTH) >= torch.tensor([[3], [5]])
    table = real[:, None, None].expand(-1, 4, LENGTH, -1)
    table = table.tril() if kind in DECODERS else table
    positions = (real.long().cumsum(-1) - 1).clamp(min=0) + (kind == "roberta")
    if spec in ("linear", ANCHORED):
        with pytest.raises(regard.UnsupportedError, match="packed documents"):
            model(tokens(), attention_mask=table, position_ids=positions)
        return
    got = model(tokens(), attention_mask=table, position_ids=positions).logits
    for row, start in enumerate((3, 5)):
        close(got[row, start:], model(tokens()[row : row + 1, start:]).logits[0])
    if kind in DECODERS:
        past = model(tokens()[:, :7], attention_mask=table[:, :, :7, :7], position_ids=positions[:, :7]).past_key_values
        call = {"attention_mask": table[:, :, 7:], "position_ids": positions[:, 7:], "past_key_values": past}
        close(model(tokens()[:, 7:], **call).logits, got[:, 7:])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", [-1e4, -1e9, None])
def test_masks_of_large_numbers(number, dtype):
    """As code of before writes them: a table of the future, and padding as one row; smaller numbers are biases."""
    number = torch.finfo(dtype).min if number is None else number
    model, eager = build("llama").to(dtype), build("llama", attn_implementation="eager").to(dtype)
    replace_attention(model, "softmax")
    tolerance = 2e-5 if dtype == torch.float32 else 4e-2
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    table = torch.zeros(1, 1, LENGTH, LENGTH, dtype=dtype).masked_fill(future, number)
    for mask in (table, table + torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)).to(dtype)):
        close(*(one(tokens(), attention_mask=mask).logits for one in (model, eager)), tolerance)
    with pytest.raises(regard.UnsupportedError, match="lets a query see a later key"):
        model(tokens(), attention_mask=table.clamp(min=-1000))
    bert = build("bert").to(dtype)
    replace_attention(bert, "linear")
    keep = padded(left=False)
    numbers = torch.zeros(2, 1, 1, LENGTH, dtype=dtype).masked_fill(keep[:, None, None] == 0, number)
    close(bert(tokens(), attention_mask=numbers).logits, bert(tokens(), attention_mask=keep).logits)
    with pytest.raises(regard.UnsupportedError, match=r"boolean .* or numbers to add, got torch.int64"):
        bert(tokens(), attention_mask=keep[:, None, None])


@torch.no_grad()
@pytest.mark.parametrize("spec", ["softmax", "linear", ANCHORED])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_one_graph(kind, spec):
    model = build(kind)
    replace_attention(model, spec)
    torch.compiler.reset()
    graph = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(graph(tokens()).logits, model(tokens()).logits)
    right, left = padded(left=False), padded(left=True)
    close(*(call(one, tokens(), right).logits[right == 1] for one in (graph, model)))
    if spec == ANCHORED:
        with pytest.raises(RuntimeError, match="does not support left padding"):
            call(graph, tokens(), left)


def test_adapters_on_the_drop_in():
    """peft puts LoRA on it as on torch's: the same outputs and gradients, and the same merged weights."""
    peft = pytest.importorskip("peft", reason="peft is not installed; `make external`")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.out = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 5)

        def forward(self, x):
            return self.out(self.attn(x, x, x, need_weights=False)[0])

    x, seen = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0)), []
    torch.manual_seed(0)
    original = Net()
    for net in (original, copy.deepcopy(original)):
        if seen:
            replace_attention(net, "softmax")
        torch.manual_seed(1)
        options = peft.LoraConfig(r=4, target_modules=["attn"], init_lora_weights=False)
        adapted = peft.get_peft_model(net, options)
        out = adapted(x)
        out.square().sum().backward()
        gradients = [weight.grad for name, weight in adapted.named_parameters() if "lora" in name]
        seen.append([out, *gradients, adapted.merge_and_unload()(x)])
    assert len(seen[0]) == 6
    for got, expected in zip(seen[1], seen[0], strict=True):
        close(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_original(kind):
    one = build(kind)
    two = copy.deepcopy(one)
    replace_attention(two, "softmax")
    for model in (one, two):
        call(model.train(), tokens(), padded(left=False)).logits.float().square().mean().backward()
    expected = {name: weight.grad for name, weight in one.named_parameters() if weight.grad is not None}
    for name, weight in two.named_parameters():
        if name in expected:
            assert (weight.grad - expected[name]).abs().max() <= 1e-4 * max(1e-3, expected[name].abs().max().item()), (
                name
            )


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights_are_returned_where_asked(kind):
    eager = build(kind, attn_implementation="eager")
    ours = build(kind)
    replace_attention(ours, "softmax")
    fields = ("encoder_attentions", "decoder_attentions", "cross_attentions") if kind in BOTH else ("attentions",)
    expected, got = (call(model, tokens(), output_attentions=True) for model in (eager, ours))
    for field in fields:
        assert len(got[field]) == 2
        for one, other in zip(got[field], expected[field], strict=True):
            close(one, other)
    plain = call(ours, tokens())
    assert not any(plain.get(field) for field in fields)


@torch.no_grad()
def test_some_places_under_a_pattern():
    model = build("llama")
    before = model(tokens()).logits
    assert replace_attention(model, "softmax", pattern="*layers.1.self_attn").names == ("model.layers.1.self_attn",)
    close(model(tokens()).logits, before)
    keep = padded(left=True)
    original = build("llama")(tokens(), attention_mask=keep).logits
    close(model(tokens(), attention_mask=keep).logits[keep.bool()], original[keep.bool()])
    ids = torch.cat([tokens(), tokens(seed=1)], 1)
    cache = model(ids[:, :7]).past_key_values
    close(model(ids[:, 7:], past_key_values=cache).logits, model(ids).logits[:, 7:])


@pytest.mark.parametrize(
    ("kind", "spec", "options", "error", "message"),
    [
        ("llama", "linformer(rank=4)", {}, regard.UnsupportedError, r"model\.layers\.0\.self_attn: linformer .*causal"),
        ("t5", "linear", {}, regard.UnsupportedError, "a bias on the logits, which is how T5 knows"),
        ("bart", "local(window=3)", {"pattern": "*.encoder_attn"}, regard.UnsupportedError, "cross-attention"),
        ("llama", "softmax", {"causal": False}, regard.ConfigError, "the model is causal here"),
        ("bert", "softmax", {"causal": True}, regard.ConfigError, "the model is not causal here"),
        ("vit", "softmax", {"causal": True}, regard.ConfigError, "the model is not causal here"),
        ("gpt2", "lsh(num_buckets=4)", {}, regard.UnsupportedError, "keys of a projection of their own"),
        ("llama", "forgetting", {}, regard.UnsupportedError, "also needs log_gate"),
        ("gpt2", "softmax", {"pattern": "*.mlp"}, regard.ConfigError, "no attention that can be replaced"),
        ("gpt2", "softmacs", {}, regard.ConfigError, "softmacs"),
    ],
)
def test_refusals_change_nothing(kind, spec, options, error, message):
    model = build(kind)
    before = model.config._attn_implementation
    with pytest.raises(error, match=message):
        replace_attention(model, spec, **options)
    assert model.config._attn_implementation == before
    assert not any(hasattr(part, "regard") for part in model.modules())


def test_another_type_is_refused():
    shape = {"hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24}
    model = transformers.PhiForCausalLM(transformers.PhiConfig(vocab_size=VOCABULARY, **shape))
    with pytest.raises(regard.UnsupportedError, match=r"^PhiForCausalLM \(phi\) .*these are: bart, bert, .*, vit$"):
        replace_attention(model, "softmax")
    network = transformers.MPNetModel(transformers.MPNetConfig(vocab_size=VOCABULARY, **shape))  # without `scaling`
    with pytest.raises(regard.UnsupportedError, match=r"^0: MPNetModel \(mpnet\) is a Hugging Face model of a type"):
        replace_attention(nn.Sequential(network), "softmax")
    del shape["intermediate_size"]
    seen = transformers.ViTMSNConfig(image_size=SIDE, patch_size=4, intermediate_size=24, **shape)
    with pytest.raises(regard.UnsupportedError, match=r"ViTMSNModel \(vit_msn\)"):
        replace_attention(transformers.ViTMSNModel(seen), "softmax")


def test_a_window_of_the_models_own_is_refused_and_named():
    with pytest.raises(regard.UnsupportedError, match=r"sliding_window=5.*local\(window=4\) is then what it was"):
        replace_attention(build("mistral", sliding_window=5), "softmax")


@torch.no_grad()
def test_the_window_of_mistral_is_a_local_one():
    model = build("mistral")
    replace_attention(model, "local(window=4)")
    close(model(tokens()).logits, build("mistral", sliding_window=5)(tokens()).logits)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "spec"),
    [("llama", "cosine"), ("bert", "linear"), ("t5", "softmax"), ("vit", "linear")]
    + [(kind, "cosine") for kind in ("gpt2", "mistral", "qwen2", "roberta", "bart", "vit")],
)
def test_saved_with_attention_it_is_loaded_with_it_or_not_at_all(kind, spec, tmp_path):
    model = build(kind)
    replace_attention(model, spec)
    wanted = call(model, tokens()).logits
    assert spec == "softmax" or (wanted - call(build(kind), tokens()).logits).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "saved")
    again = load_replaced(type(model), tmp_path / "saved")
    assert call(again, tokens()).logits.equal(wanted)
    assert again.state_dict().keys() == model.state_dict().keys()
    again.save_pretrained(tmp_path / "twice")
    assert call(load_replaced(type(model), tmp_path / "twice"), tokens()).logits.equal(wanted)
    bare = type(model).from_pretrained(tmp_path / "saved")
    with pytest.raises(regard.UnsupportedError, match="saved with attention of regard in it, and loaded without"):
        call(bare, tokens())


@torch.no_grad()
@pytest.mark.parametrize("original", [True, False])
def test_weights_of_mechanisms_under_both_names_of_a_module(original, tmp_path):
    """transformers 5 writes its ViT's tensors under the names of before, or under those of its modules."""
    model = build("vit")
    replace_attention(model, "cosine")
    gains = [part.regard.mechanism.log_gain for part in model.modules() if hasattr(part, "regard")]
    for at, gain in enumerate(gains):
        gain.copy_(torch.randn(gain.shape, generator=torch.Generator().manual_seed(at)))
    model.save_pretrained(tmp_path, save_original_format=original)
    again = load_replaced(transformers.AutoModelForImageClassification, tmp_path)
    assert again(images()).logits.equal(model(images()).logits)


def test_transformers_alone_refuses_what_was_saved(tmp_path):
    model = build("llama")
    replace_attention(model, "linear", pattern="*.0.*")
    model.save_pretrained(tmp_path / "saved")
    script = f"import transformers; transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'saved')!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode
    assert "regard" in done.stderr.splitlines()[-1]
    again = load_replaced(transformers.AutoModelForCausalLM, tmp_path / "saved")
    with torch.no_grad():
        close(again(tokens()).logits, model(tokens()).logits)


def test_what_cannot_be_loaded_with_attention(tmp_path):
    model = build("llama")
    model.save_pretrained(tmp_path / "plain")
    with pytest.raises(regard.ConfigError, match="not written after replace_attention"):
        load_replaced(type(model), tmp_path / "plain")
    replace_attention(model, "linear")
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(regard.CheckpointError, match=r"load it with regard\.integrations"):
        pretrained.load(tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    whole = path.read_text()
    path.write_text(whole.replace('"linear"', '"my_module:Mine"'))
    with pytest.raises(regard.ConfigError, match="if you trust it"):
        load_replaced(type(model), tmp_path / "saved")
    path.write_text(whole.replace("model.layers.1.self_attn", "model.layers.7.self_attn"))
    with pytest.raises(regard.CheckpointError, match=r"names model\.layers\.7\.self_attn, which the model has not"):
        load_replaced(type(model), tmp_path / "saved")
    path.write_text(whole.replace('"dropout"', '"dropped"'))
    with pytest.raises(regard.CheckpointError, match="regard_attention is damaged"):
        load_replaced(type(model), tmp_path / "saved")


def test_a_place_that_nobody_names_is_no_softmax(tmp_path):
    model = build("llama")
    replace_attention(model, "shaw(max_distance=4)")
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["regard_attention"]["model.layers.0.self_attn"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(regard.CheckpointError, match="of a mechanism that regard_attention does not name"):
        load_replaced(type(model), tmp_path)


def test_what_is_missing_is_named(tmp_path):
    model = build("llama")
    replace_attention(model, "shaw(max_distance=4)")
    model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-40])
    with pytest.raises(regard.CheckpointError, match=r"model\.safetensors"):
        load_replaced(type(model), tmp_path)
    tensors = safetensors.torch.load(whole)
    name = next(name for name in tensors if ".mechanism." in name)
    weights.write_bytes(safetensors.torch.save({**tensors, name: tensors[name].long()}, metadata={"format": "pt"}))
    with pytest.raises(regard.CheckpointError, match=f"has {name} as I64"):
        load_replaced(type(model), tmp_path)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    weights.write_bytes(safetensors.torch.save(tensors, metadata={"format": "pt"}))
    with pytest.raises(regard.CheckpointError, match=r"has no model\.layers\.0\.mlp\.up_proj\.weight"):
        load_replaced(type(model), tmp_path)


def test_the_models_own_dropout_is_kept_or_named():
    model = build("llama", attention_dropout=0.5)
    replace_attention(model, "softmax")
    assert model.model.layers[0].self_attn.regard.mechanism.heads.dropout == 0.5
    lossy = next(name for name in regard.names() if not regard.describe(name).supports.dropout
                 and regard.describe(name).supports.causal and not regard.describe(name).shares_query_key)  # fmt: skip
    with pytest.raises(regard.UnsupportedError, match=r"dropout=0.0 does without"):
        replace_attention(model, lossy)


@torch.no_grad()
def test_what_would_change_the_result_is_refused_in_the_call():
    model = build("llama")
    replace_attention(model, "softmax")
    full = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    with pytest.raises(regard.UnsupportedError, match="lets a query see a later key"):
        model(tokens(), attention_mask=full)
    with pytest.raises(regard.UnsupportedError, match="is_causal=False"):
        model(tokens(), is_causal=False)
