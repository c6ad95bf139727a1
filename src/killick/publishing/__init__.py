"""Folders that a model hub takes as they are: the model, and a card with what was measured of it.

```
model, rows ──> measured ──> card ──> folder ──> the hub
                measured.py  card.py  folder.py   pushing.py
```
"""

from killick.publishing.folder import Published as Published
from killick.publishing.folder import publish as publish
