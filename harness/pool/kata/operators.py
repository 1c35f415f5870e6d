"""Bug operators: each breaks one place of a function in one way that people do.

An operator is a generator over one node of the syntax tree: it yields nodes to put in that node's place. It never
changes the node it is given. `mutants` applies every operator at every node, in the order of the tree, so its result
depends on nothing but the source.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Operator = Callable[[ast.AST, "Scope"], Iterator[ast.AST]]

OPERATORS: dict[str, Operator] = {}
"""By name, which is the kind of bug. Where two make the same text, the earlier one names it."""


@dataclass(frozen=True)
class Scope:
    """What an operator may know of the function around its node. `names`: arguments and variables, in order."""

    function: ast.FunctionDef
    names: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """A broken copy of a function."""

    operator: str
    source: str


def register_operator(name: str) -> Callable[[Operator], Operator]:
    """Add the decorated operator to `OPERATORS` under `name`."""

    def add(operator: Operator) -> Operator:
        if name in OPERATORS:
            raise ValueError(f"bug operator {name!r} is registered twice; choose another name")
        OPERATORS[name] = operator
        return operator

    return add


def mutants(tree: ast.Module) -> list[Mutant]:
    """All broken copies of the one function in `tree`, each text once, in a fixed order.

    Text that Python would not compile is left out, as is the function's own.
    """
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    scope = Scope(function, _names(function))
    seen = {ast.unparse(tree)}
    found = []
    for name, operator in OPERATORS.items():
        for site, node in enumerate(ast.walk(tree)):
            for replacement in operator(node, scope):
                source = ast.unparse(ast.fix_missing_locations(_replaced(tree, site, replacement)))
                if source not in seen and _compiles(source):
                    seen.add(source)
                    found.append(Mutant(name, source + "\n"))
    return found


_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}


@register_operator("comparison")
def comparison(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """`<` for `<=` or `>`, `==` for `!=`, `in` for `not in`, and so on."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in _COMPARISONS.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [op()], node.comparators)


_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Sub),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mod),
    ast.Mod: (ast.FloorDiv, ast.Div),
    ast.BitAnd: (ast.BitOr, ast.BitXor),
    ast.BitOr: (ast.BitAnd, ast.BitXor),
    ast.BitXor: (ast.BitAnd, ast.BitOr),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}


@register_operator("arithmetic")
def arithmetic(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """`-` for `+`, `+` for `*`, `//` for `/`, `|` for `&`, and so on; in `+=` and its kin too."""
    if isinstance(node, ast.BinOp):
        for op in _ARITHMETIC.get(type(node.op), ()):
            yield ast.BinOp(node.left, op(), node.right)
    if isinstance(node, ast.AugAssign):
        for op in _ARITHMETIC.get(type(node.op), ()):
            yield ast.AugAssign(node.target, op(), node.value)


@register_operator("boundary")
def boundary(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """A range, an index or a slice that begins or ends one too early or too late."""
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[stop]):
            for args in ([ast.Constant(1), stop], [_shifted(stop, -1)], [_shifted(stop, 1)]):
                yield ast.Call(node.func, args, [])
        case ast.Call(func=ast.Name(id="range"), args=[start, stop]):
            for args in ([start, _shifted(stop, -1)], [start, _shifted(stop, 1)], [_shifted(start, 1), stop], [stop]):
                yield ast.Call(node.func, args, [])
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper, step=step)):
            if lower is not None:
                yield ast.Subscript(node.value, ast.Slice(_shifted(lower, 1), upper, step), node.ctx)
            if upper is not None:
                yield ast.Subscript(node.value, ast.Slice(lower, _shifted(upper, -1), step), node.ctx)
                yield ast.Subscript(node.value, ast.Slice(lower, _shifted(upper, 1), step), node.ctx)
            if lower is None and step is not None:
                yield ast.Subscript(node.value, ast.Slice(ast.Constant(1), upper, step), node.ctx)
        case ast.Subscript(slice=index) if _integer(index) is not None:
            for by in (1, -1):
                yield ast.Subscript(node.value, _shifted(index, by), node.ctx)


@register_operator("constant")
def constant(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """A number that is off by one, a text that lacks its last character, True for False."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
        case ast.Constant(value=str(value)):
            yield ast.Constant(value[:-1] if value else " ")


@register_operator("wrong-variable")
def wrong_variable(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """Another argument or variable of the function."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in scope.names:
        for name in scope.names:
            if name != node.id:
                yield ast.Name(name, ast.Load())


@register_operator("missing-return")
def missing_return(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """The value is computed, but not returned."""
    if isinstance(node, ast.Return) and node.value is not None:
        yield ast.Expr(node.value)


@register_operator("early-return")
def early_return(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """The last return, indented into the loop before it."""
    last = scope.function.body[-1]
    if isinstance(node, ast.For | ast.While) and isinstance(last, ast.Return):
        loop = copy.copy(node)
        loop.body = [*node.body, last]
        yield loop


@register_operator("boolean")
def boolean(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """`or` for `and`, a `not` too many or too few."""
    match node:
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Return(value=ast.Compare() | ast.BoolOp() as value):
            yield ast.Return(ast.UnaryOp(ast.Not(), value))


_FUNCTIONS = {
    "max": ("min", "sum"),
    "min": ("max", "sum"),
    "sum": ("len", "max"),
    "len": ("sum", "max"),
    "abs": ("int",),
    "sorted": ("list",),
    "set": ("list",),
    "any": ("all",),
    "all": ("any",),
}
_METHODS = {
    "upper": ("lower", "title"),
    "lower": ("upper",),
    "append": ("remove",),
    "values": ("keys",),
    "keys": ("values",),
    "items": ("keys",),
    "get": ("pop",),
    "count": ("find",),
    "find": ("rfind",),
    "strip": ("lstrip", "rstrip"),
    "replace": ("count",),
    "startswith": ("endswith",),
    "endswith": ("startswith",),
}


@register_operator("wrong-call")
def wrong_call(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """A function or method that does the opposite, or something near."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            for other in _FUNCTIONS.get(name, ()):
                if other == "sum" and len(node.args) > 1:  # nobody would write a sum of two arguments
                    continue
                yield ast.Call(ast.Name(other, ast.Load()), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            for other in _METHODS.get(name, ()):
                yield ast.Call(ast.Attribute(value, other, ast.Load()), node.args, node.keywords)


@register_operator("missing-call")
def missing_call(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """The argument or the object itself, without the call on it."""
    match node:
        case ast.Call(func=ast.Name(), args=[argument]):
            yield argument
        case ast.Call(func=ast.Attribute(value=value), args=[]):
            yield value


@register_operator("swapped")
def swapped(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """Two arguments, operands or list elements in each other's place."""
    match node:
        case ast.Call(args=[first, second]):
            yield ast.Call(node.func, [second, first], node.keywords)
        case ast.BinOp(left=left, op=op, right=right):
            yield ast.BinOp(right, op, left)
        case ast.List(elts=[first, second]) if isinstance(node.ctx, ast.Load):
            yield ast.List([second, first], node.ctx)


@register_operator("swapped-branches")
def swapped_branches(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """The two outcomes of a condition in each other's place."""
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.FunctionDef(body=[*before, ast.If(test=test, body=[ast.Return() as inner], orelse=[]), last]):
            function = copy.copy(node)
            function.body = [*before, ast.If(test, [last], []), inner]
            yield function


@register_operator("missing-term")
def missing_term(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """One operand alone: `a` for `a + b`, `x` for `-x`, one condition of two."""
    match node:
        case ast.BinOp(left=left, right=right):
            yield left
            yield right
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield operand
        case ast.BoolOp(values=values):
            yield from values


@register_operator("overwrite")
def overwrite(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """`=` for `+=`: only the last round of the loop is left."""
    if isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value)


@register_operator("missing-condition")
def missing_condition(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """A comprehension that keeps everything."""
    if isinstance(node, ast.comprehension) and node.ifs:
        yield ast.comprehension(node.target, node.iter, [], node.is_async)


def _names(function: ast.FunctionDef) -> tuple[str, ...]:
    arguments = [argument.arg for argument in function.args.args]
    assigned = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return tuple(dict.fromkeys(arguments + assigned))


def _integer(node: ast.AST) -> int | None:
    """The value of a literal integer, with or without a minus."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    return None


def _shifted(node: ast.expr, by: int) -> ast.expr:
    """`node + by`, as someone would write it: `n + 1` shifted by -1 is `n`."""
    value = _integer(node)
    if value is not None:
        moved = value + by
        return ast.Constant(moved) if moved >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-moved))
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=int(value))) if value == -by:
            return left
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=int(value))) if value == by:
            return left
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def _replaced(tree: ast.Module, site: int, replacement: ast.AST) -> ast.Module:
    """A copy of `tree` with another node at the place that `ast.walk` reaches as number `site`."""
    tree = copy.deepcopy(tree)
    target = list(ast.walk(tree))[site]
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, copy.deepcopy(replacement))
                return tree
            if isinstance(value, list):
                for index, item in enumerate(value):
                    if item is target:
                        value[index] = copy.deepcopy(replacement)
                        return tree
    raise AssertionError("the root of a tree has no place to put a replacement in")


def _compiles(source: str) -> bool:
    try:
        compile(source, "<mutant>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
