// Files that hold what is not read (objects of Python), and files that are made to take all memory or time.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/dict.h"
#include "checkpoint/pickle_file.h"
#include "checkpoint/same_values.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/tools/tools.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "support/address_space_limit.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

std::string repeat(const std::string& opcodes, std::size_t times) {
  std::string all;
  all.reserve(opcodes.size() * times);
  for (std::size_t i = 0; i < times; ++i) all += opcodes;
  return all;
}

// A tensor without the beginning and the end of its pickle.
std::string one_tensor() {
  const std::string pickle = tensor_pickle("K\x04", "K\0K\x04\x85K\x01\x85"s);
  return pickle.substr(2, pickle.size() - 3);
}

// A dict with a state dict under "model", and these entries: names and opcodes.
std::string dict_beside(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string pickle = "\x80\x02}(" + short_text("model") + "}" + short_text("w") + one_tensor() + "s";
  for (const auto& [name, opcodes] : entries) pickle += short_text(name) + opcodes;
  return pickle + "u.";
}

class ForeignValues : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name = "a.pt") const { return folder_.path() / name; }
  Dict read() const { return read_torch_file(path()).toGenericDict(); }
  void expect_corrupt(const std::string& pickle, const std::string& part) const {
    write_pickle_file(path(), "\x80\x02" + pickle);
    test::expect_error<CheckpointError>(ErrorCode::kCorrupt, {part}, [&] { read_torch_file(path()); });
  }

  test::ScratchFolder folder_;
};

TEST_F(ForeignValues, AreRefusedByNameWhereTheyAreReached) {
  const std::vector<std::pair<std::string, std::string>> entries{
      {"argparse.Namespace", "cargparse\nNamespace\n)\x81}" + short_text("lr") + "G\x3f\xb9\x99\x99\x99\x99\x99\x9asb"},
      {"numpy.core.multiarray.scalar",
       "cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n" + short_text("f8") + "\x89\x88\x87R(K\x03" + short_text("<") +
           "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s + short_text("12345678") + "\x86R"},
      {"torch.optim.lr_scheduler.OneCycleLR._annealing_cos",
       "c__builtin__\ngetattr\nctorch.optim.lr_scheduler\nOneCycleLR\n" + short_text("_annealing_cos") + "\x86R"},
      {"posix.system", "cposix\nsystem\n" + short_text("true") + "\x85R"},
      {"collections.defaultdict", "ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(K\x01K\x02u"},
      {"argparse.Extra", "cargparse\nExtra\n)}\x92"},
      {"frozenset", "(K\x01\x91"},
      {"bytearray", "\x96\x02\0\0\0\0\0\0\0ab"s},
      {"an integer of over 64 bits", "\x8b\x0a\0\0\0"s + std::string(10, '\x7f')},
      {"key that is neither text",
       "}(C\x01"
       "aK\x01" +
           short_text("a") + "K\x02u"},
      {"a key that is neither text nor", "}(ctorch\nfloat32\nK\x01" + short_text("float32") + "K\x02u"},
      {"neither text nor a number", "}NK\x01s"},
      {"torch._utils._rebuild_sparse_tensor", "ctorch._utils\n_rebuild_sparse_tensor\n)R"},
      {"a storage",
       "(" + short_text("storage") + "ctorch\nQInt8Storage\n" + short_text("0") + short_text("cpu") + "K\x10tQ"},
      {"torch.float4_e2m1fn_x2", "ctorch\nfloat4_e2m1fn_x2\n"},
  };
  write_pickle_file(path(), dict_beside(entries));
  const Dict value = read();
  EXPECT_EQ(to_state_dict(value.at("model"))["w"].numel(), 4);
  EXPECT_EQ(read_state_dict(path(), torch::kCPU, "model").size(), 1U);
  for (const auto& [name, opcodes] : entries) {
    const std::string* what = foreign_text(value.at(name));
    ASSERT_NE(what, nullptr) << name;
    EXPECT_NE(what->find(name), std::string::npos) << *what;
    test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {path().native(), *what, "refused"},
                                        [&] { read_state_dict(path(), torch::kCPU, name); });
  }
  test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"[\"argparse.Namespace\"]", "refused"},
                                      [&] { write_torch_file(path("b.pt"), value); });
  EXPECT_NE(verify(path()).lines[0].find("good: torch.save (zip), 1 tensors, 15 objects"), std::string::npos);
  EXPECT_EQ(show(path(), {}).at(4), "  argparse.Namespace: the Python object argparse.Namespace, which is not read");
  convert(path(), path("weights.safetensors"), {.entry = "model"});
  EXPECT_EQ(read_state_dict(path("weights.safetensors")).size(), 1U);
}

TEST_F(ForeignValues, AreNotSeedsOf64BitsNorEmptyBytes) {
  write_pickle_file(path(), dict_beside({{"seed", "\x8a\x09\x05\0\0\0\0\0\0\x80\0"s},
                                         {"bytes", "c__builtin__\nbytes\n)R"},
                                         {"bytes8", "\x8e\x02\0\0\0\0\0\0\0ab"s}}));
  write_torch_file(path("b.pt"), read_torch_file(path()));
  const Dict value = read_torch_file(path("b.pt")).toGenericDict();
  EXPECT_EQ(value.at("seed").toUInt(), (std::uint64_t{1} << 63) + 5);
  EXPECT_EQ(value.at("bytes").toStringRef(), "");
  EXPECT_EQ(value.at("bytes8").toStringRef(), "ab");
  EXPECT_TRUE(same_files(path(), path("b.pt")));
  EXPECT_EQ(show(path("b.pt"), {.entry = "seed"}).at(1), "9223372036854775813");
}

using HostileFiles = ForeignValues;

TEST_F(HostileFiles, TakeASmallMultipleOfTheirSize) {
  torch::ones({1 << 16}).sum();  // starts LibTorch's threads before memory is limited
  const test::AddressSpaceLimit limit(std::uint64_t{1} << 30);
  constexpr std::size_t kBytes = std::size_t{2} << 20;
  for (const char* empty : {"]", "}", "ctorch\nSize\nq\1)\x85q\2(h\1h\2R"}) {
    const bool call = std::string(empty).size() > 1;
    expect_corrupt("](" + std::string(empty) + repeat(call ? "h\1h\2R" : empty, kBytes) + "e.", "of memory");
  }
  // Values that nothing changes are in memory once.
  write_pickle_file(path(), "\x80\x02](" + repeat(")N", kBytes / 2) + "e.");
  EXPECT_EQ(read_torch_file(path()).toListRef().size(), kBytes);
  // A table of what a pickle remembers is a small one.
  expect_corrupt("Nr\xff\xff\xff\xff.", "remembers over");
  write_pickle_file(path(), "\x80\x02Nr\xff\xff\0\0K\x01\x94j\xff\xff\0\0h\x01\x86."s);
  EXPECT_EQ(read_torch_file(path()).toTupleRef().elements()[1].toInt(), 1);
}

TEST_F(HostileFiles, RepeatTextsInMemoryOnly) {
  constexpr std::size_t kLength = 1 << 20;
  const std::string text = "X\0\0\x10\0"s + std::string(kLength, 'x') + "q\1";
  expect_corrupt("}(" + text + "N" + repeat("h\1N", 2000) + "u.", "keys of its dicts");
  write_pickle_file(path(), "\x80\x02](" + text + repeat("h\1", 2000) + "e.");
  convert(path(), path("b.pt"), {});
  EXPECT_LT(std::filesystem::file_size(path("b.pt")), 2 * kLength);
  const c10::IValue copy = read_torch_file(path("b.pt"));
  ASSERT_EQ(copy.toListRef().size(), 2001U);
  EXPECT_EQ(copy.toListRef()[2000].toStringRef(), std::string(kLength, 'x'));
}

// Strides with which 64 KiB hold 256 MiB of values.
TEST_F(HostileFiles, WithOverlappingTensorsStaySmall) {
  const torch::Tensor base = torch::arange(16384.0F);
  const torch::Tensor overlapping = base.as_strided({8192, 8192}, {1, 1});
  Dict value = make_dict();
  value.insert("w", overlapping);
  write_torch_file(path(), value);
  convert(path(), path("b.pt"), {});
  EXPECT_LT(std::filesystem::file_size(path("b.pt")), 100'000U);
  const torch::Tensor copy = read_torch_file(path("b.pt")).toGenericDict().at("w").toTensor();
  EXPECT_EQ(copy.strides(), overlapping.strides());
  EXPECT_TRUE(torch::equal(copy[8191], overlapping[8191]));
  const auto refused = [&](const auto& run) {
    test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {path().native(), "repeat their elements"}, run);
  };
  refused([&] { convert(path(), path("b.safetensors"), {}); });
  refused([&] { convert(path(), path("b.pt"), {.dtype = "float16"}); });
  const torch::Tensor lazy = torch::complex(base, base).as_strided({8192, 8192}, {1, 1}).conj();
  write_torch_file(path(), lazy);
  EXPECT_LT(std::filesystem::file_size(path()), 200'000U);
  EXPECT_TRUE(torch::equal(read_torch_file(path()).toTensor()[8191], lazy[8191]));
}

}  // namespace
}  // namespace lockstep::checkpoint
