"""Reads the text of a pattern, such as "causal & (window(64) | strided(128))", without executing anything."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regard.core.errors import ConfigError, nearest


@dataclass(frozen=True)
class Reader:
    """One text and the names that it may use.

    Attributes:
        text: what is read.
        values: patterns by name.
        makers: functions of integers that return a pattern, by name.
        joiners: functions of patterns that return a pattern, by name.
    """

    text: str
    values: Mapping[str, Any]
    makers: Mapping[str, Callable[..., Any]]
    joiners: Mapping[str, Callable[..., Any]]

    def read(self) -> Any:
        """The pattern.

        Raises:
            ConfigError: a text that is none.
        """
        try:
            return self._build(ast.parse(self.text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f'cannot read the pattern {self.text!r}: {error}. Example: "causal & (window(64) | strided(128))"'
            ) from error

    def _build(self, node: ast.expr) -> Any:
        match node:
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
                return self._build(left) & self._build(right)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._build(left) | self._build(right)
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return ~self._build(operand)
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in self.joiners:
                return self.joiners[name](*(self._build(arg) for arg in args))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in self.makers:
                return self._make(name, args, keywords)
            case ast.Call(func=ast.Name(id=name)) if name in self.values:
                raise ConfigError(f"pattern {self.text!r}: {name} takes no arguments; write it without parentheses")
            case ast.Name(id=name) if name in self._functions:
                raise ConfigError(f"pattern {self.text!r}: write {self._usage(name)}")
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
                raise ConfigError(f"pattern {self.text!r}: unknown name {name!r}; {nearest(name, self._names)}")
        raise ConfigError(
            f"pattern {self.text!r}: {ast.unparse(node)!r} is not allowed; a pattern has the names "
            f"{', '.join(self._names)}, integers, & | ~ and parentheses"
        )

    def _make(self, name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        numbers = [self._integer(arg) for arg in args]
        by_name = {keyword.arg or "**": self._integer(keyword.value) for keyword in keywords}
        try:
            inspect.signature(self.makers[name]).bind(*numbers, **by_name)
        except TypeError as error:
            raise ConfigError(f"pattern {self.text!r}: {self._usage(name)}: {error}") from error
        return self.makers[name](*numbers, **by_name)

    @property
    def _functions(self) -> dict[str, Callable[..., Any]]:
        return {**self.makers, **self.joiners}

    @property
    def _names(self) -> list[str]:
        """The names that a text may use; patterns that are known by their identity alone have no such name."""
        return [*(name for name in self.values if not name.startswith("rule_")), *self._functions]

    def _usage(self, name: str) -> str:
        parameters = inspect.signature(self._functions[name]).parameters.values()
        return f"{name}({', '.join(str(x.replace(annotation=x.empty)) for x in parameters)})"

    def _integer(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        raise ConfigError(f"pattern {self.text!r}: {ast.unparse(node)!r} is no integer of 0 or more")
