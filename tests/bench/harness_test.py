"""Rounds, the choice of a peer's best way, and rows."""
import time
import unittest

import modules  # noqa: F401, first: it makes the module below importable

from by_size import each_in_its_way
from harness import BenchError, Outcome, Row, best_way, interleave


class Rounds(unittest.TestCase):
    def test_each_round_runs_all_and_gives_its_median(self):
        calls = []

        def contender(name, values):
            def once():
                calls.append(name)
                return {"key": values}

            return once

        found = interleave({"a": contender("a", [1.0, 5.0, 2.0]), "b": contender("b", [3.0])}, 4, Outcome(), "test")
        self.assertEqual(found, {"a": {"key": [2.0] * 4}, "b": {"key": [3.0] * 4}})
        for round_ in range(4):
            self.assertEqual(sorted(calls[2 * round_ : 2 * round_ + 2]), ["a", "b"])
        self.assertIn("ba", "".join(calls))  # the order changes

    def test_no_round_begins_that_would_end_too_late(self):
        once = {"a": lambda: {"key": [1.0]}}
        self.assertEqual(interleave(once, 5, Outcome(), "test", until=time.monotonic() - 1), {"a": {"key": [1.0]}})
        self.assertEqual(interleave(once, 5, Outcome(), "test", until=time.monotonic() + 3600), {"a": {"key": [1.0] * 5}})

    def test_one_that_fails_is_dropped_and_named(self):
        def fails():
            raise BenchError("broken")

        outcome = Outcome()
        found = interleave({"a": lambda: {"key": [1.0]}, "b": fails}, 3, outcome, "test")
        self.assertEqual(found, {"a": {"key": [1.0] * 3}})
        self.assertEqual(outcome.missing, ["test: b not measured: broken"])


class Ways(unittest.TestCase):
    WAYS = {"small": lambda: {4: [1.0], 1024: [9.0]}, "large": lambda: {4: [2.0], 1024: [3.0]}}

    def test_the_best_for_each_key(self):
        self.assertEqual(best_way(self.WAYS, Outcome(), "test"), {4: "small", 1024: "large"})
        self.assertEqual(best_way(self.WAYS, Outcome(), "test", more_is_better=True), {4: "large", 1024: "small"})

    def test_only_ways_close_to_the_best_are_measured_again(self):
        calls = []

        def way(name, values):
            def once():
                calls.append(name)
                return {4: [values[min(calls.count(name), len(values)) - 1]]}

            return once

        ways = {"lucky once": way("lucky once", [1.0, 1.4]), "good": way("good", [1.1]), "far": way("far", [2.0])}
        self.assertEqual(best_way(ways, Outcome(), "test"), {4: "good"})
        self.assertEqual([calls.count(name) for name in ways], [2, 2, 1])

    def test_ways_that_fail_do_not_count_unless_all_do(self):
        def fails():
            raise BenchError("broken")

        outcome = Outcome()
        self.assertEqual(best_way({"good": lambda: {4: [1.0]}, "bad": fails}, outcome, "test"), {4: "good"})
        self.assertEqual(outcome.missing, [])
        self.assertEqual(best_way({"bad": fails}, outcome, "test"), {})
        self.assertEqual(len(outcome.missing), 1)

    def test_each_size_is_measured_in_its_way(self):
        asked = []

        def way(name):
            def once(sizes):
                asked.append((name, sizes))
                return {size: [float(size)] for size in sizes}

            return once

        once = each_in_its_way({"a": way("a"), "b": way("b")}, {4: "a", 8: "b", 16: "a"})
        self.assertEqual(once(), {4: [4.0], 8: [8.0], 16: [16.0]})
        self.assertEqual(asked, [("a", [4, 16]), ("b", [8])])


class Rows(unittest.TestCase):
    def test_languages_are_named(self):
        row = Row("all_reduce", "c10d-private", 4, 2, [1.0], [2.0], "gloo", "us")
        self.assertEqual((row.case_text, row.peer_text), ("c10d-private", "gloo (Python)"))
        row = Row("all_reduce", "python-private", 4, 2, [1.0], [2.0], "openmpi", "us", language="Python")
        self.assertEqual((row.case_text, row.peer_text), ("python-private (Python)", "openmpi"))

    def test_sides_with_different_rounds_are_an_error_of_that_bench(self):
        with self.assertRaisesRegex(BenchError, "case against torchrun: 3 rounds of ours, 2 of the peer"):
            Row("launch", "case", None, 2, [1.0] * 3, [2.0] * 2, "torchrun", "ms")

    def test_json_has_ratio_and_interval(self):
        fields = Row("launch", "case", None, 2, [1.0, 2.0], [2.0, 4.0], "torchrun", "ms").to_json()
        self.assertEqual((fields["ratio"], fields["interval"], fields["ours"]), (2.0, [2.0, 2.0], 1.5))


if __name__ == "__main__":
    unittest.main()
