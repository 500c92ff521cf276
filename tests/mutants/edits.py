"""One-line changes of the library's own engines, dispatch, models and memories, each with what must notice it.

Mechanisms are broken by subclasses; what lies below or above them is broken in place: one line of a function is another
one while its check runs.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch

from regard import HeadMix, catalog
from regard.testing.inputs import Subject
from regard.testing.registry import REGISTERED
from tests.layer.test_head_mix import MixSubject
from tests.mutants.verdict import found

SAYING = Path(__file__).parents[1], Path(torch.testing.__file__).parent
"""where a test says what it found"""
FIXTURE = type(pytest.fixture(lambda: None))


@dataclass(frozen=True)
class Edit:
    """A change of a function, and what fails by it."""

    name: str
    """what it does wrong"""
    place: str
    """`module:function` or `module:Class.method`"""
    before: str
    """text that is in the function once"""
    after: str
    subject: str
    """a specification, two for a mix over heads (`linear + softmax`), or the module of a test"""
    caught_by: str
    """a check of the suite, or a test function or `Class.method` of that module"""
    arguments: tuple[Any, ...] = ()
    """of the test"""

    def function(self) -> FunctionType:
        """The function, also if it is the body of an operator."""
        module, _, path = self.place.partition(":")
        assert not module.endswith("__init__"), f"{self.place}: the package again would free the operators in use"
        target: Any = reduce(getattr, path.split("."), importlib.import_module(module))
        if isinstance(target, property):
            target = target.fget
        target = getattr(target, "_init_fn", target)
        return inspect.unwrap(target)

    @contextmanager
    def made(self) -> Iterator[None]:
        """With the change made."""
        function = self.function()
        exact = function.__code__
        function.__code__ = self._changed(function)
        try:
            yield
        finally:
            function.__code__ = exact

    def _changed(self, function: FunctionType) -> CodeType:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.before) == 1, f"{self.name}: {self.place} has {source.count(self.before)} such texts"
        tree = ast.parse(source.replace(self.before, self.after))
        (definition,) = tree.body
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        outer = compile(tree, f"<{self.name}>", "exec")
        (code,) = (each for each in outer.co_consts if isinstance(each, CodeType) and each.co_name == definition.name)
        return code

    def objection(self) -> str:
        """Why the change says nothing about what should catch it; empty: it is caught, and without it all is well."""
        run = self._run()
        try:
            run()
        except (Exception, pytest.fail.Exception) as error:
            return f"fails without the change: {error}"
        with self.made():
            try:
                run()
            except (Exception, pytest.fail.Exception) as error:
                return "" if found(error, *SAYING) else f"crashes: {type(error).__name__}: {error}"
        return f"passes {self.caught_by}"

    def _mechanism(self) -> Subject:
        if " + " in self.subject:
            first, second = self.subject.split(" + ")
            return MixSubject(HeadMix, parts=(first, second))
        cls, options = catalog.resolve(self.subject)
        return Subject(cls, options)

    def _run(self) -> Callable[[], None]:
        if self.caught_by in REGISTERED:
            check, subject = REGISTERED[self.caught_by], self._mechanism()
            assert not check.excuse(subject), check.excuse(subject)
            return lambda: check.run(subject)
        owner, _, name = self.caught_by.rpartition(".")
        module = importlib.import_module(self.subject)
        test = getattr(getattr(module, owner)() if owner else module, name)

        def run() -> None:
            with pytest.MonkeyPatch.context() as monkeypatch:
                values, arguments = [], iter(self.arguments)
                for name in inspect.signature(test).parameters:
                    of_module = getattr(module, name, None)
                    if name == "monkeypatch":
                        values.append(monkeypatch)
                    elif isinstance(of_module, FIXTURE):
                        values.append(inspect.unwrap(of_module)(monkeypatch))  # pyright: ignore[reportArgumentType]
                    else:
                        values.append(next(arguments))
                test(*values)

        return run
