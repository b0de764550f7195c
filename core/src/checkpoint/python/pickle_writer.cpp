#include "pickle_writer.h"

#include <bit>
#include <limits>

#include "zip_format.h"

namespace lockstep::checkpoint {

using zip::append_number;

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= 0xFF) {
    bytes_ += 'K';
    append_number(bytes_, static_cast<std::uint8_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    bytes_ += 'J';
    append_number(bytes_, static_cast<std::int32_t>(value));
  } else {
    bytes_ += "\x8a\x08";
    append_number(bytes_, value);
  }
}

void PickleWriter::unsigned_integer(std::uint64_t value) {
  bytes_ += "\x8a\x09";
  append_number(bytes_, value);
  bytes_ += '\0';
}

void PickleWriter::floating(double value) {
  bytes_ += 'G';
  append_number(bytes_, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void PickleWriter::text(std::string_view utf8) {
  bytes_ += 'X';
  append_number(bytes_, static_cast<std::uint32_t>(utf8.size()));
  bytes_ += utf8;
}

template <typename Write>
void PickleWriter::once(const std::string& key, Write write) {
  const auto [found, is_new] = written_.try_emplace(key, remembered_);
  if (is_new) {
    ++remembered_;
    write();
  }
  bytes_ += is_new ? 'r' : 'j';
  append_number(bytes_, found->second);
}

void PickleWriter::name(std::string_view module, std::string_view name) {
  const std::string line = std::string(module) + "\n" + std::string(name) + "\n";
  once(line, [&] { bytes_ += "c" + line; });
}

void PickleWriter::often(std::string_view utf8) {
  once(std::string(utf8), [&] { text(utf8); });
}

void PickleWriter::remember(const void* object) {
  objects_.emplace(object, remembered_);
  bytes_ += 'r';
  append_number(bytes_, remembered_++);
}

bool PickleWriter::again(const void* object) {
  const auto found = objects_.find(object);
  if (found == objects_.end()) return false;
  bytes_ += 'j';
  append_number(bytes_, found->second);
  return true;
}

void PickleWriter::empty_mapping() {
  name("collections", "OrderedDict");
  bytes_ += ')';
  call();
}

}  // namespace lockstep::checkpoint
