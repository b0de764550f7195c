// The example that trains ResNet-18 on a folder of pictures, with a small folder, and the one that augments a picture.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

constexpr const char* kProgram = LOCKSTEP_EXAMPLES_FOLDER "/image_folder_train";

// A PPM, because it is easy to write without a library.
std::string picture(int level) {
  constexpr int kSide = 40;
  std::string bytes = "P6\n" + std::to_string(kSide) + " " + std::to_string(kSide) + "\n255\n";
  for (int i = 0; i < kSide * kSide * 3; ++i) bytes.push_back(static_cast<char>(level + i % 50));
  return bytes;
}

TEST(ImageFolderExampleMulti, TrainsOnTwoRanks) {
  const ScratchFolder folder;
  for (int i = 0; i < 8; ++i)
    folder.write((i % 2 == 0 ? "dark/" : "light/") + std::to_string(i) + ".ppm", picture(i % 2 == 0 ? 20 : 180));
  const Finished finished = run_program(
      {LOCKSTEP_PROGRAM, "run", "--standalone", "--nproc-per-node", "2", kProgram, folder.path().native(), "1"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("epoch 0: loss "), std::string::npos) << finished.out;
}

TEST(ImageFolderExample, NamesAMissingFolder) {
  const Finished finished = run_program({kProgram, "/no/such/folder"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_NE(finished.err.find("image_folder_train: cannot open the folder /no/such/folder"), std::string::npos)
      << finished.err;
}

TEST(ImageFolderExample, PrintsItsUsage) {
  const Finished finished = run_program({kProgram});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_NE(finished.err.find("FOLDER has a subfolder of pictures for each class"), std::string::npos) << finished.err;
}

TEST(TransformsExample, WritesVersionsAndJudgesCrops) {
  const ScratchFolder folder;
  folder.write("one.ppm", picture(20));
  const Finished finished =
      run_program({LOCKSTEP_EXAMPLES_FOLDER "/augment_picture", (folder.path() / "one.ppm").native(),
                   (folder.path() / "versions").native(), "3"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("sample: [3, 112, 112]"), std::string::npos) << finished.out;
  for (const char* name : {"version-0.ppm", "version-1.ppm", "version-2.ppm"}) {
    EXPECT_EQ(std::filesystem::file_size(folder.path() / "versions" / name), 15U + 160 * 160 * 3) << name;
  }
}

}  // namespace
}  // namespace lockstep::test
