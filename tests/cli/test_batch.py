"""generate --batch: a prompt on every line, and an answer to each as a line of JSON."""

import json

import pytest

import regard as package

PROMPTS = ["12 is followed by", "7", "31 is", "a longer prompt that takes more than the others", "字"]


def answers(text: str) -> list[dict]:
    assert text.endswith("\n")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def test_each_line_is_continued_as_alone(regard, run, tmp_path):
    (tmp_path / "prompts.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(PROMPTS).encode() + b"\r\n")
    words = ["--max-new-tokens", "12", "--temperature", "0"]
    answer = regard("generate", "run", "--batch", "prompts.txt", *words)
    assert answer.code == 0, answer.err
    found = answers(answer.out)
    assert [each["prompt"] for each in found] == PROMPTS
    assert {each["ended"] for each in found} == {"length"}
    loaded = package.load("run")
    assert [each["text"] for each in found] == [
        loaded.generate(prompt, max_new_tokens=12, temperature=0) for prompt in PROMPTS
    ]
    same = regard("generate", "run", "--batch", "-", *words, stdin="\n".join(PROMPTS).encode())
    assert same.out == answer.out


@pytest.mark.parametrize(
    ("content", "words", "code", "message"),
    [
        (b"a\n\nb\n", [], 3, "prompts.txt, line 2 is empty: give a prompt on every line"),
        (b"", [], 3, "prompts.txt is empty: give a prompt on every line"),
        (b"a\nb\xe9\n", [], 3, "prompts.txt, line 2: no UTF-8: byte 0xe9 at byte 2"),
        (b"a\nb\0\n", [], 3, "prompts.txt, line 2: binary"),
        (None, [], 3, "cannot read prompts.txt: No such file or directory"),
        (b"a\n", ["a prompt"], 2, "--batch prompts.txt has the prompts; leave 'a prompt' out"),
        (b"a\n", ["--chat"], 2, "--batch prompts.txt has the prompts; leave --chat out"),
        (b"a\n", ["--beam", "2"], 2, "continues text: --beam has no use for it"),
        (b"a\n", ["--system", "x"], 2, "--system goes with --chat"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(regard, run, tmp_path, content, words, code, message):
    if content is not None:
        (tmp_path / "prompts.txt").write_bytes(content)
    answer = regard("generate", "run", *words, "--batch", "prompts.txt")
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_the_line_that_is_too_long(regard, tiny, text, tmp_path):
    words = [*tiny, "--task.corpus", text, "--task.cache", text.parent / "cache", "--steps", "1", "--out", "r"]
    assert regard("train", *words, "--model.position", "learned", "--model.max-length", "40").code == 0
    (tmp_path / "prompts.txt").write_text("a\n" + "b" * 30 + "\nc\n")
    answer = regard("generate", "r", "--batch", "prompts.txt", "--max-new-tokens", "12")
    assert (answer.code, answer.out) == (6, "")
    assert "prompts.txt, line 2: a prompt of 30 tokens" in answer.err


def test_the_other_tasks_on_text(regard, made, tmp_path):
    (tmp_path / "prompts.txt").write_text("number 1\nnumber 23\n")
    loaded = package.load(made["translation"])
    found = answers(regard("generate", made["translation"], "--batch", "prompts.txt", "--beam", "2").out)
    translated = loaded.translate(["number 1", "number 23"], beams=2)
    assert found == [
        {"prompt": prompt, "text": text} for prompt, text in zip(("number 1", "number 23"), translated, strict=True)
    ]
    found = answers(regard("generate", made["poems"], "--batch", "prompts.txt").out)
    assert found[1] == {"prompt": "number 23", "classes": package.load(made["poems"]).classify("number 23")}
    answer = regard("generate", made["masked"], "--batch", "prompts.txt")
    assert (answer.code, answer.out) == (3, "")
    assert "prompts.txt, line 1: the text has no [MASK]" in answer.err
    (tmp_path / "prompts.txt").write_text("1[MASK] is followed\n")
    (found,) = answers(regard("generate", made["masked"], "--batch", "prompts.txt").out)
    assert found["text"] == package.load(made["masked"]).fill("1[MASK] is followed")
