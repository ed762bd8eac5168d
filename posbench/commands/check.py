"""posbench check: does an encoding keep what every encoding promises?"""

from __future__ import annotations

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posbench import config as schemas
from posbench.conformance import CHECKS, Finding, Subject, findings
from posbench.errors import UserError
from posbench.hydra_app.command import command
from posbench.machine import runtime
from posbench.model import from_config
from posbench.runs.checks import check
from posbench.terminal.tables import PLAIN

MARKS = {True: ("holds", "green"), False: ("FAILS", "bold red"), None: ("n/a", "dim")}


@command("train")
def main(node: DictConfig) -> None:
    console, config = Console(), schemas.load(node, schemas.Config)
    check(config)
    from_config.encoding_of(config)  # a mistake in it is no failed check
    runtime.set_threads(config.runtime.threads or 1)  # on small matrices two wait for each other
    subject = Subject(config, runtime.device(config.runtime.device))
    subject.require_memory()
    found: list[Finding] = []
    with console.status("checking") as status:
        for finding, following in zip(findings(subject), [*list(CHECKS)[1:], ""], strict=True):
            found.append(finding)
            status.update(following)
    console.print(_table(config, found))
    if broken := [finding.name for finding in found if finding.holds is False]:
        raise UserError(
            f"encoding={config.run.name}: {len(broken)} of {len(found)} checks fail: "
            f"{', '.join(broken)}"
        )


def _table(config: schemas.Config, found: list[Finding]) -> Table:
    title = Text(f"{config.run.name}: {config.encoding['_target_']}")
    table = Table(title=title, **PLAIN)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("seen")
    for finding in found:
        word, style = MARKS[finding.holds]
        table.add_row(finding.name, Text(word, style=style), Text(finding.detail))
    return table
