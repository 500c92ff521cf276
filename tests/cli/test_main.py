"""The command itself: help, versions, exit codes, streams, and how fast it answers."""

import errno
import json
import resource
import shlex
import shutil
import subprocess
import sys

import pytest

import regard as package
import regard_lab
from regard.cli import main as command
from regard.core import errors
from regard_lab.cli._output import console, emit, table

VERBS = {
    "accuracy",
    "bench",
    "cache",
    "calibrate",
    "capacity",
    "check",
    "checkpoint",
    "compare",
    "completion",
    "doctor",
    "embed",
    "evaluate",
    "explore",
    "generate",
    "info",
    "knn",
    "list",
    "report",
    "retrieval",
    "rounding",
    "tokens",
    "train",
}
PROGRAM = [sys.executable, "-m", "regard.cli.main"]


def test_every_verb_is_a_file_with_a_description():
    known = command.verbs()
    assert set(known) == VERBS
    assert all(line.endswith(".") and len(line) < 120 for line in known.values())


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_help_lists_every_verb(regard, words):
    answer = regard(*words)
    assert answer.code == 0
    assert all(f"  {verb} " in answer.out for verb in VERBS)


def test_no_words_are_a_usage_error(regard):
    answer = regard()
    assert answer.code == 2
    assert "regard compare" in answer.out


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb_describes_each_of_its_options(regard, verb):
    answer = regard(verb, "--help")
    assert answer.code == 0
    assert command.verbs()[verb].split(";")[0].rstrip(".") in " ".join(answer.out.split())
    assert "--json" in answer.out or verb in ("report", "completion")


def test_version(regard):
    assert regard("--version").out == f"{package.__version__}\n"


def test_unknown_verb_names_the_nearest(regard):
    answer = regard("lst")
    assert answer.code == 2
    assert answer.err == "regard: unknown command 'lst': did you mean 'list'?\n"
    assert answer.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("who"), 2),
        (errors.UnsupportedError("who"), 2),
        (errors.DataError("who"), 3),
        (errors.InputError("who"), 3),
        (errors.CheckpointError("who"), 4),
        (errors.UnsafeFileError("who"), 4),
        (errors.NumericsError("who"), 5),
        (errors.ResourceError("who"), 6),
        (errors.LimitError("who"), 6),
        (OSError(errno.ENOSPC, "who", "a/file"), 6),
        (NotADirectoryError(errno.ENOTDIR, "who", "a/file"), 6),
        (MemoryError("who"), 6),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 6),
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (SystemExit(None), 0),
    ],
)
def test_exit_codes(regard, monkeypatch, error, code):
    from regard.cli import doctor

    def fail(options):
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    answer = regard("doctor")
    assert answer.code == code
    assert ("who" in answer.err or "memory" in answer.err) == (2 <= code <= 7)
    assert answer.out == ""


def test_a_bug_shows_its_traceback_and_exits_1(capsys, monkeypatch):
    from regard.cli import doctor

    monkeypatch.setattr(doctor, "run", lambda options: {}["gone"])
    assert command.main(["doctor"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "KeyError: 'gone'" in shown
    assert "this is a bug" in shown


def test_nobody_reads_on(environment):
    """`regard list | true`: rich would exit with 1."""
    for words in (["list"], ["list", "--json"]):
        process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)


def test_a_closed_stdout(environment):
    done = subprocess.run(["sh", "-c", f"{shlex.join(PROGRAM)} list >&-"], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_behind_stdout(environment):
    for words in (["list"], ["--help"], ["list", "--json"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([*PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, env=environment, text=True)
        assert done.returncode == 6
        assert done.stderr.startswith("regard")
        assert "No space left on device: standard output" in done.stderr
        assert "Traceback" not in done.stderr


def test_machine_output_is_alone_on_stdout(environment):
    done = subprocess.run([*PROGRAM, "list", "--json"], capture_output=True, env=environment, check=True)
    kinds = {"mechanisms", "positions", "memories", "caches", "blocks", "depths", "presets"}
    assert set(json.loads(done.stdout)) == kinds
    done = subprocess.run([*PROGRAM, "list", "--json", "--supports", "flight"], capture_output=True, env=environment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"regard list: unknown capability 'flight'" in done.stderr


def test_help_and_lists_do_not_import_torch(environment):
    code = (
        "import sys, regard.cli.main as m\n"
        "for words in [['--help'], *([v, '--help'] for v in m.verbs()), ['list'], ['list', '--json'], ['--version'],\n"
        "              ['list', '--supports', 'causal'], ['report', 'nowhere'], ['train', '--config', 'nowhere'],\n"
        "              *([v, 'softmx'] for v in ('info', 'check', 'compare', 'bench')),\n"
        "              ['train', '--model.attention', 'softmx'], ['completion', 'bash']]:\n"
        "    m.main(words)\n"
        "    assert 'torch' not in sys.modules, words\n"
        "assert 'tyro' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, text=True, check=True)


def _least(call, limit, rounds=8):
    """The smallest result of several calls. Stops as soon as one is small enough."""
    least = float("inf")
    for _ in range(rounds):
        least = min(least, call())
        if least < limit:
            break
    return least


def _seconds_of_children():
    """Processor time, which other programs of the machine do not lengthen much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("words", [["--help"], ["list"], ["train", "--help"], ["compare", "--help"]])
def test_answers_in_half_a_second(environment, words):
    """Where importing tyro and rich takes a tenth of a second; a slower processor may take as many times longer."""

    def call(program):
        before = _seconds_of_children()
        subprocess.run(program, stdout=subprocess.DEVNULL, env=environment, check=True)
        return _seconds_of_children() - before

    limit = max(0.5, 5 * min(call([sys.executable, "-c", "import tyro, rich.console"]) for _ in range(3)))
    assert _least(lambda: call([*PROGRAM, *words]), limit) < limit


def test_importing_costs_little_beside_torch(environment):
    code = "import torch, time; t = time.process_time(); import regard; print(time.process_time() - t)"

    def call():
        return float(subprocess.check_output([sys.executable, "-c", code], env=environment))

    assert _least(call, 0.15) < 0.15


def test_nothing_that_is_shown_steers_the_terminal(capsys):
    screen, text = console(), "\x1b[2J\x9b"
    screen.print(text, markup=False)
    screen.print(table(text, rows=[(text,)], title=text))
    emit({text: text})
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x9b"} & set(shown)
    assert shown.count(r"\u001b[2J\u009b") == 6
    assert str(errors.DataError(text + "\r\r\n\t")) == "\\u001b[2J\\u009b\\u000d\r\n\t"


def test_an_error_is_a_line_in_one_write(monkeypatch):
    """So that those of several processes do not run together."""
    written = []

    class Pipe:
        def write(self, text: str) -> None:
            written.append(text)

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stderr", Pipe())
    assert command.main(["no such verb"]) == 2
    (line,) = written
    assert line.startswith("regard: unknown command 'no such verb'")
    assert line.endswith("\n")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("regard comp", {"compare", "completion"}),
        ("regard info softm", {"softmax", "softmax_plus_one"}),
        ("regard compare softmax --qui", {"--quick"}),
        ("regard train --model.attention local_", {"local_linear", "local_atrous"}),
        ("regard checkpoint v", {"verify"}),
        ("regard train --out ", set()),  # files
    ],
)
def test_completion_in_bash(regard, tmp_path, line, found):
    (tmp_path / "script").write_text(regard("completion", "bash").out, encoding="utf-8")
    words = [f'"{word}"' for word in line.split(" ")]
    program = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _regard; echo ${{COMPREPLY[*]}}"
    done = subprocess.run(["bash", "-c", f". ./script; {program}"], cwd=tmp_path, capture_output=True, text=True)
    assert (set(done.stdout.split()), done.stderr) == (found, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_every_shell_is_sound(regard, tmp_path, shell):
    script = regard("completion", shell).out
    assert all(text in script for text in ("compare", "softmax_plus_one", "model.attention"))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script, encoding="utf-8")
    assert subprocess.run([shell, "-n", "script"], cwd=tmp_path, capture_output=True).stderr == b""


WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({regard_lab.NEEDED}))\n"
"""what `pip install regard` does not bring"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["list", "l*"], 0, "linformer"),
        (["info", "cosine"], 0, "gain"),
        (["doctor"], 0, "lab "),
        (["--help"], 0, "compare"),
        (["compare"], 6, "pip install 'regard[lab]'"),
        (["info", "cosine", "--jsn"], 2, "did you mean '--json'"),
    ],
)
def test_the_library_alone_has_its_verbs_and_names_what_others_need(environment, words, code, said):
    program = f"{WITHOUT}from regard.cli.main import main; sys.exit(main({words!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, text=True)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done


def test_the_library_alone_computes_and_names_what_its_functions_of_the_laboratory_need(environment):
    program = (
        f"{WITHOUT}import torch, regard\n"
        "q = torch.ones(1, 1, 3, 4)\n"
        "regard.attend(q, q, q, 'local(window=1)', causal=True)\n"
        "regard.AttentionLayer(8, 'linear', heads=2, causal=True)(torch.ones(1, 3, 8))\n"
        "try: regard.build('cosine', regard.Heads(count=1, key_dim=4), gain=0)\n"
        "except regard.ConfigError as error: assert 'greater than 0' in str(error)\n"
        "try: regard.compare\n"
        "except regard.ResourceError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, text=True)
    assert done.stdout.endswith("rich, tokenizers, tyro: pip install 'regard[lab]'\n"), done
