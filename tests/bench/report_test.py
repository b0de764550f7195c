"""Tables as text and as Markdown, and their blocks in pages."""
import tempfile
import unittest
from pathlib import Path

import modules  # noqa: F401, first: it makes the modules below importable

import page_blocks
from comparison import compare
from harness import Outcome, Row
from machine import Machine
from report import markdown, note, size_text, text_table

MACHINE = Machine("huge pages", "PyTorch 9.9", date="a day", commit="abc")


def row(size, ours, peer, case="core", ranks=2, name="openmpi"):
    return Row("all_reduce", case, size, ranks, ours, peer, name, "us")


class Text(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([size_text(size) for size in (None, 4, 1 << 10, 25 << 20, (3 << 20) // 2)],
                         ["", "4 B", "1 KiB", "25 MiB", "1536 KiB"])

    def test_a_line_for_each_row(self):
        lines = text_table([row(4, [1.0] * 6, [2.0] * 6), row(1024, [1.0, 2.0, 3.0] * 2, [2.0] * 6)], MACHINE).splitlines()
        self.assertEqual(len(lines), 3)
        self.assertIn("2.00x  [2.00 .. 2.00]", lines[1])
        self.assertTrue(lines[2].endswith("no difference shown"))
        self.assertTrue(text_table([row(4, [1.0, 1.0], [2.0, 2.0])], MACHINE).endswith("too few rounds"))

    def test_noise_concerns_what_is_timed(self):
        noisy = Machine("huge pages", "PyTorch 9.9", noise={1: compare([1.0] * 6, [1.5] * 6)})
        notes = []
        for unit, peer in (("us", 1.2), ("MiB", 1.2), ("KiB", 1.0)):
            one = Row("zero", "state", None, 2, [1.0] * 6, [peer] * 6, "theory", unit)
            notes.append(note(one, noisy))
        self.assertEqual(notes, ["no difference shown", "", "equal"])


class Markdown(unittest.TestCase):
    def test_the_head_names_machine_date_and_versions(self):
        text = markdown(Outcome(rows=[row(None, [1.0] * 3, [2.0] * 3)]), "./dev bench launch --markdown", MACHINE)
        for part in ("- Command: `./dev bench launch --markdown`", "- Date: a day, commit abc", "- Machine: ", "huge pages",
                     "- Versions: PyTorch 9.9", "- Noise: not measured", "- Rounds: 3, ", "seed 1"):
            self.assertIn(part, text)

    def test_sizes_become_columns(self):
        rows = [row(4, [1.0] * 6, [2.0] * 6), row(1024, [2.0] * 6, [1.0] * 6),
                row(4, [1.0] * 6, [0.9, 1.0, 1.1] * 2, name="mpich")]
        text = markdown(Outcome(rows=rows), "x", MACHINE)
        self.assertIn("| 2 ranks | 4 B | 1 KiB |\n|---|---|---|\n| **core**, us | 1.00 | 2.00 |\n"
                      "| against openmpi | 2.00x [2.00 .. 2.00] | 0.50x [0.50 .. 0.50] |\n"
                      "| against mpich | *1.00x [0.90 .. 1.10]* |  |\n", text)
        self.assertIn("*Slanted*: no difference shown", text)

    def test_rows_without_a_size_have_a_table_of_their_own(self):
        rows = [row(4, [1.0] * 6, [2.0] * 6), row(1024, [2.0] * 6, [1.0] * 6), row(None, [1.0] * 6, [3.0] * 6, case="step")]
        text = markdown(Outcome(rows=rows), "x", MACHINE)
        self.assertIn("| **core**, us | 1.00 | 2.00 |", text)
        self.assertIn("| step | 2 | 1.00 [1.00 .. 1.00] | openmpi | 3.00 [3.00 .. 3.00] | us | 3.00x |", text)

    def test_notes_and_what_is_missing(self):
        text = markdown(Outcome(rows=[], notes=["ring from 25 MiB"], missing=[
            "oneccl: mpirun /opt/peers/oneccl\nended with 1:\nlong story\nno such provider\n=====\n", "gloo: gone"]), "x", MACHINE)
        self.assertTrue(text.endswith("- ring from 25 MiB\n- Not measured: oneccl: mpirun oneccl ... no such provider\n"
                                      "- Not measured: gloo: gone\n"))


class Blocks(unittest.TestCase):
    PAGE = "before\n<!-- bench a -->\nold\n<!-- end of bench a -->\nafter\n<!-- bench b --quick -->\n<!-- end of bench b --quick -->\n"

    def test_only_the_named_block_changes(self):
        page = page_blocks.replaced(self.PAGE, "b --quick", "new\n")
        self.assertTrue(page.startswith("before\n<!-- bench a -->\nold\n<!-- end of bench a -->\nafter\n<!-- bench b --quick -->\nnew\n"))
        page = page_blocks.replaced(page, "a", "newer\n")
        self.assertNotIn("old", page)
        self.assertEqual([(block.name, block.text) for block in page_blocks.blocks(page)], [("a", "newer\n"), ("b --quick", "new\n")])

    def test_the_digest_is_of_the_text(self):
        [block] = page_blocks.blocks(page_blocks.wrapped("a", "text\n"))
        self.assertEqual(block.digest, page_blocks.digest("text\n"))
        self.assertNotEqual(block.digest, page_blocks.digest("text!\n"))

    def test_a_page_without_the_block(self):
        with self.assertRaisesRegex(ValueError, "<!-- bench c -->"):
            page_blocks.replaced(self.PAGE, "c", "")

    def test_the_page_of_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "first.md").write_text("text\n", encoding="utf-8")
            second = Path(folder) / "second.md"
            second.write_text(self.PAGE, encoding="utf-8")
            for place in (Path(folder), second):
                self.assertEqual(page_blocks.page_with(place, "b --quick"), second)
                with self.assertRaisesRegex(ValueError, "<!-- bench c -->"):
                    page_blocks.page_with(place, "c")

    def test_comments_without_a_partner(self):
        for page in ("<!-- bench a -->\n", "<!-- end of bench a -->\n", "<!-- bench a -->\n<!-- end of bench b -->\n",
                     "<!-- bench a -->\n<!-- bench b -->\n"):
            with self.assertRaisesRegex(ValueError, "line"):
                list(page_blocks.blocks(page))


if __name__ == "__main__":
    unittest.main()
