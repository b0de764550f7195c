"""What the bench of a step's efficiency makes of the program's numbers."""
import unittest

import modules  # noqa: F401, first: it makes the modules below importable

from efficiency import FORMS, Pair, add_rows
from harness import Outcome


class Steps(unittest.TestCase):
    def test_communication_and_waiting_are_apart(self):
        pairs = [Pair.of([[0.101, 0.100], [0.090, 0.100]])] * 6
        outcome = Outcome()
        add_rows(outcome, FORMS[0], 2, pairs)
        communication, both = outcome.rows
        self.assertAlmostEqual(communication.ratio, 100 / 101)
        self.assertAlmostEqual(both.ratio, 95 / 101)

    def test_a_stall_of_one_rank_is_in_the_sums_alone(self):
        pairs = [Pair.of([[0.1, 0.1], [0.1, 0.1]])] * 5 + [Pair.of([[0.2, 0.2], [0.1, 0.1]])]
        outcome = Outcome()
        add_rows(outcome, FORMS[0], 2, pairs)
        self.assertEqual([row.ratio for row in outcome.rows], [1, 1])
        self.assertIn("85.7 % of the mean of the ranks", outcome.notes[0])


if __name__ == "__main__":
    unittest.main()
