"""Labelling: picture files in, one record for each of them out.

```
inputs ──> reading ──> classifier ──> records ──> writing
```

`label` is the way in for Python, `killick predict` that for a shell.
"""

from killick.labelling.answering import label as label
from killick.labelling.classifier import Answered as Answered
from killick.labelling.classifier import Classifier as Classifier
from killick.labelling.classifier import open_classifier as open_classifier
from killick.labelling.records import Likely as Likely
from killick.labelling.records import Record as Record
