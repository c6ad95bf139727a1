"""Image sets, decoding, views and augmentation on batches.

In: a data name (`shapes`, `imagefolder:PATH`, ...) or tensors. Out: `ImageSet`s, and batches of uint8
images. Imports `errors`, `registry`, `settings`, `runtime` and `core`. To add a data source, register
a `DataSource` in a file of `sources/`.
"""
