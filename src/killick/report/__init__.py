"""Reports: runs side by side, from the rows and predictions on disk. Nothing here knows a model.

In come run folders (`killick.results`), out come an HTML page, figures (SVG) and tables (CSV):

```
runs ──> comparison (arms, seeds) ──> statistics (means, intervals) ──> sections ──> page
```

Imports only `runtime`, `results`, `corruptions` and `metrics`. A section of the page is one file in
`sections/`.

In: run folders. Out: a page, figures and tables.
"""
