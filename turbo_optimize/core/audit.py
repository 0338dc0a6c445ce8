"""The static training-transfer audit, first form: what a change to a Python kernel file brings in that it needn't.

A benchmark reuses tensors and shapes, training doesn't. So a change may not bring in: keys made of a tensor's identity,
memoisation, changes of global state, ways out of the kernel, access to files. Syntax trees are compared, never text. A
finding explains; behaviour (rewritten inputs, the training simulation) decides what no static look can see. Only `.py`
is read: for C++ and HIP the behavioural checks stand alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from turbo_optimize.core import audit_tables as tables
from turbo_optimize.core.audit_names import (
    FUNCTIONS,
    Function,
    Names,
    declared_outside,
    names_of,
    root_of,
    targets_of,
    text_of,
)
from turbo_optimize.core.audit_tables import FINDINGS
from turbo_optimize.core.errors import WorkerError
from turbo_optimize.core.models import Frozen

__all__ = ["FINDINGS", "Finding", "audit"]


class Finding(Frozen):
    """One thing that the change brings in. `what` is the construct, `why` what is wrong with it."""

    code: str  # a key of FINDINGS; rules/<code>-….md
    line: int
    what: str
    why: str


def audit(path: str, before: str | None, after: str) -> tuple[Finding, ...]:
    """Findings of `after` that `before` (None: a new file) doesn't have, by line. Moved code is no new finding.

    WorkerError("build") where `after` isn't Python: such a file can't be built, let alone judged.
    """
    if not path.endswith(".py"):
        return ()
    old = Counter((f.code, f.what) for f in _findings(path, before)) if before is not None else Counter()
    new = []
    for finding in _findings(path, after):
        key = (finding.code, finding.what)
        if old[key] > 0:
            old[key] -= 1
        else:
            new.append(finding)
    return tuple(new)


def _findings(path: str, source: str) -> list[Finding]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None) or 1
        raise WorkerError("build", f"{path}:{line}: not Python: {e}", "mend the syntax") from e
    names = names_of(tree)
    found: dict[tuple[str, int, int], Finding] = {}
    for node in ast.walk(tree):
        for look in LOOKS:
            for code, at, what, why in look(node, names):
                # One place is one finding, though several looks may meet there.
                found.setdefault(
                    (code, at.lineno, at.col_offset), Finding(code=code, line=at.lineno, what=what, why=why)
                )
    return sorted(found.values(), key=lambda f: (f.line, f.code, f.what))


Look = Iterator[tuple[str, ast.expr | ast.stmt, str, str]]  # code, where, what, why


def _identity(node: ast.AST, names: Names) -> Look:
    """A01: `id(x)`, `x.data_ptr()`, `x._version`, weak references: what says *which* tensor, not what is in it."""
    if isinstance(node, ast.Call):
        name = names.dotted(node.func)
        by_name = (name in tables.GETTERS or (name or "").endswith("__getattribute__")) and {
            text_of(a) for a in node.args
        } & tables.IDENTITY_ATTRIBUTES
        hashed = isinstance(node.func, ast.Attribute) and node.func.attr == "__hash__"
        handed_on = any(names.dotted(a) in ("id", "hash") for a in node.args)  # map(id, tensors)
        if name in ("id", "hash") or by_name or hashed or handed_on:
            yield "A01", node, ast.unparse(node), tables.IDENTITY_WHY
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        use = names.parents.get(node)
        honest = isinstance(use, ast.Call) and use.func is node and _is_address(use, names)
        if node.attr in tables.IDENTITY_ATTRIBUTES and not honest:
            yield "A01", node, ast.unparse(node), tables.IDENTITY_WHY
    if isinstance(node, ast.Name | ast.Attribute) and (names.dotted(node) or "").startswith("weakref."):
        yield "A01", node, ast.unparse(node), tables.IDENTITY_WHY


def _is_address(call: ast.Call, names: Names) -> bool:
    """`x.data_ptr() % 16` (an alignment check) and `c_void_p(x.data_ptr())` (a launch) use an address, not a key."""
    use = names.parents.get(call)
    if isinstance(use, ast.BinOp):
        return isinstance(use.op, ast.Mod) and use.left is call and isinstance(use.right, ast.Constant)
    return isinstance(use, ast.Call) and names.dotted(use.func) == "ctypes.c_void_p"


def _memo_decorator(node: ast.AST, names: Names) -> Look:
    """A02: functools.cache and kin, unless every parameter is annotated as a plain value."""
    if isinstance(node, FUNCTIONS) and not isinstance(node, ast.Lambda):
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if names.dotted(target) in tables.MEMOISERS and not names.plain_parameters(node):
                yield "A02", decorator, f"@{names.dotted(target)} on {node.name}", tables.MEMO_WHY
    if isinstance(node, ast.Call):  # cache(f), lru_cache(maxsize=4)(f)
        inner = node.func.func if isinstance(node.func, ast.Call) else node.func
        wrapped = node.args[0] if node.args else None
        if names.dotted(inner) in tables.MEMOISERS and isinstance(wrapped, ast.Name | ast.Attribute | ast.Lambda):
            function = names.functions.get(ast.unparse(wrapped))
            if function is None or not names.plain_parameters(function):
                yield "A02", node, ast.unparse(node), tables.MEMO_WHY


def _memo_store(node: ast.AST, names: Names) -> Look:
    """A02: a container or attribute that outlives the call is written inside a function."""
    function = names.function_of(node)
    if function is None:
        return
    for target in targets_of(node):
        root = root_of(target)
        if isinstance(target, ast.Name):
            if target.id in declared_outside(function):
                yield "A02", target, f"{target.id} assigned in a function", tables.MEMO_WHY
        elif names.is_imported(root):
            continue  # _global_store says it
        elif isinstance(target, ast.Subscript) and names.outlives(root, function, target):
            yield "A02", target, f"{ast.unparse(target.value)}[…] written", tables.MEMO_WHY
        elif isinstance(target, ast.Attribute) and not names.is_own_object(root, function):
            yield "A02", target, f"{ast.unparse(target)} set", tables.ATTRIBUTE_WHY
    if isinstance(node, ast.Call):
        name = names.dotted(node.func) or ""
        if name in ("setattr", "object.__setattr__") and node.args and not names.is_imported(root_of(node.args[0])):
            if not names.is_own_object(root_of(node.args[0]), function):
                yield "A02", node, ast.unparse(node), tables.ATTRIBUTE_WHY
        elif name in tables.SETTERS and node.args and _kept(node.args[0], node, function, names):
            yield "A02", node, ast.unparse(node), tables.MEMO_WHY
        elif isinstance(node.func, ast.Name) and "." in name and name.rpartition(".")[2] in tables.MUTATORS:
            if not names.is_imported(node.func):  # put = _KEPT.append; put(x)
                yield "A02", node, f"{name}()", tables.MEMO_WHY
        elif isinstance(node.func, ast.Attribute) and node.func.attr in tables.HOOKS:
            yield "A02", node, f"{ast.unparse(node.func)}()", tables.ATTRIBUTE_WHY
        elif isinstance(node.func, ast.Attribute) and _writes(node.func.attr):
            holder = node.func.value
            if node.func.attr.endswith("_") and not isinstance(root_of(holder), ast.Name):
                return  # torch.empty(n).fill_(0): what the call has just made
            if node.func.attr == "add" and not isinstance(names.parents.get(node), ast.Expr):
                return  # x.add(y), a sum, not a set's
            if not names.is_imported(root_of(holder)) and names.outlives(root_of(holder), function, node.func):
                yield "A02", node, f"{ast.unparse(holder)}.{node.func.attr}()", tables.MEMO_WHY


def _writes(method: str) -> bool:
    """Containers' own, and torch's in-place methods."""
    return method in tables.MUTATORS or (method.endswith("_") and not method.startswith("_"))


def _kept(holder: ast.expr, node: ast.AST, function: Function, names: Names) -> bool:
    """Whether a plain function writes into something that outlives the call: operator.setitem(_KEPT, k, v)."""
    root = root_of(holder)
    free = isinstance(root, ast.Name) and root.id not in names.bound[function]
    return free and not names.is_imported(root)


def _global_store(node: ast.AST, names: Names) -> Look:
    """A03: an attribute or item of something imported is written, wherever it stands."""
    for target in targets_of(node):
        if isinstance(target, ast.Attribute | ast.Subscript) and names.is_imported(root_of(target)):
            owner = target.value if isinstance(target, ast.Subscript) else target
            yield "A03", target, f"{names.dotted(owner) or ast.unparse(owner)} written", tables.GLOBAL_WHY
    if isinstance(node, ast.Call):
        name = names.dotted(node.func) or ""
        into = bool(node.args) and names.is_imported(root_of(node.args[0]))
        if name in tables.GLOBAL_CALLS or (name in ("setattr", "delattr") and into):
            yield "A03", node, ast.unparse(node), tables.GLOBAL_WHY


def _imports(node: ast.AST, names: Names) -> Look:
    """A04: modules that look at or act on the process around the kernel, and code made from text."""
    modules = []
    if isinstance(node, ast.Import):
        modules = [a.name for a in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        modules = [node.module or "", *(f"{node.module}.{a.name}" for a in node.names)]
    for module in modules:
        parts = module.split(".")
        kept = next(
            (".".join(parts[:n]) for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in tables.MODULES), ""
        )
        if kept:
            code = "A01" if kept == "weakref" else "A04"
            yield code, node, f"import {kept}", tables.MODULES[kept]  # type: ignore[misc]
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        name = names.dotted(node) or ""
        if name in tables.REFLECTION and name not in names.functions:
            yield "A04", node, name, tables.REFLECTION[name]


def _files(node: ast.AST, names: Names) -> Look:
    """A05: files opened, read, written or removed."""
    if not isinstance(node, ast.Call):
        return
    name = names.dotted(node.func) or ""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if name in tables.FILE_CALLS or name.split(".")[0] in tables.FILE_MODULES or method in tables.FILE_METHODS:
        yield "A05", node, ast.unparse(node), tables.FILE_WHY


LOOKS = (_identity, _memo_decorator, _memo_store, _global_store, _imports, _files)
