"""The paired statistic: ratios by round, their median and its interval."""
import random
import statistics
import unittest

import modules  # noqa: F401, first: it makes the module below importable

from comparison import compare, interval_of_median, paired_ratios


class Ratios(unittest.TestCase):
    def test_above_one_is_better(self):
        self.assertEqual(paired_ratios([2.0, 4.0], [4.0, 4.0], more_is_better=False), [2.0, 1.0])
        self.assertEqual(paired_ratios([2.0, 4.0], [4.0, 4.0], more_is_better=True), [0.5, 1.0])

    def test_one_value_is_a_constant(self):
        self.assertEqual(paired_ratios([2.0, 4.0], [8.0], more_is_better=False), [4.0, 2.0])
        self.assertEqual(paired_ratios([2.0], [8.0, 4.0], more_is_better=False), [4.0, 2.0])

    def test_rounds_without_a_partner_are_an_error(self):
        with self.assertRaisesRegex(ValueError, "found 3 and 2"):
            paired_ratios([1.0, 1.0, 1.0], [1.0, 1.0], more_is_better=False)


class Intervals(unittest.TestCase):
    def test_it_holds_the_median(self):
        low, high = interval_of_median([1.0, 1.1, 1.2, 1.3, 1.4, 9.0])
        self.assertLessEqual(low, 1.25)
        self.assertGreaterEqual(high, 1.25)

    def test_its_ends_are_the_values_that_leave_at_most_5_percent_outside(self):
        for count, k in ((1, 1), (3, 1), (5, 1), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6)):
            values = random.Random(0).sample(range(count), count)
            self.assertEqual(interval_of_median(values), (k - 1, count - k), count)

    def test_equal_rounds_leave_no_doubt(self):
        self.assertEqual(interval_of_median([2.0] * 5), (2.0, 2.0))

    def test_it_covers_the_true_median_as_often_as_it_says(self):
        draw = random.Random(1)
        covered = 0
        for _ in range(100):
            low, high = interval_of_median([draw.gauss(1.0, 0.1) for _ in range(12)])
            covered += low <= 1.0 <= high
        self.assertGreaterEqual(covered, 93)


class Pairing(unittest.TestCase):
    def test_drift_that_hits_both_sides_cancels(self):
        drift = [1.0, 3.0, 0.5, 2.0, 5.0, 1.0]
        found = compare([10 * factor for factor in drift], [15 * factor for factor in drift])
        self.assertAlmostEqual(found.ratio, 1.5)
        self.assertAlmostEqual(found.low, 1.5)
        self.assertAlmostEqual(found.high, 1.5)

    def test_one_bad_round_changes_little(self):
        found = compare([10.0] * 7, [15.0] * 6 + [150.0])
        self.assertAlmostEqual(found.ratio, 1.5)

    def test_a_difference_is_shown_only_outside_interval_and_noise(self):
        self.assertTrue(compare([10.0] * 5, [11.0] * 5).shows_difference())
        self.assertFalse(compare([10.0] * 5, [11.0] * 5).shows_difference(noise=0.2))
        around_one = [9.0, 11.0, 9.5, 10.5, 10.2]
        self.assertFalse(compare([10.0] * 5, around_one).shows_difference())

    def test_equal_machines_show_no_difference(self):
        draw = random.Random(2)
        ours, peer = ([draw.gauss(10, 1) for _ in range(20)] for _ in range(2))
        found = compare(ours, peer)
        self.assertEqual(found.rounds, 20)
        self.assertLess(abs(found.ratio - 1), 0.1)
        self.assertLessEqual(found.low, statistics.median(paired_ratios(ours, peer, more_is_better=False)))


if __name__ == "__main__":
    unittest.main()
