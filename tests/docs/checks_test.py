"""Each check of tools/docs finds its errors, and accepts correct pages."""
from pathlib import Path

from tools import Project  # first: it makes the modules below importable

import bench_tables
import code_blocks
import commands
import environment
import links


class Links(Project):
    def setUp(self):
        super().setUp()
        self.write("docs/README.md", "# Index\n[a](a.md), [ours](../README.md), [figures](performance.md)\n")
        self.write("docs/performance.md", "# Figures\n")
        self.write("examples/README.md", "[first](first/main.cpp)\n")
        self.write("examples/first/main.cpp", "")
        self.write("docs/a.md", "# Part: `one_two` (and more)\n## Same\n## Same\n")
        self.write("README.md", "[a](docs/a.md#part-one_two-and-more) [b](docs/a.md#same-1) [web](https://x.y/z#w)\n"
                                "`[no](link)`\n```\n[no](link)\n```\n[here](#top)\n# Top\n")

    def test_good_ones(self):
        self.assertEqual(self.found_by(links.check), [])

    def test_bad_ones(self):
        self.write("docs/a.md", "[gone](b.md)\n\n[there](../README.md#nowhere)\n")
        self.assertEqual(self.found_by(links.check), [
            "README.md:1: docs/a.md has no heading #part-one_two-and-more",
            "README.md:1: docs/a.md has no heading #same-1",
            "docs/a.md:1: the link to b.md leads nowhere",
            "docs/a.md:3: README.md has no heading #nowhere"])

    def test_an_incomplete_index(self):
        self.write("docs/new.md", "")
        self.write("docs/measurements/more.md", "")
        self.write("examples/second/main.cpp", "")
        self.assertEqual(self.found_by(links.check), [
            "docs/README.md:1: this index does not name new.md",
            "docs/performance.md:1: this index does not name measurements/more.md",
            "examples/README.md:1: this index does not name second"])

    def test_a_block_without_end(self):
        self.write("docs/a.md", "text\n```cpp\nint x;\n")
        self.assertIn("docs/a.md:1: line 2: a block begins here and does not end", self.found_by(links.check))


class Environment(Project):
    PAGE = "| `RANK`, `LOCKSTEP_A` | text |\n| `UCX_TLS` | `NOT_THIS_ONE` |\n## Read by others\n| `NCCL_B` | |\n"

    def setUp(self):
        super().setUp()
        self.write("docs/environment.md", self.PAGE)
        self.write("core/src/a.cpp", 'getenv("RANK"); get("LOCKSTEP_A"); find("lower"); type("F8_E4M3");')
        self.write("core/src/b.cpp", 'all{\n  {"TLS", "tcp"},\n};\nname = std::string("UCX_") + setting;')

    def test_agreement(self):
        self.assertEqual(self.found_by(environment.check), [])

    def test_a_variable_that_is_not_on_the_page(self):
        self.write("core/include/c.h", '\nconstexpr auto kName = "LOCKSTEP_NEW";\nnumber(environment, "SIZE");')
        self.write("core/src/b.cpp", 'all{\n  {"TLS", "tcp"},\n  {"LOG_LEVEL", "error"}};\nstd::string("UCX_") + name;')
        self.assertEqual(self.found_by(environment.check), [
            "core/src/b.cpp:3: the environment variable UCX_LOG_LEVEL is not in docs/environment.md",
            "core/include/c.h:2: the environment variable LOCKSTEP_NEW is not in docs/environment.md",
            "core/include/c.h:3: the environment variable SIZE is not in docs/environment.md"])

    def test_a_variable_that_no_source_uses(self):
        self.write("core/src/a.cpp", 'getenv("RANK");')
        self.assertEqual(self.found_by(environment.check),
                         ["docs/environment.md:1: no source uses LOCKSTEP_A; remove it from this page"])


class Commands(Project):
    def setUp(self):
        super().setUp()
        self.write("dev", "cat <<TEXT\n  test    run\n            --label L\n  check\n            --quick\nTEXT\n")
        self.write("core/src/cli/run_options.cpp", 'key("nproc_per_node", a); key_of_text(\n    "tee", b)')
        self.write("vision/src/cli/pictures/commands.cpp", 'command\n      .key("resize", c)')
        self.write("CMakeLists.txt", "option(LOCKSTEP_TESTS)")
        self.write("tests/documented/commands.txt", "./dev\n    not run: builds everything\n")
        self.write("docs/dev.md", "    ./dev test\n")

    def test_good_ones(self):
        self.write("README.md", "    ./dev test --label unit   # and --other\n`./dev check --quick`, then --more\n"
                                "lockstep run --nproc-per-node 2 ./train --epochs 10\n`lockstep pack A B --resize 2`\n"
                                "cmake -DLOCKSTEP_TESTS=OFF; `./dev` alone\n")
        self.assertEqual(self.found_by(commands.check), [])

    def test_rows_that_are_no_options(self):
        self.write("core/src/cli/run_options.cpp", 'key("devices", a, "0; 1").letter("d");\nkey("device_ids", b)\n'
                                                   '    .only_in_file();\nkey("program", c).rest();\n')
        self.write("README.md", "lockstep run --devices 0 --device-ids 1 --program x\n")
        self.assertEqual(self.found_by(commands.check), ["README.md:1: lockstep run has no option --device-ids",
                                                         "README.md:1: lockstep run has no option --program"])

    def test_bad_ones(self):
        self.write("README.md", "./dev tset\n./dev test --lable unit\nlockstep run --nproc 2 --tee 3 ./train\n"
                                "lockstep data check --all\ncmake -DLOCKSTEP_TEST=OFF\n")
        self.assertEqual(self.found_by(commands.check), [
            "README.md:1: ./dev has no command 'tset'",
            "README.md:2: ./dev help does not name --lable",
            "README.md:3: lockstep run has no option --nproc",
            "README.md:4: lockstep data check has no option --all",
            "README.md:5: CMake has no setting LOCKSTEP_TEST"])

    def test_a_good_list(self):
        self.write("core/tests/cli/run_test.cpp", "TEST(Run, Runs) {}\nTEST_F(Jobs, AreStopped) {}\n")
        self.write("tests/package/CMakeLists.txt", "add_test(NAME Package.Builds COMMAND x)\n")
        self.write("docs/a.md", "```\nlockstep run a   # one\n[rank 0]: lockstep run\n```\n    cmake -S . \\\n          -B b\n    found\n"
                                "```bash\nlockstep stop J\n```\n```cpp\nlockstep run b;\n```\n")
        self.write("docs/b.md", "```bash\ncd there\nlockstep new x\n```\n")
        self.write("tests/documented/commands.txt",
                   "# All of them.\nlockstep run a\n    test Run.Runs\nlockstep stop J\n    test Jobs.AreStopped\n./dev\n    not run: all\n"
                   "cmake -S . -B b\n    test Package.Builds\npage docs/b.md\n    test Package.Builds\n")
        self.assertEqual(self.found_by(commands.check), [])

    def test_a_bad_list(self):
        self.write("docs/a.md", "```\nlockstep run a\nlockstep ps\n```\n")
        self.write("tests/documented/commands.txt", "./dev\n    not run: all\nlockstep run a\n    test Run.Runs\nlockstep run b\n"
                                                    "    not run: no\nlockstep ps\n")
        self.assertEqual(self.found_by(commands.check), [
            "tests/documented/commands.txt:4: there is no test Run.Runs",
            "tests/documented/commands.txt:6: no page shows 'lockstep run b'",
            "tests/documented/commands.txt:7: expected 'test SUITE.NAME' or 'not run: REASON' below 'lockstep ps'"])
        self.write("tests/documented/commands.txt", "./dev\n    not run: all\nlockstep run a\n    not run: yet\n")
        self.assertEqual(self.found_by(commands.check), [
            "docs/a.md:3: tests/documented/commands.txt does not say which test runs 'lockstep ps', or why none does"])


class CodeBlocks(Project):
    MISSING = "no file of tests/documented or examples contains this code; add it there, so that it is compiled"

    def setUp(self):
        super().setUp()
        self.write("tests/documented/a.cpp", '#include "a/b.h"\nvoid f() {\n  int x = 1;  // one\n  call("http://x",\n'
                                             '       /*n=*/x);\n  for (;;) { step(); }\n  int y = 2;\n}\n')
        self.write("examples/one/main.cpp", "int main() { return 0; }\n")

    def page(self, *lines):
        self.write("docs/a.md", "\n".join(["text", "```cpp", *lines, "```", ""]))
        return self.found_by(code_blocks.check)

    def test_compiled_blocks(self):
        self.assertEqual(self.page("#include <a/b.h>", "", "int x = 1;   // another comment", 'call("http://x", x);'), [])
        self.assertEqual(self.page("int x = 1;", "...", "for (;;) { ... }"), [])
        self.assertEqual(self.page("int main() {", "  return 0;", "}"), [])

    def test_other_blocks(self):
        missing = [f"docs/a.md:3: {self.MISSING}"]
        self.assertEqual(self.page("int z = 1;"), missing)
        self.assertEqual(self.page('call("http://y", x);'), missing)
        self.assertEqual(self.page("int x = 1;", "int y = 2;"), missing)  # not adjacent there
        self.assertEqual(self.page("int y = 2;", "...", "int x = 1;"), missing)
        self.assertEqual(self.page("#include <a/c.h>", "int x = 1;"), missing)

    def test_a_block_without_a_language(self):
        self.write("docs/a.md", "```\nstd::vector<int> x;\n```\n")
        self.assertEqual(self.found_by(code_blocks.check),
                         ["docs/a.md:1: line 2: this block looks like C++; begin it with ```cpp"])

    def test_scripts(self):
        self.write("examples/one/run.sh", "#!/bin/sh\nexec ./one\n")
        self.write("docs/a.md", "```bash\n#!/bin/sh\nexec ./one\n```\n```bash\nanything\n```\n")
        self.assertEqual(self.found_by(code_blocks.check), [])
        self.write("docs/a.md", "```bash\n#!/bin/sh\nexec ./two\n```\n")
        self.assertEqual(len(self.found_by(code_blocks.check)), 1)

    def test_headers(self):
        self.write("core/include/a.h", "// Text:\n//\n//   int x = 1;\n//   ...\n//   int y = 2;\n//\n// More:\n//   - a list\n"
                                  "//     of two lines\n//   1. and another\n#pragma once\n")
        self.assertEqual(self.found_by(code_blocks.check), [])
        self.write("core/include/a.h", "// Text:\n//\n//   int x = 1;\n//\n//   int z;\nint f();\n// and\n//   int w;\n")
        self.assertEqual(self.found_by(code_blocks.check),
                         [f"core/include/a.h:3: {self.MISSING}", f"core/include/a.h:8: {self.MISSING}"])


class BenchTables(Project):
    TABLE = "- Command: `x`\n- Date: d\n- Machine: m\n- Versions: v\n- Noise: n\n- Rounds: 5\n\n| a |\n|---|\n"

    def setUp(self):
        super().setUp()
        self.write("bench/run.py", 'BENCHES = [\n    "launch",\n    "all_reduce",\n]\n')

    def page(self, text):
        self.write("docs/a.md", text)
        return self.found_by(bench_tables.check)

    def test_good_ones(self):
        table = bench_tables.page_blocks.wrapped("all_reduce --ranks 2,4", self.TABLE)
        self.assertEqual(self.page(f"text\n{table}\n<!-- bench launch -->\n<!-- end of bench launch -->\n"), [])

    def test_one_that_was_edited(self):
        table = bench_tables.page_blocks.wrapped("launch", self.TABLE).replace("| a |", "| b |")
        self.assertEqual(self.page(f"\n{table}"), [
            "docs/a.md:2: the table was edited by hand; write it again: ./dev bench launch --into PAGE"])

    def test_one_that_does_not_say_what_it_was_measured_with(self):
        table = bench_tables.page_blocks.wrapped("launch", self.TABLE.replace("- Versions: v\n", ""))
        self.assertEqual(self.page(table), ["docs/a.md:1: the table of ./dev bench launch has no line '- Versions: '"])

    def test_one_of_no_bench(self):
        self.assertEqual(self.page("<!-- bench lunch -->\n<!-- end of bench lunch -->\n"),
                         ["docs/a.md:1: ./dev bench has no 'lunch'"])

    def test_charts_without_their_tables(self):
        self.write("docs/charts/stray.svg", "")
        [message] = self.found_by(bench_tables.check)
        self.assertIn("docs/charts:1: the table of ./dev bench", message)

    def test_charts_of_other_tables(self):
        shipped = Path(__file__).resolve().parents[2] / "docs"
        for file in [*shipped.glob("measurements/*.md"), *shipped.glob("charts/*.svg")]:
            self.write(file.relative_to(shipped.parent), file.read_text())
        self.assertEqual(list(bench_tables.wrong_charts(self.root)), [])
        self.write("docs/charts/overview.svg", "")
        self.write("docs/charts/stray.svg", "")
        self.assertEqual(self.found_by(bench_tables.wrong_charts), [
            "docs/charts/overview.svg:1: the chart shows other figures than the tables; draw it again: python3 bench/charts.py",
            "docs/charts/stray.svg:1: bench/charts.py has no chart of this name"])

    def test_one_without_an_end(self):
        self.assertEqual(self.page("<!-- bench launch -->\n"), ["docs/a.md:1: line 1: '<!-- bench launch -->' has no end"])
