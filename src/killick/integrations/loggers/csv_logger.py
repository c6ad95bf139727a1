"""`metrics.csv`: what `metrics.jsonl` holds, for spreadsheets; written after each validation."""

from killick.results.csv_text import to_csv
from killick.results.run_folder import read_metrics
from killick.runtime.atomic_files import write_atomic
from killick.training.loggers import LOGGERS, Logger, Values


class CsvLogger(Logger):
    """Writes a row for each line of `metrics.jsonl`; values that are lists are left out."""

    def log(self, kind: str, step: int, values: Values) -> None:
        """Write the table, once an epoch."""
        if kind == "validation":
            self.close()

    def close(self) -> None:
        """Write the table."""
        entries = [
            {name: value for name, value in entry.items() if not isinstance(value, list)}
            for entry in read_metrics(self.folder / "metrics.jsonl")
        ]
        columns = list(dict.fromkeys(name for entry in entries for name in entry))
        lines = ([entry.get(column) for column in columns] for entry in entries)
        write_atomic(self.folder / "metrics.csv", to_csv(columns, lines))


LOGGERS.register("csv", CsvLogger)
