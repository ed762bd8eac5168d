"""What a model is trained to predict: from windows to inputs, targets and the places of these.

May import config, machine and errors. A new objective is a class here and a yaml in
conf/objective.
"""

from posbench.objectives.base import DecoderSettings, Example, Objective, Vocabulary
from posbench.objectives.causal import Causal
from posbench.objectives.from_config import objective
from posbench.objectives.masked import Masked

__all__ = [
    "Causal",
    "DecoderSettings",
    "Example",
    "Masked",
    "Objective",
    "Vocabulary",
    "objective",
]
