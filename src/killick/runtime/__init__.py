"""What long-running work needs: processes, progress, signals, atomic files.

Imports `errors`, torch and rich; knows no model and no data.
"""
