"""Prints the parts of torch.utils.data.random_split: size, seed, lengths, and the size and the indices of each part."""
import itertools

import torch
from torch.utils.data import random_split

SPLITS = [(10, [7, 3]), (1, [1]), (5, [0, 5]), (101, [0.5, 0.25, 0.25]), (7, [0.1, 0.2, 0.7]), (1000, [1 / 3, 1 / 3, 1 / 3])]

for (size, lengths), seed in itertools.product(SPLITS, [0, 7, 2**40 + 5]):
    parts = random_split(range(size), lengths, torch.Generator().manual_seed(seed))
    print(size, seed, len(lengths), *map(repr, lengths), *itertools.chain(*([len(part), *part.indices] for part in parts)))
