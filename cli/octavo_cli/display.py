"""What ``octavo up`` shows while it works: one line a stage with its seconds, a live one for the stage that runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Update = Callable[[str], None]


class Display:
    """Writes to stderr; a terminal gets a spinner, anything else plain lines."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """Prints ``text`` as it is: nothing in it is markup, no line is broken, so that it can be copied."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator[Update]:
        """Shows ``title`` until the block ends; the value given is called with what happens inside.

        Away from a terminal every new detail is a line of its own.
        """
        began = time.monotonic()
        shown = ""

        def text() -> str:
            return f"{title} [dim]{time.monotonic() - began:.0f} s {shown}[/]"

        with self.console.status(title) as status:

            def update(detail: str) -> None:
                nonlocal shown
                if detail != shown and not self.console.is_terminal:
                    self.console.print(f"  [dim]{detail}[/]")
                shown = detail
                status.update(text())

            try:
                yield update
            except BaseException:
                self.console.print(f"[red]✗[/] {title} [dim]{time.monotonic() - began:.1f} s[/]")
                raise
        self.console.print(f"[green]✓[/] {title} [dim]{time.monotonic() - began:.1f} s[/]")
