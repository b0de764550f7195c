// `lockstep checkpoint diff` and `verify`: files are compared with one another, and with their checksums.
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

TEST_F(CheckpointTools, NameEachDifference) {
  Dict other = run_.dict();
  Dict model = other.at("model").toGenericDict();
  const torch::Tensor weight = run_.net->weight.detach().clone();
  weight[1][2] += 0.5;
  model.insert_or_assign("weight", weight);
  model.insert_or_assign("bias", run_.net->bias.detach().to(torch::kDouble));
  model.insert("more", torch::ones({1}));
  other.insert_or_assign("step", 43);
  EXPECT_EQ(other.erase("name"), 1U);
  write_torch_file(path("other.pt"), other);
  const std::string found = joined(diff_of("run.pt", "other.pt"));
  for (const char* line : {"[\"model\"][\"weight\"]: 1 of 6 values differ, most at [1, 2]: by 0.5",
                           "[\"step\"]: 42 and 43\n", "[\"model\"][\"bias\"]: float32 and float64\n",
                           "[\"model\"][\"more\"]: only in the second\n", "[\"name\"]: only in the first\n"}) {
    EXPECT_NE(found.find(line), std::string::npos) << line << " in\n" << found;
  }
  EXPECT_EQ(diff_of("run.pt", "other.pt", {.ignore_dtypes = true}).size(), 4U);
  EXPECT_EQ(diff_of("run.pt", "other.pt", {.atol = 1, .ignore_dtypes = true}).size(), 2U);
}

TEST_F(CheckpointTools, CompareNumbersExactlyAndWithTheirTypes) {
  constexpr std::int64_t kOdd = 9007199254740993;  // no double
  const auto put = [&](const std::string& name, const c10::IValue& value, const torch::Tensor& tensor) {
    Dict run = make_dict();
    run.insert("n", value);
    run.insert("t", tensor);
    write_torch_file(path(name), run);
  };
  const auto tensor_of = [](std::int64_t value) { return torch::full({2}, value, torch::kInt64); };
  put("odd", kOdd, tensor_of(kOdd));
  put("even", 9007199254740992.0, tensor_of(kOdd - 1).to(torch::kDouble));
  EXPECT_EQ(joined(diff_of("odd", "even")),
            "[\"n\"]: an int and a float: 9007199254740993 and 9007199254740992\n[\"t\"]: int64 and float64\n");
  EXPECT_EQ(diff_of("odd", "even", {.ignore_dtypes = true}).size(), 2U);
  EXPECT_EQ(diff_of("even", "odd", {.ignore_dtypes = true}).size(), 2U);
  EXPECT_EQ(diff_of("odd", "even", {.atol = 1, .ignore_dtypes = true}), Lines());
  EXPECT_EQ(diff_of("odd", "even", {.atol = 0.5, .ignore_dtypes = true}).size(), 2U);
  put("1", 1, torch::tensor({1}));
  put("1.0", 1.0, torch::tensor({1.0}));
  EXPECT_EQ(diff_of("1", "1.0").size(), 2U);
  EXPECT_EQ(diff_of("1", "1.0", {.ignore_dtypes = true}), Lines());
  put("int", INT64_MAX, tensor_of(INT64_MAX));
  put("float", 9223372036854775808.0, torch::full({2}, 9223372036854775808.0, torch::kDouble));
  EXPECT_EQ(diff_of("int", "float", {.ignore_dtypes = true}).size(), 2U);
  put("minus", -1, tensor_of(-1));
  put("unsigned", at::Scalar(UINT64_MAX), tensor_of(-1).view(torch::kUInt64));
  EXPECT_EQ(diff_of("minus", "unsigned", {.ignore_dtypes = true}).size(), 2U);
  EXPECT_EQ(diff_of("minus", "unsigned", {.atol = 1, .ignore_dtypes = true}).size(), 2U);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  put("complex", c10::complex<double>(nan, 1), torch::tensor({1}));
  EXPECT_EQ(diff_of("complex", "complex"), Lines());
}

TEST_F(CheckpointTools, CompareValuesThatAreNoNumbers) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Dict first = make_dict();
  first.insert("t", torch::tensor({inf, -inf, nan, 1.0}));
  first.insert("u", torch::tensor({1}).to(torch::kUInt64));
  first.insert("f", torch::ones({2}).to(torch::kFloat8_e4m3fn));
  first.insert("c", torch::complex(torch::ones({2}), torch::ones({2})));
  first.insert("x", torch::ones({1}).expand({100, 100}));
  first.insert("n", nan);
  write_torch_file(path("a.pt"), first);
  EXPECT_EQ(diff_of("a.pt", "a.pt"), Lines());
  first.insert_or_assign("t", torch::tensor({-inf, -inf, 0.0, 1.0}));
  first.insert_or_assign("n", 0.0);
  write_torch_file(path("b.pt"), first);
  const std::string found = joined(diff_of("a.pt", "b.pt", {.rtol = 0.1, .atol = 1e9}));
  EXPECT_NE(found.find("[\"t\"]: 2 of 4 values differ"), std::string::npos) << found;
  EXPECT_NE(found.find("[\"n\"]: nan and 0"), std::string::npos) << found;
  const Verified verified = verify(path("a.pt"), {.finite = true});
  EXPECT_FALSE(verified.good);
  EXPECT_NE(joined(verified.lines).find("[\"t\"]: 3 values are not finite"), std::string::npos)
      << joined(verified.lines);
  EXPECT_TRUE(verify(path("a.pt"), {}).good);
}

TEST_F(CheckpointTools, VerifyAFolderAndNameTheDamagedFile) {
  CheckpointManager manager(path("runs"));
  for (std::int64_t step = 1; step <= 2; ++step) {
    Checkpoint state;
    state.add_model(*run_.net);
    state.set("epoch", step);
    manager.save(step, state);
  }
  EXPECT_EQ(verify(path("runs"), {}).lines.size(), 2U);
  EXPECT_NE(joined(show(path("runs"), {})).find("step-000000002.ckpt: checkpoint of Lockstep"), std::string::npos);
  std::string bytes = test::read_file(manager.path_of(1));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder_.write("runs/step-000000001.ckpt", bytes);
  const Verified verified = verify(path("runs"), {});
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
  const auto verified = [&] { return joined(verify(path("run.pt"), {}).lines); };
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
