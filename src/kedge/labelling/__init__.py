"""Labelling: picture files in, one record for each of them out.

```
inputs ──> reading ──> classifier ──> records ──> writing
```

`label` is the way in for Python, `kedge predict` that for a shell.
"""

from kedge.labelling.answering import label as label
from kedge.labelling.classifier import Answered as Answered
from kedge.labelling.classifier import Classifier as Classifier
from kedge.labelling.classifier import open_classifier as open_classifier
from kedge.labelling.records import Likely as Likely
from kedge.labelling.records import Record as Record
