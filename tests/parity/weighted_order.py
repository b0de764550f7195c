"""Prints the indices of torch.utils.data.WeightedRandomSampler: a line for each combination of arguments."""
import itertools

import torch
from torch.utils.data import WeightedRandomSampler

WEIGHTS = [[1.0], [1.0, 0.0, 3.0], [0.1 * (i % 7) + 0.01 for i in range(1000)]]

for weights, replacement, seed in itertools.product(WEIGHTS, [True, False], [0, 7, 1234]):
    draws = 500 if replacement else sum(weight > 0 for weight in weights)
    generator = torch.Generator().manual_seed(seed)
    sampler = WeightedRandomSampler(weights, draws, replacement, generator)
    print(len(weights), *weights, draws, int(replacement), seed, *sampler)
