#include "tensor_file_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/errors.h"
#include "sha256.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

struct DtypeName {
  torch::ScalarType dtype;
  const char* name;
};

constexpr std::array kDtypes = {
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
};

CheckpointError corrupt(const std::string& what) {
  return CheckpointError(ErrorCode::kCorrupt, what);
}

const char* name_of(const TensorEntry& entry) {
  for (const DtypeName& known : kDtypes) {
    if (known.dtype == entry.dtype) return known.name;
  }
  throw CheckpointError(ErrorCode::kUnsupported,
                        fmt::format("tensor \"{}\" has dtype {}, which safetensors files cannot hold", entry.name,
                                    c10::toString(entry.dtype)));
}

torch::ScalarType dtype_of(const json& value, const std::string& tensor) {
  const std::string name = value.is_string() ? value.get<std::string>() : value.dump();
  for (const DtypeName& known : kDtypes) {
    if (name == known.name) return known.dtype;
  }
  throw corrupt(fmt::format("tensor \"{}\" has the unknown dtype {:.40}", tensor, name));
}

// A non-negative number that fits, or nothing.
std::optional<std::uint64_t> natural(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  return number > static_cast<std::uint64_t>(INT64_MAX) ? std::nullopt : std::optional(number);
}

// Zero-sized dimensions do not hide the overflow of the others: strides are calculated from those too.
std::uint64_t bytes_of(const TensorEntry& entry) {
  std::uint64_t without_zeros = c10::elementSize(entry.dtype);
  bool empty = false;
  for (const std::int64_t dimension : entry.shape) {
    empty = empty || dimension == 0;
    if (dimension == 0) continue;
    if (__builtin_mul_overflow(without_zeros, static_cast<std::uint64_t>(dimension), &without_zeros) ||
        without_zeros > static_cast<std::uint64_t>(INT64_MAX)) {
      throw corrupt(fmt::format("tensor \"{}\" has an impossible shape", entry.name));
    }
  }
  return empty ? 0 : without_zeros;
}

TensorEntry parse_entry(const std::string& name, const json& value) {
  const json* fields = &value;
  if (!fields->is_object() || !fields->contains("dtype") || !fields->contains("shape") ||
      !fields->contains("data_offsets")) {
    throw corrupt(fmt::format("tensor \"{}\" lacks dtype, shape or data_offsets", name));
  }
  TensorEntry entry{name, dtype_of(value["dtype"], name), {}, 0, 0};
  constexpr std::size_t kMostDimensions = 64;
  const json& shape = value["shape"];
  if (!shape.is_array() || shape.size() > kMostDimensions)
    throw corrupt(fmt::format("tensor \"{}\" has no valid shape", name));
  for (const json& dimension : shape) {
    const auto number = natural(dimension);
    if (!number) throw corrupt(fmt::format("tensor \"{}\" has no valid shape", name));
    entry.shape.push_back(static_cast<std::int64_t>(*number));
  }
  const json& offsets = value["data_offsets"];
  const auto begin = offsets.is_array() && offsets.size() == 2 ? natural(offsets[0]) : std::nullopt;
  const auto end = begin ? natural(offsets[1]) : std::nullopt;
  if (!end || *end < *begin) throw corrupt(fmt::format("tensor \"{}\" has no valid data_offsets", name));
  entry.begin = *begin;
  entry.end = *end;
  if (entry.end - entry.begin != bytes_of(entry)) {
    throw corrupt(fmt::format("tensor \"{}\" needs {} bytes, its data_offsets span {}", name, bytes_of(entry),
                              entry.end - entry.begin));
  }
  return entry;
}

std::map<std::string, std::string> parse_metadata(const json& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) throw corrupt("__metadata__ is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw corrupt(fmt::format("metadata \"{}\" is not text", key));
    metadata[key] = text.get<std::string>();
  }
  const auto format = metadata.find(std::string(kFormatKey));
  if (format != metadata.end() && format->second != kFormat) {
    throw CheckpointError(
        ErrorCode::kUnsupported,
        fmt::format("written in format {:.20}, this version of Lockstep reads format {}: use a newer one",
                    format->second, kFormat));
  }
  return metadata;
}

void require_no_holes(std::vector<TensorEntry>& entries, std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != expected) {
      throw corrupt(
          fmt::format("tensor \"{}\" begins at byte {} of the data, expected {}", entry.name, entry.begin, expected));
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    throw corrupt(
        fmt::format("the header promises {} bytes of data, the file has {} (truncated?)", expected, data_bytes));
  }
}

}  // namespace

std::vector<TensorEntry> lay_out(const std::map<std::string, torch::Tensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), 0, 0});
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
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
  } catch (const json::exception& error) {
    throw CheckpointError(ErrorCode::kInvalidArgument, fmt::format("names and values must be UTF-8: {}", error.what()));
  }
}

TensorFileHeader parse_header(std::string_view text, std::uint64_t data_bytes) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) throw corrupt("the header is not a JSON object");
  TensorFileHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(value);
    } else {
      header.entries.push_back(parse_entry(name, value));
    }
  }
  require_no_holes(header.entries, data_bytes);
  return header;
}

std::optional<std::size_t> find_checksum(std::string_view text) {
  // Quotes inside JSON text are escaped, so this can only be the key itself.
  const std::string before = fmt::format("\"{}\":\"", kChecksumKey);
  const std::size_t found = text.find(before);
  if (found == std::string_view::npos) return std::nullopt;
  const std::size_t digits = found + before.size();
  if (text.size() <= digits + kSha256Digits || text[digits + kSha256Digits] != '"') return std::nullopt;
  return digits;
}

}  // namespace lockstep::checkpoint
