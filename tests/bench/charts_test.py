"""Charts show what the tables say."""
import re
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import modules  # noqa: F401, first: it makes the modules below importable

import charts
import page_blocks
from chart_shapes import BySize, Curve, Line, Rows, read, scale
from harness import Outcome, Row
from machine import Machine
from report import markdown

MACHINE = Machine("huge pages", "PyTorch 9.9, MPICH 5", date="2026-01-02 03:04", commit="abc")
SVG = "{http://www.w3.org/2000/svg}"


def row(case, size, ours, peer):
    return Row("all_reduce", case, size, 2, [ours] * 6, [peer] * 6, "mpich", "us")


class FromTables(unittest.TestCase):
    def tables(self, **rows):
        """Tables of pages that hold what report.py makes of the rows of each bench."""
        with tempfile.TemporaryDirectory() as folder:
            for name, of_bench in rows.items():
                text = markdown(Outcome(rows=of_bench), f"./dev bench {name} --markdown", MACHINE)
                (Path(folder) / f"{name}.md").write_text(page_blocks.wrapped(name, text), encoding="utf-8")
            return read(Path(folder))

    def drawn(self, chart, **rows):
        tree = xml.fromstring(chart.draw(self.tables(**rows)))
        return [element.text for element in tree.iter(f"{SVG}text")], [path.get("class") for path in tree.iter(f"{SVG}path")]

    def test_a_list(self):
        found = self.tables(step=[row("mlp", None, 1000.0, 2500.0), row("cnn", None, 4.0, 4.0)])
        mlp, cnn = found.find("step", "mlp", "mpich", 2, ""), found.find("step", "cnn", "mpich", 2, "")
        self.assertEqual((mlp.ours, mlp.theirs, mlp.unit, mlp.ratio, mlp.low, mlp.high, mlp.shown),
                         ("1,000", "2,500", "us", 2.5, 2.5, 2.5, True))
        self.assertFalse(cnn.shown)

    def test_sizes(self):
        found = self.tables(sums=[row("core", 4, 1.0, 0.5), row("core", 1024, 2.0, 2.0)])
        self.assertEqual([(found.find("sums", "core", "mpich", 2, size).ratio, found.find("sums", "core", "mpich", 2, size).shown)
                          for size in ("4 B", "1 KiB")], [(0.5, True), (1.0, False)])

    def test_what_a_table_lacks(self):
        with self.assertRaisesRegex(ValueError, "./dev bench sums has no case 'core' against 'gloo' with 2 ranks and 4 B"):
            self.tables(sums=[row("core", 4, 1.0, 2.0), row("core", 8, 1.0, 2.0)]).find("sums", "core", "gloo", 2, "4 B")

    def test_rows(self):
        chart = Rows("x", "Steps & sums", (Line("MLP against MPICH", "step", "mlp", "mpich"),
                                           Line("CNN against MPICH", "step", "cnn", "mpich"),
                                           Line("sum against MPICH", "sums", "core", "mpich", 2, "1 KiB")))
        texts, marks = self.drawn(chart, step=[row("mlp", None, 10.0, 25.0), row("cnn", None, 4.0, 4.0)],
                                  sums=[row("core", 4, 1.0, 2.0), row("core", 1024, 2.0, 1.0)])
        for part in ("Steps & sums", "MLP against MPICH", "10.00 against 25.00 us", "2.50x", "2.00 us", "0.50x", "1x"):
            self.assertIn(part, texts)
        caption = " ".join(texts)
        self.assertIn("PyTorch 9.9; 2026-01-02; ./dev bench step, sums.", caption)
        self.assertEqual([kind for kind in marks if kind.startswith("mark")][3:],
                         ["mark c1", "mark none hollow", "mark c2"])  # the first three are the legend

    def test_by_size(self):
        chart = BySize("x", "Sums", "sums", (Curve("any memory", "core", "mpich"),))
        texts, marks = self.drawn(chart, sums=[row("core", 4, 1.0, 8.0), row("core", 1024, 2.0, 2.0)])
        for part in ("Sums", "any memory", "4 B", "1 KiB", "8x", "1x"):
            self.assertIn(part, texts)
        self.assertEqual([kind for kind in marks if kind.startswith("mark")], ["mark c1", "mark c1", "mark c1 hollow"])


class Scale(unittest.TestCase):
    def test_marks_surround_all_ratios_and_one(self):
        tables = FromTables().tables(step=[row("a", None, 1.0, 300.0), row("b", None, 1.0, 0.7)])
        marks, at = scale(tables.results.values(), 0, 100)
        self.assertIn(1, marks)
        self.assertLessEqual(len(marks), 8)
        self.assertTrue(0 < at(0.7) < at(1) < at(300) < 100)
        self.assertEqual((at(0), at(1e9)), (0, 100))


class Shipped(unittest.TestCase):
    def test_names_are_used_once_and_charts_fit(self):
        drawn = charts.draw(charts.ROOT)
        self.assertEqual(len(drawn), len(charts.CHART_LIST))
        for svg in drawn.values():
            tree = xml.fromstring(svg)
            width, height = float(tree.get("width")), float(tree.get("height"))
            for element in tree.iter(f"{SVG}text"):
                self.assertTrue(0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height)
            self.assertIn("prefers-color-scheme:dark", svg)
            self.assertIsNone(re.search(r"nan|inf", svg.split("</style>")[1].replace("information", "")))


if __name__ == "__main__":
    unittest.main()
