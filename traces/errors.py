"""The one exception that means "the user's input is wrong"."""


class InputError(Exception):
    """Wrong input, configuration or option; `str()` is one line for the user.

    The line names the place (file and line, or key), what is wrong there and what would be right.
    The command prints it after `error: ` and exits with status 2.
    """
