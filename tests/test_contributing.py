"""Check CONTRIBUTING's lists: a backend, notebook, finding or claim that is incomplete fails by name."""

import inspect
import re

import pytest

from docs.draw_architecture import modules
from lib import ROOT
from lib.labs.claims import CLAIMS
from lib.model.backends.registry import BACKENDS, TRAINERS
from lib.timing import diagnosis
from lib.ui.notebooks import NOTEBOOKS
from tests.labs.test_claims import BY_ARITHMETIC, MEASURED
from tests.timing.test_diagnosis import CASES

MODULES = modules()
README = (ROOT / "README.md").read_text()
LIBRARIES, HOW_TO = (ROOT / "docs/architecture.md").read_text(), (ROOT / "docs/how_to.md").read_text()


@pytest.mark.parametrize("key", BACKENDS)
def test_a_backend_is_complete(key):
    backend = BACKENDS[key]
    assert f"lib.model.backends.{backend.module}" in MODULES, f"lib/model/backends/{backend.module}.py"
    source = MODULES[f"lib.model.backends.{backend.module}"].read_text()
    assert re.search(rf"^(def {backend.function}\(|{backend.function} = )", source, re.MULTILINE), (
        f"{backend.function} in {backend.module}"
    )
    assert [other.key for other in TRAINERS.values() if other.color == backend.color] == [key], "a colour of its own"
    assert backend.remedy, "how to install it"
    assert not backend.taken_apart or f"lib.timing.profiling.{backend.module}" in MODULES, (
        f"lib/timing/profiling/{backend.module}.py, or taken_apart=False"
    )
    for library in backend.needs:
        assert re.search(rf"^\|[^|]*\b{library.replace('_', '[-_]')}\b", LIBRARIES, re.MULTILINE), (
            f"the reason for {library} in docs/architecture.md"
        )
    for target in re.findall(r"make (?!install)(\w+)", backend.remedy):
        assert (ROOT / f"requirements-{target}.txt").exists(), f"requirements-{target}.txt"
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"make {target}"
        assert f"`make {target}`" in HOW_TO, f"make {target} in docs/how_to.md"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_is_listed_everywhere(notebook):
    assert (ROOT / notebook.file).exists(), notebook.file
    assert f"`{notebook.file}`" in README, "its file in the table of the README"


def test_every_file_of_a_notebook_is_listed():
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("notebooks/*.py")} | {"mnist_training.py"}
    assert files == {notebook.file for notebook in NOTEBOOKS}


def test_a_finding_has_a_case():
    functions = dict(inspect.getmembers(diagnosis, inspect.isfunction))
    public = {name for name, one in functions.items() if one.__module__ == diagnosis.__name__ and name[0] != "_"}
    without = public - {one.__name__ for one in CASES} - {"card_of"}
    assert not without, f"a case of {without} in tests/timing/test_diagnosis.py"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_a_claim_has_a_case(claim):
    played = [*BY_ARITHMETIC, *(words for words, *_ in MEASURED)]
    assert any(words in claim.text for words in played), f"a case of “{claim.text}” in test_claims.py"
