"""Folders that a model hub takes as they are: the model, and a card with what was measured of it.

```
model, rows ──> measured ──> card ──> folder ──> the hub
                measured.py  card.py  folder.py   pushing.py
```
"""

from kedge.publishing.folder import Published as Published
from kedge.publishing.folder import publish as publish
