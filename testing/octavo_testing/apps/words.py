"""An application that costs nothing."""

import os
from pathlib import Path
from typing import Any

from ray import serve


@serve.deployment(name="Word")
class Word:
    def __init__(self) -> None:
        if (needed := os.environ.get("WORD_NEEDS")) and not Path(needed).exists():
            raise FileNotFoundError(needed)

    def reconfigure(self, config: dict[str, Any]) -> None:
        self.config = config

    async def __call__(self) -> str:
        return "word"


def build(args: dict[str, Any]) -> serve.Application:
    assert args["word"]
    return Word.bind()
