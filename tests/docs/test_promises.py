"""What the pages print exists: every flag of every command, every import and attribute, in English and in Chinese."""

import ast
import contextlib
import doctest
import importlib
import io
import re
from functools import cache
from pathlib import Path

import api
import glossary
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import regard
from regard.cli.main import main, verbs
from regard.core.info import Heads, Info, Input, Supports
from regard.integrations import pretrained
from regard.models import LanguageModel, presets

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "zh").glob("*.md")),
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "CONTRIBUTING.md",
]
IDS = [str(path.relative_to(ROOT)) for path in PAGES]


def commands(text: str) -> list[list[str]]:
    """The words of every `regard ...` in a page: in blocks, behind a prompt, and in lines of prose."""
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    lines += re.findall(r"`(regard [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = [line.partition(" #")[0].split() for line in lines]
    return [words for words in found if words[:1] == ["regard"] and len(words) > 1]


@cache
def flags(*words: str) -> set[str]:
    """What the help of a command lists."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main([*words, "--help"]) == 0
    return set(re.findall(r"--[a-z][\w.-]*", said.getvalue()))


def known(flag: str, words: list[str]) -> bool:
    """Whether the command has the flag; `--task` brings flags of its own, which its help lists."""
    verb = words[1]
    task = words[words.index("--task") + 1] if "--task" in words else None
    return flag in flags(verb) or (task is not None and flag in flags(verb, "--task", task))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_flag_exists(page):
    for words in commands(page.read_text(encoding="utf-8")):
        if words[1].isupper():  # a placeholder
            continue
        assert words[1] in verbs(), words
        for word in words[2:]:
            flag = word.strip("`,.;:)").partition("=")[0]
            if re.fullmatch(r"--[a-z][\w.-]*", flag):
                assert known(flag, words), (flag, words)


def test_a_flag_that_does_not_exist_would_be_seen():
    (words,) = commands("```bash\nregard compare softmax \\\n  --quickest  # now\n```")
    assert words == ["regard", "compare", "softmax", "--quickest"]
    assert not known("--quickest", words)
    assert known("--text.corpus", words)


def printed(text: str) -> list[str]:
    """The Python of a page: of blocks that are plain code, and of those that are typed and answered."""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    parser = doctest.DocTestParser()
    return ["".join(one.source for one in parser.get_examples(x)) if ">>>" in x else x for x in blocks]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_import_and_attribute_exists(page):
    text = page.read_text(encoding="utf-8")
    for code in printed(text):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("regard"):
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "regard":
                assert hasattr(regard, node.attr) or importlib.import_module(f"regard.{node.attr}")
    for name in re.findall(r"`regard\.((?:\w+\.)*\w+)(?:\([^`]*)?`", text):
        resolved(f"regard.{name}")


def resolved(dotted: str) -> object:
    """What a dotted name in prose stands for."""
    parts, value = dotted.split("."), regard
    for at, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:at]))
        value = getattr(value, part)
    return value


def test_a_name_that_does_not_exist_would_be_seen():
    assert resolved("regard.integrations.pretrained.load") is pretrained.load
    with pytest.raises(ImportError):
        resolved("regard.integrations.telepathy")


def only(name: str) -> str:
    """The one block of Python of a page."""
    (code,) = printed((ROOT / "docs" / name).read_text(encoding="utf-8"))
    return code


def test_the_code_on_gpus_runs(capsys):
    exec(compile(only("gpu.md"), "gpu.md", "exec"), {})
    assert capsys.readouterr().out.count(" ms on ") == 3


def test_the_code_on_fine_tuning_runs(tmp_path, monkeypatch):
    """In a folder with such a network, as it is printed; what is trained changes, what is exported is read again."""
    monkeypatch.chdir(tmp_path)
    model = LanguageModel(presets.build("gpt", dim=32, heads=2, layers=1, vocab_size=50))
    for folder in ("folder/of/a", "folder/of/the"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    pretrained.export(model, "folder/of/a/gpt2")
    words = Tokenizer(models.WordLevel({"[unk]": 0, "to": 1, "be": 2}, "[unk]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    llama = LanguageModel(presets.build("llama", dim=16, heads=2, layers=1, vocab_size=3))
    pretrained.export(llama, "folder/of/a/llama", tokenizer=pretrained.PretrainedTokenizer(words))
    Path("my.txt").write_text("to be or not to be\n" * 400)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command, page = printed((ROOT / "docs" / "fine_tune.md").read_text(encoding="utf-8"))
    exec(compile(command.replace("steps=200", "steps=2"), "fine_tune.md", "exec"), tuned := {})
    assert [line["step"] for line in tuned["run"].metrics if line["kind"] == "evaluate"] == [0, 2]
    batches = [torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))]
    names = {"batches": batches}
    exec(compile(page, "fine_tune.md", "exec"), names)
    trained = pretrained.load("folder/of/the/result").model
    assert not torch.equal(trained(batches[0]).logits, model.eval()(batches[0]).logits)
    assert torch.equal(names["again"].model(batches[0]).logits, names["windowed"].model(batches[0]).logits)


def test_the_code_on_datastores_runs(tmp_path, monkeypatch):
    """With a network of four words: what is found is better than the network alone, and what is deleted is gone."""
    monkeypatch.chdir(tmp_path)
    words = Tokenizer(models.WordLevel({"[unk]": 0, "to": 1, "be": 2, "or": 3, "not": 4}, "[unk]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    llama = LanguageModel(presets.build("llama", dim=16, heads=2, layers=1, vocab_size=5))
    pretrained.export(llama, "folder/of/a/llama", tokenizer=pretrained.PretrainedTokenizer(words))
    exec(compile(only("knn.md"), "knn.md", "exec"), names := {})
    assert names["best"].nats < float(names["looked"].model.mean())
    assert len(names["store"]) == 5
    assert len(names["Datastore"].open("both")) == 0


def test_the_chinese_quickstart_runs():
    names: dict[str, object] = {}
    for code in printed((ROOT / "docs" / "zh" / "quickstart.md").read_text(encoding="utf-8")):
        exec(compile(code, "quickstart.md", "exec"), names)
    assert names["hidden"].shape == (1, 100, 512)


@pytest.mark.parametrize("cls", [Info, Supports, Input, Heads], ids=lambda cls: cls.__name__)
def test_the_glossary_explains_every_fact(cls):
    said = glossary.meanings(cls)
    shared = {"low": "high"}
    for name in cls.__dataclass_fields__:
        assert said[shared.get(name, name) if name not in said else name].strip()
    page = "\n".join(glossary.section(cls, "x"))
    assert all(f"| `{name}` |" in page for name in said)
    assert set(said) - {name for name, _, _ in api.attributes(api.definition(cls))} <= set(cls.__dataclass_fields__)
