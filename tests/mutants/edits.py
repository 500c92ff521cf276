"""One-line changes of the library's own engines and dispatch, each with the check that must notice it.

Mechanisms are broken by subclasses; what lies below or above them is broken in place: one line of a function is another
one while its check runs.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from types import CodeType, FunctionType
from typing import Any

from regard import HeadMix, catalog
from regard.testing.inputs import Subject
from regard.testing.registry import REGISTERED
from tests.layer.test_head_mix import MixSubject
from tests.mutants.verdict import found


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
    """a specification, or two for a mix over heads (`linear + softmax`)"""
    caught_by: str
    """a check of the suite"""

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
        check, subject = REGISTERED[self.caught_by], self._mechanism()
        assert not check.excuse(subject), check.excuse(subject)
        try:
            check.run(subject)
        except Exception as error:
            return f"fails without the change: {error}"
        with self.made():
            try:
                check.run(subject)
            except Exception as error:
                return "" if found(error) else f"crashes: {type(error).__name__}: {error}"
        return f"passes {self.caught_by}"

    def _mechanism(self) -> Subject:
        if " + " in self.subject:
            first, second = self.subject.split(" + ")
            return MixSubject(HeadMix, parts=(first, second))
        cls, options = catalog.resolve(self.subject)
        return Subject(cls, options)
