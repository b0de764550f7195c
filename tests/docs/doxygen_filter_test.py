"""The output of tools/docs/doxygen_filter.py for a header."""
import unittest
from pathlib import Path

import tools  # noqa: F401, first: it makes the module below importable

import doxygen_filter


class Filter(unittest.TestCase):
    def expect(self, text, wanted, name="other.h"):
        self.assertEqual(doxygen_filter.filtered(text, Path("include/lockstep/nn") / name), wanted)

    def test_the_first_comment_is_the_file_s(self):
        self.expect("// What it is.\n//\n//   int x = 1;  // one\n//\n// More.\n#pragma once\n",
                    "/// @file\n/// What it is.\n///\n/// @code{.cpp}\n///   int x = 1;  // one\n/// @endcode\n///\n/// More.\n"
                    "#pragma once\n")

    def test_declarations_and_members(self):
        self.expect("#pragma once\n\nnamespace a {\n// A thing.\nstruct S {\n  int x;  // its size,\n          // in bytes\n"
                    "  // Another.\n  int y{-1};\n};\n}  // namespace a\n",
                    "#pragma once\n\nnamespace a {\n/// A thing.\nstruct S {\n  int x;  ///< its size,\n          ///< in bytes\n"
                    "  /// Another.\n  int y{-1};\n};\n}  // namespace a\n")

    def test_unchanged_lines(self):
        same = ("#pragma once\n// A headline\n\nclass S {\n  // Before a label.\n public:\n  int f() {\n    // Why.\n    return 1;  // one\n"
                "  }\n  S(int x) {}  // NOLINT(google-explicit-constructor)\n  // The end.\n};\n#include <a>  // IWYU pragma: export\n")
        self.expect(same, same)

    def test_text_that_looks_like_markup(self):
        self.expect("int f();\n// A std::vector<int> or `vector<int>`, a@b, #41, *_async, a\\b.\nint g();\n",
                    "int f();\n/// A std::vector\\<int\\> or `vector<int>`, a\\@b, \\#41, \\*_async, a\\\\b.\nint g();\n")

    def test_the_class_that_the_file_is_named_after(self):
        copied = "/// @copydoc lockstep/nn/my_thing.h\n"
        self.expect("class Other;\nclass MyThing;\nclass MyThing {\n};\n", f"class Other;\nclass MyThing;\n{copied}class MyThing {{\n}};\n",
                    "my_thing.h")
        self.expect("#pragma once\ntemplate <typename T>\nclass MyThing {\n};\n",
                    f"#pragma once\n{copied}template <typename T>\nclass MyThing {{\n}};\n", "my_thing.h")
        self.expect("#pragma once\n// Its own.\nclass MyThing {\n};\n", "#pragma once\n/// Its own.\nclass MyThing {\n};\n", "my_thing.h")

    def test_macros(self):
        self.expect("#pragma once\n// Hands on.\n#define A(x) \\\n  do {      \\\n  } while (false)\n\n// A function.\nint f();\n",
                    "#pragma once\n/// Hands on.\n#define A(x) \\\n  do {      \\\n  } while (false)\n\n/// A function.\nint f();\n")
