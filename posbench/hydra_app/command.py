"""The decorator that makes a function a command: composed by Hydra, errors as one line."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import hydra
from omegaconf import DictConfig, OmegaConf

from posbench.errors import Parted, SweepFailed, UserError, one_line
from posbench.hydra_app import sweep, unsupported
from posbench.hydra_app.error_lines import is_users, print_error
from posbench.hydra_app.launcher import in_multirun
from posbench.hydra_app.sweep import NothingToRun, SweepHooks
from posbench.machine import job, paths
from posbench.terminal import streams

OmegaConf.register_new_resolver(
    "home", lambda path: paths.expanded("run.root", path), replace=True
)

Task = Callable[[DictConfig], None]


def command(
    config_name: str, hooks: SweepHooks | None = None
) -> Callable[[Task], Callable[[], None]]:
    """Make `task` a command composed from conf/<config_name>.yaml.

    In a multirun a job that fails says so at once and the others go on; the call then raises
    UserError, naming the failed ones. A single job's error is raised as it is.
    """

    def decorate(task: Task) -> Callable[[], None]:
        def call() -> None:
            failed: list[Exception] = []  # a single job's
            sweep.current = sweep.Sweep(hooks or SweepHooks())

            def guarded(node: DictConfig) -> None:
                streams.substitute()  # in a worker of a launcher's too
                sweep.begin_job()
                try:
                    if not in_multirun():
                        unsupported.require_placed(node)
                    task(node)
                except Exception as error:
                    if not in_multirun():
                        failed.append(error)  # raised below: Hydra would print it too
                        return
                    said = f"{sweep.job_name(node)}: {one_line(error)}"
                    sweep.current.failed[job.current.number] = said
                    print_error(said)
                    if not is_users(error):
                        traceback.print_exc()

            try:
                hydra.main(
                    version_base="1.3", config_path="pkg://posbench.conf", config_name=config_name
                )(guarded)()
            except Parted as parted:
                raise parted.error from None
            except NothingToRun as stopped:
                if stopped.error is not None:
                    raise stopped.error from None
                return
            except Exception as error:  # a launcher that loses a worker gives up its other jobs
                if not sweep.current.multirun:
                    _require_readable(error)
                    raise
                raise _failed(f"the sweep broke off ({one_line(error)}): ") from error
            finally:
                job.current = job.Job()
            if sweep.failures():
                raise _failed()
            if failed:
                raise failed[0]

        return call

    return decorate


def _require_readable(error: Exception) -> None:
    """Raise UserError for an error of Hydra's own about an override."""
    if isinstance(error, (ValueError, TypeError, AssertionError, RecursionError)):
        raise UserError(f"the overrides cannot be read: {one_line(error)}") from error


def _failed(why: str = "") -> SweepFailed:
    failures, total = sweep.failures(), sweep.current.total or "the"
    return SweepFailed(f"{why}{len(failures)} of {total} jobs failed", failures)
