"""Which share of the machine's matrix-product rate a run's training reached."""

from __future__ import annotations

from posbench.speed import limits
from posbench.speed.cost import Pass, cost
from posbench.speed.rounds import Best
from posbench.training.trainer import Trainer


def matmul_share(trainer: Trainer, tokens_per_second: float) -> float:
    """Operations per second of training over those of a large matrix product.

    Operations are the least that a step needs (cost.py). The product has training's dtype and is
    measured now on this process's device; its rate counts once for each process.
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
