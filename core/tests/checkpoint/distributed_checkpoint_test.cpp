// Distributed checkpoints that are written by hand here, good ones and others. Those of Python itself are in
// tests/parity.
#include "lockstep/checkpoint/distributed_checkpoint.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "checkpoint/dict.h"
#include "checkpoint/pickle_file.h"
#include "checkpoint/state/file_values.h"
#include "checkpoint/tools/tools.h"
#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "support/address_space_limit.h"
#include "support/effort.h"
#include "support/expect_error.h"
#include "support/read_file.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

using namespace std::string_literals;
using Numbers = std::vector<std::int64_t>;

// --- Pickles

std::string text(const std::string& utf8) {
  const auto length = static_cast<std::uint32_t>(utf8.size());
  return "X" + std::string(reinterpret_cast<const char*>(&length), 4) + utf8;
}
std::string number(std::int64_t value) {
  return "\x8a\x08" + std::string(reinterpret_cast<const char*>(&value), 8);
}
std::string size(const Numbers& numbers) {
  std::string all = "ctorch\nSize\n(";
  for (const std::int64_t value : numbers) all += number(value);
  return all + "t\x85R";
}
const std::string kMetadata = "torch.distributed.checkpoint.metadata";

// `fields`: keys and values.
std::string record(const std::string& module, const std::string& name, const std::string& fields) {
  return "c" + module + "\n" + name + "\n)\x81}(" + fields + "ub";
}

// A checkpoint in the making; its parts can be changed before write().
struct Parts {
  std::string about;   // state_dict_metadata
  std::string paths;   // planner_data
  std::string places;  // storage_data
  std::map<std::string, std::string> files;
  std::string extra;  // fields of each place
  std::string properties = "ctorch\nfloat32\n";

  static std::string chunk(const Numbers& offsets, const Numbers& sizes) {
    return record(kMetadata, "ChunkStorageMetadata", text("offsets") + size(offsets) + text("sizes") + size(sizes));
  }

  void add_about(const std::string& name, const Numbers& sizes, const std::string& chunks) {
    const std::string all = "c" + kMetadata + "\nTensorProperties\n)\x81(" + properties +
                            "ctorch.serialization\n_get_layout\n" + text("torch.strided") + "\x85R\x89" + "c" +
                            kMetadata + "\n_MEM_FORMAT_ENCODING\nK\0\x85R\x89Ntb"s;
    about += text(name) +
             record(kMetadata, "TensorStorageMetadata",
                    text("properties") + all + text("size") + size(sizes) + text("chunks") + "](" + chunks + "e");
  }
  void add_place(const std::string& name, const std::string& offset, const std::string& file, std::int64_t begin,
                 std::int64_t length) {
    places += record(kMetadata, "MetadataIndex", text("fqn") + text(name) + offset) +
              record("torch.distributed.checkpoint.filesystem", "_StorageInfo",
                     text("relative_path") + text(file) + text("offset") + number(begin) + text("length") +
                         number(length) + extra);
  }
  // Puts a value into a file, and says where it is.
  void put(const std::string& name, const std::string& offset, const std::string& file, const c10::IValue& value) {
    const test::ScratchFolder scratch;
    write_torch_file(scratch.path("value"), value);
    put_bytes(name, offset, file, test::read_file(scratch.path() / "value"));
  }
  void put_bytes(const std::string& name, const std::string& offset, const std::string& file,
                 const std::string& bytes) {
    add_place(name, offset, file, static_cast<std::int64_t>(files[file].size()),
              static_cast<std::int64_t>(bytes.size()));
    files[file] += bytes;
  }
  static std::string at(const Numbers& offsets) { return text("offset") + size(offsets); }

  void add_tensor(const std::string& name, const torch::Tensor& tensor) {
    const Numbers zeros(static_cast<std::size_t>(tensor.dim()), 0);
    add_about(name, tensor.sizes().vec(), chunk(zeros, tensor.sizes().vec()));
    put(name, at(zeros), "__0_0.distcp", tensor);
  }
  void add_object(const std::string& name, const c10::IValue& value) {
    about += text(name) + record(kMetadata, "BytesStorageMetadata", "");
    put(name, "", "__0_0.distcp", value);
  }
  // `pickle`: the opcodes of a value that no function here writes.
  void add_pickle(const std::string& name, const std::string& pickle) {
    about += text(name) + record(kMetadata, "BytesStorageMetadata", "");
    const test::ScratchFolder scratch;
    write_pickle_file(scratch.path() / "value", "\x80\x02" + pickle + ".");
    put_bytes(name, "", "__0_0.distcp", test::read_file(scratch.path() / "value"));
  }
  // A matrix in four boxes, two for each of two ranks.
  void add_boxes(const std::string& name, const torch::Tensor& tensor) {
    std::string chunks;
    const std::int64_t rows = tensor.size(0);
    const std::int64_t columns = tensor.size(1);
    for (const std::int64_t row : {std::int64_t{0}, rows / 3}) {
      for (const std::int64_t column : {std::int64_t{0}, columns / 2}) {
        const torch::Tensor box = tensor.slice(0, row, row == 0 ? rows / 3 : rows)
                                      .slice(1, column, column == 0 ? columns / 2 : columns)
                                      .clone();
        chunks += chunk({row, column}, box.sizes().vec());
        put(name, at({row, column}), row == 0 ? "__0_0.distcp" : "__1_0.distcp", box);
      }
    }
    add_about(name, tensor.sizes().vec(), chunks);
  }

  std::string metadata() const {
    return "\x80\x02" +
           record(kMetadata, "Metadata",
                  text("state_dict_metadata") + "}(" + about + "u" + text("planner_data") + "}(" + paths + "u" +
                      text("storage_data") + "}(" + places + "u" + text("storage_meta") +
                      record(kMetadata, "StorageMeta",
                             text("checkpoint_id") + "cpathlib\nPosixPath\n(" + text("/") + text("a") + "tR") +
                      text("version") + "N") +
           ".";
  }
};

class DistributedCheckpoints : public testing::Test {
 protected:
  void write(const Parts& parts) const {
    folder_.write(".metadata", parts.metadata());
    for (const auto& [name, bytes] : parts.files) folder_.write(name, bytes);
  }
  Dict read() const { return read_distributed_checkpoint(folder_.path()).toGenericDict(); }
  void expect_error(ErrorCode code, const std::string& part, const Parts& parts) const {
    write(parts);
    test::expect_error<CheckpointError>(code, {folder_.path().native(), part}, [&] { read(); });
  }

  test::ScratchFolder folder_;
};

// Tensors in pieces, of one piece, without dimensions and without elements; objects; places in dicts and lists.
Parts small() {
  Parts parts;
  parts.add_boxes("model.w", torch::arange(35.0F).view({7, 5}));
  parts.paths += text("model.w") + "(" + text("model") + text("w") + "t";
  parts.add_tensor("model.scalar", torch::full({}, 2.5F));
  parts.paths += text("model.scalar") + "(" + text("model") + text("scalar") + "t";
  parts.add_tensor("empty", torch::empty({0, 3}));
  parts.add_object("list.1.lr", 0.5);
  parts.paths += text("list.1.lr") + "(" + text("list") + number(1) + text("lr") + "t";
  parts.add_object("epoch", 7);
  return parts;
}

TEST_F(DistributedCheckpoints, AreReadAsOneStateDict) {
  write(small());
  const Dict state = read();
  const StateDict model = to_state_dict(state.at("model"));
  EXPECT_TRUE(torch::equal(model["w"], torch::arange(35.0F).view({7, 5})));
  EXPECT_EQ(model["scalar"].item<float>(), 2.5F);
  EXPECT_EQ(state.at("empty").toTensor().sizes(), torch::IntArrayRef({0, 3}));
  EXPECT_EQ(state.at("epoch").toInt(), 7);
  EXPECT_TRUE(state.at("list").toListRef()[0].isNone());
  EXPECT_EQ(state.at("list").toListRef()[1].toGenericDict().at("lr").toDouble(), 0.5);
  EXPECT_TRUE(torch::equal(read_state_dict(folder_.path(), torch::kCPU, "model")["w"], model["w"]));
}

// As the file that Python's dcp_to_torch_save() makes of it.
TEST_F(DistributedCheckpoints, ConvertSaysWhichTypesChange) {
  Parts parts = small();
  parts.add_pickle("list.2", "}(" + short_text("set") + "\x8f(K\x01\x90" + short_text("by") + "C\x01" + "au");
  parts.paths += text("list.2") + "(" + text("list") + number(2) + "t";
  parts.add_pickle("dt", "ctorch\nfloat16\n");
  write(parts);
  const auto convert_entry = [&](const std::string& entry) {
    return convert(folder_.path(), folder_.path("plain.pt"), {.entry = entry});
  };
  const std::string text = R"(changed: 1 bytes to str: ["list"][2]["by"])";
  const std::string set = R"(changed: 1 set to list: ["list"][2]["set"])";
  EXPECT_EQ(convert_entry(""), (Lines{text, set, R"(changed: 1 torch.dtype to str: ["dt"])"}));
  EXPECT_EQ(convert_entry("list"), (Lines{text, set}));
}

TEST_F(DistributedCheckpoints, WithChunksThatDoNotFitAreRefused) {
  const auto two_chunks = [&](const Numbers& first, const Numbers& second, const Numbers& sizes) {
    Parts parts;
    parts.add_about("w", {4, 2}, Parts::chunk(first, sizes) + Parts::chunk(second, sizes));
    parts.put("w", Parts::at(first), "__0_0.distcp", torch::ones(sizes));
    parts.put("w", Parts::at(second), "__0_0.distcp", torch::ones(sizes));
    return parts;
  };
  write(two_chunks({0, 0}, {2, 0}, {2, 2}));
  EXPECT_TRUE(torch::equal(read().at("w").toTensor(), torch::ones({4, 2})));
  expect_error(ErrorCode::kCorrupt, "overlap", two_chunks({0, 0}, {1, 0}, {2, 2}));
  expect_error(ErrorCode::kCorrupt, "overlap", two_chunks({0, 0}, {1, 0}, {3, 2}));
  expect_error(ErrorCode::kCorrupt, "8 of 32 bytes", two_chunks({0, 0}, {2, 0}, {1, 1}));
  expect_error(ErrorCode::kCorrupt, "leaves its tensor", two_chunks({0, 0}, {3, 0}, {2, 2}));
  expect_error(ErrorCode::kCorrupt, "leaves its tensor", two_chunks({0}, {1}, {4}));

  Parts absent;
  absent.add_about("w", {2}, Parts::chunk({0}, {2}));
  absent.files["__0_0.distcp"] = "";
  expect_error(ErrorCode::kCorrupt, "is in no file", absent);
  Parts other;
  other.add_about("w", {2}, Parts::chunk({0}, {2}));
  other.put("w", Parts::at({0}), "__0_0.distcp", torch::ones({2}, torch::kInt));
  expect_error(ErrorCode::kCorrupt, "expected Float [2]", other);
  Parts object;
  object.add_about("w", {2}, Parts::chunk({0}, {2}));
  object.put("w", Parts::at({0}), "__0_0.distcp", "text");
  expect_error(ErrorCode::kCorrupt, "no tensor", object);
  Parts vast;
  vast.add_about("w", {1 << 20, 1 << 20}, Parts::chunk({0, 0}, {1 << 20, 1 << 20}));
  vast.put("w", Parts::at({0, 0}), "__0_0.distcp", torch::ones({4, 4}));
  expect_error(ErrorCode::kCorrupt, "fewer bytes", vast);
}

// Each part asks for 240 MB, which a file alone may.
TEST_F(DistributedCheckpoints, ShareTheMemoryOfTheirParts) {
  const std::string lists = "](" + std::string(1'300'000, ']') + "e";
  Parts parts;
  parts.add_pickle("a", lists);
  write(parts);
  read();
  parts.add_pickle("b", lists);
  expect_error(ErrorCode::kCorrupt, "\"b\": damaged", parts);
}

TEST_F(DistributedCheckpoints, WithHostilePlacesAreRefused) {
  for (const char* name : {"../__0_0.distcp", "/etc/passwd", "..", ""}) {
    Parts parts = small();
    parts.add_object("more", 1);
    parts.about += text("x") + record(kMetadata, "BytesStorageMetadata", "");
    parts.add_place("x", "", name, 0, 10);
    expect_error(ErrorCode::kCorrupt, "it names the file", parts);
  }
  const auto object_at = [&](std::int64_t begin, std::int64_t length) {
    Parts parts = small();
    parts.about += text("x") + record(kMetadata, "BytesStorageMetadata", "");
    parts.add_place("x", "", "__0_0.distcp", begin, length);
    return parts;
  };
  expect_error(ErrorCode::kCorrupt, "truncated", object_at(0, 1 << 20));
  expect_error(ErrorCode::kCorrupt, "truncated", object_at(INT64_MAX, INT64_MAX));
  expect_error(ErrorCode::kCorrupt, "no whole number", object_at(-1, 10));
  expect_error(ErrorCode::kCorrupt, "used twice",
               object_at(0, static_cast<std::int64_t>(small().files["__0_0.distcp"].size())));
  Parts absent = small();
  absent.about += text("x") + record(kMetadata, "BytesStorageMetadata", "");
  absent.add_place("x", "", "__9_0.distcp", 0, 10);
  expect_error(ErrorCode::kNotFound, "__9_0.distcp", absent);
}

TEST_F(DistributedCheckpoints, NameWhatTheyRefuse) {
  Parts transformed;
  transformed.extra = text("transform_descriptors") + "](" + text("zstd") + "e";
  transformed.add_object("x", 1);
  expect_error(ErrorCode::kUnsupported, "transform_descriptors", transformed);
  Parts hostile;
  hostile.paths = text("x") + "cposix\nsystem\n(" + text("true") + "tR";
  expect_error(ErrorCode::kUnsupported, "posix.system", hostile);
  Parts twice;
  twice.add_object("x", 1);
  twice.add_object("x", 1);
  expect_error(ErrorCode::kCorrupt, "twice", twice);
  Parts inside;
  inside.add_object("a", 1);
  inside.add_object("b", 1);
  inside.paths = text("b") + "(" + text("a") + text("b") + "t";
  expect_error(ErrorCode::kCorrupt, "inside of another", inside);
  Parts far;
  far.add_object("a", 1);
  far.paths = text("a") + "(" + text("list") + number(std::int64_t{1} << 40) + "t";
  expect_error(ErrorCode::kCorrupt, "index", far);
  Parts quantized;
  quantized.properties = "ctorch\nqint8\n";
  quantized.add_tensor("x", torch::ones({1}));
  expect_error(ErrorCode::kUnsupported, "qint8", quantized);
  const std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::uint64_t length = header.size();
  Parts safetensors;
  safetensors.add_about("w", {2}, Parts::chunk({0}, {2}));
  safetensors.add_place("w", Parts::at({0}), "__0_0.distcp", 0, 8);
  safetensors.files["__0_0.distcp"] =
      std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(8, '\0');
  expect_error(ErrorCode::kUnsupported, "safetensors", safetensors);

  const test::ScratchFolder other;
  test::expect_error<CheckpointError>(ErrorCode::kNotFound, {".metadata"},
                                      [&] { read_distributed_checkpoint(other.path()); });
  other.write("__0.metadata", "");
  test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"use_collectives"},
                                      [&] { read_distributed_checkpoint(other.path()); });
  const test::ScratchFolder third;
  third.write("shard-00001-model-00001-of-00001.safetensors", "");
  test::expect_error<CheckpointError>(ErrorCode::kUnsupported, {"safetensors format"},
                                      [&] { read_distributed_checkpoint(third.path()); });
}

// Each object is a file by itself.
TEST_F(DistributedCheckpoints, WithForeignObjectsAreRead) {
  Parts parts = small();
  const test::ScratchFolder scratch;
  write_pickle_file(scratch.path("value"),
                    "\x80\x02"
                    "cargparse\nNamespace\n)\x81}b."s);
  const std::string bytes = test::read_file(scratch.path() / "value");
  parts.about += text("args") + record(kMetadata, "BytesStorageMetadata", "");
  parts.add_place("args", "", "__2_0.distcp", 0, static_cast<std::int64_t>(bytes.size()));
  parts.files["__2_0.distcp"] = bytes;
  write(parts);
  const Dict state = read();
  EXPECT_EQ(to_state_dict(state.at("model")).size(), 2U);
  EXPECT_EQ(*foreign_text(state.at("args")), "the Python object argparse.Namespace");
}

// Cut off at every byte and changed at random, a checkpoint is read or refused, in bounded memory.
TEST_F(DistributedCheckpoints, AreReadOrRefusedWhateverTheirBytes) {
  torch::ones({1 << 16}).sum();  // starts LibTorch's threads before memory is limited
  const Parts good = small();
  write(good);
  read();
  const test::AddressSpaceLimit limit(std::uint64_t{1} << 30);
  std::set<ErrorCode> codes;
  const auto attempt = [&] {
    try {
      read();
      codes.insert(ErrorCode::kOk);
    } catch (const CheckpointError& error) {
      codes.insert(error.code());
    }
  };
  const std::string metadata = good.metadata();
  for (std::size_t length = 0; length < metadata.size(); length += static_cast<std::size_t>(test::kSlowdown)) {
    folder_.write(".metadata", metadata.substr(0, length));
    EXPECT_THROW(read(), CheckpointError) << length;
  }
  std::mt19937 random(3);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  const std::vector<std::string> words{"(", ")", "t", "R", "b", "u", "N", "K\x7f", "\x85", "\x81", "]", "}", "h\x01"};
  for (int i = 0; i < test::repetitions(1500); ++i) {
    write(good);
    const bool of_metadata = i % 4 != 0;
    std::string bytes = of_metadata ? metadata : good.files.at("__1_0.distcp");
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const std::size_t at = below(bytes.size());
      switch (below(4)) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
        case 2: bytes.insert(at, words[below(words.size())]); break;
        default: bytes.resize(at + 1); break;
      }
    }
    folder_.write(of_metadata ? ".metadata" : "__1_0.distcp", bytes);
    attempt();
  }
  codes.erase(ErrorCode::kNotFound);  // another file name
  EXPECT_EQ(codes, (std::set<ErrorCode>{ErrorCode::kOk, ErrorCode::kCorrupt, ErrorCode::kUnsupported}));
}

}  // namespace
}  // namespace lockstep::checkpoint
