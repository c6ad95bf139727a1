"""Reports: runs side by side, from their rows and answers alone; nothing here knows a model.

```
runs ──> comparison ──> numbers ──> headline, tables, figures, page
```

`make_comparison` sorts runs into arms, `summarise` gives their numbers with intervals, `headline`
says in a sentence or two what came out.
"""
