"""What the advantages of one group are, by definition."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from assay.audit.check import SubjectError, foreign
from assay.audit.invariants.grouped import real_table

Form = Callable[[Float[Tensor, " G"]], Float[Tensor, " G"]]
FORMS: dict[str, Form] = {
    "centred": lambda reward: reward - reward.mean(),
    "leave-one-out": lambda reward: (reward - reward.mean()) * (len(reward) / (len(reward) - 1)),
    "standardised": lambda reward: (reward - reward.mean()) / reward.std(),
}
"""Definitions by name: the advantages of one group, from its rewards. ``standardised`` has n - 1 in the variance and
no floor; where yours has one, give the formula with it."""


def read_definition(definition: str | Form | None) -> Form | None:
    """Return a definition as a function that raises a :class:`SubjectError` where its subject does wrong.

    Args:
        definition: a name out of :data:`FORMS`, a function from one group's rewards to its advantages, or None.

    Raises:
        SubjectError: there is no such name.
    """
    if isinstance(definition, str) and definition not in FORMS:
        raise SubjectError(f"definition {definition!r}: expected one of {', '.join(FORMS)}, or a function")
    given = FORMS[definition] if isinstance(definition, str) else definition
    if given is None:
        return None

    def form(reward: Float[Tensor, " G"]) -> Float[Tensor, " G"]:
        made = real_table("the definition", foreign("the definition", given, reward.clone()))
        if made.shape != reward.shape:
            raise SubjectError(f"the definition returned shape {tuple(made.shape)} for {len(reward)} rewards")
        return made

    return form
