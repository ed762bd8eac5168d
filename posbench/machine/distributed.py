"""One run by many processes, as torchrun starts them.

Every process (rank) holds the whole model. It trains on its share of a batch's lanes and scores
its share of an evaluation's windows; rank 0 writes and prints. A single process is a World of
size 1, in which all of this does nothing.

Work without communication is done in `together`: an error in one process is then raised in all, at
the same place. Any other error leaves a process apart from the rest and ends them all
(errors.Parted).
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from posbench.errors import Parted, UserError, one_line
from posbench.machine import torchrun

T = TypeVar("T")
S = TypeVar("S")


@dataclasses.dataclass
class World:
    """The processes of a run, seen from one of them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes of this machine
    local_size: int = 1
    store: PrefixStore | None = None
    agreed: Exception | None = None  # the latest failure that all know of
    said: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def console(self) -> Console:
        """rank 0's prints, the others' do not."""
        return Console() if self.leads else Console(quiet=True, force_terminal=False)

    def device(self, kind: torch.device) -> torch.device:
        """This process's own. Raises UserError where there are fewer than processes."""
        if self.size == 1 or kind.type != "cuda":
            return kind
        if self.local_size > (there := torch.cuda.device_count()):
            raise UserError(
                f"{self.local_size} processes on a machine with {there} CUDA devices; start as "
                "many as there are devices, or use runtime.device=cpu"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def share(self, count: int) -> slice:
        """Which of `count` lanes are this process's: neighbours; shares differ by at most one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(x)
        return x

    def any(self, here: bool) -> bool:
        return here if self.size == 1 else bool(self.sum(torch.tensor(int(here))))

    def gather(self, value: T) -> list[T]:
        """The value of each process, by rank, in all of them."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def gather_at_first(self, value: T) -> list[T]:
        """The value of each process, by rank, in rank 0; an empty list in the others."""
        if self.size == 1:
            return [value]
        values: list[Any] = [value] * self.size
        dist.gather_object(value, values if self.leads else None)
        return values if self.leads else []

    def spread(self, items: Sequence[S], work: Callable[[Sequence[S]], Sequence[T]]) -> list[T]:
        """Work on every size-th item in each process; all results, in order, in all processes."""
        with self.together():
            done = work(items[self.rank :: self.size])
        found: list[Any] = [None] * len(items)
        for rank, part in enumerate(self.gather(done)):
            found[rank :: self.size] = part
        return found

    def on_first(self, work: Callable[[], T]) -> T:
        """Call work in rank 0; all processes get its result, or its error."""
        value: Any = None
        with self.together():
            if self.leads:
                value = work()
        return self.gather(value)[0]

    @contextmanager
    def within(self, of_first: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        """A context that rank 0 alone enters, and that all processes leave together."""
        with ExitStack() as stack:
            with self.together():
                if self.leads:
                    stack.enter_context(of_first())
            yield
            with self.together():  # where it ends well, nobody goes on before it has
                stack.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """For work without communication: if it raises in one process, it raises in all."""
        if self.size == 1:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as failure:
            error = failure
        said = [line for line in self.gather(error and one_line(error)) if line is not None]
        if said:
            self.agreed = error or UserError(said[0])
            raise self.agreed

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Turn the network library's error for a lost process into a UserError."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not _is_of_network(error):
                raise
            if threading.current_thread() is threading.main_thread():
                # torchrun's to those that are left must not cut short what they say of it.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise UserError(
                f"one of the {self.size} processes of this run has died or failed; the same "
                "command, without run.overwrite, goes on from the last checkpoint"
            ) from error

    def first_to_say(self) -> bool:
        """Whether this process is the first to ask, and so is the one to print an error."""
        if self.store is None:  # alone, or not joined yet
            return torchrun.rank() == 0
        try:
            return self.store.add(f"said {next(self.said)}", 1) == 1
        except RuntimeError:  # gone with the process that held it
            return True

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model wrapped so that backward leaves the mean of all processes' gradients."""
        if self.size == 1:
            return model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer names for broadcast_buffers
            # All draw the same weights. Where unused parameters are looked for (an encoding may
            # have some), buckets stay as they are: a resumed run adds up in the same order.
            return DistributedDataParallel(
                model, find_unused_parameters=True, broadcast_buffers=False, init_sync=False
            )

    def adding(self, model: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Context of a pass: gradients are exchanged in the last one of a step only."""
        if last or not isinstance(model, DistributedDataParallel):
            return nullcontext()
        return model.no_sync()


ALONE = World()
_world = ALONE
_joins = itertools.count()  # a command in a process that ran another meets nobody from then


def world() -> World:
    """The processes that have joined. Raises UserError in one that torchrun did not start."""
    if torchrun.processes() != _world.size:
        raise UserError(
            f"torchrun started {torchrun.processes()} processes, which run a sweep's jobs one "
            "after another; leave out hydra/launcher, or torchrun"
        )
    return _world


def first_to_say() -> bool:
    """Whether this process is the one to print an error that all processes have."""
    return _world.first_to_say()


@contextmanager
def joined() -> Iterator[None]:
    """For the time of a command, join the other processes that torchrun started."""
    global _world
    if torchrun.processes() == 1:
        yield
        return
    store, rank, size = _met()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    named = PrefixStore(f"posbench {next(_joins)}", store)
    dist.init_process_group(backend, store=named, rank=rank, world_size=size)
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    _world = World(rank, size, local_rank, local_size, named)
    yield
    dist.destroy_process_group()  # after a failure others may be waiting: they see this one end


def _met() -> tuple[Any, int, int]:
    """Store, rank and size of torchrun's rendezvous. Raises UserError if it fails."""
    size, where = torchrun.processes(), "{MASTER_ADDR}:{MASTER_PORT}".format(**os.environ)
    if "TORCHELASTIC_RUN_ID" not in os.environ and torchrun.rank() == 0:
        print(
            f"RANK and WORLD_SIZE are set: waiting at {where} for all {size} processes; for one "
            "process, unset RANK",
            file=sys.stderr,
        )
    try:
        return next(rendezvous("env://"))
    except RuntimeError as error:
        raise UserError(
            f"the {size} processes of RANK and WORLD_SIZE did not all come to {where} "
            f"({one_line(error)[:200]}); start with torchrun, or unset RANK"
        ) from error


@contextmanager
def shared() -> Iterator[None]:
    """Context of a run. Raises Parted, which ends a sweep too, for an error that the other
    processes do not know of."""
    here = world()
    try:
        with here.noticing():
            yield
    except Exception as error:
        if here.size == 1 or error is here.agreed:
            raise
        raise Parted(error) from error
    finally:
        here.agreed = None


def _is_of_network(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)
