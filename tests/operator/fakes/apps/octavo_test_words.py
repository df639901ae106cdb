"""An application that costs nothing."""

from typing import Any

from ray import serve


@serve.deployment(name="Word")
class Word:
    def reconfigure(self, config: dict[str, Any]) -> None:
        self.config = config

    async def __call__(self) -> str:
        return "word"


def build(args: dict[str, Any]) -> serve.Application:
    assert args["word"]
    return Word.bind()
