// `lockstep checkpoint verify`: files are compared with their checksums.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "checkpoint/tools_fixture.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "support/expect_error.h"
#include "support/read_file.h"

namespace lockstep::checkpoint {
namespace {

TEST_F(CheckpointTools, VerifyAFolderAndNameTheDamagedFile) {
  CheckpointManager manager(path("runs"));
  for (std::int64_t step = 1; step <= 2; ++step) {
    Checkpoint state;
    state.add_model(*run_.net);
    state.set("epoch", step);
    manager.save(step, state);
  }
  EXPECT_EQ(verify(path("runs")).lines.size(), 2U);
  EXPECT_NE(joined(show(path("runs"), {})).find("step-000000002.ckpt: checkpoint of Lockstep"), std::string::npos);
  std::string bytes = test::read_file(manager.path_of(1));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder_.write("runs/step-000000001.ckpt", bytes);
  const Verified verified = verify(path("runs"));
  EXPECT_FALSE(verified.good);
  EXPECT_NE(verified.lines[0].find("step-000000001.ckpt: damaged"), std::string::npos) << verified.lines[0];
  EXPECT_NE(verified.lines[1].find("good: checkpoint of Lockstep, 2 tensors; compared: its SHA-256"), std::string::npos)
      << verified.lines[1];
}

// 40 names of 8 bytes whose places in any table of LibTorch's dict are neighbours, for the hash of libstdc++.
TEST_F(CheckpointTools, NamesThatCollideDoNotTakeAllMemory) {
  constexpr std::string_view kNames =
      "zR$Uu~Bd}dvO?bB=+P9+}_R7TDla)|ut#)wf9ZPbccsPv8-`SNKj3j1UbuRmr~CNkC>UoT]ptaXD>Bl$"
      "ASc7z``k+uO^}b+mio>EU''AD+G$'2ph&:4t15F*&k*W9XrZ^J?abp'|yVFawdOg:b]IA9&(nd{ed^Fr"
      "`Ql=s[50K@VQ?MzHvxw&2!E(;=.}7Gmemr^&a53ob_0,5|&fh:JNtk/i=ieCd=4BO$9;Y'):WZQyO,PK"
      "IYQ1<ceM6j.^[~h;*bc+'Trq*Bu8<QH^/B%n,8^3.PArlgcGVh[[T!mlD0dxIO:vqZ8n6F%HSHXTQ+p+";
  constexpr std::uint64_t kSpread = 11400714819323198485U;
  ASSERT_EQ(kSpread * std::hash<std::string_view>()(kNames.substr(0, 8)) >> 20, 0U) << "another hash: make new names";
  for (const char* const prefix : {"", "model."}) {
    TensorFile file;
    for (std::size_t i = 0; i < kNames.size(); i += 8) {
      file.tensors[std::string(prefix).append(kNames.substr(i, 8))] = torch::empty({0});
    }
    write_tensor_file(path("names"), file);
    test::expect_error<CheckpointError>(ErrorCode::kCorrupt, {"names", "keys of its dicts"},
                                        [&] { show(path("names"), {}); });
  }
}

// As torch.save writes files after torch.serialization.set_crc32_options(False).
TEST_F(CheckpointTools, VerifySaysThatAFileHasNoChecksums) {
  const auto verified = [&] { return joined(verify(path("run.pt")).lines); };
  EXPECT_NE(verified().find("compared: the CRC-32 of each part"), std::string::npos) << verified();
  std::string bytes = test::read_file(path("run.pt"));
  constexpr std::size_t kCrc = 16;  // in a record of the list of entries
  for (std::size_t at = bytes.find("PK\x01\x02"); at != std::string::npos; at = bytes.find("PK\x01\x02", at + 1)) {
    bytes.replace(at + kCrc, 4, 4, '\0');
  }
  folder_.write("run.pt", bytes);
  EXPECT_NE(verified().find("compared: its structure; it has parts without a checksum"), std::string::npos)
      << verified();
}

}  // namespace
}  // namespace lockstep::checkpoint
