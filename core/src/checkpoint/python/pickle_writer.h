// Pickles of protocol 2, as torch.save writes them.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "zip_file.h"

namespace lockstep::checkpoint {

class PickleWriter {
 public:
  PickleWriter() { bytes_ = "\x80\x02"; }

  void none() { bytes_ += 'N'; }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }

  void integer(std::int64_t value) {
    if (value >= 0 && value <= 0xFF) {
      bytes_ += 'K';
      zip::append_number(bytes_, static_cast<std::uint8_t>(value));
    } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
      bytes_ += 'J';
      zip::append_number(bytes_, static_cast<std::int32_t>(value));
    } else {
      bytes_ += "\x8a\x08";
      zip::append_number(bytes_, value);
    }
  }

  // Of a number from 2^63 on.
  void unsigned_integer(std::uint64_t value) {
    bytes_ += "\x8a\x09";
    zip::append_number(bytes_, value);
    bytes_ += '\0';
  }

  void floating(double value) {
    bytes_ += 'G';
    zip::append_number(bytes_, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
  }

  void text(std::string_view utf8) {
    bytes_ += 'X';
    zip::append_number(bytes_, static_cast<std::uint32_t>(utf8.size()));
    bytes_ += utf8;
  }

  // A name of pickle_names.h, or a text, that occurs often: written once.
  void name(std::string_view module, std::string_view name) {
    const std::string line = std::string(module) + "\n" + std::string(name) + "\n";
    once(line, [&] { bytes_ += "c" + line; });
  }

  void often(std::string_view utf8) {
    once(std::string(utf8), [&] { text(utf8); });
  }

  // Remembers the last value as that of `object`; writes it again if it is remembered.
  void remember(const void* object) {
    objects_.emplace(object, remembered_);
    bytes_ += 'r';
    zip::append_number(bytes_, remembered_++);
  }

  bool again(const void* object) {
    const auto found = objects_.find(object);
    if (found == objects_.end()) return false;
    bytes_ += 'j';
    zip::append_number(bytes_, found->second);
    return true;
  }

  void begin_tuple() { bytes_ += '('; }
  void end_tuple() { bytes_ += 't'; }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += 'e'; }
  // Keys and values follow one another.
  void begin_dict() { bytes_ += "}("; }
  void end_dict() { bytes_ += 'u'; }

  // An empty OrderedDict.
  void empty_mapping() {
    name("collections", "OrderedDict");
    bytes_ += ')';
    call();
  }

  void call() { bytes_ += 'R'; }     // of the last two values: a name, a tuple
  void storage() { bytes_ += 'Q'; }  // makes the last value, a tuple, a reference to a storage

  // Ends the pickle.
  std::string finish() { return std::move(bytes_ += '.'); }

 private:
  template <typename Write>
  void once(const std::string& key, Write write) {
    const auto [found, is_new] = written_.try_emplace(key, remembered_);
    if (is_new) {
      ++remembered_;
      write();
    }
    bytes_ += is_new ? 'r' : 'j';
    zip::append_number(bytes_, found->second);
  }

  std::string bytes_;
  std::map<std::string, std::uint32_t> written_;
  std::map<const void*, std::uint32_t> objects_;
  std::uint32_t remembered_ = 0;
};

}  // namespace lockstep::checkpoint
