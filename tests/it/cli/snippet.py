"""Checks a snippet on stdin: it compiles, every name in it is there, and what it calls takes the arguments that it gives.

`signatures.json` beside it has the parameters of what snippets call, of the versions that it names; `snippet.py --record` writes it again where all
of them are installed."""

import ast
import builtins
import importlib
import inspect
import json
import sys
from pathlib import Path

SIGNATURES = Path(sys.argv[1])
# Whoever pastes a snippet has these.
THEIRS = {"model", "dataset", "loss_of"}


def parameters(dotted):
    module, _, name = dotted.rpartition(".")
    taken = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    return sorted("kwargs" if one.kind is one.VAR_KEYWORD else one.name for one in taken)


def dotted(node, imported):
    """What a call calls, by its full name."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value, imported)
        return inner and f"{inner}.{node.attr}"
    return imported.get(node.id) if isinstance(node, ast.Name) else None


def check(text, known):
    tree = ast.parse(text)
    compile(tree, "snippet", "exec")
    imported, defined = {}, set(dir(builtins)) | THEIRS
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported.update({name.name: f"{node.module}.{name.name}" for name in node.names})
        elif isinstance(node, ast.Import):
            imported.update({name.name.split(".")[0]: name.name.split(".")[0] for name in node.names})
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in defined | set(imported):
            raise SystemExit(f"line {node.lineno}: nothing is called {node.id}")
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func, imported)
        given = {keyword.arg for keyword in node.keywords if keyword.arg}
        if called is None or not given:
            continue
        if called not in known:
            raise SystemExit(f"line {node.lineno}: signatures.json does not have {called}")
        if "kwargs" not in known[called] and given - set(known[called]):
            raise SystemExit(f"line {node.lineno}: {called} does not take {given - set(known[called])}")


recorded = json.loads(SIGNATURES.read_text())
if "--record" in sys.argv:
    signatures = {name: parameters(name) for name in recorded["signatures"]}
    versions = {name: importlib.import_module(name).__version__ for name in recorded["versions"]}
    SIGNATURES.write_text(json.dumps({"versions": versions, "signatures": signatures}, indent=1) + "\n")
else:
    check(sys.stdin.read(), recorded["signatures"])
