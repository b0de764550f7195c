"""What the bench of the reference job reads and writes."""
import unittest
from pathlib import Path

import modules  # noqa: F401, first: it makes the modules below importable

import train
from harness import BenchError

OUTPUT = """[rank 0]: Rank 0, epoch 0: 3.21 s, 12.34 pictures/s, loss 1.2345
[rank 0]: Rank 0: test accuracy 45.00 %
[rank 0]: Rank 0, epoch 1: 3.20 s, 12.38 pictures/s, loss 1.1345
[rank 0]: Rank 0: test accuracy 47.50 %
"""


class ReferenceJob(unittest.TestCase):
    def test_rates_and_accuracies_are_those_of_the_example(self):
        self.assertEqual(train.EPOCH.findall(OUTPUT), ["12.34", "12.38"])
        self.assertEqual(train.ACCURACY.findall(OUTPUT), ["45.00", "47.50"])
        source = (Path(train.HERE).parent / "examples/resnet/job.h").read_text(encoding="utf-8")
        for text in ("Rank 0, epoch %lld: %.2f s, %.2f pictures/s, loss %.4f", "Rank 0: test accuracy %.2f %%"):
            self.assertIn(text, source)

    def test_a_run_without_epochs_is_an_error(self):
        for rates, accuracies in (([], []), ([1.0], [2.0]), ([1.0, 2.0], [3.0])):
            with self.assertRaises(BenchError):
                train.Epochs(rates, accuracies)

    def test_curves_are_compared_by_their_means(self):
        curves = {"ours": [[10, 20, 30], [12, 22, 35]], "pytorch": [[11, 18, 31], [9, 25, 33]]}
        text = train.curves_text(curves)
        self.assertIn("ours 32.5 % and pytorch's 32.0 %", text)
        self.assertIn("at most 1.0 points apart (epoch 1)", text)
        self.assertIn("up to 3.5 (standard deviation)", text)


if __name__ == "__main__":
    unittest.main()
