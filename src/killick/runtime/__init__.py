"""What long-running work needs: processes, progress, signals, atomic files, the hub.

Imports `errors`, torch and rich; knows no model and no data.

In: work to be done. Out: its progress and its files, whole or not at all.
"""
