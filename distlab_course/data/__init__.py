"""Data for training: sets of images, and their partition among the ranks.

Called by the notebooks and on the ranks; it needs torch, scikit-learn for the digits, and pooch for what it downloads.
The same code runs under `torchrun`. Notebook 04 builds the partitioner.
"""

from distlab_course.data.partition import DataPartitioner, Partition, batch_per_rank
from distlab_course.data.sets import Images, ImageSet, augment, load, one_rank_first

__all__ = ["DataPartitioner", "ImageSet", "Images", "Partition", "augment", "batch_per_rank", "load", "one_rank_first"]
