"""Every module imports; the package and its help load nothing heavy; every public name is there and documented."""

import importlib
import pkgutil

import pytest

import assay

HEAVY = ("torch", "matplotlib", "scipy", "numpy", "jinja2")
MODULES = [module.name for module in pkgutil.walk_packages(assay.__path__, "assay.")]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_every_module_imports(name):
    importlib.import_module(name)


def loaded_by(process, statement):
    show = f"import sys\n{statement}\nprint(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    return process("-c", show).communicate()[1].strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import assay",
        "import assay.evidence.verify",
        "import assay.cli",
        "from assay.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from assay.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(process, statement):
    assert loaded_by(process, statement) == ""


def test_what_is_heavy_is_loaded_when_it_is_needed(process):
    """The check above can fail: it sees what is loaded."""
    assert loaded_by(process, "import numpy") == "numpy"


SEED_NAMES = {"Recipe", "compare", "evaluate", "resume", "train", "verify"}
LANGUAGE_NAMES = {"LanguageRecipe", "evaluate_language", "resume_language", "train_language"}


def test_public_names_resolve_and_are_documented():
    assert set(assay.__all__) == SEED_NAMES | LANGUAGE_NAMES
    for name in assay.__all__:
        assert getattr(assay, name).__doc__.strip()
        assert name in dir(assay)
    with pytest.raises(AttributeError, match="has no attribute 'tarin'"):
        _ = assay.tarin
