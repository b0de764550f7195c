#include "base/printable.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Printable, EscapesWhatATerminalObeys) {
  const std::pair<std::string_view, std::string_view> cases[] = {{"a\x1b[31m\x07", "a\\x1b[31m\\x07"},
                                                                 {"new\nline\rover\t", "new\\x0aline\\x0dover\\x09"},
                                                                 {{"nul\0", 4}, "nul\\x00"},
                                                                 {"del\x7f", "del\\x7f"},
                                                                 {"c1\xc2\x9b", "c1\\xc2\\x9b"},
                                                                 {"z\xe2\x80\xaegpj", "z\\xe2\\x80\\xaegpj"},
                                                                 {"\xe2\x81\xa6\xd8\x9c", "\\xe2\\x81\\xa6\\xd8\\x9c"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(printable(text), expected);
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  // A stray byte, a cut character, an overlong slash, a surrogate, a code beyond Unicode.
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"\xff\xfe.jpg", "\\xff\\xfe.jpg"},  {"\xc3", "\\xc3"},
      {"\xe2\x80x", "\\xe2\\x80x"},        {"\xc0\xaf", "\\xc0\\xaf"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(printable(text), expected);
}

TEST(Printable, LeavesOtherTextAsItIs) {
  for (const std::string_view text : {"", "/data/a b/1.jpg", "ä/熊 🐻.jpg", "back\\slash", "\\x1b"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable(printable(text)), text);
  }
}

TEST(ValidUtf8, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(valid_utf8("tab\t, \xc3\xa9, \xf0\x9f\x90\x88"), "tab\t, \xc3\xa9, \xf0\x9f\x90\x88");
  EXPECT_EQ(valid_utf8("\xff a \xc3"), "\xef\xbf\xbd a \xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
}

}  // namespace
}  // namespace lockstep
