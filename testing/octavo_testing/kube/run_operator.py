"""The operator, with the dashboards of managed clusters at the address in ``OCTAVO_E2E_DASHBOARD``.

Pods of the fake node run nothing, so a stub plays their Ray. ``{namespace}`` and ``{cluster}`` are filled in.
"""

import asyncio
import os
import sys
from dataclasses import replace

from octavo_operator import logs, options
from octavo_operator.main import run_operator
from octavo_operator.model.defaults import Defaults
from octavo_operator.options import Options
from octavo_operator.plan import plan


class Elsewhere(Options):
    @property
    def defaults(self) -> Defaults:
        return replace(super().defaults, dashboard=os.environ["OCTAVO_E2E_DASHBOARD"])


def main() -> None:
    given = options.parse_options(sys.argv[1:])
    logs.configure(given.log_level, as_json=True)
    chosen = Elsewhere(**{name: getattr(given, name) for name in Options.__dataclass_fields__})
    asyncio.run(run_operator(chosen, plan))


if __name__ == "__main__":
    main()
