"""The exceptions that a user is meant to read."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """A mistake in what was asked: one line that says what, where, and what would be right."""


class SweepFailed(UserError):
    """Some jobs of a multirun are not done; details says of each one why, and how to repeat it."""

    def __init__(self, message: str, details: Sequence[str]) -> None:
        super().__init__(message)
        self.details = details


class Parted(BaseException):
    """A process of several failed where the others do not know: none can go on to another job."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
