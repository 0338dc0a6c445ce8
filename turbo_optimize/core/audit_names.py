"""Who is meant by a name in a Python file: imports and simple aliases resolved, and what lives longer than a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from turbo_optimize.core.audit_tables import PLAIN_TYPES

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MUTABLE = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp, ast.Call)


@dataclass
class Names:
    """What the file's names stand for. A scope is the function that binds a name, None for the module."""

    aliases: dict[tuple[Function | None, str], str] = field(default_factory=dict)  # (scope, name) -> dotted path
    imported: set[tuple[Function | None, str]] = field(default_factory=set)  # bound by an import, or an alias of one
    borrowed: set[tuple[Function, str]] = field(default_factory=set)  # locals that stand for something outside
    bound: dict[Function, set[str]] = field(default_factory=dict)  # parameters and names a function binds
    functions: dict[str, Function] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def dotted(self, node: ast.AST) -> str | None:
        """`tc.Event` -> `torch.cuda.Event`; None for a function's own variable, or where it isn't a chain of names."""
        if isinstance(node, ast.Name):
            scope = self.scope_of(node)
            return self.aliases.get((scope, node.id), node.id if scope is None else None)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            return base and f"{base}.{node.attr}".removeprefix("builtins.")
        return None

    def scope_of(self, name: ast.Name) -> Function | None:
        """The function that binds a name where it stands; None: the module or a builtin."""
        function = self.function_of(name)
        while function is not None and name.id not in self.bound[function]:
            function = self.function_of(function)
        return function

    def is_imported(self, root: ast.AST) -> bool:
        return isinstance(root, ast.Name) and (self.scope_of(root), root.id) in self.imported

    def function_of(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        up = self.parents.get(node)
        while up is not None and not isinstance(up, FUNCTIONS):
            up = self.parents.get(up)
        return up

    def outlives(self, root: ast.AST, function: Function, target: ast.Attribute | ast.Subscript) -> bool:
        """Whether what `target` writes into is there at the next call: a free name, or a container on an object."""
        if not isinstance(root, ast.Name):
            return isinstance(root, ast.Call)  # globals()[…], vars(x)[…]
        if root.id not in self.bound[function] or root.id in _kept_defaults(function):
            return True
        if (function, root.id) in self.borrowed:
            return True
        # d[k] = v on a parameter or local is the call's own; x.cache[k] = v hangs on an object from outside.
        sets_up = isinstance(function, ast.FunctionDef) and function.name == "__init__"
        return target.value is not root and root.id in params_of(function) - {"ctx"} and not sets_up

    def is_own_object(self, root: ast.AST, function: Function) -> bool:
        """`self.x = …` and `ctx.x = …` (a method's first parameter), and what the function made itself."""
        if not isinstance(root, ast.Name):
            return False
        in_class = isinstance(self.parents.get(function), ast.ClassDef)
        first = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][:1]
        made_here = root.id in self.bound[function] - params_of(function)
        return (in_class and root.id in first) or (made_here and (function, root.id) not in self.borrowed)

    def plain_parameters(self, function: Function) -> bool:
        """Every parameter is annotated as a plain value (ints, strings, dtypes, …): no tensor reaches the key."""
        args = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        args += [a for a in (function.args.vararg, function.args.kwarg) if a]
        return all(a.annotation is not None and self._plain(a.annotation) for a in args)

    def _plain(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):  # a quoted annotation
                try:
                    return self._plain(ast.parse(node.value, mode="eval").body)
                except SyntaxError:
                    return False
            return node.value is None or node.value is Ellipsis
        if isinstance(node, ast.Subscript):
            if self.dotted(node.value) == "typing.Literal":
                return True
            return self._plain(node.value) and self._plain(node.slice)
        if isinstance(node, ast.BinOp):
            return self._plain(node.left) and self._plain(node.right)
        if isinstance(node, ast.Tuple):
            return all(self._plain(e) for e in node.elts)
        return self.dotted(node) in PLAIN_TYPES


def names_of(tree: ast.Module) -> Names:
    names = Names()
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            names.parents[child] = node
        if isinstance(node, FUNCTIONS):
            names.bound[node] = _binds(node)
            if not isinstance(node, ast.Lambda):
                names.functions[node.name] = node
    for node in ast.walk(tree):  # breadth first: the module's own names before those of its functions
        for name, path in _imported(node):
            scope = names.function_of(node)
            names.aliases[scope, name] = path
            names.imported.add((scope, name))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            _alias(node, node.value, names)
    return names


def _alias(node: ast.Assign, value: ast.expr, names: Names) -> None:
    """f = id; tc = torch.cuda; c = _CACHE: the target stands for what the value stands for."""
    root, path = root_of(value), names.dotted(value)
    for target in node.targets:
        if not isinstance(target, ast.Name) or not isinstance(root, ast.Name) or path is None:
            continue
        scope = names.scope_of(target)
        names.aliases[scope, target.id] = path
        if names.is_imported(root):
            names.imported.add((scope, target.id))
        if scope is not None and (names.scope_of(root) is not scope or (scope, root.id) in names.borrowed):
            names.borrowed.add((scope, target.id))


def _binds(function: Function) -> set[str]:
    """What a function binds: parameters, assigned names, imports and functions inside it; not what it calls global."""
    bound = params_of(function)
    for node in own_nodes(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        bound |= {name for name, _ in _imported(node)}
    return bound - declared_outside(function)


def declared_outside(function: Function) -> set[str]:
    """Names that `global` or `nonlocal` gives to an outer scope."""
    return {n for s in own_nodes(function) if isinstance(s, ast.Global | ast.Nonlocal) for n in s.names}


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for a in node.names:
            yield (a.asname, a.name) if a.asname else (a.name.split(".")[0], a.name.split(".")[0])
    elif isinstance(node, ast.ImportFrom):
        for a in node.names:
            yield a.asname or a.name, f"{'.' * node.level}{node.module or ''}.{a.name}".removeprefix("builtins.")


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes of the function's body, without those of functions inside it."""
    todo: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            todo += ast.iter_child_nodes(node)


def params_of(function: Function) -> set[str]:
    a = function.args
    return {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if p}


def _kept_defaults(function: Function) -> set[str]:
    """Parameters whose default is one object for all calls: def f(x, _cache={})."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    with_default = positional[len(positional) - len(a.defaults) :]
    pairs = [*zip(with_default, a.defaults, strict=True), *zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    return {p.arg for p, default in pairs if isinstance(default, _MUTABLE)}


def text_of(node: ast.AST) -> str | None:
    """A string that stands there, put together or not: 'data_' + 'ptr'."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    parts: list[str | None] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [text_of(node.left), text_of(node.right)]
    elif isinstance(node, ast.JoinedStr):
        parts = [text_of(v.value if isinstance(v, ast.FormattedValue) else v) for v in node.values]
    known = [p for p in parts if p is not None]
    return "".join(known) if parts and len(known) == len(parts) else None


def root_of(node: ast.AST) -> ast.AST:
    """The leftmost part of a chain: `a` of `a.b[c].d`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def targets_of(node: ast.AST) -> list[ast.expr]:
    """What a statement binds or deletes, tuples taken apart."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        found = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
        found = [node.target]
    elif isinstance(node, ast.With):
        found = [i.optional_vars for i in node.items if i.optional_vars]
    flat: list[ast.expr] = []
    while found:
        target = found.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            found += target.elts
        else:
            flat.append(target.value if isinstance(target, ast.Starred) else target)
    return flat
