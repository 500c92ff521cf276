"""Print a script that completes verbs, options and names of mechanisms, for bash, zsh or fish."""

import contextlib
import importlib
import io
import re
from dataclasses import dataclass
from typing import Literal

from regard.cli._kinds import KINDS, names
from regard.cli._options import words

_BASH = """_regard() {{
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
complete -o default -F _regard regard"""
_CASE = "    {verb}) options='{options}' found=\"{found}\" ;;"
_FISH = """set -l names {names}
complete -c regard -n __fish_use_subcommand -f -a '{verbs}'
complete -c regard -n 'string match -q -- "*attention" (commandline -opc)[-1]' -f -a "$names"
{cases}"""
_FISH_CASE = "complete -c regard -n '__fish_seen_subcommand_from {verb}' -a \"{found} {options}\""
_SCRIPTS = {
    "bash": (_BASH, _CASE),
    "zsh": ("autoload -Uz bashcompinit && bashcompinit\n" + _BASH, _CASE),
    "fish": (_FISH, _FISH_CASE),
}


@dataclass(frozen=True)
class Options:
    """The shell."""

    shell: Literal["bash", "zsh", "fish"] = words()
    """bash and zsh: eval "$(regard completion bash)" in ~/.bashrc or ~/.zshrc; fish: regard completion fish >
    ~/.config/fish/completions/regard.fish"""


def run(options: Options) -> int:
    """Print the script."""
    from regard.cli.main import known, main, verbs

    script, case = _SCRIPTS[options.shell]
    cases: list[str] = []
    for verb in verbs():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main([verb, "--help"])
        takes = importlib.import_module(f"{known()[verb].package}.{verb}").Options.__dataclass_fields__
        words = re.search(r"\[-h\] \{([\w,]+)\}", out.getvalue())
        found = words[1].replace(",", " ") if words else "$names" if {"specs", "names", "name"} & takes.keys() else ""
        flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", out.getvalue())))
        cases.append(case.format(verb=verb, options=" ".join(flags), found=found))
    known = " ".join(dict.fromkeys(name for kind in KINDS for name in names(kind)))
    print(script.format(verbs=" ".join(verbs()), names=known, cases="\n".join(cases)))
    return 0
