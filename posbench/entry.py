"""A command under Hydra, with Hydra's habits but this project's error lines."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import hydra
from omegaconf import DictConfig

from posbench import sweep
from posbench.errors import UserError
from posbench.explain import complain, is_users, one_line

Task = Callable[[DictConfig], None]


def command(config_name: str) -> Callable[[Task], Callable[[], None]]:
    """Make `task` a command composed from conf/<config_name>.yaml.

    In a multirun a job that fails says so at once and the others go on; the call then raises
    UserError, naming the failed ones. A single job's error is raised as it is.
    """

    def decorate(task: Task) -> Callable[[], None]:
        def call() -> None:
            errors: list[Exception] = []
            sweep.current = sweep.Sweep()

            def guarded(node: DictConfig) -> None:
                try:
                    task(node)
                except Exception as error:
                    if not sweep.current.multirun:
                        errors.append(error)  # raised below: Hydra would print it too
                        return
                    name = f"{node.run.name} seed {node.seed}"
                    sweep.current.failed.append(name)
                    complain(f"{name}: {one_line(error)}")
                    if not is_users(error):
                        traceback.print_exc()

            hydra.main(
                version_base="1.3", config_path="pkg://posbench.conf", config_name=config_name
            )(guarded)()
            if sweep.current.failed:
                total, names = sweep.current.total, ", ".join(sweep.current.failed)
                raise UserError(
                    f"{len(sweep.current.failed)} of {total or 'the'} runs failed: {names}"
                )
            if len(errors) > 1:
                raise UserError("; ".join(one_line(error) for error in errors))
            if errors:
                raise errors[0]

        return call

    return decorate
