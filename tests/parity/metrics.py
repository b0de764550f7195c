"""Metrics over all samples, by definition and with fractions, for metrics_parity_test.cpp.

metrics.py FOLDER SIZES...: SIZES are the numbers of samples of all ranks, such as 31,9. FOLDER/SIZES.pt gets samples
for them, and the metrics of all samples together.
"""
import sys
from fractions import Fraction

import torch

CLASSES = 6


def top_k(scores, labels, k):
    """Of equal scores the lower class comes first."""
    hits = 0
    for row, label in zip(scores.tolist(), labels.tolist()):
        order = sorted(range(len(row)), key=lambda index: (-row[index], index))
        hits += label in order[:k]
    return Fraction(hits, len(labels))


def confusion(scores, labels):
    matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    for row, label in zip(scores.tolist(), labels.tolist()):
        matrix[label, row.index(max(row))] += 1
    return matrix


def main(out, sizes):
    generator = torch.Generator().manual_seed(3)
    count = sum(sizes)
    scores = torch.randint(0, 12, (count, CLASSES), generator=generator).float() / 4 - 1  # many are equal
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    scores[torch.arange(count), labels] += torch.randint(0, 3, (count,), generator=generator) / 2  # better than chance
    scores[0, 0], scores[1, 1] = float("inf"), -float("inf")
    losses = torch.rand(count, generator=generator, dtype=torch.double)
    torch.save({
        "scores": scores.split(sizes), "labels": labels.split(sizes), "losses": losses.split(sizes),
        "mean": float(sum(map(Fraction, losses.tolist())) / count),
        "top": [float(top_k(scores, labels, k)) for k in (1, 2, 5)],
        "confusion": confusion(scores, labels),
    }, out)


if __name__ == "__main__":
    for text in sys.argv[2:]:
        main(f"{sys.argv[1]}/{text}.pt", [int(size) for size in text.split(",")])
