"""One syntax tree at a time: what Python 3.11 needs where several threads parse.

Before 3.11.8 the depth of the tree that is being built is kept once for all threads. A garbage collection in the middle
can let another thread build its own, and then the first one fails: “SystemError: AST constructor recursion depth
mismatch” (python/cpython#106905). marimo parses the notebook for each page that is loaded, in the server's thread, and
its cells for each viewer, in the viewer's thread; so in front of a class a page now and then was answered with status
500.
"""

import ast
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from marimo._ast import compiler

AFFECTED = sys.version_info < (3, 11, 8)
_turn = threading.RLock()  # the collector can run a finalizer that parses, within a parse


def one_at_a_time() -> None:
    """Make the threads of this process take turns in `ast.parse` and in marimo's compilation of cells.

    Does nothing from Python 3.11.8 on, which does not need it.
    """
    if AFFECTED:
        ast.parse = _in_turn(ast.parse)
        compiler.ast_compile = _in_turn(compiler.ast_compile)


def _in_turn(build: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(build)
    def built(*arguments: Any, **options: Any) -> Any:
        with _turn:
            return build(*arguments, **options)

    return built
