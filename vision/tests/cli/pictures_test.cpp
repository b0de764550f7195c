// `lockstep pack` and `lockstep data`, as programs.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

// 2 x 2 pixels, grey: the smallest format to write by hand.
std::string tiny_bmp(char grey) {
  std::string bytes("BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0\x02\0\0\0\x01\0\x18\0", 30);
  bytes.resize(54);
  for (int row = 0; row < 2; ++row) bytes += std::string(6, grey) + std::string(2, '\0');
  return bytes;
}

Finished lockstep(std::vector<std::string> words) {
  words.insert(words.begin(), LOCKSTEP_PROGRAM);
  return run_program(words);
}

TEST(PicturesProgram, PacksChecksAndPreviews) {
  const ScratchFolder scratch;
  const std::string folder = (scratch.path() / "pictures").native();
  scratch.write("pictures/a/1.bmp", tiny_bmp('\x20'));
  scratch.write("pictures/b/1.bmp", tiny_bmp('\x40'));
  const std::string pack = (scratch.path() / "p.pack").native();
  const Finished packed = lockstep({"pack", folder, pack});
  EXPECT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_NE(packed.out.find("2 pictures of 2 classes"), std::string::npos) << packed.out;
  EXPECT_EQ(lockstep({"data", "check", pack}).exit_code, 0);
  EXPECT_EQ(lockstep({"data", "check", folder, "--least-side", "2"}).exit_code, 0);
  const Finished checked = lockstep({"data", "check", folder});
  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_NE(checked.out.find("tiny: " + folder + "/a/1.bmp: 2 x 2 pixels\n"), std::string::npos) << checked.out;
  EXPECT_NE(checked.out.find("2 pictures of 2 classes: 0 corrupt, 2 tiny, 0 duplicate\n"), std::string::npos);
  const std::filesystem::path page = scratch.path() / "page.html";
  const Finished previewed =
      lockstep({"data", "preview", folder, "--out", page.native(), "--samples", "32", "--transforms", "reference"});
  EXPECT_EQ(previewed.exit_code, 0) << previewed.err;
  EXPECT_EQ(previewed.out, page.native() + ": 2 samples\n");
  EXPECT_TRUE(std::filesystem::exists(page));
}

TEST(PicturesProgram, NamesCannotForgeLinesOrMoveTheCursor) {
  const ScratchFolder scratch;
  const std::string folder = scratch.path("pictures");
  scratch.write("pictures/a/1.bmp", tiny_bmp('\x20'));
  scratch.write("pictures/a/new\nline.bmp", tiny_bmp('\x20'));
  scratch.write("pictures/b/\x1b[2Jesc\r.jpg", "no picture");
  scratch.write("pictures/b/\xff.jpg", "no picture");
  const std::string pack = scratch.path("p\n.pack");
  const Finished all[] = {lockstep({"data", "check", folder}), lockstep({"pack", folder, pack}),
                          lockstep({"pack", "--skip-corrupt", folder, pack}), lockstep({"data", "check", pack}),
                          lockstep({"data", "preview", folder, "--out", scratch.path("s\x1b.html")})};
  for (const Finished& finished : all) {
    for (const char c : finished.out + finished.err) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
  }
  EXPECT_NE(all[0].out.find("duplicate: " + folder + "/a/new\\x0aline.bmp: the same as"), std::string::npos)
      << all[0].out;
  EXPECT_NE(all[0].out.find("corrupt: " + folder + "/b/\\x1b[2Jesc\\x0d.jpg: expected"), std::string::npos);
  EXPECT_NE(all[1].err.find("lockstep: " + folder + "/b/\\x1b[2Jesc\\x0d.jpg: expected"), std::string::npos)
      << all[1].err;
  EXPECT_NE(all[2].out.find("left out: " + folder + "/b/\\xff.jpg: expected"), std::string::npos) << all[2].out;
  EXPECT_NE(all[2].out.find("/p\\x0a.pack: 2 pictures"), std::string::npos) << all[2].out;
}

TEST(PicturesProgram, WrongUsageAndWrongFilesSayWhy) {
  EXPECT_EQ(lockstep({"data"}).exit_code, 2);
  EXPECT_EQ(lockstep({"pack", "folder"}).exit_code, 2);
  EXPECT_EQ(lockstep({"data", "preview", "folder", "--transforms", "magic"}).exit_code, 2);
  const Finished png = lockstep({"data", "preview", "folder", "--out", "page.png"});
  EXPECT_EQ(png.exit_code, 2);
  EXPECT_NE(png.err.find("--out: expected a name that ends with .html, found page.png"), std::string::npos) << png.err;
  const Finished negative = lockstep({"pack", "folder", "file", "--threads", "-1"});
  EXPECT_NE(negative.err.find("--threads: expected a whole number from 0 to 2147483647, found '-1'"), std::string::npos)
      << negative.err;
  const Finished absent = lockstep({"data", "check", "/no/such/folder"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_NE(absent.err.find("/no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::test
