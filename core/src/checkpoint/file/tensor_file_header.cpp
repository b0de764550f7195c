#include "tensor_file_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/arithmetic.h"
#include "base/printable.h"
#include "file_checksum.h"
#include "lockstep/checkpoint/errors.h"
#include "tensor_rules.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

struct DtypeName {
  torch::ScalarType dtype;
  const char* name;
};

constexpr std::array kHeaderDtypes = {
    DtypeName{torch::kBool, "BOOL"},
    DtypeName{torch::kUInt8, "U8"},
    DtypeName{torch::kInt8, "I8"},
    DtypeName{torch::kUInt16, "U16"},
    DtypeName{torch::kInt16, "I16"},
    DtypeName{torch::kUInt32, "U32"},
    DtypeName{torch::kInt32, "I32"},
    DtypeName{torch::kUInt64, "U64"},
    DtypeName{torch::kInt64, "I64"},
    DtypeName{torch::kHalf, "F16"},
    DtypeName{torch::kBFloat16, "BF16"},
    DtypeName{torch::kFloat, "F32"},
    DtypeName{torch::kDouble, "F64"},
    DtypeName{torch::kComplexFloat, "C64"},
    DtypeName{torch::kFloat8_e4m3fn, "F8_E4M3"},
    DtypeName{torch::kFloat8_e5m2, "F8_E5M2"},
    DtypeName{torch::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    DtypeName{torch::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    DtypeName{torch::kFloat8_e8m0fnu, "F8_E8M0"},
};

CheckpointError damaged_header(const std::string& what) {
  return CheckpointError(ErrorCode::kCorrupt, what);
}

// A name of the file for a message: it may be long, and hold anything.
std::string shown(std::string_view name) {
  constexpr std::size_t kMost = 100;
  return printable(name.substr(0, kMost)) + (name.size() > kMost ? "..." : "");
}

const char* name_of(const TensorEntry& entry) {
  for (const DtypeName& known : kHeaderDtypes) {
    if (known.dtype == entry.dtype) return known.name;
  }
  throw CheckpointError(ErrorCode::kUnsupported,
                        fmt::format("tensor \"{}\" has dtype {}, which safetensors files cannot hold", entry.name,
                                    c10::toString(entry.dtype)));
}

// Counts dimensions of 0 as 1: LibTorch calculates strides from the others, and these must not overflow.
std::uint64_t bytes_of(const TensorEntry& entry) {
  std::uint64_t without_zeros = c10::elementSize(entry.dtype);
  bool empty = false;
  for (const std::int64_t dimension : entry.shape) {
    empty = empty || dimension == 0;
    if (dimension == 0) continue;
    if (__builtin_mul_overflow(without_zeros, static_cast<std::uint64_t>(dimension), &without_zeros) ||
        without_zeros > static_cast<std::uint64_t>(INT64_MAX)) {
      throw damaged_header(fmt::format("tensor \"{}\" has an impossible shape", entry.name));
    }
  }
  return empty ? 0 : without_zeros;
}

torch::ScalarType dtype_of(const std::string& name, const std::string& tensor) {
  for (const DtypeName& known : kHeaderDtypes) {
    if (name == known.name) return known.dtype;
  }
  // Types of the format whose elements are no whole bytes.
  if (name == "F4" || name.starts_with("F6")) {
    throw CheckpointError(ErrorCode::kUnsupported,
                          fmt::format("tensor \"{}\" has dtype {:.40}, which LibTorch lacks", tensor, name));
  }
  throw damaged_header(fmt::format("tensor \"{}\" has the unknown dtype {:.40}", tensor, name));
}

void require_known_format(const std::map<std::string, std::string>& metadata) {
  const auto format = metadata.find(std::string(kFormatKey));
  if (format == metadata.end() || format->second == kFormat) return;
  throw CheckpointError(
      ErrorCode::kUnsupported,
      fmt::format("written in format {:.20}, this version of Lockstep reads format {}: use a newer one", format->second,
                  kFormat));
}

// Parses the header event by event and makes no tree: deep nesting in a hostile file cannot overflow the stack, and
// only entries and metadata are kept. Unknown fields are skipped.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(TensorFileHeader& header) : header_(header) {}

  bool null() override { return other_value(); }
  bool boolean(bool) override { return other_value(); }
  bool number_integer(json::number_integer_t) override { return other_value(); }
  bool number_unsigned(json::number_unsigned_t value) override {
    if (list_ == nullptr || value > static_cast<std::uint64_t>(INT64_MAX)) return other_value();
    if (list_->size() == kMostDimensions) fail_field();
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool number_float(json::number_float_t, const std::string&) override { return other_value(); }
  bool string(std::string& value) override {
    if (depth_ == kInEntry && in_metadata()) {
      header_.metadata[field_] = std::move(value);
    } else if (depth_ == kInEntry && field_ == "dtype") {
      dtype_ = dtype_of(value, shown(name_));
    } else {
      return other_value();
    }
    return true;
  }
  bool binary(json::binary_t&) override { return other_value(); }

  bool start_object(std::size_t) override {
    if (depth_ >= kInEntry) other_value();
    go_down();
    if (depth_ == kInEntry) begin_entry();
    return true;
  }
  bool start_array(std::size_t) override {
    const bool is_list = depth_ == kInEntry && !in_metadata() && (field_ == "shape" || field_ == "data_offsets");
    if (is_list) {
      list_ = &(field_ == "shape" ? shape_ : offsets_).emplace();
    } else {
      other_value();
    }
    go_down();
    return true;
  }
  bool key(std::string& value) override {
    (depth_ == kInFile ? name_ : field_) = std::move(value);
    return true;
  }
  bool end_object() override {
    if (depth_ == kInEntry) end_entry();
    --depth_;
    return true;
  }
  bool end_array() override {
    if (--depth_ == kInEntry) list_ = nullptr;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    throw damaged_header(fmt::format("the header is not a JSON object (at its byte {})", position));
  }

 private:
  static constexpr std::size_t kMostDimensions = 64;
  // How deep the parser is: outside, in the file's object, in an entry.
  static constexpr int kOutside = 0, kInFile = 1, kInEntry = 2, kDeepest = 16;

  bool in_metadata() const { return name_ == "__metadata__"; }

  // A value whose type fits no known field: an error in a known one, ignored elsewhere.
  bool other_value() const {
    if (depth_ == kOutside) throw damaged_header("the header is not a JSON object");
    if (depth_ == kInFile) fail_entry();
    const bool known = in_metadata() || field_ == "dtype" || field_ == "shape" || field_ == "data_offsets";
    if (depth_ == kInEntry && known) fail_field();
    if (list_ != nullptr) fail_field();
    return true;
  }

  void go_down() {
    if (++depth_ > kDeepest) throw damaged_header(fmt::format("\"{}\" is nested too deeply", shown(name_)));
  }

  void begin_entry() {
    dtype_.reset();
    shape_.reset();
    offsets_.reset();
  }

  void end_entry() {
    if (in_metadata()) return require_known_format(header_.metadata);
    if (!dtype_ || !shape_ || !offsets_) fail_entry();
    field_ = "data_offsets";
    if (offsets_->size() != 2 || offsets_->at(1) < offsets_->at(0)) fail_field();
    TensorEntry entry{name_, *dtype_, *std::move(shape_), static_cast<std::uint64_t>(offsets_->at(0)),
                      static_cast<std::uint64_t>(offsets_->at(1))};
    if (entry.end - entry.begin != bytes_of(entry)) {
      throw damaged_header(fmt::format("tensor \"{}\" needs {} bytes, its data_offsets span {}", shown(name_),
                                       bytes_of(entry), entry.end - entry.begin));
    }
    header_.entries.push_back(std::move(entry));
  }

  [[noreturn]] void fail_entry() const {
    if (in_metadata()) throw damaged_header("__metadata__ is not an object");
    throw damaged_header(fmt::format("tensor \"{}\" lacks dtype, shape or data_offsets", shown(name_)));
  }
  [[noreturn]] void fail_field() const {
    if (in_metadata()) throw damaged_header(fmt::format("metadata \"{}\" is not text", shown(field_)));
    throw damaged_header(fmt::format("tensor \"{}\" has no valid {}", shown(name_), shown(field_)));
  }

  TensorFileHeader& header_;
  int depth_ = kOutside;
  std::string name_;                           // of the present entry
  std::string field_;                          // in that entry
  std::vector<std::int64_t>* list_ = nullptr;  // shape_ or offsets_, while their numbers are read
  std::optional<torch::ScalarType> dtype_;
  std::optional<std::vector<std::int64_t>> shape_;
  std::optional<std::vector<std::int64_t>> offsets_;
};

void require_distinct_names(const std::vector<TensorEntry>& entries) {
  std::set<std::string_view> names;  // not hashed: the names may be chosen to collide
  for (const TensorEntry& entry : entries) {
    if (!names.insert(entry.name).second)
      throw damaged_header(fmt::format("tensor \"{}\" is there twice", shown(entry.name)));
  }
}

void require_no_holes(std::vector<TensorEntry>& entries, std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != expected) {
      throw damaged_header(fmt::format("tensor \"{}\" begins at byte {} of the data, expected {}", shown(entry.name),
                                       entry.begin, expected));
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    throw damaged_header(
        fmt::format("the header promises {} bytes of data, the file has {} (truncated?)", expected, data_bytes));
  }
}

}  // namespace

std::vector<TensorEntry> lay_out(const std::map<std::string, torch::Tensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    if (const std::string reason = why_not_saved(tensor); !reason.empty()) {
      throw CheckpointError(ErrorCode::kUnsupported, fmt::format("tensor \"{}\" {}", name, reason));
    }
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), 0, 0});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  std::uint64_t offset = 0;
  for (TensorEntry& entry : entries) {
    entry.begin = offset;
    offset += bytes_of(entry);
    entry.end = offset;
  }
  return entries;
}

std::string format_header(const TensorFileHeader& header) {
  json root = json::object();
  root["__metadata__"] = header.metadata;
  for (const TensorEntry& entry : header.entries) {
    if (entry.name == "__metadata__") {
      throw CheckpointError(ErrorCode::kInvalidArgument, "a tensor cannot be named __metadata__");
    }
    root[entry.name] = {{"dtype", name_of(entry)}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  try {
    std::string text = root.dump();
    text.resize(round_up(text.size(), 8), ' ');
    return text;
  } catch (const json::exception& error) {
    throw CheckpointError(ErrorCode::kInvalidArgument, fmt::format("names and values must be UTF-8: {}", error.what()));
  }
}

TensorFileHeader parse_header(std::string_view text, std::uint64_t data_bytes) {
  TensorFileHeader header;
  HeaderReader reader(header);
  json::sax_parse(text, &reader);
  require_distinct_names(header.entries);
  require_no_holes(header.entries, data_bytes);
  return header;
}

}  // namespace lockstep::checkpoint
