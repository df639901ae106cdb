"""Progress of ``octavo up``: one line for each stage with its seconds, and a live line for the running stage."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Update = Callable[[str], None]


class Display:
    """Output on stderr: a spinner on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def print(self, text: str) -> None:
        """Print ``text`` without markup and without line breaks, so that a user can copy it."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator[Update]:
        """Show ``title`` until the block ends. The block calls the yielded function with details.

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
