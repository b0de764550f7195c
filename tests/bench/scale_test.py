"""The plots of rows by ranks, and for which numbers of ranks `./dev bench scale` measures."""
import argparse
import unittest
from html.parser import HTMLParser

import modules  # noqa: F401, first: it makes the modules below importable

import plots
import run
import scale
from harness import Row

ROWS = [
    Row("scale", f"all_reduce, {memory}", size, ranks, [ours] * 6, [9.0 * ours] * 6, "openmpi5", "us")
    for memory in ("shared", "private") for size in (4, 1 << 20) for ranks, ours in ((2, 1.0), (4, 40.0))
] + [Row("scale", "loader", None, ranks, [90.0 * ranks], [100.0 * ranks], "limit", "images/s") for ranks in (2, 1)]


class Panels(unittest.TestCase):
    def test_a_panel_for_each_case_and_size_with_a_line_for_each_of_ours_and_each_peer(self):
        found = plots.panels(ROWS)
        self.assertEqual([panel.title for panel in found], ["all_reduce, 4 B", "all_reduce, 1 MiB", "loader"])
        self.assertEqual(list(found[0].lines), ["lockstep, shared", "openmpi5", "lockstep, private"])
        self.assertEqual(found[2].lines["limit"], {2: [200.0], 1: [100.0]})

    def test_rows_from_python_have_panels_of_their_own(self):
        rows = [Row("scale", "all_reduce, shared", 4, ranks, [1.0], [9.0], "gloo", "us", language="Python") for ranks in (2, 4)]
        self.assertEqual([panel.title for panel in plots.panels(rows)], ["all_reduce from Python, 4 B"])

    def test_one_number_of_ranks_is_no_line(self):
        self.assertEqual(plots.panels([row for row in ROWS if row.ranks == 2]), plots.panels([]))


class Axes(unittest.TestCase):
    def test_marks_are_round_and_cover_the_values(self):
        for high, marks in ((4, [0, 1, 2, 3, 4]), (4.1, [0, 2, 4, 6]), (90, [0, 25, 50, 75, 100]), (0.3, [0, 0.1, 0.2, 0.3])):
            for mark, expected in zip(plots.round_marks(high), marks, strict=True):
                self.assertAlmostEqual(mark, expected)

    def test_from_a_large_range_on_it_is_logarithmic(self):
        marks, place = plots.y_axis([20.0, 90.0])
        self.assertEqual((marks[0], place(0), place(marks[-1])), (0, 0, 1))
        marks, place = plots.y_axis([2.0, 900.0])
        self.assertEqual((marks, place(1), place(1000)), ([1, 10, 100, 1000], 0, 1))
        self.assertAlmostEqual(place(10), 1 / 3)


class Page(unittest.TestCase):
    def test_it_is_whole_has_every_value_and_asks_the_network_for_nothing(self):
        open_tags = []

        class Reader(HTMLParser):
            def handle_starttag(self, tag, attributes):
                if tag not in ("meta", "link"):
                    open_tags.append(tag)
                for name, value in attributes:
                    if name in ("src", "href"):
                        assert value == "data:,", value

            def handle_endtag(self, tag):
                assert open_tags.pop() == tag, tag

        page = plots.page("a <name>", ROWS, ["- Date: today"])
        Reader().feed(page)
        self.assertEqual(open_tags, [])
        for text in ("a &lt;name&gt;", "<p class='soft'>Date: today</p>", "prefers-color-scheme:dark", "max-width:560px",
                     "<title>openmpi5, 4: 360</title>", "<title>limit, 2: 200</title>", "line c2 dashed"):
            self.assertIn(text, page)

    def test_lines_are_where_the_axes_say(self):
        figure = plots.figure(plots.panels(ROWS)[2])
        self.assertIn("<path class='line c1' d='M0 550L1000 100h0'/>", figure)  # 90 and 180 of 200
        self.assertIn("<span style='top:0.0%'>200</span>", figure)
        self.assertIn("<span style='left:100.0%'>2</span>", figure)


class Ranks(unittest.TestCase):
    def test_by_default_up_to_the_number_of_cores(self):
        self.assertEqual(scale.default_ranks(), [ranks for ranks in (1, 2, 4, 8, 16) if ranks <= scale.cores()])

    def test_the_block_of_a_page_names_others(self):
        def block(name, ranks):
            return run.block_name(name, argparse.Namespace(ranks=ranks, rounds=None, quick=False, pages="huge"))

        self.assertEqual(block("scale", None), "scale")
        self.assertEqual(block("scale", scale.default_ranks()), "scale")
        self.assertEqual(block("scale", [1, 32]), "scale --ranks 1,32")
        self.assertEqual(block("all_reduce", [2]), "all_reduce")


if __name__ == "__main__":
    unittest.main()
