"""The ways of using a peer, and the table of a search among them."""
import unittest

import modules  # noqa: F401, first: it makes the modules below importable

import tune
from init import PEERS as START_PEERS
from harness import Outcome
from peer_ways import START_WAYS, WAYS, Way, usual
from settings import best_settings


class Ways(unittest.TestCase):
    def test_every_peer_has_ways_for_a_bench_each_with_a_reason(self):
        for peer, ways in WAYS.items():
            self.assertTrue(usual(peer), peer)
            self.assertIn(next(iter(ways)), usual(peer), "the first is what the others are compared with")
            for name, way in ways.items():
                self.assertTrue(way.reason, f"{peer}, {name}")

    def test_the_start_has_ways_for_every_mpi(self):
        self.assertEqual(list(START_WAYS), START_PEERS)

    def test_other_operations_have_a_way_too(self):
        for peer in ("openmpi", "intelmpi"):
            self.assertTrue([name for name, way in usual(peer).items() if way.collective])

    def test_the_table_compares_with_the_first_way_and_marks_the_best(self):
        found = {"default": {4: [2e-6] * 3, 1024: [1e-6] * 3}, "ring": {4: [4e-6] * 3, 1024: [0.5e-6] * 3}}
        lines = tune.table("openmpi", found, more_is_better=False).splitlines()
        self.assertEqual(lines[0], "| openmpi: way | 4 B | 1 KiB | why |")
        self.assertTrue(lines[2].startswith("| default, us | 2.00 | 1.00 |"))
        self.assertTrue(lines[3].startswith("| ring | 0.50x [0.50 .. 0.50] | **2.00x [2.00 .. 2.00]** |"))

    def test_settings_are_searched_one_after_another_and_combined(self):
        settings = {"layout": {"rows": Way("first"), "columns": Way("second", options=("--columns",))},
                    "cores": {"pinned": Way("first"), "free": Way("second", pinned=False)}}

        def measured(way):  # columns are better, and better still when not pinned; rows are not
            seconds = {(False, True): 4.0, (False, False): 5.0, (True, True): 3.0, (True, False): 2.0}
            return lambda: {"step": [seconds["--columns" in way.options, way.pinned]]}

        start = Way("start", {"A": "1"}, options=("--fused",))
        way, names = best_settings(start, settings, measured, Outcome(), "test")
        self.assertEqual(names, "columns, free")
        self.assertEqual((way.options, way.pinned, way.environment), (("--fused", "--columns"), False, {"A": "1"}))
        slower, names = best_settings(start, settings, measured, Outcome(), "test", more_is_better=True)
        self.assertEqual((names, slower.pinned), ("rows, free", False))

    def test_rates_count_the_other_way_round(self):
        found = {"fast": {"crop-flip": [100.0] * 3}, "exact IDCT": {"crop-flip": [50.0] * 3}}
        lines = tune.table("dali", found, more_is_better=True).splitlines()
        self.assertTrue(lines[2].startswith("| fast, images/s | 100 |"))
        self.assertTrue(lines[3].startswith("| exact IDCT | 0.50x [0.50 .. 0.50] |"))


if __name__ == "__main__":
    unittest.main()
