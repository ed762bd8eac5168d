"""The one exception a user is meant to read."""


class UserError(Exception):
    """A mistake in what was asked: one line that says what, where, and what would be right."""
