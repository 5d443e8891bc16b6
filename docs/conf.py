"""Sphinx configuration. Warnings are errors: a page that refers to nothing, or a public name without a page, fails.

Two directives put into the pages what would drift if it were written by hand: ``settings-table`` reads the recipe's
models, ``cli-help`` runs the command line. Nothing is fetched: no fonts, no mathematics renderer, no inventories.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from docutils import nodes
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import audit_tables
import recipe_tables
from language_cost import CostPlot

import assay
from assay.audit.atlas import atlas
from assay.cli import main as run_command
from assay.training.config import Recipe, setting_names

project = "Assay"
copyright = "the Assay authors"
release = assay.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Assay {release}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["assay.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
maximum_signature_line_length = 90
python_use_unqualified_type_names = True

UNITS = {
    "seed": "none",
    "save_steps": "steps",
    "task.train_problems": "problems",
    "task.test_problems": "problems",
    "policy.width": "components",
    "policy.heads": "heads",
    "policy.feedforward": "components",
    "warmup.steps": "steps",
    "warmup.learning_rate": "none",
    "warmup.weight_decay": "none",
    "warmup.max_grad_norm": "nats per unit of weight",
    "rl.estimator": "none",
    "rl.steps": "steps",
    "rl.learning_rate": "none",
    "rl.weight_decay": "none",
    "rl.max_grad_norm": "reward per unit of weight",
    "rl.problems_per_step": "problems",
    "rl.num_generations": "responses a problem",
    "rl.beta": "reward per nat",
    "evaluation.samples": "responses",
    "evaluation.every": "RL steps",
}
"""The one column of the table of settings that the models do not hold. A missing or a stale name stops the build."""

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_LOG = logging.getLogger(__name__)


def setting_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return every setting's pydantic field by its dotted name, in order."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            fields |= setting_fields(nested, f"{prefix}{name}.")
        else:
            fields[prefix + name] = field
    return fields


def setting_range(field: FieldInfo) -> str:
    """Say which values a setting takes on its own; what it must be beside other settings is in its meaning."""
    if get_origin(field.annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(field.annotation))
    kind = {int: "whole", float: "real"}[field.annotation]  # type: ignore[index]
    bounds = [
        f"{sign}\N{NO-BREAK SPACE}{_power(getattr(entry, key))}"
        for key, sign in _BOUNDS.items()
        for entry in field.metadata
        if getattr(entry, key, None) is not None
    ]
    return ", ".join([kind, *bounds])


def _power(value: float) -> str:
    """Write a large power of two as one."""
    return f"2^{value.bit_length() - 1}" if isinstance(value, int) and value > 2**16 else f"{value:g}"


class SettingsTable(SphinxDirective):
    """A table of every setting of a recipe: name, default, unit, range, meaning."""

    def run(self) -> list[nodes.Node]:
        fields = setting_fields(Recipe)
        if list(fields) != setting_names() or set(fields) != set(UNITS):
            raise ExtensionError(f"docs/conf.py: UNITS and the recipe differ in {sorted(set(fields) ^ set(UNITS))}")
        lines = ["| setting | default | unit | range | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{name}` | {field.default} | {UNITS[name]} | {setting_range(field)} | {field.description} |"
            for name, field in fields.items()
        ]
        return self.parse_text_to_nodes("\n".join(lines))


class CommandHelp(SphinxDirective):
    """What ``assay ARGUMENTS --help`` prints."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        arguments = [*(self.arguments[0].split() if self.arguments else []), "--help"]
        printed, width = io.StringIO(), os.environ.get("COLUMNS")
        os.environ["COLUMNS"] = "80"
        try:
            with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
                run_command(arguments)
        finally:
            os.environ.pop("COLUMNS")
            if width is not None:
                os.environ["COLUMNS"] = width
        text = printed.getvalue().strip()
        if not text.startswith("usage:"):
            raise ExtensionError(f"docs/conf.py: assay {' '.join(arguments)} printed no help but {text[:80]!r}")
        block = nodes.literal_block(text, text)
        block["language"] = "text"
        return [block]


class AuditTable(SphinxDirective):
    """One of the tables of ``audit_tables``, named by the first argument."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        name, *rest = self.arguments
        arguments = [the_atlas(), *rest] if name in ("identities", "entries") else rest
        try:
            lines = getattr(audit_tables, f"{name}_table")(*arguments)
        except ValueError as error:
            raise ExtensionError(f"docs/conf.py: {error}") from error
        return self.parse_text_to_nodes("\n".join(lines))


class RecipeTable(SphinxDirective):
    """One of the tables of ``recipe_tables``, named by the argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(getattr(recipe_tables, f"{self.arguments[0]}_table")()))


@functools.cache
def the_atlas() -> dict[str, Any]:
    """Return the atlas, enumerated once a build."""
    return atlas()


def pages_from_code(*arguments: Any) -> list[str]:
    """Return the pages to build each time: their tables come from code that may have changed."""
    return ["atlas", "peers", "recipe", "verdicts", "api"]


def write_atlas(app: Sphinx, error: Exception | None) -> None:
    """Put the atlas as JSON beside its page."""
    if error is None:
        (Path(app.outdir) / "atlas.json").write_text(json.dumps(the_atlas(), indent=1))


def public_names() -> set[str]:
    """Return every name that must be documented: ``assay.__all__`` and the functions and classes of core and tree."""
    names = {f"assay.{name}" for name in assay.__all__}
    for package in ("assay.core", "assay.tree"):
        for found in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
            if "._" in found.name:
                continue
            module = import_module(found.name)
            names |= {
                f"{module.__name__}.{name}"
                for name, value in vars(module).items()
                if not name.startswith("_")
                and (inspect.isfunction(value) or inspect.isclass(value))
                and value.__module__ == module.__name__
            }
    return names


def check_public_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn, which stops the build, of a public name that no page documents or that has no docstring."""
    documented: dict[str, Any] = env.get_domain("py").objects  # type: ignore[attr-defined]
    for name in sorted(public_names()):
        module, _, attribute = name.rpartition(".")
        if name not in documented:
            _LOG.warning("%s is public and on no page; add it to docs/api.md", name)
        if not inspect.getdoc(getattr(import_module(module), attribute)):
            _LOG.warning("%s is public and has no docstring", name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the check."""
    app.add_directive("settings-table", SettingsTable)
    app.add_directive("cli-help", CommandHelp)
    app.add_directive("audit-table", AuditTable)
    app.add_directive("recipe-table", RecipeTable)
    app.add_directive("cost-plot", CostPlot)
    app.connect("env-get-outdated", pages_from_code)
    app.connect("build-finished", write_atlas)
    app.connect("env-check-consistency", check_public_names)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # what Python calls them; Sphinx's own word is Variables
    return {"parallel_read_safe": True}
