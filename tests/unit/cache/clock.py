"""A clock that stands still until a test sets it."""


class Clock:
    """Seconds, as time.monotonic gives them."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
