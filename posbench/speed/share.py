"""How much of what the machine can do a run's training used."""

from __future__ import annotations

from posbench.speed import limits
from posbench.speed.cost import Pass, cost
from posbench.speed.rounds import Best
from posbench.training.trainer import Trainer


def matmul_share(trainer: Trainer, tokens_per_second: float) -> float:
    """The operations a second that training came to, over those of a large matrix product.

    The operations are the least that a step needs (cost.py); the product is of training's dtype,
    measured here and now, on one of as many devices as there are processes.
    """
    train = trainer.config.train
    one = Pass(
        training=True,
        windows=train.batch,
        length=train.length,
        scored=train.length,
        itemsize=trainer.dtype.itemsize,
    )
    step = cost(trainer.model, trainer.config.model, one).operations
    product = Best(lambda: limits.matmul(trainer.dtype, trainer.device), limits.TRIES)
    product.warm_up()
    rate = product.rate() * trainer.world.size
    return tokens_per_second * step / (train.batch * train.length) / rate
