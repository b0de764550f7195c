#include "lockstep/checkpoint/tensor_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "checkpoint/file/tensor_file_header.h"
#include "checkpoint/tools/tools.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "support/expect_error.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

class TensorFiles : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "a.ckpt"; }
  std::string bytes() const { return test::read_file(path()); }
  void put(const std::string& bytes) { folder_.write("a.ckpt", bytes); }
  // Writes a file with this header and this many bytes of data.
  void put_header(const std::string& json, std::size_t data = 0) {
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i));
    put(length + json + std::string(data, 'x'));
  }
  ErrorCode code_of_reading(Checksum checksum = Checksum::kIfPresent) {
    try {
      read_tensor_file(path(), checksum);
      return ErrorCode::kOk;
    } catch (const CheckpointError& error) {
      EXPECT_NE(std::string(error.what()).find(path().native()), std::string::npos) << error.what();
      return error.code();
    }
  }

  test::ScratchFolder folder_;
};

TEST_F(TensorFiles, GiveBackEveryDtypeShapeAndText) {
  TensorFile file;
  for (const auto dtype :
       {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64, torch::kHalf,
        torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat, torch::kUInt16, torch::kFloat8_e4m3fn}) {
    file.tensors[c10::toString(dtype)] = torch::arange(1, 7).to(dtype).view({2, 3});
  }
  file.tensors["scalar"] = torch::tensor(1.5);
  file.tensors["empty"] = torch::empty({3, 0, 2});
  file.tensors["transposed"] = torch::arange(6.0F).view({2, 3}).t();
  file.metadata = {
      {"text", "gr\xc3\xbc\xc3\x9f \"quoted\" \n"}, {"empty", ""}, {"lookalike", "\"lockstep.sha256\":\"00"}};
  write_tensor_file(path(), file);
  const TensorFile read = read_tensor_file(path());
  EXPECT_EQ(read.metadata, file.metadata);
  ASSERT_EQ(read.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    const torch::Tensor& other = read.tensors.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(other.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(torch::equal(other.to(torch::kComplexDouble), tensor.to(torch::kComplexDouble))) << name;
  }
  EXPECT_EQ(read_tensor_file_metadata(path()).at("text"), file.metadata.at("text"));
}

TEST_F(TensorFiles, RefuseWhatTheFormatCannotHold) {
  EXPECT_THROW(write_tensor_file(path(), {{{"a", torch::zeros(1, torch::kComplexDouble)}}, {}}), CheckpointError);
  EXPECT_THROW(write_tensor_file(path(), {{{"__metadata__", torch::zeros(1)}}, {}}), CheckpointError);
  EXPECT_THROW(write_tensor_file(path(), {{}, {{"a", "\xff"}}}), CheckpointError);
  // No reader takes such a header, and the file would take the place of good ones.
  const std::string large(100'000'000, 'a');  // NOLINT(bugprone-string-constructor): meant to be large
  EXPECT_THROW(write_tensor_file(path(), {{}, {{"a", large}}}), CheckpointError);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// The elements of a tensor are saved, not the memory behind it.
TEST_F(TensorFiles, GiveBackTheElementsOfEveryView) {
  const auto complex_values = torch::complex(torch::arange(20.0F), torch::arange(20.0F) + 0.5F).view({4, 5});
  std::map<std::string, torch::Tensor> bases{{"complex", complex_values}, {"real", torch::arange(20.0F).view({4, 5})}};
  TensorFile file;
  for (const auto& [kind, base] : bases) {
    const std::map<std::string, torch::Tensor> layouts{{"plain", base},
                                                       {"transposed", base.t()},
                                                       {"sliced", base.slice(1, 1, 4)},
                                                       {"expanded", base.narrow(0, 1, 1).expand({3, 5})}};
    for (const auto& [layout, view] : layouts) {
      file.tensors[kind + layout] = view;
      file.tensors[kind + layout + "neg"] = at::_neg_view(view);
      file.tensors[kind + layout + "conj"] = view.conj();
      file.tensors[kind + layout + "both"] = at::_neg_view(view.conj());
    }
  }
  write_tensor_file(path(), file);
  const TensorFile read = read_tensor_file(path());
  for (const auto& [name, tensor] : file.tensors) EXPECT_TRUE(torch::equal(read.tensors.at(name), tensor)) << name;
}

// Such tensors have no memory.
TEST_F(TensorFiles, GiveBackTensorsOfZeros) {
  const torch::Tensor zeros = at::_efficientzerotensor({2, 3}, torch::kFloat);
  const torch::Tensor complex_zeros = at::_efficientzerotensor({3}, torch::kComplexFloat);
  const TensorFile file{{{"zeros", zeros}, {"view", zeros.t()}, {"conj", complex_zeros.conj()}}, {}};
  write_tensor_file(path(), file);
  const TensorFile read = read_tensor_file(path());
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_TRUE(torch::equal(read.tensors.at(name), torch::zeros(tensor.sizes(), tensor.scalar_type()))) << name;
  }
}

TEST_F(TensorFiles, NameTheFileAndTheTensorThatCannotBeSaved) {
  const std::map<std::string, torch::Tensor> tensors{
      {"undefined", torch::Tensor()},
      {"meta", torch::empty({3}, torch::kMeta)},
      {"sparse", torch::eye(3).to_sparse()},
      {"csr", torch::eye(3).to_sparse_csr()},
      {"quantized", torch::quantize_per_tensor(torch::ones({3}), 0.1, 0, torch::kQInt8)},
      {"complex128", torch::zeros({3}, torch::kComplexDouble)}};
  for (const auto& [name, tensor] : tensors) {
    try {
      write_tensor_file(path(), {{{name, tensor}}, {}});
      ADD_FAILURE() << name << " was saved";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      const std::string begin = path().native() + ": tensor \"" + name + "\" ";
      EXPECT_TRUE(std::string(error.what()).starts_with(begin)) << error.what();
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// Changes every byte, and cuts at every length.
TEST_F(TensorFiles, EveryDamageIsNoticed) {
  write_tensor_file(path(), {{{"a", torch::arange(5)}, {"b", torch::ones({2, 2})}}, {{"step", "3"}}});
  const std::string good = bytes();
  std::mt19937 random(1);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << random() % 8));
    put(flipped);
    const ErrorCode code = code_of_reading(Checksum::kRequired);
    EXPECT_TRUE(code == ErrorCode::kCorrupt || code == ErrorCode::kUnsupported) << "byte " << i;
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    put(good.substr(0, length));
    EXPECT_EQ(code_of_reading(Checksum::kRequired), ErrorCode::kCorrupt) << length << " bytes";
  }
  put(good + "x");
  EXPECT_EQ(code_of_reading(Checksum::kRequired), ErrorCode::kCorrupt);
}

// The files of state dicts: every byte is changed, and they are cut at every length. Mapped and copied, they are good
// or damaged in the same way.
TEST_F(TensorFiles, EveryDamageOfAStateDictIsNoticed) {
  StateDict state;
  state.insert("a", torch::arange(5));
  state.insert("b", torch::ones({2, 2}));
  const auto file = folder_.path() / "a.safetensors";
  write_state_dict(file, state);
  const std::string good = test::read_file(file);
  EXPECT_NE(good.find("lockstep.crc32"), std::string::npos);
  EXPECT_TRUE(torch::equal(read_state_dict(file)["a"], torch::arange(5)));
  EXPECT_TRUE(torch::equal(read_tensor_file(file).tensors.at("b"), torch::ones({2, 2})));
  const auto expect_damaged = [&](const std::string& bytes, const std::string& trace) {
    put(bytes);
    const ErrorCode code = code_of_reading(Checksum::kIfPresent);
    EXPECT_TRUE(code == ErrorCode::kCorrupt || code == ErrorCode::kUnsupported) << trace;
    EXPECT_THROW(read_state_dict(path()), CheckpointError) << trace;
  };
  std::mt19937 random(2);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << random() % 8));
    expect_damaged(flipped, "byte " + std::to_string(i));
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    expect_damaged(good.substr(0, length), std::to_string(length) + " bytes");
  }
  expect_damaged(good + "x", "a byte more");
}

// Nothing can tell whether such a file is what its writer meant. It is an error, or tensors whose bytes all exist, and
// the same ones whether it is mapped or copied.
TEST_F(TensorFiles, DamagedFilesOfOthersAreReadOrRefused) {
  put_header(
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I64","shape":[],"data_offsets":[24,32]},)"
      R"("c":{"dtype":"U8","shape":[0,2],"data_offsets":[32,32]},"d":{"dtype":"BOOL","shape":[4],"data_offsets":[32,36]}})",
      36);
  const std::string good = bytes();
  std::mt19937 random(3);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  const auto outcome = [](const auto& read) {
    std::string text;
    try {
      read([&](const std::string& name, const torch::Tensor& tensor) {
        const torch::Tensor copy = tensor.contiguous();
        text += name + std::string(static_cast<const char*>(copy.const_data_ptr()), copy.nbytes());
      });
    } catch (const CheckpointError& error) {
      text = std::to_string(static_cast<int>(error.code()));
    }
    return text;
  };
  std::set<std::string> outcomes;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = good;
    for (std::size_t changes = 1 + below(3); changes > 0 && !damaged.empty(); --changes) {
      const std::size_t at = below(damaged.size());
      switch (below(4)) {
        case 0: damaged[at] = static_cast<char>(random()); break;
        case 1: damaged[at] = "0123456789[]{},:\""[below(17)]; break;
        case 2: damaged.resize(at); break;
        default: damaged.insert(at, damaged.substr(below(damaged.size()), below(40))); break;
      }
    }
    put(damaged);
    const std::string mapped = outcome([&](const auto& use) {
      std::map<std::string, torch::Tensor> sorted;
      for (const auto& entry : read_state_dict(path())) sorted[entry.key()] = *entry;
      for (const auto& [name, tensor] : sorted) use(name, tensor);
    });
    const std::string copied = outcome([&](const auto& use) {
      for (const auto& [name, tensor] : read_tensor_file(path(), Checksum::kIfPresent).tensors) use(name, tensor);
    });
    if (damaged.starts_with("PK") || damaged.starts_with('\x80')) continue;  // taken for a file of torch.save
    EXPECT_EQ(mapped, copied) << "case " << i;
    outcomes.insert(mapped);
  }
  EXPECT_GT(outcomes.size(), 5U) << "some must have been read";
}

TEST_F(TensorFiles, HostileHeadersAreErrors) {
  put(std::string(8, '\xff'));
  EXPECT_EQ(code_of_reading(), ErrorCode::kCorrupt);
  for (
      const char* header : {
          "",
          "null",
          "[]",
          "{",
          "{\"a\":1}",
          "{\"a\":{}}",
          "{\"__metadata__\":[]}",
          "{\"__metadata__\":{\"a\":1}}",
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}})",
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
          R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"X","shape":[1],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
          R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
          R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})",
          R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}} {})",
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"lockstep.sha256":"00"}})",
      }) {
    put_header(header, 4);
    EXPECT_EQ(code_of_reading(), ErrorCode::kCorrupt) << header;
  }
  put_header(std::string(200000, '['), 0);
  EXPECT_EQ(code_of_reading(), ErrorCode::kCorrupt);
  for (const char* packed : {"F4", "F6_E2M3"}) {
    put_header(fmt::format(R"({{"a":{{"dtype":"{}","shape":[8],"data_offsets":[0,4]}}}})", packed), 4);
    EXPECT_EQ(code_of_reading(), ErrorCode::kUnsupported) << packed;
  }
  put_header(R"({"__metadata__":{"lockstep.format":"2"}})");
  EXPECT_EQ(code_of_reading(), ErrorCode::kUnsupported);
}

std::string repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

// Nesting so deep that recursion over it (reading, printing, copying, freeing) would overflow the stack.
TEST_F(TensorFiles, NestingDoesNotExhaustTheStack) {
  constexpr int kDepth = 1'000'000;
  for (const auto& [opening, closing] :
       std::vector<std::pair<std::string, std::string>>{{"[", "]"}, {"{\"a\":", "}"}}) {
    const std::string nested = repeated(opening, kDepth) + "1" + repeated(closing, kDepth);
    const std::string open = repeated(opening, kDepth);
    for (const std::string& deep : {nested, open}) {
      const std::string good_rest = R"(,"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
      for (const std::string& header :
           {deep, R"({"a":)" + deep + "}", R"({"a":{"dtype":)" + deep + R"(,"shape":[1],"data_offsets":[0,4]}})",
            R"({"a":{"dtype":"F32","shape":)" + deep + R"(,"data_offsets":[0,4]}})",
            R"({"a":{"dtype":"F32","shape":[)" + deep + R"(],"data_offsets":[0,4]}})",
            R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + deep + "}}",
            R"({"a":{"unknown":)" + deep + good_rest, R"({"__metadata__":)" + deep + "}",
            R"({"__metadata__":{"a":)" + deep + "}}"}) {
        put_header(header, 4);
        EXPECT_EQ(code_of_reading(), ErrorCode::kCorrupt) << header.substr(0, 60);
      }
    }
  }
  put_header(R"({"a":{"unknown":{"b":[[1],{}]},"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  EXPECT_EQ(code_of_reading(), ErrorCode::kOk) << "what other writers add is passed over";
}

TEST(TensorFileHeaders, AreReadOrRefusedWhateverTheirBytes) {
  const std::string good =
      R"({"__metadata__":{"a":"b","lockstep.format":"1"},"m":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("n":{"dtype":"I64","shape":[],"data_offsets":[8,16]},"o":{"dtype":"U8","shape":[0,3],"data_offsets":[16,16]}})";
  const std::vector<std::string> words{"[",
                                       "]",
                                       "{",
                                       "}",
                                       "\"",
                                       ",",
                                       ":",
                                       "null",
                                       "-1",
                                       "1e999",
                                       "true",
                                       "[]",
                                       "{}",
                                       "\\u0000",
                                       "\xff",
                                       "18446744073709551616",
                                       "\"__metadata__\":",
                                       "\"shape\":",
                                       "9223372036854775807",
                                       "\"m\":{"};
  std::mt19937 random(7);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const std::size_t at = below(text.size());
      const std::size_t count = std::min(below(12), text.size() - at);
      switch (below(4)) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, count); break;
        case 2: text.insert(at, words[below(words.size())]); break;
        default: text.insert(below(text.size()), text.substr(at, 4 * count)); break;
      }
      if (text.empty()) text = "{";
    }
    try {
      parse_header(text, 16);
      ++read;
    } catch (const CheckpointError& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported) << text;
    }
  }
  EXPECT_GT(read, 0);
}

// Python's safetensors writes a file anew with the metadata of the former one when a program passes them on.
TEST_F(TensorFiles, SayThatAnotherProgramHasRewrittenThem) {
  StateDict state;
  state.insert("a", torch::arange(4));
  write_state_dict(folder_.path() / "a.safetensors", state);
  const std::string written = test::read_file(folder_.path() / "a.safetensors");
  const std::size_t digits = written.find("lockstep.crc32\":\"") + 17;
  put_header(R"({"__metadata__":{"lockstep.crc32":")" + written.substr(digits, 8) +
                 R"(","lockstep.format":"1","format":"pt"},"a":{"dtype":"I64","shape":[4],"data_offsets":[0,32]}})",
             32);
  for (const auto& read : std::vector<std::function<void()>>{[&] { read_tensor_file(path(), Checksum::kIfPresent); },
                                                             [&] { read_state_dict(path()); }}) {
    test::expect_error<CheckpointError>(ErrorCode::kCorrupt, {"written it anew", "--ignore-checksum"}, read);
  }
  EXPECT_EQ(read_tensor_file(path(), Checksum::kIgnored).tensors.at("a").numel(), 4);
  EXPECT_EQ(read_state_dict(path(), torch::kCPU, "", Checksum::kIgnored)["a"].numel(), 4);
  convert(path(), folder_.path() / "good.safetensors", {.ignore_checksum = true});
  EXPECT_EQ(read_state_dict(folder_.path() / "good.safetensors")["a"].numel(), 4);
}

TEST_F(TensorFiles, FilesOfOthersHaveNoChecksum) {
  put_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  EXPECT_EQ(code_of_reading(Checksum::kIfPresent), ErrorCode::kOk);
  EXPECT_EQ(code_of_reading(Checksum::kRequired), ErrorCode::kCorrupt);
  std::filesystem::remove(path());
  EXPECT_EQ(code_of_reading(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::checkpoint
