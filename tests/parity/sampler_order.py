"""Prints the indices of torch.utils.data.DistributedSampler: a line for each combination of arguments and each rank."""
import itertools

from torch.utils.data import DistributedSampler

SIZES = [1, 2, 5, 7, 16, 100, 1023]
WORLDS = [1, 2, 3, 4, 7, 16]
SEEDS_AND_EPOCHS = [(0, 0), (0, 3), (1234, 1), (2**40 + 5, 2)]

for size, world, drop_last in itertools.product(SIZES, WORLDS, [False, True]):
    orders = [(False, 0, 0)] + [(True, seed, epoch) for seed, epoch in SEEDS_AND_EPOCHS]
    for (shuffle, seed, epoch), rank in itertools.product(orders, range(world)):
        sampler = DistributedSampler(range(size), world, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        print(size, world, rank, int(shuffle), seed, epoch, int(drop_last), *sampler)
