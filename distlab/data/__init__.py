"""Data for training: sets of images, and their partition among the ranks.

Called by the notebooks and on the ranks; it needs torch, and scikit-learn for the digits. The same code runs under
`torchrun`. Notebook 04 builds the partitioner.
"""

from distlab.data.augment import augment
from distlab.data.download import one_rank_first
from distlab.data.partition import DataPartitioner, Partition, batch_per_rank
from distlab.data.sets import SETS, Images, ImageSet, load

__all__ = [
    "SETS",
    "DataPartitioner",
    "ImageSet",
    "Images",
    "Partition",
    "augment",
    "batch_per_rank",
    "load",
    "one_rank_first",
]
