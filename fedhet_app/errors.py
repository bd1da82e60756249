"""The one error a user can cause: it names the key, the value and the remedy in one line."""


class FedhetError(Exception):
    """A mistake in the configuration, the data or the surroundings of a run.

    Args:
        key: What the user set (a run-config key, a file, a command-line option).
        value: What it was set to.
        remedy: What is wrong and what to do about it.
    """

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(f"{key} = {value!r}: {remedy}")
        self.key = key
        self.value = value
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["FedhetError"], tuple[str, object, str]]:
        """Rebuild from the three parts, so that the error survives a trip between processes."""
        return type(self), (self.key, self.value, self.remedy)


def one_line(error: BaseException) -> str:
    """Return class and text of another library's or a user's error on one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
