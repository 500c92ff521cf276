"""Print a script that completes verbs, options and names of mechanisms, for bash, zsh or fish."""

import contextlib
import importlib
import io
import re
from dataclasses import dataclass
from typing import Literal

import tyro

from regard.cli._kinds import KINDS, names

_BASH = """\
_regard() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} names='{names}' options='' found=''
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    if ((COMP_CWORD == 1)); then found='{verbs}'
    elif [[ $cur == -* ]]; then found=$options
    elif [[ $prev == --*attention ]]; then found=$names
    elif [[ $prev == --* && $prev != --@(json|quick|trust|verbose) ]]; then found=''; fi
    COMPREPLY=($(compgen -W "$found" -- "$cur"))
}}
complete -o default -F _regard regard
"""
_FISH = """\
complete -c regard -n __fish_use_subcommand -f -a '{verbs}'
complete -c regard -n 'string match -q -- "--*attention" (commandline -opc)[-1]' -f -a '{names}'
{cases}
"""


@dataclass(frozen=True)
class Options:
    """The shell.

    For bash: regard completion bash > ~/.local/share/bash-completion/completions/regard
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """bash and zsh: eval "$(regard completion bash)" in ~/.bashrc or ~/.zshrc, or its output in a file that is sourced;
    fish: its output in ~/.config/fish/completions/regard.fish"""


def run(options: Options) -> int:
    """Print the script."""
    from regard.cli.main import verbs

    known = " ".join(dict.fromkeys(name for kind in KINDS for name in names(kind)))
    case, script = (_fish_case, _FISH) if options.shell == "fish" else (_case, _BASH)
    cases = "\n".join(case(verb, *_words(verb, known)) for verb in verbs())
    print("autoload -Uz bashcompinit && bashcompinit" if options.shell == "zsh" else "")
    print(script.format(verbs=" ".join(verbs()), names=known, cases=cases))
    return 0


def _case(verb: str, flags: list[str], first: str) -> str:
    return f"    {verb}) options='{' '.join(flags)}' found={repr(first) if len(first.split()) < 9 else '$names'} ;;"


def _fish_case(verb: str, flags: list[str], first: str) -> str:
    seen = f"complete -c regard -n '__fish_seen_subcommand_from {verb}'"
    return "\n".join([f"{seen} -a '{first}'", *(f"{seen} -l {flag.removeprefix('--')}" for flag in flags)])


def _words(verb: str, known: str) -> tuple[list[str], str]:
    """The options of a verb, as its help names them, and what may stand without one."""
    from regard.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as out:
        main([verb, "--help"])
    choices = re.search(r"\[-h\] \{([\w,]+)\}", out.getvalue())
    options = importlib.import_module(f"regard.cli.{verb}").Options
    fields = getattr(options, "__dataclass_fields__", {})
    first = choices[1].replace(",", " ") if choices else known if {"specs", "names", "name"} & fields.keys() else ""
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", out.getvalue()))), first
