#include "lockstep/checkpoint/torch_file.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "checkpoint/dict.h"
#include "checkpoint/pickle_file.h"
#include "checkpoint/python/pickle_writer.h"
#include "checkpoint/python/zip_file.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "support/address_space_limit.h"
#include "support/expect_error.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

using namespace std::string_literals;
using List = c10::impl::GenericList;

class TorchFiles : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "a.pt"; }
  std::string bytes() const { return test::read_file(path()); }
  void put(const std::string& bytes) { folder_.write("a.pt", bytes); }

  void put_pickle(const std::string& pickle, std::uint64_t zip64_from = 0xFFFFFFFF) {
    write_pickle_file(path(), pickle, zip64_from);
  }

  // What reading throws: its code and text. kOk when it throws nothing.
  std::pair<ErrorCode, std::string> error() {
    try {
      read_torch_file(path());
      return {ErrorCode::kOk, ""};
    } catch (const CheckpointError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path().native())) << error.what();
      return {error.code(), error.what()};
    }
  }
  void expect_error(ErrorCode code, const std::string& part, const std::string& trace) {
    const auto [found, text] = error();
    EXPECT_EQ(found, code) << trace << ": " << text;
    EXPECT_NE(text.find(part), std::string::npos) << trace << ": " << text;
  }

  test::ScratchFolder folder_;
};

TEST_F(TorchFiles, GiveBackEveryDtypeAndLayout) {
  Dict written = make_dict();
  for (const auto dtype : {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64,
                           torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat,
                           torch::kComplexDouble, torch::kUInt16, torch::kFloat8_e4m3fn}) {
    const torch::Tensor base = torch::arange(1, 7).to(dtype).view({2, 3});
    const std::string name = c10::toString(dtype);
    written.insert(name, base);
    written.insert(name + "transposed", base.clone().t());
    written.insert(name + "part", base.clone().narrow(1, 1, 2));
    written.insert(name + "expanded", base.clone().narrow(0, 0, 1).expand({4, 3}));
    written.insert(name + "scalar", base.clone()[1][2]);
    written.insert(name + "empty", torch::empty({3, 0, 2}, dtype));
  }
  const torch::Tensor lazy = torch::complex(torch::arange(3.0F), torch::arange(3.0F) + 1);
  written.insert("conj", lazy.conj());
  written.insert("neg", at::_neg_view(lazy));
  written.insert("zeros", at::_efficientzerotensor({2, 3}, torch::kFloat));
  write_torch_file(path(), written);
  const Dict read = read_torch_file(path()).toGenericDict();
  ASSERT_EQ(read.size(), written.size());
  for (const auto& entry : written) {
    const torch::Tensor expected = entry.value().toTensor();
    const torch::Tensor found = read.at(entry.key()).toTensor();
    EXPECT_EQ(found.scalar_type(), expected.scalar_type()) << entry.key();
    const torch::Tensor values = torch::empty(expected.sizes(), expected.scalar_type()).copy_(expected);
    EXPECT_TRUE(torch::equal(found.to(torch::kComplexDouble), values.to(torch::kComplexDouble))) << entry.key();
    const bool dense = expected.is_non_overlapping_and_dense();
    EXPECT_TRUE(!dense || found.strides() == expected.strides()) << entry.key();
  }
}

TEST_F(TorchFiles, KeepSharedMemoryAndLeaveOutTheRest) {
  const torch::Tensor tied = torch::arange(6.0F);
  const torch::Tensor large = torch::zeros({1 << 20});
  List written(c10::AnyType::get());
  for (const auto& tensor : {tied, tied, tied.narrow(0, 2, 3), large.narrow(0, 5, 4)}) written.push_back(tensor);
  write_torch_file(path(), written);
  EXPECT_LT(std::filesystem::file_size(path()), 4096U);
  const c10::IValue value = read_torch_file(path());
  const auto read = value.toListRef();
  EXPECT_TRUE(read[1].toTensor().is_alias_of(read[0].toTensor()));
  EXPECT_TRUE(read[2].toTensor().is_alias_of(read[0].toTensor()));
  EXPECT_FALSE(read[3].toTensor().is_alias_of(read[0].toTensor()));
  EXPECT_TRUE(torch::equal(read[2].toTensor(), tied.narrow(0, 2, 3)));
}

TEST_F(TorchFiles, KeepGradientsAndTheMemoryOfConjugatedViews) {
  const torch::Tensor numbers = torch::complex(torch::rand({3, 2}), torch::rand({3, 2}));
  const torch::Tensor parameter = torch::ones({2}, torch::requires_grad());
  List written(c10::AnyType::get());
  for (const auto& tensor : {numbers, numbers.mH(), numbers.conj(), at::_neg_view(numbers), parameter, parameter * 2}) {
    written.push_back(tensor);
  }
  write_torch_file(path(), written);
  const c10::IValue value = read_torch_file(path());
  const auto read = value.toListRef();
  for (std::size_t i = 0; i < read.size(); ++i) {
    const torch::Tensor expected = written.get(i).toTensor();
    EXPECT_TRUE(torch::equal(read[i].toTensor(), expected)) << i;
    EXPECT_EQ(read[i].toTensor().strides(), expected.strides()) << i;
    EXPECT_EQ(read[i].toTensor().requires_grad(), i > 3) << i;
    EXPECT_EQ(read[i].toTensor().is_alias_of(read[0].toTensor()), i < 4) << i;
  }
  write_torch_file(path(), numbers.conj());
  EXPECT_NE(bytes().find("conj"), std::string::npos);
  EXPECT_EQ(bytes().find("neg"), std::string::npos);  // Python would set what is named
}

// A text of 64 KiB that is used a thousand times, and the bytes that are made from it as often.
TEST_F(TorchFiles, KeepATextInMemoryOnceHoweverOftenItIsUsed) {
  constexpr std::size_t kUses = 1000;
  const auto repeated = [](const std::string& opcodes) {
    std::string all;
    for (std::size_t i = 0; i < kUses; ++i) all += opcodes;
    return all;
  };
  const std::string text = "X\0\0\1\0"s + std::string(65536, 'x') + "q\x01";
  const std::string encode =
      "0c_codecs\nencode\nq\x02"
      "0h\x01X\x06\0\0\0latin1\x86q\x03"
      "0"s;
  put_pickle("\x80\x02"s + text + encode + "](" + repeated("h\x01") + repeated("h\x02h\x03R") + "e.");
  const c10::IValue value = read_torch_file(path());
  const auto read = value.toListRef();
  ASSERT_EQ(read.size(), 2 * kUses);
  EXPECT_EQ(read[0].toStringRef(), std::string(65536, 'x'));
  EXPECT_EQ(&read[0].toStringRef(), &read[kUses - 1].toStringRef());
  EXPECT_EQ(read[kUses].toStringRef(), read[0].toStringRef());
  EXPECT_EQ(&read[kUses].toStringRef(), &read[2 * kUses - 1].toStringRef());
}

TEST_F(TorchFiles, RefuseToWriteWhatPythonCouldNotRead) {
  write_torch_file(path(), 1);
  const std::string before = bytes();
  const auto expect_refusal = [&](const c10::IValue& value, const std::string& part) {
    Dict outer = make_dict();
    outer.insert("outer", List(c10::AnyType::get()));
    outer.insert("bad", c10::ivalue::Tuple::create(std::vector<c10::IValue>{1, value}));
    test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"[\"bad\"][1]", part},
                                        [&] { write_torch_file(path(), outer); });
    EXPECT_EQ(bytes(), before);
  };
  expect_refusal(torch::eye(3).to_sparse(), "layout");
  expect_refusal(torch::empty({3}, torch::kMeta), "meta");
  expect_refusal(torch::quantize_per_tensor(torch::ones({3}), 0.1, 0, torch::kQInt8), "quantized");
  expect_refusal("\xff", "UTF-8");
  List cycle(c10::AnyType::get());
  cycle.push_back(cycle);
  EXPECT_THROW(write_torch_file(path(), cycle), CheckpointError);
  cycle.clear();
  EXPECT_EQ(bytes(), before);
}

TEST_F(TorchFiles, RunNothingAndNameWhatTheyRefuse) {
  for (const auto& [name, call] : std::vector<std::pair<std::string, std::string>>{
           {"posix.system", "cposix\nsystem\n(X\x04\0\0\0truetR."s},
           {"os.system", "X\x02\0\0\0osX\x06\0\0\0system\x93(tR."s},
           {"__builtin__.eval",
            "c__builtin__\neval\n(X\x01\0\0\0"
            "1tR."s},
           {"torch.hub.load", "ctorch.hub\nload\n(tR."s},
           {"numpy.core.multiarray.scalar", "cnumpy.core.multiarray\nscalar\n(tR."s},
           {"argparse.Namespace", "cargparse\nNamespace\n)\x81}b."s},
           {"torch.QInt8Storage", "ctorch\nQInt8Storage\n."s},
           {"\\x0a", "X\x03\0\0\0o\nsX\x01\0\0\0s\x93."s}}) {
    put_pickle("\x80\x02" + call);
    expect_error(ErrorCode::kUnsupported, name, name);
  }
}

TEST_F(TorchFiles, BrokenPicklesAreErrors) {
  const std::string deep = std::string(200, ']') + std::string(199, 'a');
  std::string doubling = "K\x01q\0"s;
  for (int i = 0; i < 40; ++i) doubling += "h\0h\0\x86q\0"s;
  const auto expect_corrupt = [&](const std::string& pickle, const std::string& part) {
    put_pickle("\x80\x02" + pickle);
    expect_error(ErrorCode::kCorrupt, part, testing::PrintToString(pickle.substr(0, 60)));
  };
  for (const char* none : {".", "t.", "a.", "]a.", "s.", "R.", "Q.", "b.", "\x85.", "(a.", "](.", "0.", "Na", ""}) {
    expect_corrupt(none, "its pickle");
  }
  expect_corrupt("h\x05.", "memory");
  expect_corrupt("}(Nu.", "without a value");
  expect_corrupt("](NNu.", "no dict");
  expect_corrupt("X\xff\xff\xff\xff.", "bytes are left");
  expect_corrupt("X\x05\0\0\0ab"s, "bytes are left");
  expect_corrupt("NNR.", "no function");
  expect_corrupt("ctorch\nSize\nNR.", "tuple of arguments");
  expect_corrupt("ctorch\nSize\n)R.", "0 arguments");
  expect_corrupt("ctorch\nSize\nN\x85R.", "no tuple");
  expect_corrupt("c" + std::string(300, 'a') + "\nb\n.", "name of over");
  expect_corrupt("ctorch\ndevice\nX\x03\0\0\0foo\x85R."s, "no device");
  expect_corrupt(deep + ".", "nested");
  expect_corrupt("]q\0h\0a."s, "contains itself");
  expect_corrupt("}q\0K\x01h\0s."s, "contains itself");
  expect_corrupt(doubling + ".", "values");
  expect_corrupt("(N)Q.", "damaged");
  put_pickle("\x80\x02\x8a\x09" + std::string(9, '\x7f') + ".");
  expect_error(ErrorCode::kUnsupported, "64 bits", "a long integer");
  put_pickle("\x80\x02I1\n.");
  expect_error(ErrorCode::kUnsupported, "opcode 0x49", "protocol 0");
  put_pickle("\x80\x02}NNs.");
  expect_error(ErrorCode::kUnsupported, "key", "a key that is None");
}

TEST_F(TorchFiles, TensorsStayInsideTheirStorage) {
  put_pickle(tensor_pickle("K\x04", "K\0K\x04\x85K\x01\x85"s));
  EXPECT_EQ(read_torch_file(path()).toTensor().sizes(), torch::IntArrayRef({4}));
  const std::string huge = "\x8a\x08\0\0\0\0\0\0\0\x40"s;
  for (const auto& [count, rest] : std::vector<std::pair<std::string, std::string>>{
           {"K\x04", "K\x01K\x04\x85K\x01\x85"s},            // offset
           {"K\x04", "K\0K\x05\x85K\x01\x85"s},              // one too many
           {"K\x04", "K\0K\x02\x85K\x04\x85"s},              // stride
           {"K\x04", "K\0K\x04\x85J\xff\xff\xff\xff\x85"s},  // backwards
           {"K\x04", "K\0J\xff\xff\xff\xff\x85K\x01\x85"s},
           {"K\x04", "J\xff\xff\xff\xffK\x04\x85K\x01\x85"s},
           {"K\x04", "K\0K\x04\x85K\x01K\x01\x86"s},  // more strides than dimensions
           {"K\x04", "K\0"s + huge + "\x85K\0\x85"s},
           {"K\x04", "K\0"s + huge + huge + "\x86" + huge + huge + "\x86"},
           {"K\x04", huge + "K\0\x85K\x01\x85"s},
           {"K\x04", "K\0NK\x01\x85"s},
           {"K\x05", "K\0K\x05\x85K\x01\x85"s},  // more than the file has
           {"K\x03", "K\0K\x03\x85K\x01\x85"s},
           {huge, "K\0K\x04\x85K\x01\x85"s},
           {"J\xff\xff\xff\xff", "K\0K\x04\x85K\x01\x85"s}}) {
    put_pickle(tensor_pickle(count, rest));
    EXPECT_EQ(error().first, ErrorCode::kCorrupt) << testing::PrintToString(count + rest);
  }
}

// Integers whose places in any table of LibTorch's dict are neighbours: its table would grow without end.
TEST_F(TorchFiles, KeysThatCollideDoNotTakeAllMemory) {
  constexpr std::uint64_t kFactor = 11400714819323198485U;
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  ASSERT_EQ(inverse * kFactor, 1U);
  std::string pickle = "\x80\x02}(";
  for (std::uint64_t i = 1; i <= 100; ++i) {
    const std::uint64_t key = i * inverse;
    pickle += "\x8a\x08" + std::string(reinterpret_cast<const char*>(&key), 8) + "N";
  }
  put_pickle(pickle + "u.");
  expect_error(ErrorCode::kCorrupt, "keys", "colliding keys");
}

TEST_F(TorchFiles, Zip64RecordsAreReadAndWritten) {
  put_pickle(tensor_pickle("K\x04", "K\0K\x04\x85K\x01\x85"s), /*zip64_from=*/1);
  EXPECT_EQ(read_torch_file(path()).toTensor().numel(), 4);
  std::string absurd = bytes();
  const std::size_t end = absurd.find("PK\x06\x06");
  ASSERT_NE(end, std::string::npos);
  for (const std::size_t field : {24U, 32U, 40U, 48U}) {  // numbers of entries, size and offset of the directory
    std::string damaged = absurd;
    damaged.replace(end + field, 8, 8, '\xff');
    put(damaged);
    const ErrorCode code = error().first;
    EXPECT_TRUE(code == ErrorCode::kCorrupt || field == 24U) << field;
  }
}

TEST_F(TorchFiles, HostileZipFilesAreErrors) {
  put_pickle(tensor_pickle("K\x04", "K\0K\x04\x85K\x01\x85"s));
  const std::string good = bytes();
  for (std::size_t length = 0; length < good.size(); ++length) {
    put(good.substr(0, length));
    EXPECT_EQ(error().first, ErrorCode::kCorrupt) << length << " bytes";
  }
  const std::size_t first = good.find("PK\x01\x02");
  const std::size_t second = good.find("PK\x01\x02", first + 1);
  const auto changed = [&](std::size_t at, const std::string& value) {
    std::string damaged = good;
    put(damaged.replace(at, value.size(), value));
    return error();
  };
  EXPECT_EQ(changed(second + 10, "\x0c").first, ErrorCode::kUnsupported) << "compressed by another method";
  EXPECT_NE(changed(second + 10, "\x08").second.find("inflated"), std::string::npos);
  EXPECT_EQ(changed(second + 8, "\x01").first, ErrorCode::kUnsupported) << "encrypted";
  EXPECT_EQ(changed(second + 24, "\x20").first, ErrorCode::kCorrupt) << "one of two sizes";
  EXPECT_NE(changed(second + 20, "\x40\0\0\0\x40\0\0\0"s).second.find("entries end"), std::string::npos);
  EXPECT_NE(changed(second + 42, "\0\0\0\0"s).second.find("overlap"), std::string::npos);
  EXPECT_NE(changed(second + 46, "a/data.pkl").first, ErrorCode::kOk);
  EXPECT_NE(changed(good.size() - 22 + 10, "\xff\x0f").second.find("promises"), std::string::npos);
  EXPECT_NE(changed(good.find('\x01' + std::string(15, '\x01')), "\x02").second.find("CRC"), std::string::npos);
}

// What a disk or another program may leave after the end, and Python reads.
TEST_F(TorchFiles, MayHaveBytesAfterTheirEnd) {
  put_pickle(tensor_pickle("K\x04", "K\0K\x04\x85K\x01\x85"s));
  put(bytes() + std::string(4096, '\0'));
  EXPECT_EQ(read_torch_file(path()).toTensor().numel(), 4);
}

TEST_F(TorchFiles, SayWhatOtherFilesAre) {
  EXPECT_EQ(error().first, ErrorCode::kNotFound);
  put("");
  EXPECT_EQ(error().first, ErrorCode::kCorrupt);
  put("\x80\x04N.");
  expect_error(ErrorCode::kUnsupported, "torch.save", "another pickle");
  put("\x10\0\0\0\0\0\0\0{}              "s);
  expect_error(ErrorCode::kCorrupt, "safetensors", "a safetensors file");
  for (const auto& [content, part] : std::vector<std::pair<std::string, std::string>>{
           {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "git lfs pull"},
           {"\n<!DOCTYPE html><html></html>", "web page"},
           {"<?xml version=\"1.0\"?><Error/>", "web page"}}) {
    put(content);
    expect_error(ErrorCode::kCorrupt, part, content);
    test::expect_error<CheckpointError>(ErrorCode::kCorrupt, {part}, [&] { read_state_dict(path()); });
  }
  torch::save(torch::nn::Linear(2, 2), path());
  expect_error(ErrorCode::kUnsupported, "TorchScript", "a module of LibTorch");
}

// The older format, as Python writes it.
std::string legacy_file() {
  PickleWriter version;
  version.integer(1001);
  PickleWriter machine;
  machine.begin_dict(), machine.text("little_endian"), machine.boolean(true), machine.end_dict();
  PickleWriter value;
  value.begin_dict(), value.text("w");
  value.name("torch._utils", "_rebuild_tensor_v2"), value.begin_tuple();
  value.begin_tuple(), value.text("storage"), value.name("torch", "FloatStorage"), value.text("7"), value.text("cpu");
  value.integer(4), value.none(), value.end_tuple(), value.storage();
  value.integer(0);
  value.begin_tuple(), value.integer(2), value.integer(2), value.end_tuple();
  value.begin_tuple(), value.integer(1), value.integer(2), value.end_tuple();
  value.boolean(false), value.empty_mapping(), value.end_tuple(), value.call();
  value.text("lr"), value.floating(0.5), value.end_dict();
  PickleWriter keys;
  keys.begin_list(), keys.text("7"), keys.end_list();
  const torch::Tensor data = torch::arange(4.0F);
  return "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19."s + version.finish() + machine.finish() + value.finish() +
         keys.finish() + "\x04\0\0\0\0\0\0\0"s + std::string(static_cast<const char*>(data.data_ptr()), 16);
}

TEST_F(TorchFiles, OfTheOlderFormatAreRead) {
  const std::string good = legacy_file();
  put(good);
  const Dict read = read_torch_file(path()).toGenericDict();
  EXPECT_TRUE(torch::equal(read.at("w").toTensor(), torch::arange(4.0F).view({2, 2}).t()));
  EXPECT_EQ(read.at("lr").toDouble(), 0.5);
  for (std::size_t length = 0; length < good.size(); ++length) {
    put(good.substr(0, length));
    EXPECT_NE(error().first, ErrorCode::kOk) << length << " bytes";
  }
}

// Changed at random, a file is read or refused in bounded memory, and nothing else happens.
TEST_F(TorchFiles, AreReadOrRefusedWhateverTheirBytes) {
  torch::ones({1 << 16}).sum();  // starts LibTorch's threads before memory is limited
  const test::AddressSpaceLimit limit(std::uint64_t{1} << 30);
  Dict value = make_dict();
  value.insert("w", torch::arange(6.0F).view({2, 3}).t());
  value.insert("c", torch::zeros({2}, torch::kComplexFloat));
  value.insert(3, c10::ivalue::Tuple::create(std::vector<c10::IValue>{1.5, true, c10::IValue(), "text", 1 << 20}));
  write_torch_file(path(), value);
  const std::string zip = bytes();
  const std::string pickle = tensor_pickle("K\x04", "K\0K\x02K\x02\x86K\x01K\x02\x86"s);
  constexpr std::size_t kRoom = 512;
  const std::string room(kRoom, '.');
  put_pickle(room);
  std::string around = bytes();  // with a CRC of 0, which says that there is none: changes reach the pickle's reader
  around.replace(around.find("PK\x01\x02") + 16, 4, 4, '\0');
  const std::vector<std::string> words{"(",
                                       ")",
                                       "]",
                                       "}",
                                       "t",
                                       "R",
                                       "u",
                                       "s",
                                       "a",
                                       "h\x01"s,
                                       "q\x01"s,
                                       "N",
                                       "\x85"s,
                                       "\x86"s,
                                       "K\x7f"s,
                                       "\x8a\x08",
                                       "b",
                                       "Q",
                                       ".",
                                       "PK",
                                       "\xff\xff\xff\xff",
                                       "J\xff\xff\xff\x7f",
                                       "ctorch\nSize\n",
                                       "ctorch\nFloatStorage\n"};
  std::mt19937 random(11);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  std::set<ErrorCode> codes;
  for (int i = 0; i < 6000; ++i) {
    std::string text = i % 3 == 0 ? zip : i % 3 == 1 ? pickle : legacy_file();
    for (std::size_t changes = 1 + below(3); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = below(text.size());
      const std::size_t count = std::min(below(8), text.size() - at);
      switch (below(5)) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
        case 2: text.erase(at, count); break;
        case 3: text.insert(at, words[below(words.size())]); break;
        default: text.insert(below(text.size()), text.substr(at, 2 * count)); break;
      }
    }
    if (i % 3 == 1) {  // bytes after the pickle's end are not read
      text.resize(kRoom, '.');
      text = std::string(around).replace(around.find(room), kRoom, text);
    }
    put(text);
    codes.insert(error().first);
  }
  EXPECT_EQ(codes, (std::set<ErrorCode>{ErrorCode::kOk, ErrorCode::kCorrupt, ErrorCode::kUnsupported}));
}

}  // namespace
}  // namespace lockstep::checkpoint
