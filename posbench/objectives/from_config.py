"""From a configuration to the objective that it names."""

from __future__ import annotations

from posbench.config import Config, targets
from posbench.errors import UserError
from posbench.objectives.base import Objective


def objective(config: Config) -> Objective:
    """Raises UserError for a class that is none, and for a key or a value that it refuses."""
    settings = dict(config.objective)
    made = targets.find_class(settings, "objective")
    if not issubclass(made, Objective):
        name = targets.class_name(made)
        raise UserError(f"objective._target_={name} is not a subclass of posbench's Objective")
    targets.check_arguments(made, settings, "objective")
    with targets.making(made, "objective"):
        return made(**settings)
