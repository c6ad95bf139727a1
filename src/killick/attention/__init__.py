"""Attention: where the heads of a vision transformer look, measured while it runs.

In: a transformer and images. Out: measures of each layer and head, and attention maps. Imports
`errors`, `metrics` and `core`.
"""

from killick.attention.attention_measure import AttentionLocality as AttentionLocality
from killick.attention.attention_measure import LayerLocality as LayerLocality
from killick.attention.attention_measure import measure as measure
from killick.attention.head_maps import attention_maps as attention_maps
from killick.attention.head_maps import last_map as last_map
