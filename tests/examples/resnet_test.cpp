// The reference job on a few pictures: the table of `lockstep scaling` from processes, and from replicas in one of
// them.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "support/process.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using std::string_literals::operator""s;

std::string even_picture(int level) {
  constexpr int kSide = 36;
  return "P6\n36 36\n255\n" + std::string(std::size_t{kSide} * kSide * 3, static_cast<char>(level));
}

class ReferenceJobMulti : public testing::Test {
 protected:
  ReferenceJobMulti() {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // two processes would share the one GPU of a machine
    for (const std::string part : {"train", "test"}) {
      for (int i = 0; i < 4; ++i) {
        const std::string name = "/" + std::to_string(i) + ".ppm";
        folder_.write("pictures/" + part + "/dark" + name, even_picture(10 + i));
        folder_.write("pictures/" + part + "/light" + name, even_picture(200 + i));
      }
    }
  }
  // Two epochs at 32 pixels, with batches of 2.
  Finished scaling(const std::string& processes, const std::string& program) const {
    return run_program({LOCKSTEP_PROGRAM, "scaling", "--procs", processes, "-o", folder_.path("table"), "--",
                        LOCKSTEP_EXAMPLES_FOLDER "/" + program, folder_.path("pictures"), "2", "32", "2"});
  }
  ScratchFolder folder_;
};

TEST_F(ReferenceJobMulti, MakesTheTable) {
  const Finished finished = scaling("1,2", "resnet_train");
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  for (const char* part : {"Rank 0, epoch 1: ", "Rank 0: test accuracy ", "speed-up", "\n        2 "})
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " in: " << finished.out;
  // Its accuracy and the use of the cores are in the table too.
  const std::string json = read_file(folder_.path("table/scaling.json"));
  EXPECT_EQ(json.find("NaN"), std::string::npos) << json;
  EXPECT_TRUE(std::filesystem::exists(folder_.path("table/procs-2/run-1/report.html")));
}

TEST_F(ReferenceJobMulti, HasARowForReplicasOfOneProcess) {
  const Finished finished = scaling("1", "resnet_data_parallel");
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  for (const char* part : {"Rank 0, epoch 1: ", "Rank 0: test accuracy ", "speed-up"})
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " in: " << finished.out;
}

TEST_F(ReferenceJobMulti, TakesModelPrecisionAndLayout) {
  for (const char* program : {"resnet_train", "resnet_data_parallel"}) {
    const Finished finished = run_program({LOCKSTEP_EXAMPLES_FOLDER "/"s + program, folder_.path("pictures"),
                                           "--resnet50", "--bf16", "--channels-last", "1", "32", "2"});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_NE(finished.out.find("Rank 0: test accuracy "), std::string::npos) << finished.out;
  }
}

TEST_F(ReferenceJobMulti, NamesAnOptionThatItDoesNotKnow) {
  const Finished finished =
      run_program({LOCKSTEP_EXAMPLES_FOLDER "/resnet_train", folder_.path("pictures"), "--bf17", "1", "32", "2"});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_NE(finished.err.find("unknown option '--bf17'"), std::string::npos) << finished.err;
}

}  // namespace
}  // namespace lockstep::test
