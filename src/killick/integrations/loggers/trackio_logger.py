"""trackio (extra `trackio`): local, or a Space that TRACKIO_SPACE_ID names; `trackio show`."""

import io
import os
import re
import secrets
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from killick.training.loggers import (
    LOGGERS,
    Logger,
    Values,
    numbers,
    read_run_id,
    write_run_id,
)
from killick.training.recipe import Recipe


class TrackioLogger(Logger):
    """A run of the project "killick", or of TRACKIO_PROJECT; the same after a resume."""

    library = "trackio"

    def __init__(self, folder: Path, recipe: Recipe | None, step: int | None) -> None:
        import trackio

        # trackio finds a run to resume by its name, so the name has to be its own.
        name = read_run_id(folder, "trackio")
        if name is None:
            own = re.sub(r"[^\w-]", "_", folder.absolute().name)[:100]
            name = f"{own}-{secrets.token_hex(3)}"
            write_run_id(folder, "trackio", name)
        with redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", "killick"),
                name=name,
                config=None if recipe is None else asdict(recipe),
                resume="allow",
                embed=False,
            )

    def log(self, kind: str, step: int, values: Values) -> None:
        """Log the numbers."""
        self._run.log(numbers(kind, values), step=step)

    def log_file(self, path: Path) -> None:
        """Log an artifact named by run and file."""
        self._run.log_artifact(path, name=f"{path.stem}-{self._run.name}", type="results")

    def close(self) -> None:
        """Finish the run."""
        with redirect_stdout(io.StringIO()):
            self._run.finish()


LOGGERS.register("trackio", TrackioLogger)
