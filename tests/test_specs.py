import pytest

from regard.core.errors import ConfigError
from regard.specs import camel, check_options, files, is_path, parse, split


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("softmax", "softmax", {}),
        (" local(window=128) ", "local", {"window": 128}),
        ("linear(feature_map=relu, normalise=False)", "linear", {"feature_map": "relu", "normalise": False}),
        ("rfa(gate=true, orthogonal=false)", "rfa", {"gate": True, "orthogonal": False}),
        ("my.module:Mine", "my.module:Mine", {}),
        (" my.module:Mine(window=3, kind='a:b') ", "my.module:Mine", {"window": 3, "kind": "a:b"}),
        ("my.module:Mine ()", "my.module:Mine", {}),
        ("a(x=-1.5, y=None, z=(1, 2), w='p + q')", "a", {"x": -1.5, "y": None, "z": (1, 2), "w": "p + q"}),
    ],
)
def test_parse_reads_names_and_literal_options(text, name, options):
    got = parse(text)
    assert (got.name, dict(got.options)) == (name, options)
    assert parse(str(got)) == got


@pytest.mark.parametrize(
    "text",
    [
        "",
        "local(",
        "local(128)",
        "local(**{})",
        "a.b()",
        "__import__('os').system('x')",
        "a(x=f())",
        "my.module:Mine(3)",
        "my.module:Mine(x=f())",
        "my.module:Mine(x=1) + other",
        "my.module:mine",
        "a(x=1, x=2)",
        "1",
    ],
)
def test_parse_refuses_everything_else(text):
    with pytest.raises(ConfigError):
        parse(text)


def test_a_value_that_needs_quotes_is_told_so():
    with pytest.raises(ConfigError, match="quotes around a value that is neither a number nor a name, such as '2d'"):
        parse("image_transformer(local=2d)")
    assert parse("image_transformer(local='2d')").options == {"local": "2d"}


def test_split_respects_brackets_and_quotes():
    assert split("a(x='+'):2 + b(y=(1+2)):3", "+") == ["a(x='+'):2", "b(y=(1+2)):3"]


def test_camel_and_paths():
    assert camel("softmax_plus_one") == "SoftmaxPlusOne"
    assert is_path("my.module:Thing")
    assert is_path("my.module:Thing(window=3)")
    assert not is_path("local:4")


def test_a_path_that_cannot_be_read_is_told_how_it_is_written():
    with pytest.raises(ConfigError, match=r"write module:Class or module:Class\(option=value, ...\), with a capital"):
        parse("my.module:mine(window=3)")


def test_files_are_those_of_the_folders():
    """By the importer's own count: every module below the package, but for private ones."""
    import importlib
    import pkgutil

    for name in ("regard.attention", "regard.position"):
        package = importlib.import_module(name)
        walked = [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.") if not module.ispkg]
        public = {path.rpartition(".")[2]: path for path in walked if "._" not in path}
        assert dict(files(name)) == public


class Thing:
    def __init__(self, heads: int, *, window: int = 3, kind: str | None = None) -> None:
        self.heads, self.window, self.kind = heads, window, kind


def test_options_are_checked_by_name_and_type():
    check_options("mechanism", "thing", Thing, {"window": 4, "kind": "x"})
    with pytest.raises(ConfigError, match="did you mean 'window'"):
        check_options("mechanism", "thing", Thing, {"windw": 4})
    with pytest.raises(ConfigError, match="valid integer"):
        check_options("mechanism", "thing", Thing, {"window": "four"})
    with pytest.raises(ConfigError, match="valid integer"):
        check_options("mechanism", "thing", Thing, {"window": 2.5})
