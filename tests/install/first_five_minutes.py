"""What somebody does in the first five minutes, from a wheel in an environment of its own; prints what each step took.

Run as `python -m tests.install.first_five_minutes`. The environment takes its dependencies, transformers among them,
from the one that runs this; nothing is downloaded.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.install import environment

TEXT = "The quick brown fox jumps over the lazy dog, and {} other dogs look on. "
OWN_NETWORK = """
import torch
import transformers
from regard.integrations import pretrained
from regard.integrations.torch import replace_attention

torch.manual_seed(0)
shape = {"vocab_size": 96, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
mine = transformers.GPT2LMHeadModel(config).eval()
mine.save_pretrained("my_network")
tokens = torch.randint(96, (2, 40))
with torch.no_grad():
    before = mine(tokens).logits
    here = pretrained.load("my_network")
    assert torch.allclose(here.model(tokens).logits, before, atol=1e-4)
    replace_attention(mine, "local(window=64)", dropout=0.0)
    assert torch.allclose(mine(tokens).logits, before, atol=1e-4)
    replace_attention(mine, "local(window=4)", dropout=0.0)
    assert not torch.allclose(mine(tokens).logits, before, atol=1e-4)
"""
EXPORT = """
import torch
import transformers
from regard.integrations import pretrained

loaded = pretrained.load("my_network")
pretrained.export(loaded.model, "exported")
back = transformers.AutoModelForCausalLM.from_pretrained("exported").eval()
tokens = torch.arange(40)[None]
with torch.no_grad():
    assert torch.allclose(back(tokens).logits, loaded.model(tokens).logits, atol=1e-4)
"""
COMPARE = "regard compare softmax local(window=16) --quick --threads 1"
TRAIN = "regard train --task.corpus my.txt --task.length 64 --model.dim 32 --model.layers 1 --model.heads 2 --steps 30"


def main() -> None:
    """Take the steps. A step that fails ends it; time is told, not judged: machines differ."""
    home = Path(tempfile.mkdtemp(prefix="first-five-minutes-"))
    taken: list[float] = []

    def step(title: str, act: Callable[[], object]) -> None:
        started = time.perf_counter()
        act()
        taken.append(time.perf_counter() - started)
        print(f"{title:58} {taken[-1]:6.1f} s", flush=True)

    try:
        take(step, home)
    finally:
        shutil.rmtree(home)
    print(f"{'together':58} {sum(taken):6.1f} s")


def take(step: Callable[[str, Callable[[], object]], None], home: Path) -> None:
    """Every step, in the order in which a newcomer takes them."""
    wheel: list[Path] = []
    there: list[environment.Installed] = []
    (home / "wheel").mkdir()
    step("build the wheel", lambda: wheel.append(environment.build(home / "wheel")))
    step("install it (dependencies are there)", lambda: there.append(environment.install(wheel[0], home)))
    (installed,) = there

    def written(*words: str, files: tuple[str, ...]) -> None:
        installed.run(*words)
        assert all((installed.folder / file).stat().st_size > 0 for file in files), files

    def compare(out: str, *words: str) -> Callable[[], None]:
        return lambda: written(*COMPARE.split(), "--out", out, *words, files=(f"{out}/report.html",))

    (installed.folder / "my.txt").write_text("".join(TEXT.format(count) for count in range(2000)), encoding="utf-8")
    step("regard list", lambda: installed.run("regard", "list"))
    step("regard compare --quick, on the bundled text", compare("comparison"))
    step("regard compare --quick --text.corpus my.txt", compare("mine", "--text.corpus", "my.txt"))
    run = "runs/mine"
    step("regard train --task.corpus my.txt", lambda: installed.run(*TRAIN.split(), "--threads", "1", "--out", run))
    step("regard generate", lambda: installed.run("regard", "generate", run, "The quick", "--max-new-tokens", "20"))
    explore = ("regard", "explore", run, "The quick brown fox", "--out", "maps.html")
    step("regard explore", lambda: written(*explore, files=("maps.html",)))
    step("a Hugging Face network: loaded, attention replaced", lambda: installed.run("python", "-c", OWN_NETWORK))
    step("the same, exported and read by transformers", lambda: installed.run("python", "-c", EXPORT))
    weights = ("regard", "checkpoint", "export", run, "--out", "weights.safetensors")
    step("regard checkpoint export", lambda: written(*weights, files=("weights.safetensors",)))


if __name__ == "__main__":
    main()
