import pytest

from regard.errors import ConfigError
from regard.specs import camel, check_options, is_path, parse, split


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("softmax", "softmax", {}),
        (" local(window=128) ", "local", {"window": 128}),
        ("linear(feature_map=relu, normalise=False)", "linear", {"feature_map": "relu", "normalise": False}),
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


def test_parse_runs_nothing():
    with pytest.raises(ConfigError, match=r"literal|number"):
        parse("a(x=[].append(1))")


def test_split_respects_brackets_and_quotes():
    assert split("a(x='+'):2 + b(y=(1+2)):3", "+") == ["a(x='+'):2", "b(y=(1+2)):3"]


def test_camel_and_paths():
    assert camel("softmax_plus_one") == "SoftmaxPlusOne"
    assert is_path("my.module:Thing")
    assert not is_path("local:4")


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
