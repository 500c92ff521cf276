"""Words, specifications and configurations that nobody should give, and some that one may, by seeds."""

import random
import re
from collections.abc import Sequence


def _words(text: str, *others: str) -> tuple[str, ...]:
    """Those of a text, and others that are none."""
    return (*text.split(), *others)


NUMBERS = _words(
    "0 -1 1 2 3 7 64 1e9 1e400 nan inf -inf 0.5 -0.0 1_000 0x10 007 1,5 ½ १ --1 +5 1e-300 True",
    *("9" * 25, str(1 << 31), str(1 << 40), str(1 << 63)),
)
PLACES = _words(
    ". in in/words.txt in/absent /dev/null /dev/null/below /proc/below in/run in/store in/words.txt/below ~ ~nobody "
    "in//run/ http://a.b/c package:absent in/pictures.npz",
    *("", "a" * 300),
)
ODD = _words(
    "- -- --- = é 名 🙂 %s {} $HOME `x` ' \" \\ None null [] () softmax -h on",
    *("", " ", "\t", "\n", "a b", "\u202e", "\ud800"),
)
SPECS = _words(
    "softmax local(window=4) linear performer(num_features=4) lsh local(window=-1) local(window=99999999999999) lcoal "
    "softmax() softmax:9 a:B os:Path x.y:Z(a=1)",
    *("linear / softmax", "softmax:1 + linear:1"),
)
LITERALS = _words(
    "1 2 4 0 -3 0.5 1e9 1e400 True None '' 'x' relu [1] {} window(3) b'x' 1j () exact -1e-9 ...",
    *("(1, 2)", "'window(3) & causal'", "9" * 30, str(1 << 40)),
)
PARTS = _words(
    "( ) = , : + / ' \" [ ] { } * ** lambda __import__('os') 0 window softmax None ... 1 - é # ; if x:X (a=1) @ f''",
    *(" ", "\n", "\0"),
)
TOML_VALUES = _words(
    '0 -1 1 3 16 inf nan true "" "x" [] {} 1.5 ["softmax"] 2026-01-01 "local(window=" "none"',
    *("9" * 30, str(1 << 40), "[1, [2]]", '["local(window=3)", "linear"]', "{a = 1}"),
)
HEADINGS = _words("[model] [task] [training] [other] [[training.x]] [a.b] x")


def options_of(help_text: str) -> list[str]:
    """The options that a help names."""
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", help_text)))


def value(draw: random.Random) -> str:
    """Of an option."""
    return draw.choice(draw.choice((NUMBERS, NUMBERS, PLACES, ODD, SPECS)))


def words(draw: random.Random, base: Sequence[str], options: Sequence[str], others: Sequence[str]) -> list[str]:
    """A command: a good one, changed.

    Args:
        base: the good one, whose first word is the verb.
        options: of this verb. others: of all verbs.
    """
    given = list(base)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 5))):
        what, at = draw.random(), draw.randint(1, len(given))
        option = draw.choice(options) if options else "--json"
        if what < 0.45:
            given += [f"{option}={value(draw)}"] if draw.random() < 0.4 else [option, value(draw)]
        elif what < 0.55:
            given += [misspelt(draw, option), value(draw)]
        elif what < 0.62:
            given.insert(at, option)
        elif what < 0.70:
            given.insert(at, value(draw))
        elif what < 0.78 and len(given) > 1:
            del given[draw.randrange(1, len(given))]
        elif what < 0.84 and len(given) > 1:
            given[draw.randrange(1, len(given))] = value(draw)
        elif what < 0.90:
            given += [draw.choice(others), value(draw)]
        elif what < 0.94:
            given += given[1:]
        elif what < 0.97:
            draw.shuffle(given)
        else:
            given[0] = misspelt(draw, given[0])
    return [word.replace("\0", "") for word in given]


def misspelt(draw: random.Random, word: str) -> str:
    """With a letter changed, doubled or gone."""
    if not word:
        return "x"
    at = draw.randrange(len(word))
    return word[:at] + draw.choice(("", word[at] * 2, "x", "-", "_", "é", word[at].upper())) + word[at + 1 :]


def specification(draw: random.Random, names: Sequence[str], options: dict[str, Sequence[str]]) -> str:
    """One that may be good, then changed a few times."""
    parts = []
    for _ in range(draw.choice((1, 1, 1, 1, 2, 3))):
        name = draw.choice(names)
        known = options.get(name, ())
        chosen = draw.sample(list(known), min(len(known), draw.choice((0, 1, 1, 2, 3))))
        inside = ", ".join(f"{key}={draw.choice(LITERALS)}" for key in chosen)
        parts.append(f"{name}({inside})" if inside else name)
    text = draw.choice((" + ", " / ", ":1 + ", ",")).join(parts)
    for _ in range(draw.choice((0, 0, 0, 1, 2, 4))):
        at = draw.randint(0, len(text))
        if draw.random() < 0.5:
            text = text[:at] + draw.choice(PARTS) + text[at:]
        else:
            text = text[:at] + text[at + draw.randint(1, 3) :]
    return text


def configuration(draw: random.Random, text: str) -> str:
    """A file of TOML, changed by lines, values and bytes."""
    lines = text.splitlines()
    for _ in range(draw.choice((1, 1, 2, 3))):
        at, what = draw.randrange(len(lines)), draw.random()
        key = lines[at].partition("=")[0].strip()
        if what < 0.5 and "=" in lines[at]:
            lines[at] = f"{key} = {draw.choice(TOML_VALUES)}"
        elif what < 0.6:
            lines.insert(at, f"{misspelt(draw, key or 'steps')} = {draw.choice(TOML_VALUES)}")
        elif what < 0.7:
            del lines[at]
        elif what < 0.8:
            lines.insert(at, lines[draw.randrange(len(lines))])
        elif what < 0.9:
            lines.insert(at, draw.choice(HEADINGS))
        else:
            cut = draw.randint(0, len(lines[at]))
            lines[at] = lines[at][:cut] + draw.choice(PARTS) + lines[at][cut:]
        lines = lines or [""]
    return "\n".join(lines) + "\n"
