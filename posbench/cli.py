"""The command table. Neither torch nor hydra is imported before a command is chosen.

Hydra has no sub-commands: the word after `posbench` picks a module of posbench.commands, and
Hydra sees the rest of the line.
"""

from __future__ import annotations

import difflib
import importlib
import os
import signal
import sys

from posbench.machine import environment, torchrun
from posbench.terminal import streams

COMMANDS = {
    "train": "train, evaluate at every length, print the row; -m sweeps",
    "tune": "the same number of trials for every encoding; train tuned=true uses what they chose",
    "eval": "score a finished run again: posbench eval run=FOLDER eval.lengths=[128,4096]",
    "repro": "are a run's first steps the same to the last bit here? posbench repro FOLDER",
    "report": "every run under outputs/ as tables, curves and report.html",
    "claims": "the documents' eleven claims, tried now or read off the runs; claims.md",
    "check": "does an encoding keep what every encoding promises? posbench check encoding=mine",
    "describe": "one encoding: formula, parameters, cost, pictures: posbench describe encoding=t5",
    "speed": "tokens/s, peak memory and share of the machine's limits, beside nope's; -m sweeps",
    "published": "result tables of papers, to compare with: posbench published name=press2022",
    "encodings": "the encodings and the cells of the attention each one fills",
}
SHARED = ("train", "eval")  # with the processes that torchrun starts
COMPLETION = ("-sc", "--shell-completion")


def main() -> None:
    """Console entry point: `posbench COMMAND [key=value ...]`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        streams.prepare()
        environment.prepare()
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except OSError as error:  # not of a command: those are told by it
        code = streams.lost(error)
    if torchrun.processes() > 1:  # where one leaves, torchrun tells the others to, and they do
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of one command line."""
    command, *rest = arguments or ["--help"]
    if problem := torchrun.problem():
        return _refuse(problem)
    if command in ("-h", "--help", "help"):
        print(usage())
        return 0
    if command in COMPLETION:
        return _complete(rest)
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        if command.startswith("-"):
            hint = "; the command comes before any flag"
        return _refuse(f"{command}: no such command{hint} ({', '.join(COMMANDS)})")
    if torchrun.processes() > 1 and command not in SHARED:
        return _refuse(f"{command} is for one process: run it without torchrun")
    return _dispatch(command, rest)


def _refuse(line: str) -> int:
    """Print, from rank 0 alone, why there is nothing to run; the exit code."""
    if torchrun.rank() == 0:
        print(f"error: {line}", file=sys.stderr)
    return 2


def usage() -> str:
    """The commands, a line each."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  posbench {name:<{width}}  {what}" for name, what in COMMANDS.items())
    return (
        "posbench: which positional encoding, and does it extrapolate?\n\n"
        f"{rows}\n\n"
        "Each command takes Hydra's key=value overrides, --help, --cfg job and --config-dir.\n"
        'Tab completion: eval "$(posbench --shell-completion install=bash)"'
    )


def _dispatch(command: str, rest: list[str]) -> int:
    """Run one command under Hydra; a user's mistake is one line, a defect a traceback."""
    if torchrun.processes() > 1:
        # A DistributedDataParallel that looks for unused parameters warns where there are none.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from posbench.hydra_app.error_lines import exit_code, interrupted

    asked = os.environ.get("HYDRA_FULL_ERROR")  # 1: the user wants tracebacks
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting
    try:
        from posbench.hydra_app import overrides

        sys.argv = [f"posbench {command}", *overrides.readable(command, rest)]
        importlib.import_module(f"posbench.commands.{command}").main()
    except KeyboardInterrupt as stop:
        return interrupted(stop)
    except Exception as error:
        if asked == "1":
            raise
        return exit_code(error)
    finally:
        os.environ["HYDRA_FULL_ERROR"] = asked or "0"
    return 0


def _complete(rest: list[str]) -> int:
    """Hydra's completion, for the command on the line being typed."""
    line = os.environ.get("COMP_LINE", "")
    words = line.split()
    if rest and rest[0].startswith("query="):
        typed = words[1:2]
        if len(words) < 2 or (len(words) == 2 and not line.endswith(" ")):
            print("\n".join(name for name in COMMANDS if name.startswith("".join(typed))))
            return 0
        if typed[0] not in COMMANDS:
            return 0
        # Hydra strips one word, the program; take out the command behind it.
        without = line.replace(f" {typed[0]}", "", 1)
        cut = len(line) - len(without)
        os.environ["COMP_LINE"] = without
        point = os.environ.get("COMP_POINT", "")
        os.environ["COMP_POINT"] = str((int(point) if point.isdecimal() else len(line)) - cut)
        return _dispatch(typed[0], [COMPLETION[1], *rest])
    return _dispatch("train", [COMPLETION[1], *rest])
